"""How a pass is computed: the ordinary way, in which each kernel chooses by what it is given.

The model asks its numerics for three things: to apply a function that treats every row by itself,
to plan the attention of a batch, and to attend. Here the whole batch goes into one call. The other
way is `batch_invariance.py`, whose results do not depend on the company.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from g2c_serving.forward.attention import attend, plan_groups, plan_window_groups
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache

if TYPE_CHECKING:
    from g2c_serving.forward.model import Transformer

RowFunction = Callable[..., torch.Tensor]  # tensors of N rows each -> (N, out)


class Numerics:
    """The ordinary way."""

    name = "ordinary"

    def prepare(self, model: Transformer) -> None:
        """Called before each pass of `model`."""

    def rows(self, function: RowFunction, *tensors: torch.Tensor) -> torch.Tensor:
        """`function` of all rows."""
        return function(*tensors)

    def plan(self, batch: ForwardBatch, cache: KVCache, window: int = 0) -> list:
        """How to attend in layers that see `window` tokens, 0: all before them."""
        if window:
            return plan_window_groups(batch, cache, window)
        return plan_groups(batch, cache)

    def attend(self, q: torch.Tensor, layer: int, cache: KVCache, plan: list) -> torch.Tensor:
        """Attention of queries (N, H, d) over the pages of `layer`, by plan; gives (N, H * d)."""
        return attend(q, layer, cache, plan)
