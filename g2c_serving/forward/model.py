"""The model: one decoder over pages, in the GPT shape of the parent course (and of GPT-2).

Pre-norm blocks, learned absolute positions, exact GELU, a head tied to the token embedding plus a
bias. The weights carry the names and shapes of the course's `TransformerLM`; the pass is ours: a
flat ragged batch in, the wanted rows' logits out, keys and values read and written through the
block tables. A block without attention weights is a feed-forward block alone; `inflate` uses
those. Brief: section 1, and the `forward` box of "The change of perspective".

Left out: the experts, window layers and low precision of V4.1-Flash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

from g2c_serving.checks import as_int
from g2c_serving.forward.attention import Group, attend, plan_groups
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.linear import Linear

LAYER_NORM_EPS = 1e-5
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes, under the parent course's names. `max_seq_len` is the context limit in tokens.

    ValueError for a size that is no positive integer, or heads that do not divide the width.
    """

    vocab_size: int
    embedding_dim: int
    num_layers: int
    num_heads: int
    max_seq_len: int
    hidden_dim: int

    def __post_init__(self) -> None:
        for size in fields(self):
            as_int(size.name, getattr(self, size.name), 1)
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must divide embedding_dim={self.embedding_dim}"
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
    """Multi-head causal attention; q, k and v come out of one fused linear layer."""

    def __init__(self, weights: Weights, name: str, num_heads: int, layer: int) -> None:
        parts = [f"{name}.{p}_proj" for p in "qkv"]
        self.qkv = Linear(
            torch.cat([weights[f"{p}.W"] for p in parts], dim=1),
            torch.cat([weights[f"{p}.b"] for p in parts]),
        )
        self.out = Linear(weights[f"{name}.out_proj.W"], weights[f"{name}.out_proj.b"])
        self.num_heads, self.layer = num_heads, layer

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, cache: KVCache, groups: list[Group]
    ) -> torch.Tensor:
        qkv = self.qkv(x).view(x.shape[0], 3, self.num_heads, -1)  # (N, 3, H, d)
        q, k, v = qkv.unbind(1)
        cache.write(self.layer, slots, k, v)
        return self.out(attend(q, self.layer, cache, groups))  # (N, D)


class Block:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, weights: Weights, name: str, num_heads: int, layer: int) -> None:
        self.attention = None
        if f"{name}.attn.q_proj.W" in weights:
            self.attention = Attention(weights, f"{name}.attn", num_heads, layer)
            self.norm1 = LayerNorm(weights, f"{name}.ln1")
        self.norm2 = LayerNorm(weights, f"{name}.ln2")
        self.up = Linear(weights[f"{name}.ffn.fc1.W"], weights[f"{name}.ffn.fc1.b"])
        self.down = Linear(weights[f"{name}.ffn.fc2.W"], weights[f"{name}.ffn.fc2.b"])

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, cache: KVCache, groups: list[Group]
    ) -> torch.Tensor:
        if self.attention is not None:
            x = x + self.attention(self.norm1(x), slots, cache, groups)  # (N, D)
        return x + self.down(self.up(self.norm2(x), gelu=True))  # (N, D)


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
        weights = {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
        self.token_embed = weights["token_embed.weight"]  # (V, D)
        self.pos_embed = weights["pos_embed.weight"]  # (max_seq_len, D)
        self.blocks: list[Block] = []
        for i in range(config.num_layers):
            layer = self.num_attention_layers
            self.blocks.append(Block(weights, f"blocks.{i}", config.num_heads, layer))
        self.norm = LayerNorm(weights, "ln_final")
        self.head = Linear(self.token_embed.T, weights["head_bias"])

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return sum(block.attention is not None for block in self.blocks)

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A pool of `num_blocks` blocks of `block_size` tokens for this model."""
        return KVCache(
            self.num_attention_layers,
            num_blocks,
            block_size,
            self.config.num_heads,
            self.config.head_dim,
            max_blocks_per_request=-(-self.config.max_seq_len // block_size),
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Logits (M, V) of the batch's `logit_rows`; keys and values of all N tokens are stored."""
        groups = plan_groups(batch, cache)
        x = self.token_embed[batch.token_ids] + self.pos_embed[batch.positions]  # (N, D)
        for block in self.blocks:
            x = block(x, batch.slots, cache, groups)
        return self.head(self.norm(x[batch.logit_rows]))  # (M, V)
