"""The model while it is trained: a plain torch GPT with autograd, dense and without a KV cache.

The same function as the serving model in `forward/model.py`, written for whole rows of tokens
instead of pages: pre-norm blocks, learned absolute positions, exact GELU, a tied head whose bias
stays zero. Layers named in `window_layers` see the last `window` tokens only, their own included.
`state_tensors` gives the weights under the names and shapes of the g2c layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEFAULT_CONFIG = {
    "embedding_dim": 256,
    "num_layers": 4,
    "num_heads": 4,
    "max_seq_len": 512,
    "hidden_dim": 1024,
}
WINDOW_CONFIG: dict[str, Any] = {
    "embedding_dim": 192,
    "num_layers": 6,
    "num_heads": 3,
    "max_seq_len": 512,
    "hidden_dim": 768,
    "window": 32,
    "window_layers": [0, 1, 3, 4],
}
DRAFTER_CONFIG = {
    "embedding_dim": 128,
    "num_layers": 2,
    "num_heads": 2,
    "max_seq_len": 512,
    "hidden_dim": 512,
}
CONFIDENCE_UNITS = 64  # hidden units of a drafter's confidence head


class Block(nn.Module):
    """Attention, then a feed-forward of two layers, each added to the stream it reads."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). Without a `mask` (T, T) of who is seen, all before are."""
        b, t, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, d)
        mixed = F.scaled_dot_product_attention(  # scores / sqrt(d)
            q, k, v, attn_mask=mask, is_causal=mask is None
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    """`forward(ids (B, T)) -> logits (B, T, V)`, T at most max_seq_len."""

    def __init__(self, vocab_size: int, config: dict[str, Any]) -> None:
        super().__init__()
        dim, self.config = config["embedding_dim"], dict(config)
        self.token_embed = nn.Embedding(vocab_size, dim)
        self.pos_embed = nn.Embedding(config["max_seq_len"], dim)
        shape = (dim, config["num_heads"], config["hidden_dim"])
        self.blocks = nn.ModuleList(Block(*shape) for _ in range(config["num_layers"]))
        self.ln_final = nn.LayerNorm(dim)
        self.window_layers = set(config.get("window_layers", ()))
        seen = sliding_window(config["max_seq_len"], config.get("window", 0))
        self.register_buffer("seen", seen, persistent=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """Normal weights of std 0.02, smaller where a block adds to the stream; biases zero."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            for last in (module.out, module.fc2):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * self.config["num_layers"]))

    def features(self, ids: Tensor) -> Tensor:
        """What the head reads, (B, T, D)."""
        x = self.token_embed(ids) + self.pos_embed.weight[: ids.shape[1]]  # (B, T, D)
        seen = cast(Tensor, self.seen)[: ids.shape[1], : ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, seen if i in self.window_layers else None)
        return self.ln_final(x)

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.token_embed.weight)  # (B, T, V)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.features(ids))


class DrafterGPT(GPT):
    """A model with a confidence head: how likely the target accepts what is drafted next."""

    def __init__(self, vocab_size: int, config: dict[str, Any]) -> None:
        super().__init__(vocab_size, config)
        self.confidence = nn.Sequential(
            nn.Linear(config["embedding_dim"], CONFIDENCE_UNITS),
            nn.GELU(),
            nn.Linear(CONFIDENCE_UNITS, 1),
        )
        self.confidence.apply(self._initialize)


def sliding_window(length: int, window: int) -> Tensor:
    """Boolean (length, length): may the token of a row see that of a column? The last `window`
    tokens, its own included."""
    behind = torch.arange(length)[:, None] - torch.arange(length)  # how far the key lies behind
    return (behind >= 0) & (behind < window)


def state_tensors(model: GPT) -> dict[str, Tensor]:
    """The weights as float32 under their g2c names; linear weights are (in, out)."""
    return {name: t.detach().float().contiguous() for name, t in _named(model).items()}


def load_tensors(model: GPT, tensors: Mapping[str, Tensor]) -> None:
    """Give `model` the weights that stand under those names in `tensors`."""
    with torch.no_grad():
        for name, mine in _named(model).items():
            mine.copy_(tensors[name])


def _named(model: GPT) -> dict[str, Tensor]:
    """The model's own parameters, or parts of them, as the g2c layout names and turns them."""
    tensors = {
        "token_embed.weight": model.token_embed.weight,
        "pos_embed.weight": model.pos_embed.weight,
        "ln_final.gamma": model.ln_final.weight,
        "ln_final.beta": model.ln_final.bias,
        "head_bias": torch.zeros(model.token_embed.num_embeddings),
    }
    for i, block in enumerate(cast(list[Block], list(model.blocks))):
        (q, k, v), (bq, bk, bv) = block.qkv.weight.chunk(3), block.qkv.bias.chunk(3)
        linears = {
            "attn.q_proj": (q, bq),
            "attn.k_proj": (k, bk),
            "attn.v_proj": (v, bv),
            "attn.out_proj": (block.out.weight, block.out.bias),
            "ffn.fc1": (block.fc1.weight, block.fc1.bias),
            "ffn.fc2": (block.fc2.weight, block.fc2.bias),
        }
        for name, (weight, bias) in linears.items():
            tensors |= {f"blocks.{i}.{name}.W": weight.T, f"blocks.{i}.{name}.b": bias}
        for name in ("ln1", "ln2"):
            norm = getattr(block, name)
            tensors |= {
                f"blocks.{i}.{name}.gamma": norm.weight,
                f"blocks.{i}.{name}.beta": norm.bias,
            }
    if isinstance(model, DrafterGPT):
        hidden, last = cast(nn.Linear, model.confidence[0]), cast(nn.Linear, model.confidence[2])
        for name, layer in (("fc1", hidden), ("fc2", last)):
            tensors |= {f"confidence.{name}.W": layer.weight.T, f"confidence.{name}.b": layer.bias}
    return tensors
