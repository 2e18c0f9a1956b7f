"""Logits at every place of given texts: what a trainer asks for, and what perplexity is made of.

`logits_of` takes them out of a serving model, in one batch or each text alone. `CourseModel` is the
other side: the dense forward of the parent course's `TransformerLM`, with x @ W + b and attention
written out, from the same weights. Brief, section 3, "Batch invariance".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.lab.one_user import refuse_other_shapes

BLOCK = 16


def logits_of(model: Transformer, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits (T, V) at every place of each text, from one pass over all of them."""
    tables, first = [], 0
    for ids in texts:
        needed = -(-len(ids) // BLOCK)
        tables.append(range(first, first + needed))
        first += needed
    cache = model.new_cache(first, BLOCK)
    batch = build_batch([(ids, 0) for ids in texts], tables, BLOCK, [0], model.device)
    every = torch.arange(len(batch.token_ids), device=model.device)
    logits = model.forward(dataclasses.replace(batch, logit_rows=every), cache)  # (N, V)
    return list(logits.split([len(ids) for ids in texts]))


def decoded_logits(model: Transformer, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The same as a server computes them while it writes: token by token, all texts in a step."""
    needed = [-(-len(ids) // BLOCK) for ids in texts]
    first = [sum(needed[:i]) for i in range(len(texts))]
    tables = [range(f, f + n) for f, n in zip(first, needed, strict=True)]
    cache = model.new_cache(sum(needed), BLOCK)
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    for t in range(max(map(len, texts))):
        here = [i for i, ids in enumerate(texts) if t < len(ids)]
        chunks = [(texts[i][t : t + 1], t) for i in here]
        step = build_batch(chunks, [tables[i] for i in here], BLOCK, range(len(here)), model.device)
        for i, logits in zip(here, model.forward(step, cache), strict=True):
            rows[i].append(logits)
    return [torch.stack(found) for found in rows]


class DecodeStep:
    """Texts in the cache but for their last token, each computed alone; `logits(rows)` decodes some
    of them together. The cache holds the same bits each time."""

    def __init__(self, model: Transformer, texts: Sequence[Sequence[int]]) -> None:
        blocks = max(map(len, texts)) // BLOCK + 1
        self.model, self.texts = model, texts
        self.cache = model.new_cache(blocks * len(texts), BLOCK)
        self.tables = [range(i * blocks, (i + 1) * blocks) for i in range(len(texts))]
        for ids, table in zip(texts, self.tables, strict=True):
            model.forward(build_batch([(ids[:-1], 0)], [table], BLOCK, [0]), self.cache)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits (len(rows), V) of one decode step of these texts, in this order."""
        chunks = [(self.texts[i][-1:], len(self.texts[i]) - 1) for i in rows]
        tables = [self.tables[i] for i in rows]
        batch = build_batch(chunks, tables, BLOCK, range(len(rows)))
        return self.model.forward(batch, self.cache)


def next_logits(lm: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits (V,) of the token after `ids`."""
    return logits_of(lm.model, [ids])[0][-1]


def token_logprobs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """The log-probability (T - 1,) of each token of a text but its first; logits (T, V)."""
    chosen = torch.tensor(ids[1:], device=logits.device)
    return torch.log_softmax(logits[:-1], dim=-1).gather(1, chosen[:, None])[:, 0]


class CourseModel:
    """`model(ids (B, T)) -> logits (B, T, V)` as the course computes them; T from 1 to max_seq_len.
    Window layers, which the course does not have, see their window alone. ValueError for a model of
    another shape."""

    def __init__(self, lm: LanguageModel) -> None:
        refuse_other_shapes(lm, "CourseModel")
        self.config, self.weights, self.vocab_size = lm.config, dict(lm.weights), lm.vocab_size
        self.weights.setdefault("head_bias", torch.zeros(lm.vocab_size))  # GPT-2 has none

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        w = self.weights
        x = w["token_embed.weight"][ids] + w["pos_embed.weight"][: ids.shape[1]]  # (B, T, D)
        for i in range(self.config.num_layers):
            name = f"blocks.{i}"
            if f"{name}.attn.q_proj.W" in w:  # the blocks that `inflate` adds have none
                window = self.config.window if i in self.config.window_layers else None
                x = x + self._attention(self._norm(x, f"{name}.ln1"), f"{name}.attn", window)
            hidden = F.gelu(self._linear(self._norm(x, f"{name}.ln2"), f"{name}.ffn.fc1"))
            x = x + self._linear(hidden, f"{name}.ffn.fc2")  # (B, T, D)
        return self._norm(x, "ln_final") @ w["token_embed.weight"].T + w["head_bias"]

    def _attention(self, x: torch.Tensor, name: str, window: int | None) -> torch.Tensor:
        q, k, v = (self._heads(self._linear(x, f"{name}.{p}_proj")) for p in "qkv")
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.config.head_dim)  # (B, H, T, T)
        place = torch.arange(x.shape[1], device=x.device)
        behind = place[:, None] - place  # (T, T), how far the key lies behind the query
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        seen = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v  # (B, H, T, d)
        return self._linear(seen.transpose(1, 2).flatten(2), f"{name}.out_proj")

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.config.num_heads, -1)).transpose(1, 2)  # (B, H, T, d)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"{name}.W"] + self.weights[f"{name}.b"]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        gamma, beta = self.weights[f"{name}.gamma"], self.weights[f"{name}.beta"]
        return F.layer_norm(x, gamma.shape, gamma, beta)
