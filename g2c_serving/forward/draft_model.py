"""The drafter's model: a decoder with a confidence head beside its language head; and whether one
model can draft for another.

The head reads what the language head reads, after the tokens so far, and says how likely the target
accepts a draft that is drawn there. It knows nothing of the draft itself, which is drawn later.
DeepInfer's drafter, DSpark, is not released; this one is `tiny-drafter` (Brief, section 4).

A drafter reads and writes the target's ids, so both must have one tokenizer. It may know fewer of
its ids than the target does, or more (a model of the parent course is trained on the first ids of
its tokenizer). Ids that it lacks it reads as the mean of the two that they were merged from, and
never proposes; ids that the target lacks are left out. Its context limit may be the shorter one
too: beyond it requests go on without drafts.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.placed_weights import Weights

NEVER = -1e4  # added to a logit


class DraftModel(Transformer):
    """Its logits (M, V + 1) have the confidence as log-odds in the last column; (M, V) if the
    weights have no such head."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, weights, dtype, device)
        self.trials = _trials(weights, config, dtype, device)
        self.has_confidence = "confidence.fc1.W" in weights
        if self.has_confidence:
            names = ("fc1.W", "fc1.b", "fc2.W", "fc2.b")
            w1, b1, w2, b2 = (weights[f"confidence.{n}"].to(device, dtype) for n in names)
            self.hidden, self.confidence = Linear(w1, b1, "gelu"), Linear(w2, b2)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)  # (M, D)
        if not self.has_confidence:
            return self.head(seen)
        confidence = self.confidence(self.hidden(seen))  # (M, 1)
        return torch.cat((self.head(seen), confidence), dim=-1)


_tried: dict[int, dict[tuple, dict]] = {}


def _trials(weights: Weights, *how: Any) -> dict[int, tuple]:
    """What `batch_invariance.py` has found for a drafter: each engine makes its own model of the
    same weights, and a trial takes as long as a few steps. Forgotten with the weights."""
    known = weights["token_embed.weight"]
    if id(known) not in _tried:
        weakref.finalize(known, _tried.pop, id(known), None)
    return _tried.setdefault(id(known), {}).setdefault(how, {})


def fit_drafter(drafter: LanguageModel, lm: LanguageModel) -> LanguageModel:
    """The drafter over the vocabulary of `lm`. ValueError where it cannot draft for it."""
    _check_can_draft(drafter, lm)
    known, wanted = drafter.vocab_size, lm.vocab_size
    if known == wanted:
        return drafter
    weights = dict(drafter.weights)
    embedding = weights["token_embed.weight"]  # (V of the drafter, D)
    weights["token_embed.weight"] = _widen(embedding, lm)[:wanted]
    bias = weights.get("head_bias", torch.zeros(known))
    never = torch.full((max(0, wanted - known),), NEVER)
    weights["head_bias"] = torch.cat([bias[:wanted], never.to(bias.dtype)])
    if "head.W" in weights:  # (D, V of the drafter)
        head = weights["head.W"]
        rows = head.new_zeros(head.shape[0], max(0, wanted - known))
        weights["head.W"] = torch.cat([head[:, :wanted], rows], dim=1)
    config = dataclasses.replace(drafter.config, vocab_size=wanted)
    return dataclasses.replace(drafter, config=config, weights=weights, tokenizer=lm.tokenizer)


def _widen(embedding: torch.Tensor, lm: LanguageModel) -> torch.Tensor:
    """Rows for all ids of `lm`: of a merged id the mean of its two parts, of others zero."""
    known, dim = embedding.shape
    wide = torch.cat([embedding, embedding.new_zeros(max(0, lm.vocab_size - known), dim)])
    for left, right, new_id in lm.tokenizer.merges:
        if known <= new_id < len(wide):
            wide[new_id] = (wide[left] + wide[right]) / 2
    return wide


def _check_can_draft(drafter: LanguageModel, lm: LanguageModel) -> None:
    if drafter.config.window:
        raise ValueError(
            f"drafter {drafter.name!r} has window layers: choose one whose layers see all tokens"
        )
    both = min(drafter.vocab_size, lm.vocab_size)
    ours, theirs = drafter.tokenizer, lm.tokenizer
    count = min(both, ours.vocab_size, theirs.vocab_size)
    differs = next((i for i in range(count) if ours.token_bytes(i) != theirs.token_bytes(i)), None)
    if differs is None and _reserved_below(drafter, count) != _reserved_below(lm, count):
        differs = count - 1
    if differs is not None:
        raise ValueError(
            f"drafter {drafter.name!r} has another tokenizer than {lm.name!r}: token {differs} is "
            f"{ours.token_bytes(differs)!r} there and {theirs.token_bytes(differs)!r} here. They "
            "must share one: choose a smaller model of the same family, or the model itself"
        )


def _reserved_below(lm: LanguageModel, count: int) -> dict[str, int]:
    return {name: i for name, i in lm.tokenizer.reserved.items() if i < count}
