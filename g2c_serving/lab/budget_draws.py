"""The same question by drawing: 200,000 steps under a rule, and the chi-square test against target.

What `exact_budget.py` counts out in fractions is drawn here with random numbers, as an engine
draws: drafts, coins, replacements. A rule that is off by a hundredth shows; one that is exact
stays within a few standard deviations whatever the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from g2c_serving.lab.exact_budget import Chances, Rule, TinyRequest, Tokens, wanted


@dataclass(frozen=True)
class ChiSquare:
    """Chi-square of `counts` (K,), of every outcome of all requests together, against `expected`
    (K,); `deviations` is how many standard deviations the statistic lies above what is usual, as
    Wilson and Hilferty's cube root has it. An exact rule passes 4.75 once in a million seeds."""

    counts: np.ndarray
    expected: np.ndarray

    @property
    def statistic(self) -> float:
        possible = self.expected > 0
        if self.counts[~possible].any():
            return float("inf")
        off = (self.counts - self.expected)[possible]
        return float((off**2 / self.expected[possible]).sum())

    @property
    def freedom(self) -> int:
        return int((self.expected > 0).sum()) - 1

    @property
    def deviations(self) -> float:
        part = 2 / (9 * self.freedom)
        return ((self.statistic / self.freedom) ** (1 / 3) - 1 + part) / part**0.5


def draw(
    requests: Sequence[TinyRequest], rule: Rule, steps: int = 200_000, seed: int = 0
) -> ChiSquare:
    """Draw `steps` steps of these requests under `rule`, and compare all that comes out."""
    rng = np.random.default_rng(seed)
    drafts = [_drafts(rng, r, steps) for r in requests]  # (steps, n) each
    verified = _verified(rule, drafts)  # (steps, R)
    outcome = np.zeros(steps, dtype=np.int64)  # all sequences of all requests, as one number
    for k, tiny in enumerate(requests):
        code = _emit(rng, tiny, drafts[k], verified[:, k])
        outcome = outcome * tiny.vocab_size**tiny.drafts + code
    expected = steps * np.array(list(wanted(requests).values()), dtype=float)
    return ChiSquare(np.bincount(outcome, minlength=len(expected)), expected)


def _drafts(rng: np.random.Generator, tiny: TinyRequest, steps: int) -> np.ndarray:
    """Drafts (steps, n), each drawn after those before it."""
    drafts, prefix = [], np.zeros(steps, dtype=np.int64)
    for i in range(tiny.drafts):
        drafts.append(_pick(rng, _table(tiny, tiny.drafter, i)[prefix]))
        prefix = prefix * tiny.vocab_size + drafts[-1]
    return np.stack(drafts, axis=1)


def _verified(rule: Rule, drafts: list[np.ndarray]) -> np.ndarray:
    """What the rule says to each step's drafts (steps, R); it is asked once for equal ones."""
    ends = np.cumsum([d.shape[1] for d in drafts])[:-1]
    distinct, which = np.unique(np.concatenate(drafts, axis=1), axis=0, return_inverse=True)
    asked = [tuple(tuple(part.tolist()) for part in np.split(row, ends)) for row in distinct]
    return np.array([rule(each) for each in asked])[which.ravel()]


def _emit(
    rng: np.random.Generator, tiny: TinyRequest, drafts: np.ndarray, verified: np.ndarray
) -> np.ndarray:
    """The n tokens (steps,) that come out, as one number: accepted drafts, a replacement, and then
    what the target writes."""
    everyone = np.arange(len(drafts))
    standing, prefix = np.ones(len(drafts), dtype=bool), np.zeros(len(drafts), dtype=np.int64)
    for i in range(tiny.drafts):
        p = _table(tiny, tiny.target, i)[prefix]  # (steps, V)
        q, draft = _table(tiny, tiny.drafter, i)[prefix], drafts[:, i]
        checked = standing & (i < verified)
        coin = rng.random(len(drafts))
        # a draft that stands no more was drawn after other tokens; its q may be 0, and is not used
        standing = checked & (coin * q[everyone, draft] < p[everyone, draft])
        replaced = (checked & ~standing)[:, None]
        other = _pick(rng, np.where(replaced, np.maximum(p - q, 0), p))
        prefix = prefix * tiny.vocab_size + np.where(standing, draft, other)
    return prefix


def _pick(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """A token (steps,) of each row by its weights (steps, V)."""
    sums = weights.cumsum(axis=1)
    target = rng.random((len(weights), 1)) * sums[:, -1:]
    return (sums <= target).sum(axis=1)


def _table(tiny: TinyRequest, of: Mapping[Tokens, Chances], length: int) -> np.ndarray:
    """The chances after every sequence of so many tokens (V^length, V), in counting order."""
    return np.array([of[tokens] for tokens in tiny.sequences(length)], dtype=float)
