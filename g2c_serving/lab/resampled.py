"""How far a mean would move with other texts: the same ones, drawn again with replacement.

The places of one text are no independent witnesses, since what happens at one lasts for the next.
So texts are drawn, each with all of its places. Two ways that were measured on the same texts are
compared text by text: pass the differences.

The percentile bootstrap of Efron (1979). With few texts, or a few that decide all, its interval is
somewhat too short, and one in twenty misses in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

TRIES = 4000
SHARE = 0.95


@dataclass(frozen=True)
class Mean:
    """A mean over texts, and between which ends it lies for `SHARE` of the resampled texts."""

    value: float
    low: float
    high: float

    @property
    def is_zero(self) -> bool:
        """Whether 0 is between the ends: it cannot be told from nothing."""
        return self.low <= 0 <= self.high

    def said(self, form: str) -> str:
        """With its ends, each in this format."""
        value, low, high = (f"{x:{form}}" for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


def mean(values: ArrayLike, tries: int = TRIES) -> Mean:
    """Of one value a text, (C,). ValueError for fewer than two texts."""
    texts = np.asarray(values, float)
    if texts.ndim != 1 or len(texts) < 2:
        raise ValueError(f"values of shape {texts.shape}: give one for each of two texts or more")
    drawn = np.random.default_rng(0).integers(0, len(texts), (tries, len(texts)))
    ends = np.quantile(texts[drawn].mean(1), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Mean(float(texts.mean()), float(ends[0]), float(ends[1]))
