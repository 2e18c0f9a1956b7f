"""The loop before the engine: one user, one token a pass, a cache that grows by concatenation.

This is what the parent course builds, `generate_cached`, reduced to the skeleton that the Brief
prints in "The change of perspective": attention written out, plain matrix products, no batch, no
pages, no window layers. The engine is measured against it and, in float64, must write the same
tokens. It shares nothing with the engine but the weights. Layer norm is torch's own, one call where
the course has five, which favours this side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F

from g2c_serving.forward.language_model import LanguageModel

Cache = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values (H, T, d) of each layer


def argmax(logits: torch.Tensor) -> int:
    """The greedy choice from logits (V,). `.item()` waits for the device, once for every token."""
    return int(logits.argmax().item())


def refuse_windows(lm: LanguageModel, who: str) -> None:
    """ValueError where `lm` has window layers: `who` would let them see everything."""
    if layers := list(lm.config.window_layers):
        raise ValueError(f"{lm.name} has window layers {layers}: {who} has none; use the Engine")


def refuse_other_shapes(lm: LanguageModel, who: str) -> None:
    """ValueError where `who`, which computes the course's GPT, would compute something else."""
    other = lm.config.other_than_gpt + (["a head of its own"] if "head.W" in lm.weights else [])
    if other:
        raise ValueError(
            f"{lm.name} has {', '.join(other)}: {who} computes the course's GPT alone; use the "
            "Engine, or a model of that shape"
        )


def generate_cached(
    model: OneUserModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int] = (),
    pick: Callable[[torch.Tensor], int] = argmax,
) -> list[int]:
    """The new ids of one prompt, one of `eos_ids` included (Brief, "The change of perspective")."""
    cache, new_ids = model.empty_cache(), []
    for token in prompt_ids:  # the prompt, one token at a time
        logits, cache = model.forward_cached(token, cache)
    for _ in range(max_new_tokens):
        next_id = pick(logits)
        new_ids.append(next_id)
        if next_id in eos_ids or len(prompt_ids) + len(new_ids) >= model.max_seq_len:
            break
        logits, cache = model.forward_cached(next_id, cache)
    return new_ids


class OneUserModel:
    """The model of `lm` as the course computes it, in float32 or float64, on the CPU.

    ValueError for a model with window layers, or of another shape than the course's."""

    def __init__(self, lm: LanguageModel, dtype: torch.dtype = torch.float32) -> None:
        refuse_windows(lm, "OneUserModel")
        refuse_other_shapes(lm, "OneUserModel")
        weights = {name: w.to(dtype) for name, w in lm.weights.items()}
        self.num_heads, self.max_seq_len = lm.config.num_heads, lm.config.max_seq_len
        self.token_embed = weights["token_embed.weight"]  # (V, D)
        self.pos_embed = weights["pos_embed.weight"]  # (max_seq_len, D)
        self.final = weights["ln_final.gamma"], weights["ln_final.beta"]
        nothing = torch.zeros(lm.vocab_size, dtype=dtype)
        self.head_bias = weights.get("head_bias", nothing)  # (V,); GPT-2 has none
        self.blocks: list[dict[str, torch.Tensor]] = []  # attn.q_proj.W and so on, block by block
        for i in range(lm.config.num_layers):
            start = f"blocks.{i}."
            block = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
            self.blocks.append(block)

    def empty_cache(self) -> Cache:
        d = self.token_embed.shape[1] // self.num_heads
        nothing = self.token_embed.new_empty((self.num_heads, 0, d))
        return [(nothing, nothing) for block in self.blocks if "attn.q_proj.W" in block]

    def forward_cached(self, token: int, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Logits (V,) after one more token, and the cache with its keys and values."""
        logits, cache = self._forward([token], cache)
        return logits[-1], cache

    def forward(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits (T, V) of a whole text in one pass."""
        return self._forward(ids, self.empty_cache())[0]

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int], cache: Cache) -> tuple[torch.Tensor, Cache]:
        first = cache[0][0].shape[1]  # the position of ids[0]
        x = self.token_embed[torch.tensor(ids)] + self.pos_embed[first : first + len(ids)]  # (T, D)
        grown: Cache = []
        layers = iter(cache)
        for block in self.blocks:
            if "attn.q_proj.W" in block:  # the blocks that `inflate` adds have none
                attended, layer = self._attention(_norm(x, block, "ln1"), block, *next(layers))
                x = x + attended
                grown.append(layer)
            hidden = F.gelu(_linear(_norm(x, block, "ln2"), block, "ffn.fc1"))
            x = x + _linear(hidden, block, "ffn.fc2")  # (T, D)
        x = F.layer_norm(x, x.shape[-1:], *self.final)
        return x @ self.token_embed.T + self.head_bias, grown

    def _attention(
        self,
        x: torch.Tensor,
        block: dict[str, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Causal attention of x (T, D) over the cache and itself; the layer's grown cache."""
        q, k, v = (
            _linear(x, block, f"attn.{p}_proj").unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
            for p in "qkv"
        )  # (H, T, d)
        keys, values = torch.cat((keys, k), dim=1), torch.cat((values, v), dim=1)
        scores = q @ keys.transpose(1, 2) / math.sqrt(q.shape[-1])  # (H, T, cached + T)
        if len(x) > 1:
            later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(keys.shape[1] - len(x) + 1)
            scores = scores.masked_fill(later, -math.inf)
        attended = torch.softmax(scores, dim=-1) @ values  # (H, T, d)
        return _linear(attended.transpose(0, 1).flatten(1), block, "attn.out_proj"), (keys, values)


def _linear(x: torch.Tensor, block: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return x @ block[f"{name}.W"] + block[f"{name}.b"]


def _norm(x: torch.Tensor, block: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], block[f"{name}.gamma"], block[f"{name}.beta"])
