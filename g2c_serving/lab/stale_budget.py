"""Old confidences for the total, fresh ones for the split: what hiding latency costs a budget.

Brief, section 6. When the processor schedules step N+1, the confidences of step N have not come
back. So it settles only how many drafts are verified in all, by older ones; the device splits that
total among the requests once the fresh ones are there (`one_step`). The naive third way settles the
split by old ones too. A total that was settled before the drafts were drawn, split by survival, is
also exact, however old it is: lab/exact_budget.py counts it out. It costs speed, never correctness.

Simulated, and ours. Each confidence is a random walk that is pulled back: its log odds are 7.96 +
7.0 z, and from step to step z keeps exp(-1 / T) of itself, T the correlation time in steps, and
gets as much noise as keeps it standard normal. All of them are independent, and true (a calibrated
head). With these two numbers fixed five has the reported accepted length, 3.30, and the best 3.58
drafts a request have 3.21. Step times go through the Brief's decode chart (lab/load_model.py).

Left out: drift that all requests share, requests that come without confidences of earlier steps,
and a planner that knows how old its confidences are. How fast those of a real drafter drift is
measured by lab/confidence_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np

from g2c_serving.checks import as_int, as_number
from g2c_serving.lab.load_model import DRAFTS, MOST_ROWS, POOL, step_ms, sums
from g2c_serving.sample.verify_budget import Confidences, plan, split

MEAN_LOG_ODDS, SPREAD = 7.96, 7.0
SEED = 12  # with it fixed five accepts 3.30 and the best 3.58 drafts 3.21
LOADS = (4, 8, 16, 32, 48, 60, 80, 96)  # requests per GPU
MOST = MOST_ROWS // (1 + DRAFTS)  # for which load_model has step times


# ---- one step, through the engine's own planner ----


@dataclass(frozen=True)
class StepOutcome:
    """What a step of `ms` brings, in expected tokens: split by fresh confidences, or by old."""

    total: int  # drafts that are verified
    ms: float
    fresh_split: float
    old_split: float


def one_step(old: Confidences, fresh: np.ndarray, step_ms: np.ndarray) -> StepOutcome:
    """Settle the total by `old` confidences (R, n) and hand it out by `fresh` (R, n) ones; a step
    of k rows takes step_ms[k]."""
    planned = plan(old, step_ms)
    total = planned.rows - len(fresh)
    return StepOutcome(
        total,
        float(step_ms[planned.rows]),
        expected_tokens(split(total, fresh), fresh),
        expected_tokens(planned.drafts, fresh),
    )


def expected_tokens(drafts: Sequence[int] | np.ndarray, confidences: np.ndarray) -> float:
    """Of a step that verifies the first `drafts` (R,) drafts of requests with these confidences
    (R, n): one a request, and each verified draft's survival."""
    survival = confidences.cumprod(axis=1)
    verified = np.arange(survival.shape[1]) < np.asarray(drafts)[:, None]
    return len(survival) + float(survival[verified].sum())


# ---- confidences that drift ----


def kept(correlation: float, lag: int) -> float:
    """How much of z is left after `lag` steps, 0 to 1: its correlation with what it was."""
    as_int("lag", lag, 0)
    if as_number("correlation", correlation) <= 0:
        raise ValueError(f"correlation={correlation!r} must be more than 0 steps")
    return math.exp(-lag / correlation)


@cache
def _normals() -> np.ndarray:
    """(2, POOL, DRAFTS) standard normal: z of this step, the distribution's quantiles in an order
    of their own in each column, and noise."""
    rng, normal = np.random.default_rng(SEED), NormalDist()
    quantiles = np.array([normal.inv_cdf((k + 0.5) / POOL) for k in range(POOL)])
    columns = [rng.permutation(quantiles) for _ in range(2 * DRAFTS)]
    return np.stack(columns, axis=1).reshape(POOL, 2, DRAFTS).swapaxes(0, 1)


def confidences(keeps: float = 1.0) -> np.ndarray:
    """(POOL, DRAFTS): those of this step, or such of which it has kept that much. (The walk looks
    the same backwards, so the past is made from the present.)"""
    now, noise = _normals()
    z = keeps * now + math.sqrt(1 - keeps**2) * noise
    return 1 / (1 + np.exp(-(MEAN_LOG_ODDS + SPREAD * z)))


# ---- many steps at once ----


@dataclass(frozen=True)
class Rates:
    """Expected tokens per ms at one load, over many steps, by how the drafts are chosen."""

    fixed: float  # all five
    fresh: float  # total and split by this step's confidences
    fresh_split: float  # an old total, split by this step's: DeepInfer's
    old_split: float  # total and split by old ones

    def gain(self, rate: float) -> float:
        """Of one of these over fixed five, in %."""
        return 100 * (rate / self.fixed - 1)

    @property
    def loss(self) -> float:
        """Of an old total against fresh planning, in %."""
        return 100 * (1 - self.fresh_split / self.fresh)

    @property
    def naive_loss(self) -> float:
        """Where the split is old too, in %."""
        return 100 * (1 - self.old_split / self.fresh)


def outcome(requests: int, lag: int, correlation: float) -> Rates:
    """Steps of `requests` requests, every one of the pool once; the old confidences are those of
    `lag` steps ago. ValueError for a load that does not divide the pool, or more than 96, for a
    negative lag, and for a correlation time that is not positive."""
    if requests not in range(1, MOST + 1) or POOL % requests:
        raise ValueError(f"requests {requests}: give a divisor of {POOL} up to {MOST}")
    return _rates(requests, kept(correlation, lag))


@lru_cache(maxsize=1024)
def _rates(requests: int, keeps: float) -> Rates:
    ms = step_ms()[requests : requests * (1 + DRAFTS) + 1]  # (R * n + 1,), by drafts
    fresh, old = _survival(requests), _survival(requests, keeps)  # (S, R * n)
    order = np.argsort(-old, axis=1, kind="stable")
    falling = sums(-np.sort(-fresh, axis=1))  # (S, R * n + 1): tokens of the best 0, 1, ... drafts
    by_old = sums(np.take_along_axis(fresh, order, axis=1))
    totals = _best(falling, ms, requests)  # (S,)
    old_totals = _best(sums(np.take_along_axis(old, order, axis=1)), ms, requests)
    everything = np.full_like(totals, len(ms) - 1)
    cases = (falling, everything), (falling, totals), (falling, old_totals), (by_old, old_totals)
    steps = np.arange(len(totals))
    found = [(POOL + tokens[steps, best].sum()) / ms[best].sum() for tokens, best in cases]
    return Rates(*map(float, found))


def _survival(requests: int, keeps: float = 1.0) -> np.ndarray:
    """(S, R * n): the products, first drafts first in each request."""
    return confidences(keeps).cumprod(axis=1).reshape(POOL // requests, -1)


def _best(tokens: np.ndarray, ms: np.ndarray, requests: int) -> np.ndarray:
    """The total (S,) of each step with the most tokens per ms."""
    return ((requests + tokens) / ms).argmax(axis=1)
