"""The KV cache in four bits, as far as numbers go: keys and values are rounded as they are written.

Brief, "The parts that are pure infrastructure": DeepInfer's main KV cache is NVFP4-like. Blocks of
16 (MXFP4: 32) lie along a head's dimension, so a token's key is rounded by itself and may be
written at any time, in any chunking.

What is read is bit for bit what packed pages would give, but the pages themselves stay at the
model's precision: here attention reads them as they are, and unpacking at every read would cost
more than it saves. `packed_bytes_per_token` is what packed ones would take. What is exported and
imported (a fork, the disk, another engine) has been rounded once and is not rounded again.
"""

from __future__ import annotations

from typing import Any

import torch

from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.low_precision import MXFP4, NVFP4, Format, encode, rounded

CACHE_FORMATS = {"nvfp4": NVFP4, "mxfp4": MXFP4}  # by the names that EngineConfig takes


class LowPrecisionCache(KVCache):
    """A `KVCache` whose numbers are those of `format`; the head's size must be a multiple of its
    block."""

    def __init__(self, *sizes: Any, format: Format, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.format = format
        head_dim = self.keys.shape[-1]
        if head_dim % format.block:
            raise ValueError(
                f"a head of {head_dim} numbers is no multiple of {format.block}, the block of "
                f"{format.name}: choose another EngineConfig.kv_cache_dtype"
            )

    @property
    def packed_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers, as `encode` packs them: two numbers
        a byte, and the scales."""
        layers, _, _, heads, head_dim = self.keys.shape
        return encode(torch.zeros(2, layers, heads, head_dim), self.format).nbytes

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """As KVCache.write, rounded to the format."""
        super().write(layer, slots, rounded(keys, self.format), rounded(values, self.format))
