"""The chi-square test, for samplers: observed counts against exact probabilities."""

from __future__ import annotations

import numpy as np


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom; a cell that expects nothing must be empty."""
    counts, expected = np.ravel(counts).astype(float), np.ravel(expected).astype(float)
    live = expected > 0
    assert not counts[~live].any() and expected[live].min() >= 5
    return float(((counts - expected)[live] ** 2 / expected[live]).sum()), int(live.sum()) - 1


def one_in_a_million(freedom: int) -> float:
    """What the statistic exceeds once in a million draws of the right distribution (Wilson and
    Hilferty's cube; 4.753 is the normal quantile)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 4.753 * part**0.5) ** 3


def fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the counts could be draws of what is expected. With fixed seeds the answer is always
    the same, so a right sampler does not fail now and then."""
    statistic, freedom = chi_square(counts, expected)
    return statistic < one_in_a_million(freedom)
