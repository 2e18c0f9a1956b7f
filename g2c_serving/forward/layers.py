"""The layers of the decoder: norms, attention and feed-forward, and the block made of them.

A block is cut at its attention: what comes before and after treats each row by itself, and
`numerics.py` says how both are computed. Brief, section 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.linear import Linear
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.numerics import Numerics, RowFunction
from g2c_serving.forward.placed_weights import PlacedWeights
from g2c_serving.forward.rotary import Turn


class LayerNorm:
    """Over the last dimension of x (N, D); gamma and beta (D,). The course's models, GPT-2."""

    def __init__(self, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> None:
        self.gamma, self.beta, self.eps = gamma, beta, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * gamma: layer norm without the mean. Llama and its kin."""

    def __init__(self, gamma: torch.Tensor, eps: float) -> None:
        self.gamma, self.eps = gamma, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.gamma.shape, self.gamma, self.eps)


def norm_of(weights: PlacedWeights, name: str, config: ModelConfig) -> LayerNorm | RMSNorm:
    gamma = weights.tensor(f"{name}.gamma")
    if config.norm == "rms":
        return RMSNorm(gamma, config.norm_eps)
    return LayerNorm(gamma, weights.tensor(f"{name}.beta"), config.norm_eps)


class Attention:
    """Causal attention; q, k and v come out of one fused linear layer. There may be fewer heads of
    keys and values than of queries (grouped-query attention).

    Replayed tokens rebuild the keys and values of window layers; those of the other layers are in
    the cache, exact and perhaps shared, and are not written again.
    """

    def __init__(
        self, weights: PlacedWeights, name: str, config: ModelConfig, layer: int, windowed: bool
    ) -> None:
        self.qkv = weights.fused([f"{name}.{p}_proj" for p in "qkv"])
        self.out = weights.linear(f"{name}.out_proj")
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.layer, self.windowed = layer, windowed

    def __call__(
        self,
        qkv: torch.Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        numerics: Numerics,
        plan: list,
        turn: Turn | None,
    ) -> torch.Tensor:
        """What the tokens (N, (H + 2 * K) * d) see, (N, H * d), before the output projection."""
        h, k = self.num_heads, self.num_kv_heads
        heads = qkv.view(qkv.shape[0], h + 2 * k, -1)  # (N, H + 2 * K, d)
        if turn is None:
            queries, keys, values = heads.split((h, k, k), dim=1)  # (N, H, d), (N, K, d) twice
        else:
            turned, values = heads.split((h + k, k), dim=1)
            queries, keys = turn(turned).split((h, k), dim=1)
        if self.windowed or batch.new_rows is None:
            cache.write(self.layer, batch.slots, keys, values)
        else:
            new = batch.new_rows
            cache.write(self.layer, batch.slots[new], keys[new], values[new])
        return numerics.attend(queries, self.layer, cache, plan)  # (N, H * d)


class Block:
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Before and after the attention itself every row is computed by itself. A block without attention
    weights is a feed-forward block alone; `inflate` uses those.
    """

    def __init__(
        self, weights: PlacedWeights, name: str, config: ModelConfig, layer: int, windowed: bool
    ) -> None:
        self.attention, self.windowed = None, windowed
        self._widths = config.embedding_dim, config.attention_dim
        if f"{name}.attn.q_proj.W" in weights:
            self.attention = Attention(weights, f"{name}.attn", config, layer, windowed)
            self.norm1 = norm_of(weights, f"{name}.ln1", config)
        self.norm2 = norm_of(weights, f"{name}.ln2", config)
        self.gate = weights.linear(f"{name}.ffn.gate", config.activation) if config.gated else None
        self.up = weights.linear(f"{name}.ffn.fc1", "none" if config.gated else config.activation)
        self.down = weights.linear(f"{name}.ffn.fc2")

    def __call__(
        self,
        x: torch.Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        numerics: Numerics,
        plan: list,
        turn: Turn | None,
    ) -> torch.Tensor:
        if self.attention is None:
            return numerics.rows(self.feed_forward, x)
        qkv = numerics.rows(self.project, x)  # (N, (H + 2 * K) * d)
        seen = self.attention(qkv, batch, cache, numerics, plan, turn)  # (N, H * d)
        return numerics.rows(self.finish, x, seen)  # (N, D)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values (N, (H + 2 * K) * d) of x (N, D)."""
        assert self.attention is not None
        return self.attention.qkv(self.norm1(x))

    def finish(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """x (N, D) with what it sees (N, H * d), then the feed-forward layer."""
        assert self.attention is not None
        return self.feed_forward(x + self.attention.out(seen))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm2(x)
        hidden = self.up(normed)  # (N, F)
        if self.gate is not None:
            hidden = self.gate(normed) * hidden
        return x + self.down(hidden)  # (N, D)

    @property
    def activated(self) -> Linear:
        """The linear layer that the activation follows."""
        return self.up if self.gate is None else self.gate

    @property
    def row_functions(self) -> list[tuple[RowFunction, tuple[int, ...]]]:
        """What is computed row by row, with the widths of the tensors (N, width) that it takes."""
        dim, seen = self._widths
        if self.attention is None:
            return [(self.feed_forward, (dim,))]
        return [(self.project, (dim,)), (self.finish, (dim, seen))]
