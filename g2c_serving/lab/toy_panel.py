"""The Brief's toy table, and a panel that puts handles on it: confidences, load, step time.

Brief, section 4, "Not every draft is worth checking". The numbers are invented, at first by the
Brief (toy_budget.py); the planner is the engine's own (sample/verify_budget.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.table import Table
from g2c_serving.lab.toy_budget import CONFIDENCES
from g2c_serving.sample.verify_budget import Plan, plan

CONFIDENT, UNSURE = CONFIDENCES[0][0], CONFIDENCES[1][0]  # A's and B's, the same for each draft
DRAFTS = len(CONFIDENCES[0])  # of a request
BASE_MS, FREE_ROWS, STEEPNESS = 10.0, 4, 3.0  # 10 ms up to 4 rows, 3 ms for each two rows more
RING: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none", "mew": 2}
FIGURE_SPACE = "\u2007"  # as wide as a digit: the axis keeps its place when the numbers grow


def step_ms(rows: int, steepness: float = STEEPNESS) -> float:
    """The toy's step, carried on: 10 ms up to 4 rows, 13 up to 6, 16 up to 8, 19 up to 10, ..."""
    pairs = max(0, -(-(rows - FREE_ROWS) // 2))
    return BASE_MS + steepness * pairs


def confidences(a: float = CONFIDENT, b: float = UNSURE, each: int = 1) -> np.ndarray:
    """(2 * each, 3): `each` requests like A, then as many like B."""
    return np.repeat([[a] * DRAFTS, [b] * DRAFTS], each, axis=0)


@dataclass(frozen=True)
class Toy:
    """What the planner finds for `each` requests like A and as many like B."""

    each: int
    plan: Plan

    @property
    def drafts(self) -> tuple[int, int]:
        """Drafts verified of all requests like A, and of all like B."""
        return int(self.plan.drafts[: self.each].sum()), int(self.plan.drafts[self.each :].sum())

    @property
    def rates(self) -> np.ndarray:
        """Tokens per ms at each total of rows, from one row a request up."""
        return self.expected / self.plan.step_ms

    @property
    def expected(self) -> np.ndarray:
        """Expected tokens of a step at each total of rows."""
        return 2 * self.each + np.concatenate(([0.0], self.plan.ranking.survival)).cumsum()

    @property
    def loss(self) -> float:
        """What verifying every draft gives less per ms, as a share of the best."""
        return float(1 - self.rates[-1] / self.plan.tokens_per_ms)


def toy(
    a: float = CONFIDENT, b: float = UNSURE, each: int = 1, steepness: float = STEEPNESS
) -> Toy:
    """Without arguments: the Brief's table."""
    return Toy(each, plan(confidences(a, b, each), lambda rows: step_ms(rows, steepness)))


def table(found: Toy | None = None) -> Table:
    """The Brief's table: each total of rows, what it adds and what it gives. Derived, from invented
    numbers. (At 5 rows the Brief divides the rounded 4.44: 0.342 there, 0.341 here.)"""
    found = found or toy()
    rows = []
    for candidate in found.plan.table:
        added = "one ordinary row each"
        if candidate.request is not None:
            kind = "A" if candidate.request < found.each else "B"
            added = f"{kind}'s draft {candidate.draft} ({candidate.survival:.3g})"
        best = "best" if candidate.rows == found.plan.rows else ""
        numbers = f"{candidate.expected_tokens:.2f}", f"{candidate.step_ms:g} ms"
        rate = f"{candidate.tokens_per_ms:.3f}"
        rows.append((str(candidate.rows), added, *numbers, rate, best))
    head = ("rows", "row added", "expected tokens", "step time", "tokens per ms", "")
    return Table(head, rows, words=2)


def toy_panel() -> Panel:
    """Tokens per ms over the rows of a step, with the best budget marked."""
    controls = {
        "a": slider("A's confidence in each draft", 0.0, 1.0, CONFIDENT, 0.05),
        "b": slider("B's confidence in each draft", 0.0, 1.0, UNSURE, 0.05),
        "each": slider("Requests of each kind", 1, 16, 1),
        "steepness": slider("Two more rows cost (ms)", 0.0, 6.0, STEEPNESS, 0.25),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {"axes": axes}
    (art["rates"],) = axes.plot([], [], label="each number of rows", **line(0))
    (art["best"],) = axes.plot([], [], "o", markersize=13, label="best", **RING)
    (art["all"],) = axes.plot([], [], "s", markersize=11, label="all drafts", **RING)
    axes.set(xlabel="rows in the step", ylabel="tokens per ms")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.2f}".rjust(5, FIGURE_SPACE))
    axes.legend(loc="lower right", ncols=3)
    source_note(axes, "Derived", "invented numbers, for teaching")
    return art


def _update(art: dict[str, Any], a: float, b: float, each: int, steepness: float) -> str:
    found = toy(a, b, each, steepness)
    rows, rates = 2 * each + np.arange(len(found.rates)), found.rates
    best = found.plan.rows - 2 * each
    art["rates"].set_data(rows, rates)
    art["rates"].set_markersize(5 if len(rows) < 40 else 3)
    art["best"].set_data([rows[best]], [rates[best]])
    art["all"].set_data([rows[-1]], [rates[-1]])
    art["axes"].set(xlim=(rows[0] - 0.05 * len(rows), rows[-1] + 0.05 * len(rows)))
    art["axes"].set_ylim(0, 1.25 * rates.max())
    return f"{_what(a, b, each, steepness)} {_verdict(found)}"


def _what(a: float, b: float, each: int, steepness: float) -> str:
    many = "One request each" if each == 1 else f"{each} requests each"
    return f"{many} like A ({a:g} a draft) and B ({b:g}), {steepness:g} ms for two more rows."


def _verdict(found: Toy) -> str:
    of_a, of_b = found.drafts
    budget = found.plan
    best, everything = found.expected[budget.rows - 2 * found.each], found.expected[-1]
    most = 2 * found.each * (1 + DRAFTS)
    ms = f"{budget.step_ms[budget.rows - 2 * found.each]:g} ms"
    text = (
        f"Best: {budget.rows} rows, {of_a} of A's drafts and {of_b} of B's, {best:.2f} tokens in "
        f"{ms}, {budget.tokens_per_ms:.3f} per ms."
    )
    if budget.rows == most:
        return f"{text} That is every draft: here verifying all of them pays."
    return (
        f"{text} All {most} rows: {everything:.2f} tokens in {budget.step_ms[-1]:g} ms, "
        f"{found.rates[-1]:.3f} per ms, {found.loss:.0%} less. The best budget gives fewer tokens "
        "a step, but more per unit of time."
    )
