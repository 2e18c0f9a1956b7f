"""The model: one decoder over pages, in the GPT shape of the parent course (and of GPT-2).

Pre-norm blocks, learned absolute positions, exact GELU, a head tied to the token embedding plus a
bias. The weights carry the names and shapes of the course's `TransformerLM`; the pass is ours: a
flat ragged batch in, the wanted rows' logits out, keys and values read and written through the
block tables. A block is cut at its attention: what comes before and after treats each row by
itself, and `numerics.py` says how both are computed. A block without attention weights is a
feed-forward block alone; `inflate` uses those. A window layer sees the last `window` tokens alone,
so it needs no older keys: its state is of one size however long the text is. Brief: section 1,
section 2 ("A cache that outlives the request"), and the `forward` box of "The change of
perspective".

Left out: the experts of V4.1-Flash; weights in low precision (the cache can be).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Self

import torch
import torch.nn.functional as F

from g2c_serving.checks import as_int
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.linear import Linear
from g2c_serving.forward.low_precision import Format
from g2c_serving.forward.low_precision_cache import LowPrecisionCache
from g2c_serving.forward.numerics import Numerics, RowFunction

LAYER_NORM_EPS = 1e-5
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes, under the parent course's names. `max_seq_len` is the context limit in tokens.

    window         tokens that a window layer sees, its own included; 0: there are no window layers
    window_layers  which layers, counted from 0, are window layers; the others see all before them

    ValueError for a size that is no positive integer, heads that do not divide the width, a window
    without layers or layers without a window.
    """

    vocab_size: int
    embedding_dim: int
    num_layers: int
    num_heads: int
    max_seq_len: int
    hidden_dim: int
    window: int = 0
    window_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for size in fields(self):
            if size.default is MISSING:
                as_int(size.name, getattr(self, size.name), 1)
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must divide embedding_dim={self.embedding_dim}"
            )
        self._check_window()

    def _check_window(self) -> None:
        if not isinstance(self.window_layers, list | tuple):
            raise ValueError(f"window_layers={self.window_layers!r} must be a list of layers")
        last = self.num_layers - 1
        layers = tuple(as_int("window_layers", i, 0, last) for i in self.window_layers)
        object.__setattr__(self, "window_layers", layers)  # a JSON file gives a list
        if len(set(layers)) < len(layers):
            raise ValueError(f"window_layers={list(layers)} names a layer twice")
        if (as_int("window", self.window, 0) > 0) != bool(layers):
            raise ValueError(
                f"window={self.window} and window_layers={list(layers)}: a window needs at least "
                "one layer, and a window layer a window of 1 or more"
            )

    @property
    def head_dim(self) -> int:
        return self.embedding_dim // self.num_heads


class LayerNorm:
    def __init__(self, weights: Weights, name: str) -> None:
        self.gamma, self.beta = weights[f"{name}.gamma"], weights[f"{name}.beta"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, LAYER_NORM_EPS)


class Attention:
    """Multi-head causal attention; q, k and v come out of one fused linear layer.

    Replayed tokens rebuild the keys and values of window layers; those of the other layers are in
    the cache, exact and perhaps shared, and are not written again.
    """

    def __init__(
        self, weights: Weights, name: str, num_heads: int, layer: int, windowed: bool
    ) -> None:
        parts = [f"{name}.{p}_proj" for p in "qkv"]
        self.qkv = Linear(
            torch.cat([weights[f"{p}.W"] for p in parts], dim=1),
            torch.cat([weights[f"{p}.b"] for p in parts]),
        )
        self.out = Linear(weights[f"{name}.out_proj.W"], weights[f"{name}.out_proj.b"])
        self.num_heads, self.layer, self.windowed = num_heads, layer, windowed

    def __call__(
        self,
        qkv: torch.Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        numerics: Numerics,
        plan: list,
    ) -> torch.Tensor:
        """What the tokens (N, 3 * D) see, (N, D), before the output projection."""
        q, k, v = qkv.view(qkv.shape[0], 3, self.num_heads, -1).unbind(1)  # (N, H, d)
        if self.windowed or batch.new_rows is None:
            cache.write(self.layer, batch.slots, k, v)
        else:
            new = batch.new_rows
            cache.write(self.layer, batch.slots[new], k[new], v[new])
        return numerics.attend(q, self.layer, cache, plan)  # (N, D)


class Block:
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Before and after the attention itself every row is computed by itself.
    """

    def __init__(
        self, weights: Weights, name: str, num_heads: int, layer: int, windowed: bool
    ) -> None:
        self.attention, self.windowed = None, windowed
        if f"{name}.attn.q_proj.W" in weights:
            self.attention = Attention(weights, f"{name}.attn", num_heads, layer, windowed)
            self.norm1 = LayerNorm(weights, f"{name}.ln1")
        self.norm2 = LayerNorm(weights, f"{name}.ln2")
        self.up = Linear(weights[f"{name}.ffn.fc1.W"], weights[f"{name}.ffn.fc1.b"])
        self.down = Linear(weights[f"{name}.ffn.fc2.W"], weights[f"{name}.ffn.fc2.b"])

    def __call__(
        self,
        x: torch.Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        numerics: Numerics,
        plan: list,
    ) -> torch.Tensor:
        if self.attention is None:
            return numerics.rows(self.feed_forward, x)
        qkv = numerics.rows(self.project, x)  # (N, 3 * D)
        seen = self.attention(qkv, batch, cache, numerics, plan)  # (N, D)
        return numerics.rows(self.finish, x, seen)  # (N, D)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values (N, 3 * D) of x (N, D)."""
        assert self.attention is not None
        return self.attention.qkv(self.norm1(x))

    def finish(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """x (N, D) with what it sees (N, D), then the feed-forward layer."""
        assert self.attention is not None
        return self.feed_forward(x + self.attention.out(seen))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm2(x), gelu=True))  # (N, D)

    @property
    def row_functions(self) -> list[tuple[RowFunction, int]]:
        """What is computed row by row, with how many tensors (N, D) it takes."""
        if self.attention is None:
            return [(self.feed_forward, 1)]
        return [(self.project, 1), (self.finish, 2)]


class Transformer:
    """The decoder, ready to run at one `dtype` on one `device`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.numerics = Numerics()
        self.cache_format: Format | None = None  # keys and values at the model's own precision
        self.trials: dict[int, tuple] = {}  # what `batch_invariance.py` found, by threads
        weights = {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
        self.token_embed = weights["token_embed.weight"]  # (V, D)
        self.pos_embed = weights["pos_embed.weight"]  # (max_seq_len, D)
        self.blocks: list[Block] = []
        for i in range(config.num_layers):
            layer, windowed = self.num_attention_layers, i in config.window_layers
            self.blocks.append(Block(weights, f"blocks.{i}", config.num_heads, layer, windowed))
        self.norm = LayerNorm(weights, "ln_final")
        self.head = Linear(self.token_embed.T, weights["head_bias"])

    def with_numerics(self, numerics: Numerics) -> Self:
        """The same weights, computed another way."""
        model = copy.copy(self)
        model.numerics = numerics
        with torch.inference_mode():
            numerics.prepare(model)
        return model

    def with_cache_format(self, format: Format | None) -> Self:
        """The same weights, whose new caches hold keys and values in `format` (None: unrounded)."""
        model = copy.copy(self)
        model.cache_format = format
        return model

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return sum(block.attention is not None for block in self.blocks)

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A pool of `num_blocks` blocks of `block_size` tokens for this model."""
        heads, head_dim = self.config.num_heads, self.config.head_dim
        most = -(-self.config.max_seq_len // block_size)
        sizes = self.num_attention_layers, num_blocks, block_size, heads, head_dim, most
        if self.cache_format is None:
            return KVCache(*sizes, self.dtype, self.device)
        return LowPrecisionCache(*sizes, self.dtype, self.device, format=self.cache_format)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Logits (M, V) of the batch's `logit_rows`; keys and values of all N tokens are stored
        (of replayed ones in the window layers alone)."""
        numerics, window = self.numerics, self.config.window
        numerics.prepare(self)
        plan = in_window = numerics.plan(batch, cache)
        if window:
            in_window = numerics.plan(batch, cache, window)
        x = self.token_embed[batch.token_ids] + self.pos_embed[batch.positions]  # (N, D)
        for block in self.blocks:
            x = block(x, batch, cache, numerics, in_window if block.windowed else plan)
        return numerics.rows(self.logits, x[batch.logit_rows])  # (M, V)

    def row_functions(self) -> list[tuple[RowFunction, int]]:
        """What is computed row by row, one of each shape, and how many tensors (N, D) it takes."""
        shapes = {(b.attention is None, b.up.weight.shape): b for b in self.blocks}
        return [f for block in shapes.values() for f in block.row_functions] + [(self.logits, 1)]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (M, V) of the last block's output (M, D)."""
        return self.head(self.norm(x))
