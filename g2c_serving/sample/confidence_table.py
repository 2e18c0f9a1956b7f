"""Confidences learned online: how often drafts of a given score were accepted.

For two uses. A drafter without a confidence head has a score all the same: its largest probability
before it draws. And a head whose 0.7 does not mean 70 % is put right while the engine runs.

The score must be known before the draft is drawn. The probability of the drawn token itself would
predict better, but it looks at the draft: which drafts are verified would then depend on what they
say, and the output would no longer follow the target. Brief, section 4. DeepInfer's drafter has a
trained head; a table for drafters without one is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int, as_number

ROUNDING = 1e-6  # a float32 softmax may give a hair more than 1


class ConfidenceTable:
    """From scores in [0, 1] to confidences in [0, 1].

    The scores are cut into `bins` equal bins. Each begins with `prior` pseudo-observations that
    bear out its scores, so a new table returns what it is given. From then on a bin keeps its gap,
    (accepted drafts - sum of their scores) / (prior + drafts), and the gap is interpolated between
    the bins' centres: no jump at their edges. At a centre, with all its drafts there, the result
    is the plain share (prior * score + accepted) / (prior + drafts).

    ValueError for fewer than one bin or a prior that is not positive.
    """

    def __init__(self, bins: int = 20, prior: float = 16.0) -> None:
        self.bins = as_int("bins", bins, 1, 10_000)
        self.prior = as_number("prior", prior)
        if self.prior <= 0:
            raise ValueError(f"prior={prior!r} must be above 0: an empty bin needs a value too")
        self.centres = (np.arange(self.bins) + 0.5) / self.bins  # (bins,)
        self.drafts = np.zeros(self.bins)  # (bins,) how many were learned from
        self.expected = np.zeros(self.bins)  # (bins,) the sum of their scores
        self.accepted = np.zeros(self.bins)  # (bins,) how many of them were accepted

    def read(self, scores: ArrayLike) -> np.ndarray:
        """The confidence of each score, in its shape. ValueError for scores outside [0, 1]."""
        known = as_scores(scores)
        gap = (self.accepted - self.expected) / (self.prior + self.drafts)  # (bins,)
        return np.clip(known + np.interp(known, self.centres, gap), 0, 1)

    def learn(self, scores: ArrayLike, accepted: ArrayLike) -> None:
        """Count K drafts: their scores (K,), and whether each was accepted (K,).

        Only drafts of which this is known: verified, and all drafts before them accepted.
        ValueError for scores outside [0, 1], or not one True or False a score.
        """
        known, fate = as_scores(scores).ravel(), np.asarray(accepted)
        if fate.size and fate.dtype != bool:
            raise ValueError(f"accepted has type {fate.dtype}: give True or False for each draft")
        if fate.size != known.size:
            raise ValueError(f"accepted has {fate.size} values for {known.size} scores: one each")
        bins = np.minimum((known * self.bins).astype(int), self.bins - 1)  # (K,)
        self.drafts += np.bincount(bins, minlength=self.bins)
        self.expected += np.bincount(bins, known, self.bins)
        self.accepted += np.bincount(bins, fate.ravel().astype(float), self.bins)


def as_scores(scores: ArrayLike) -> np.ndarray:
    """As float64. ValueError for what is not a number from 0 to 1."""
    try:
        found = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"scores={scores!r} must be numbers in an array") from None
    wrong = ~((found >= -ROUNDING) & (found <= 1 + ROUNDING))  # NaN is wrong too
    if wrong.any():
        raise ValueError(f"scores has {found[wrong][0]}: give probabilities, from 0 to 1")
    return np.clip(found, 0, 1)
