"""Trains `tiny-drafter`: a small model that guesses what `tiny` would write, and how surely.

The corpus and the loop are the trainer's; two things differ. The drafter learns the target's own
probabilities at each token instead of the token that follows (distillation), for they are what its
drafts are judged by. And a confidence head learns how likely a draft is accepted that is drawn
after the tokens so far: with the target's probabilities p and the drafter's q that is the sum of
min(p, q) over the vocabulary (Leviathan and others, "Fast inference from transformers via
speculative decoding", 2023). It is a function of the tokens before the draft, not of the draft.
Both are learned at temperature 1, without filters. Brief, section 4.

DSpark, DeepInfer's drafter, is not released; how it was trained is another Brief's subject.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from g2c_serving.forward.checkpoints import load
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train.gpt import GPT, DrafterGPT, load_tensors
from g2c_serving.train.trainer import Run, TrainingConfig, has_bfloat16

CONFIDENCE_WEIGHT = 0.2  # of the head's loss beside the drafter's own


class DrafterRun(Run):
    """A run that learns from a target model, by name or folder, which stays as it is."""

    network: type[GPT] = DrafterGPT

    def __init__(
        self, config: TrainingConfig, tokenizer: Tokenizer, target: str | Path = "tiny"
    ) -> None:
        super().__init__(config, tokenizer)
        lm = load(target)
        self.target = GPT(lm.vocab_size, asdict(lm.config)).requires_grad_(False)
        load_tensors(self.target, lm.weights)

    def _loss(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            model = cast(DrafterGPT, self.model)
            features = model.features(ids[:, :-1])  # (B, T, D)
            scores, confidence = model.logits(features), model.confidence(features)[..., 0]
            target_scores = self.target(ids[:, :-1])  # (B, T, V)
        q, p = scores.float().log_softmax(-1), target_scores.float().softmax(-1)
        accepted = torch.minimum(p, q.detach().exp()).sum(-1)  # (B, T)
        guess = F.binary_cross_entropy_with_logits(confidence.float(), accepted)
        return -(p * q).sum(-1).mean() + CONFIDENCE_WEIGHT * guess
