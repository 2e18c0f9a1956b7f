"""A model of speculation under load: what a budget gains over fixed five, with what spoils it.

Brief, section 4; Simulated, and ours. Step times go through the decode chart's three points
(section 1). There, R requests of 3 drafts fill 4 * R rows, so the points lie at 32, 256 and 1,024
rows, and here R requests with d drafts in all fill R + d. That charges to the rows whatever grows
with the load, the reading of the caches too.

Confidences are independent draws from one beta distribution. Its mean gives fixed five the reported
accepted length, 3.30; its concentration gives the best 3.58 drafts a request the reported 3.21.
A planner that knows them, costs nothing and lags nothing cannot lose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from g2c_serving.lab import charts
from g2c_serving.lab.calibration import LogOddsLine
from g2c_serving.schedule.step_curve import StepCurve

DRAFTS = 5
MEAN = 0.86456  # m + m^2 + ... + m^5 = 3.30
CONCENTRATION = 0.33  # of the beta distribution: most drafts nearly sure, some nearly hopeless
LOADS = (16, 32, 48, 60, 80, 96)  # requests per GPU
POOL, SEED = 4800, 9  # requests, a multiple of every load; with this seed theirs are 3.30 and 3.21
MOST_ROWS = LOADS[-1] * (1 + DRAFTS)


@cache
def step_ms(smooth: bool = True) -> np.ndarray:
    """ms of steps of 0 to 576 rows (577,), through the decode chart's points: a parabola, or
    straight lines (with a bend at 256 rows, at which a planner likes to stop)."""
    points = charts.decode_points()
    rows = [point.requests * (1 + charts.CHART_DRAFTS) for point in points]
    ms = [point.step_ms for point in points]
    if smooth:
        return np.polyval(np.polyfit(rows, ms, 2), np.arange(MOST_ROWS + 1))
    return StepCurve(rows, ms).up_to(MOST_ROWS)


@cache
def confidences() -> np.ndarray:
    """(POOL, DRAFTS): every column holds the distribution's quantiles, in an order of its own."""
    rng = np.random.default_rng(SEED)
    sample = rng.beta(MEAN * CONCENTRATION, (1 - MEAN) * CONCENTRATION, POOL * 100)
    quantiles = np.sort(sample)[50::100]  # (POOL,)
    return np.stack([rng.permutation(quantiles) for _ in range(DRAFTS)], axis=1)


@cache
def _age() -> np.ndarray:
    """(POOL, DRAFTS) in [0, 1): a confidence is out of date if this is below the share of those."""
    return np.random.default_rng(SEED + 1).random((POOL, DRAFTS))


def former(changed: float) -> np.ndarray:
    """(POOL, DRAFTS): the confidences of an earlier step, of which a share `changed` has since been
    drawn anew."""
    now = confidences()
    return np.where(_age() < changed, np.roll(now, POOL // 2, axis=0), now)


@dataclass(frozen=True)
class Setting:
    """What keeps a planner from being perfect. Without arguments nothing does.

    cost         its own time, as a share of each budgeted step
    lie          what the head says of a draft whose true confidence is c
    changed      share of the confidences that changed since the total was planned, 0 to 1
    stale_split  the drafts are chosen by the old confidences too; DeepInfer splits by fresh ones
    smooth       the step curve: a parabola through the chart's points, or straight lines
    """

    cost: float = 0.0
    lie: LogOddsLine = LogOddsLine()
    changed: float = 0.0
    stale_split: bool = False
    smooth: bool = True


@dataclass(frozen=True)
class Outcome:
    """Both ways at one load, over many steps; verified and accepted drafts are per request."""

    requests: int
    fixed: float  # tokens per second and GPU
    budgeted: float
    verified: float
    accepted: float

    @property
    def gain(self) -> float:
        """Of the budget over fixed five, in %."""
        return 100 * (self.budgeted / self.fixed - 1)


PERFECT = Setting()


@lru_cache(maxsize=1024)
def compare(requests: int, setting: Setting = PERFECT) -> Outcome:
    """Steps of `requests` requests, every one of the pool once. ValueError for a load that does not
    divide the pool, or more than 96."""
    if requests not in range(1, LOADS[-1] + 1) or POOL % requests:
        raise ValueError(f"requests {requests}: give a divisor of {POOL} up to {LOADS[-1]}")
    steps = POOL // requests
    old = setting.lie(former(setting.changed))
    fresh = old if setting.stale_split else setting.lie(confidences())
    true = _survival(confidences(), steps)  # (S, R * n)
    ms = step_ms(setting.smooth)[requests : requests * (1 + DRAFTS) + 1]  # (R * n + 1,)
    falling = -np.sort(-_survival(old, steps), axis=1)
    drafts = ((requests + sums(falling)) / ms).argmax(axis=1)  # (S,) the totals
    order = np.argsort(-_survival(fresh, steps), axis=1, kind="stable")
    accepted = sums(np.take_along_axis(true, order, axis=1))[np.arange(steps), drafts]  # (S,)
    spent = ms[drafts].sum() * (1 + setting.cost)
    return Outcome(
        requests,
        1000 * (POOL + true.sum()) / (steps * ms[-1]),
        1000 * (POOL + accepted.sum()) / spent,
        float(drafts.sum() / POOL),
        float(accepted.sum() / POOL),
    )


def _survival(confidences: np.ndarray, steps: int) -> np.ndarray:
    """(S, R * n): the products, first drafts first in each request."""
    return confidences.cumprod(axis=1).reshape(steps, -1)


def sums(values: np.ndarray) -> np.ndarray:
    """(S, K + 1): sums of the first 0, 1, ..., K of each row (S, K)."""
    return np.pad(values.cumsum(axis=1), ((0, 0), (1, 0)))
