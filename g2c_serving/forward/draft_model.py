"""The drafter's model: a decoder with a confidence head beside its language head.

The head reads what the language head reads, after the tokens so far, and says how likely the target
accepts a draft that is drawn there. It knows nothing of the draft itself, which is drawn later.
DeepInfer's drafter, DSpark, is not released; this one is `tiny-drafter` (Brief, section 4).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from g2c_serving.forward.linear import Linear
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.placed_weights import Weights


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
