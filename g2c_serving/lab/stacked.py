"""Approximations stack up: replay, guard and a four-bit cache, alone and together, end to end.

Brief, "Where informed readers will push back": each is defensible on its own, and how far outputs
with all of them sit from an exact, uncached, full-precision run is not disclosed for DeepSeek's
model. For ours it can be measured. The yardstick is the next token's distribution at the tokens
that follow a prefix hit, in float64, with nothing cached, nothing rounded and nothing drafted.

  replay  the window layers' state behind the hit is lost, and rebuilt from its last tokens alone:
          one window of them, as DeepSeek reports
  guard   in what remains after a rejected draft, the draft's probability is shrunk by exp(-5e-5).
          Computed, not drawn: from the target's p and the drafter's q at each place, as if every
          token came from a draft. So this is the most that it can do
  FP4     keys and values NVFP4-like

Measured on held-out texts of our own corpus, `tiny-window` with `tiny-drafter`. The table and the
panel are in stacked_panel.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.draft_model import DraftModel
from g2c_serving.forward.low_precision import NVFP4
from g2c_serving.lab.held_out import held_out_rows
from g2c_serving.lab.replay_errors import MODEL, Contexts
from g2c_serving.lab.resampled import Mean, mean
from g2c_serving.lab.scoring import logits_of
from g2c_serving.sample.speculation import GUARD

NAMES = ("replay", "guard", "FP4 cache")
TEXTS, HIT, FOLLOWING = 32, 192, 32  # texts, tokens of each in the hit, tokens compared after it
Choice = tuple[bool, bool, bool]  # which of them are on
FOUR_ALONE: Choice = (False, False, True)


def with_guard(p: torch.Tensor, q: torch.Tensor, guard: float) -> torch.Tensor:
    """What comes out of target p (..., V) and draft q where the residual is max(p - q e^-guard, 0).

    A draft stands with min(1, p / q), else the residual is drawn from. With guard 0 it is p.
    """
    both = torch.minimum(p, q)
    residual = (p - q * math.exp(-guard)).clamp_(min=0)
    total = residual.sum(-1, keepdim=True).clamp_(min=1e-300)
    return both + (1 - both.sum(-1, keepdim=True)) * residual / total


@dataclass(frozen=True)
class Distance:
    """How far distributions of the next token lie from the exact ones, at n places of C texts.

    tv       (C, n) total variation: the chance that a draw differs, if the two share their random
             numbers as well as can be
    kl       (C, n) KL(exact || this), nats
    changed  (C, n) whether another token is the most likely
    loss     (C, n) -log probability of the true token, less that of the exact run, nats
    """

    tv: np.ndarray
    kl: np.ndarray
    changed: np.ndarray
    loss: np.ndarray

    def mean(self, name: str, less: Distance | None = None) -> Mean:
        """Of `tv`, `kl`, `changed` or `loss`, over texts; `less`: of the difference, text by text.

        KeyError for another name."""
        values = vars(self)[name].mean(1)
        return mean(values if less is None else values - vars(less)[name].mean(1))

    @property
    def worst_first(self) -> np.ndarray:
        """(C * n,) the total variations, largest first."""
        return np.sort(self.tv, axis=None)[::-1]


def distance(exact: torch.Tensor, other: torch.Tensor, ids: torch.Tensor) -> Distance:
    """Of probabilities (C, n, V) from `exact` ones; ids (C, n) are the true tokens."""
    log_p, log_q = exact.clamp(min=1e-300).log(), other.clamp(min=1e-300).log()
    gained = log_p - log_q
    found = (
        (exact - other).abs().sum(-1) / 2,
        (exact * gained).sum(-1),
        exact.argmax(-1) != other.argmax(-1),
        gained.gather(-1, ids[..., None])[..., 0],
    )
    return Distance(*(one.double().numpy() for one in found))


@cache
def measured(texts: int = TEXTS) -> Mapping[Choice, Distance]:
    """All eight choices on so many texts; measured once a session, some seconds for 32."""
    lm = load(MODEL)
    size = HIT + FOLLOWING
    rows = held_out_rows(lm, texts, size)  # (C, size + 1)
    ids, after = rows[:, :size].tolist(), rows[:, HIT + 1 :]
    target, q = _target(ids), _drafts(ids)
    exact = target[False, False]
    found = {}
    for replay, guard, four in itertools.product((False, True), repeat=3):
        p = target[replay, four]
        found[replay, guard, four] = distance(exact, with_guard(p, q, GUARD) if guard else p, after)
    return found


def _target(ids: list[list[int]]) -> dict[tuple[bool, bool], torch.Tensor]:
    """The model's probabilities (C, n, V) after the hit, by (replay, four bits)."""
    lm, found = load(MODEL), {}
    for four in (False, True):
        runs = [Contexts(lm, some, HIT, torch.float64, NVFP4 if four else None)
                for some in _parts(ids)]  # fmt: skip
        found[False, four] = torch.cat([one.exact.softmax(-1) for one in runs])
        replayed = [one.replay(lm.config.window).softmax(-1) for one in runs]
        found[True, four] = torch.cat(replayed)
    return found


def _drafts(ids: list[list[int]]) -> torch.Tensor:
    """The drafter's probabilities (C, n, V) at the same places."""
    drafter = load("tiny-drafter")
    model = DraftModel(drafter.config, drafter.weights, torch.float64)
    logits = [torch.stack(logits_of(model, some))[:, HIT:] for some in _parts(ids)]
    return torch.cat(logits)[..., : drafter.vocab_size].softmax(-1)  # without the confidence


def _parts(ids: list[list[int]], count: int = 8) -> Iterator[list[list[int]]]:
    """`count` texts at a time: with more the memory grows, and the speed does not."""
    return (ids[i : i + count] for i in range(0, len(ids), count))


def named(choice: Choice) -> str:
    """The choice in words."""
    return " + ".join(name for name, on in zip(NAMES, choice, strict=True) if on) or "none"
