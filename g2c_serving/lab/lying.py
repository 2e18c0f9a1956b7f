"""What a confidence head that lies costs: plan on what it says, count what comes true.

Brief, section 4: an overconfident head makes the planner verify drafts that will not survive, an
underconfident one leaves free tokens behind. The lie is a line through the log odds
(calibration.LogOddsLine). Simulated: confidences and step times are those of load_model.py, the
planner is the engine's own. Most of those confidences are near 0 or 1, where a shift of the log
odds changes little; a scale below 1, which draws all of them together, is dearer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab import load_model
from g2c_serving.lab.calibration import LogOddsLine
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, source_note, unmarked
from g2c_serving.sample.verify_budget import Plan, StepTime, plan

SHIFTS = np.arange(-4, 4.25, 0.5)  # of the log odds, along the right-hand picture


@dataclass(frozen=True, eq=False)
class Cost:
    """A step planned on true confidences (R, n), and on what a head says of them."""

    truth: Plan
    told: Plan
    expected: np.ndarray  # (D + 1,) true tokens with the first 0, 1, ... drafts in the head's order

    @property
    def rates(self) -> np.ndarray:
        """True tokens per ms at each total (D + 1,), the drafts taken in the head's order."""
        return self.expected / self.told.step_ms

    @property
    def on_truth(self) -> float:
        """Tokens per ms that a calibrated head gives."""
        return self.truth.tokens_per_ms

    @property
    def on_lies(self) -> float:
        """Tokens per ms that the planner gets when it believes the head."""
        return float(self.rates[self.told.drafts.sum()])

    @property
    def promised(self) -> float:
        """Tokens per ms that it expected."""
        return self.told.tokens_per_ms

    @property
    def fixed(self) -> float:
        """Tokens per ms with every draft verified, whatever the head says."""
        return float(self.rates[-1])

    @property
    def loss(self) -> float:
        """What the lie costs, as a share of what a calibrated head gives: 0 or more."""
        return max(0.0, 1 - self.on_lies / self.on_truth)  # sums in another order may end otherwise


def cost_of_lying(confidences: np.ndarray, step_time: StepTime, lie: LogOddsLine) -> Cost:
    """One step of R requests: confidences (R, n) are true, the planner sees lie(confidences).

    step_time as in verify_budget.plan, for R to R + R * n rows.
    """
    truth, told = plan(confidences, step_time), plan(lie(confidences), step_time)
    survival = confidences.cumprod(axis=1)  # (R, n)
    gained = survival[told.ranking.request, told.ranking.draft - 1]  # (D,) in the head's order
    return Cost(truth, told, len(confidences) + np.concatenate(([0.0], gained)).cumsum())


def step_ms(steepness: float) -> np.ndarray:
    """The decode chart's step times by rows, of which what rows add is multiplied by `steepness`.
    0: rows are free, 1: as read off the chart."""
    chart = load_model.step_ms()
    return chart[0] + steepness * (chart - chart[0])


def lying_panel() -> Panel:
    """Tokens per ms over the budget, and over the lie; 100 % is planned on the truth."""
    controls = {
        "shift": slider("Lie: shift of the log odds", -4.0, 4.0, 2.0, 0.5),
        "scale": slider("Lie: scale of the log odds", 0.25, 3.0, 1.0, 0.25),
        "requests": stops("Requests in the step", load_model.LOADS, 60),
        "steepness": slider("Price of rows (1: the decode chart's)", 0.0, 4.0, 1.0, 0.5),
    }
    return Panel(_draw, _update, controls, size=(8, 3))


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {}
    (art["true"],) = left.plot([], [], label="comes true", **unmarked(0))
    (art["said"],) = left.plot([], [], label="the head says", **unmarked(1))
    left.set(xlim=(-0.1, 5.1), xlabel="drafts verified a request", title="one step, by budget")
    (art["lies"],) = right.plot([], [], label="planned on the lie", **unmarked(0))
    (art["fixed"],) = right.plot([], [], label="fixed five", **unmarked(2))
    right.set(xlim=(-4.2, 4.2), xlabel="shift of the log odds", title="by the lie")
    art["best_truth"] = _mark(left, "D", "planned on the truth")
    art["best_lie"] = _mark(left, "o", "planned on the lie")
    art["now_lie"] = _mark(right, "o", "planned on the lie")
    left.set(
        ylim=(-22, 140),
        yticks=range(0, 141, 20),
        ylabel="% of the tokens per ms\nplanned on the truth",
    )
    right.set(ylim=(45, 105))
    left.legend(loc="lower right", fontsize=9, ncols=2)
    right.legend(handles=[art["lies"], art["fixed"]], loc="lower right", fontsize=9)
    source_note(right, "Simulated")
    return art


def _mark(axes: Axes, marker: str, label: str) -> Any:
    look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none", "mew": 2}
    return axes.plot([], [], marker, markersize=11, label=label, **look)[0]


def _update(
    art: dict[str, Any], shift: float, scale: float, requests: int, steepness: float
) -> str:
    true, curve = load_model.confidences()[:requests], step_ms(steepness)
    now = cost_of_lying(true, curve, LogOddsLine(scale, shift))
    best = 100 / now.on_truth
    drafts = np.arange(len(now.expected)) / requests
    art["true"].set_data(drafts, now.rates * best)
    art["said"].set_data(drafts, _promises(now) * best)
    art["best_truth"].set_data([now.truth.drafts.mean()], [100])
    art["best_lie"].set_data([now.told.drafts.mean()], [now.on_lies * best])
    along = [cost_of_lying(true, curve, LogOddsLine(scale, s)).on_lies * best for s in SHIFTS]
    art["lies"].set_data(SHIFTS, along)
    art["fixed"].set_data(SHIFTS[[0, -1]], [now.fixed * best] * 2)
    art["now_lie"].set_data([shift], [now.on_lies * best])
    return _sentence(now, shift, scale, requests, steepness)


def _promises(now: Cost) -> np.ndarray:
    """Tokens per ms that the head's confidences promise at each total (D + 1,)."""
    survival = np.concatenate(([len(now.told.drafts)], now.told.ranking.survival))
    return survival.cumsum() / now.told.step_ms


def _sentence(now: Cost, shift: float, scale: float, requests: int, steepness: float) -> str:
    head = "calibrated" if (shift, scale) == (0, 1) else "lying"
    return (
        f"Simulated: {requests} requests, rows at {steepness:g} times the chart's price, a {head} "
        f"head (log odds times {scale:g}, {shift:+g}). It promises {now.promised:.2f} tokens per "
        f"ms and gives {now.on_lies:.2f} with {now.told.drafts.mean():.2f} drafts verified a "
        f"request. A calibrated one gives {now.on_truth:.2f} with {now.truth.drafts.mean():.2f}: "
        f"the lie costs {now.loss:.1%}. Fixed five gives {now.fixed:.2f}."
    )
