"""Is a confidence of 0.7 right seven times in ten? Reliability, calibration error, two remedies.

Brief, section 4: the planner treats confidences as probabilities and multiplies them, so a head
need not be accurate in the usual sense; its 0.7 has to mean 70 %. Evidence is what an engine (or a
pass over held-out text) records of K drafted continuations: `confidences` (K, n), how many of the
n drafts were `verified` (K,), and how many `accepted` (K,), of which the drafts are the first.

The remedies are the usual ones: Platt's line through the log odds, which is temperature scaling
with a shift, and isotonic regression. Fit them on one part of the evidence, judge on another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int

EDGE = 1e-6  # log odds are taken within [EDGE, 1 - EDGE]
HOLD = 1e-3  # how much the fit holds on to "no change", in drafts; decides only where none failed

Pairs = tuple[np.ndarray, np.ndarray]  # scores (M,) and fates (M,): came true or not


def single(confidences: ArrayLike, verified: ArrayLike, accepted: ArrayLike) -> Pairs:
    """Each draft's own confidence, and whether it was accepted.

    A draft counts if it was verified and all before it were accepted: its confidence is a
    probability given that.
    """
    c, tried, kept = _evidence(confidences, verified, accepted)
    place = np.arange(c.shape[1])  # (n,)
    counts = (place < tried) & (place <= kept)  # (K, n)
    return c[counts], (place < kept)[counts]


def survival(confidences: ArrayLike, verified: ArrayLike, accepted: ArrayLike) -> Pairs:
    """Products c_1 * ... * c_i of the verified drafts, and whether draft i survived.

    Drafts that were not verified stay out even where an earlier one was rejected. They did not
    survive; but their neighbours' fates are unknown, and counting only failures would be unfair.
    """
    c, tried, kept = _evidence(confidences, verified, accepted)
    place = np.arange(c.shape[1])  # (n,)
    counts = place < tried  # (K, n)
    return c.cumprod(axis=1)[counts], (place < kept)[counts]


def _evidence(
    confidences: ArrayLike, verified: ArrayLike, accepted: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(K, n) floats, (K, 1) and (K, 1) counts. ValueError for what does not fit together."""
    c = np.asarray(confidences, float)
    tried, kept = np.asarray(verified), np.asarray(accepted)
    if c.ndim != 2 or tried.shape != (len(c),) or kept.shape != (len(c),):
        raise ValueError(
            f"confidences {c.shape}, verified {tried.shape}, accepted {kept.shape}: "
            "give shapes (K, n), (K,), (K,)"
        )
    tried, kept = tried[:, None], kept[:, None]
    if ((tried < 0) | (tried > c.shape[1])).any():
        raise ValueError(f"verified must be from 0 to {c.shape[1]}, the drafts of a row")
    if ((kept < 0) | (kept > tried)).any():
        raise ValueError("accepted must be from 0 to the row's verified drafts")
    as_probabilities("confidences", c[np.arange(c.shape[1]) < tried])
    return c, tried, kept


def as_probabilities(name: str, values: ArrayLike) -> np.ndarray:
    """As floats; ValueError for what is not from 0 to 1."""
    found = np.asarray(values, float)
    wrong = ~((found >= 0) & (found <= 1))
    if wrong.any():
        raise ValueError(f"{name} has {found[wrong][0]}: give probabilities, from 0 to 1")
    return found


# ---- how far from the truth ----


@dataclass(frozen=True)
class Reliability:
    """Drafts in bins by score. NaN where a bin is empty."""

    edges: np.ndarray  # (bins + 1,)
    drafts: np.ndarray  # (bins,) how many
    said: np.ndarray  # (bins,) mean score
    came_true: np.ndarray  # (bins,) share

    @property
    def error(self) -> float:
        """Expected calibration error: |said - came true|, averaged over drafts. 0 for none."""
        gaps = np.abs(np.nan_to_num(self.said - self.came_true))
        return float((self.drafts * gaps).sum() / max(1, self.drafts.sum()))


def reliability(
    scores: ArrayLike, fates: ArrayLike, bins: int = 10, equal_drafts: bool = False
) -> Reliability:
    """Scores (M,) in [0, 1] and fates (M,) in `bins` bins; a score on an edge goes up, 1 down.

    The bins are equally wide, or hold equally many drafts (as far as equal scores allow): a head
    whose confidences are nearly all above 0.9 shows nothing in wide ones.
    """
    s, came_true = as_probabilities("scores", scores), np.asarray(fates, float)
    edges = np.linspace(0, 1, as_int("bins", bins, 1, 10_000) + 1)
    if equal_drafts and s.size:
        edges = np.quantile(s, edges)
    where = np.searchsorted(edges[1:-1], s, side="right")  # (M,)
    drafts = np.bincount(where, minlength=bins)
    some = np.where(drafts, drafts, np.nan)
    said = np.bincount(where, s, bins) / some
    return Reliability(edges, drafts, said, np.bincount(where, came_true, bins) / some)


# ---- two remedies ----


def logit(p: ArrayLike) -> np.ndarray:
    """The log odds log(p / (1 - p)), with p kept off 0 and 1."""
    inside = np.clip(np.asarray(p, float), EDGE, 1 - EDGE)
    return np.log(inside / (1 - inside))


def sigmoid(x: ArrayLike) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 + 0.5 * np.tanh(np.asarray(x, float) / 2)


@dataclass(frozen=True)
class LogOddsLine:
    """c -> sigmoid(scale * logit(c) + shift): a lie, or its remedy.

    scale is 1 / temperature: below 1 it draws towards 0.5, above 1 away. A shift above 0 is
    overconfident. The inverse of a line is a line: scale 1 / scale, shift -shift / scale.
    """

    scale: float = 1.0
    shift: float = 0.0

    @property
    def temperature(self) -> float:
        return 1 / self.scale

    def __call__(self, confidences: ArrayLike) -> np.ndarray:
        if (self.scale, self.shift) == (1, 0):
            return np.asarray(confidences, float)  # 0 and 1 too
        return sigmoid(self.scale * logit(confidences) + self.shift)


def fit_temperature(scores: ArrayLike, fates: ArrayLike, steps: int = 50) -> LogOddsLine:
    """The most likely line for scores (M,) and fates (M,): Newton's method in two unknowns.

    A step that does not lower the loss is halved. ValueError for no drafts.
    """
    s, y = _pairs(scores, fates)
    x = np.stack([logit(s), np.ones_like(s)], axis=1)  # (M, 2)
    start = now = np.array([1.0, 0.0])  # scale, shift

    def loss(line: np.ndarray) -> float:
        z = x @ line  # (M,)
        return (np.logaddexp(0, z) - y * z).sum() + HOLD / 2 * ((line - start) ** 2).sum()

    for _ in range(steps):
        p = sigmoid(x @ now)  # (M,)
        slope = x.T @ (p - y) + HOLD * (now - start)  # (2,)
        bend = (x.T * (p * (1 - p))) @ x + HOLD * np.eye(2)  # (2, 2)
        step = np.linalg.solve(bend, slope)
        while loss(now - step) > loss(now) and np.abs(step).max() > 1e-12:
            step = step / 2
        now = now - step
        if np.abs(step).max() < 1e-10:
            break
    return LogOddsLine(*now.tolist())


@dataclass(frozen=True)
class Isotonic:
    """A rising curve through `values` at `scores` (both (m,), ascending), straight in between."""

    scores: np.ndarray
    values: np.ndarray

    def __call__(self, confidences: ArrayLike) -> np.ndarray:
        return np.interp(np.asarray(confidences, float), self.scores, self.values)


def fit_isotonic(scores: ArrayLike, fates: ArrayLike) -> Isotonic:
    """The rising curve nearest to the fates, by least squares: pool adjacent violators.

    Scores (M,) and fates (M,); one value a distinct score. ValueError for no drafts.
    """
    s, came_true = _pairs(scores, fates)
    levels, where = np.unique(s, return_inverse=True)
    drafts, true = np.bincount(where), np.bincount(where, came_true)
    pools: list[list[float]] = []  # share that came true, drafts, levels
    for share, weight in zip(true / drafts, drafts, strict=True):
        pools.append([share, weight, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            share, weight, many = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + share * weight) / (last[1] + weight)
            last[1], last[2] = last[1] + weight, last[2] + many
    values, repeats = [pool[0] for pool in pools], [int(pool[2]) for pool in pools]
    return Isotonic(levels, np.repeat(values, repeats))


def _pairs(scores: ArrayLike, fates: ArrayLike) -> Pairs:
    """Both as floats (M,); ValueError where there is nothing to fit, or not one fate a score."""
    s, came_true = as_probabilities("scores", scores).ravel(), np.asarray(fates, float).ravel()
    if not s.size:
        raise ValueError("scores are empty: record some verified drafts first")
    if len(s) != len(came_true):
        raise ValueError(f"fates has {len(came_true)} values for {len(s)} scores: give one each")
    return s, came_true
