"""How many drafts to verify: the total with the most expected tokens per ms, for the whole batch.

A draft counts only if every draft before it is accepted, so what it is worth is the running product
of the confidences: its survival. Every request has one row for its ordinary next token; then rows
are given to drafts in falling order of survival, whoever's they are. At each total the expected
tokens are divided by the time that a step of so many rows takes, and the best total is kept.

Mirrors csrc/engine/mtp_varlen.hpp and schedule_mtp_varlen.py as the Brief describes them, section 4
("Not every draft is worth checking"). `split` is what a stale total is handed out with (section 6).
Whether what comes out is still distributed as the target writes is worked out in
lab/exact_budget.py. `split` of a total that was settled before drafting always is. `plan` on the
confidences of the drafts that it judges is not wherever a further row can be cheaper than the one
before it: then a draft may have a say in whether it is verified itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int

# A request's confidences, draft by draft: P(draft i is accepted | the drafts before it are).
Confidences = np.ndarray | Iterable[ArrayLike]
# ms of a step of k rows: entry k of an array, or a function of k.
StepTime = ArrayLike | Callable[[int], float]


@dataclass(frozen=True)
class Candidate:
    """One total that was weighed: `rows`, of which the last went to `draft` (1-based) of `request`
    with its `survival`. For the first total, without drafts, these three are None, None and 1."""

    rows: int
    request: int | None
    draft: int | None
    survival: float
    expected_tokens: float
    step_ms: float
    tokens_per_ms: float


@dataclass(frozen=True, eq=False)
class Ranking:
    """All D drafts of a batch of R requests, the most likely to survive first: of which `request`
    each is (D,), which of its drafts (D,), from 1, and its `survival` (D,)."""

    num_requests: int
    request: np.ndarray
    draft: np.ndarray
    survival: np.ndarray

    def best(self, total: int) -> np.ndarray:
        """How many drafts of each request (R,) are among the first `total`."""
        return np.bincount(self.request[:total], minlength=self.num_requests)


@dataclass(frozen=True, eq=False)
class Plan:
    """The best total: `rows` of the step, `drafts` (R,) to verify of each request, in order."""

    rows: int
    drafts: np.ndarray
    expected_tokens: float
    tokens_per_ms: float
    ranking: Ranking = field(repr=False)
    step_ms: np.ndarray = field(repr=False)

    @cached_property
    def table(self) -> list[Candidate]:
        """Every total that was weighed, the smallest first."""
        ranking, step_ms = self.ranking, self.step_ms.tolist()
        expected = _expected(ranking, len(step_ms)).tolist()
        request, draft, survival = ranking.request, ranking.draft, ranking.survival
        added = zip(request.tolist(), draft.tolist(), survival.tolist(), strict=True)
        drafts = [(None, None, 1.0), *added]
        return [
            Candidate(ranking.num_requests + k, *drafts[k], tokens, ms, tokens / ms)
            for k, (tokens, ms) in enumerate(zip(expected, step_ms, strict=True))
        ]


def plan(confidences: Confidences, step_time: StepTime, max_rows: int | None = None) -> Plan:
    """The number of rows, and who gets them, with the most expected tokens per ms.

    confidences   R requests' confidences in [0, 1]: an array (R, n), or one sequence a request,
                  empty for a request without drafts
    step_time     ms of a step of k rows: entry k of an array, or a function that is called once for
                  each number of rows from R on. A curve need not rise
    max_rows      most rows of the step; None: all drafts may be verified

    Of equal survivals the earlier draft comes first, then the earlier request; of equal rates the
    one with fewer rows. R requests of n drafts take R n log(R n) steps. ValueError for confidences
    outside [0, 1], no request, max_rows below R, and a step time that is missing or not positive.
    """
    ranking = rank(confidences)
    fewest, most = ranking.num_requests, ranking.num_requests + len(ranking.survival)
    if max_rows is not None:
        most = min(most, as_int("max_rows", max_rows, fewest))
    step_ms = _step_ms(step_time, fewest, most)
    expected = _expected(ranking, len(step_ms))
    rates = expected / step_ms
    best = int(rates.argmax())  # the first of equals
    return Plan(
        fewest + best,
        ranking.best(best),
        float(expected[best]),
        float(rates[best]),
        ranking,
        step_ms,
    )


def split(total_drafts: int, confidences: Confidences) -> np.ndarray:
    """Hand out a total that is fixed already: the drafts of each request (R,) among the
    `total_drafts` with the highest survival; all of them where there are not as many.

    Ties as in `plan`. ValueError for a negative total or confidences outside [0, 1].
    """
    return rank(confidences).best(as_int("total_drafts", total_drafts, 0))


def rank(confidences: Confidences) -> Ranking:
    """Sort all drafts by survival. ValueError for confidences that are none."""
    padded, lengths = _padded(confidences)
    num_requests, longest = padded.shape
    survival = padded.cumprod(axis=1)  # (R, n)
    survival[np.arange(longest) >= lengths[:, None]] = -1.0  # no draft here
    flat = survival.T.ravel()  # first drafts, second drafts, ...: a stable sort keeps that order
    order = np.argsort(-flat, kind="stable")[: lengths.sum()]
    draft, request = np.divmod(order, num_requests)
    return Ranking(num_requests, request, draft + 1, flat[order])


def _expected(ranking: Ranking, count: int) -> np.ndarray:
    """Expected tokens (count,) with 0, 1, 2, ... drafts: one a request, and each survival."""
    gains = np.concatenate(([ranking.num_requests], ranking.survival[: count - 1]))
    return gains.cumsum()


# ---- what callers hand in ----


def _padded(confidences: Confidences) -> tuple[np.ndarray, np.ndarray]:
    """Confidences (R, n) float64, short rows filled up with zeros, and the lengths (R,)."""
    if (
        isinstance(confidences, np.ndarray)
        and confidences.ndim == 2
        and confidences.dtype != object
    ):
        lengths = np.full(len(confidences), confidences.shape[1])
        flat = confidences.ravel()
    else:
        rows = _rows(confidences)
        lengths = np.array([len(row) for row in rows])
        try:
            flat = np.array([c for row in rows for c in row])
        except ValueError:  # rows within rows
            raise ValueError(f"confidences={confidences!r} must be rows of numbers") from None
    if not len(lengths):
        raise ValueError("confidences is empty: give one row for each request, at least one")
    padded = np.zeros((len(lengths), lengths.max()))
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = _probabilities(flat)
    return padded, lengths


def _rows(confidences: Confidences) -> list[list[float]]:
    try:
        rows = [row if isinstance(row, list) else np.asarray(row).tolist() for row in confidences]
    except (TypeError, ValueError):  # a single number; rows within rows
        rows = [None]
    if not all(isinstance(row, list) for row in rows):
        raise ValueError(f"confidences={confidences!r} must be rows of numbers, one a request")
    return rows


def _probabilities(flat: np.ndarray) -> np.ndarray:
    if flat.size and (flat.dtype.kind not in "fiu" or flat.ndim > 1):
        raise ValueError(f"confidences hold {flat[0]!r}: give one number for each draft")
    wrong = flat[~((flat >= 0) & (flat <= 1))]  # nan is neither
    if wrong.size:
        raise ValueError(
            f"confidences hold {wrong[0]}: a confidence is a probability, from 0 to 1; a head's "
            "raw score needs a sigmoid"
        )
    return flat


def _step_ms(step_time: StepTime, fewest: int, most: int) -> np.ndarray:
    """ms of steps of `fewest` to `most` rows."""
    try:
        if callable(step_time):
            curve: ArrayLike = [step_time(rows) for rows in range(fewest, most + 1)]
        else:
            curve = np.asarray(step_time)[fewest : most + 1]
        if np.asarray(curve).dtype.kind not in "fiu":
            raise TypeError("not numbers")
        ms = np.array(curve, dtype=float)
    except Exception as err:  # the caller's function may raise anything
        raise ValueError(
            f"step_time={step_time!r} must be an array of ms by rows, or a function that takes a "
            f"number of rows and gives ms ({type(err).__name__}: {err})"
        ) from err
    if ms.shape != (most - fewest + 1,):
        raise ValueError(
            f"step_time has entries for fewer than {most} rows: give the ms of 0 to {most} rows "
            "(entry k for k rows), a function of the rows, or max_rows"
        )
    wrong = np.flatnonzero(~(np.isfinite(ms) & (ms > 0)))
    if wrong.size:
        raise ValueError(
            f"step_time of {fewest + wrong[0]} rows is {ms[wrong[0]]} ms: a step takes a positive "
            "time; step_curve.profile measures it"
        )
    return ms
