"""The planner on your machine: your drafter's confidences, and the step times of your processor.

Brief, section 4 and "The laptop boundary", which expects that curve to be nearly flat at laptop
batch sizes. It is profiled by real passes (`schedule/step_curve.py`), of a target that fits the
processor's cache and of one that does not; the confidences come from a run of the engine on texts
that no training has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, choice, stops, toggle
from g2c_serving.lab.plots import BLACK, plain_ticks, source_note, unmarked
from g2c_serving.lab.reliability import Evidence
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many
from g2c_serving.sample.verify_budget import Plan, plan
from g2c_serving.schedule.step_curve import StepCurve, profile

LOADS = (1, 2, 4, 8, 16, 32, 64)
FIGURE_SPACE = "\u2007"  # as wide as a digit: the axes keep their places when numbers grow
BLOCK = 16  # tokens in a block of the scratch cache
REPEATS = 15  # of a short pass, twice: the best of so many does not jump

Planner = Callable[[list[list[float]], list[float]], Sequence[int]]


@dataclass(frozen=True, eq=False)
class Machine:
    """What was measured: a step curve for each target by name, the drafter's, and confidences
    (K, n) of real drafts."""

    curves: dict[str, StepCurve]
    drafting: StepCurve
    confidences: np.ndarray

    @property
    def drafts(self) -> int:
        return self.confidences.shape[1]

    def step_ms(self, target: str, requests: int, with_drafting: bool) -> np.ndarray:
        """ms of a step by its rows (R * (1 + n) + 1,). Drafting takes the same time whatever is
        verified: a pass of the drafter for the last token, and one for each draft."""
        ms = self.curves[target].up_to(requests * (1 + self.drafts))
        return ms + with_drafting * (1 + self.drafts) * self.drafting(requests)

    def best(self, target: str, requests: int, with_drafting: bool) -> Plan:
        """What the engine's planner makes of the first so many drafted continuations."""
        step_ms = self.step_ms(target, requests, with_drafting)
        return plan(self.confidences[:requests], step_ms)


def measure(
    targets: Sequence[LanguageModel], drafter: LanguageModel, evidence: Evidence
) -> Machine:
    """Profile the targets and the drafter: about five seconds."""
    confidences = evidence.confidences[evidence.verified == evidence.confidences.shape[1]]
    most = LOADS[-1] * (1 + confidences.shape[1])
    curves = {lm.name: _curve(lm, most) for lm in dict.fromkeys(targets)}
    return Machine(curves, _curve(drafter, LOADS[-1]), confidences)


def _curve(lm: LanguageModel, max_rows: int) -> StepCurve:
    """The better of two profiles at each number of rows: one runs a long pass once only."""
    one, other = (profile(lm.model, BLOCK, max_rows, repeats=REPEATS) for _ in range(2))
    return StepCurve(one.rows.tolist(), np.minimum(one.ms, other.ms).tolist())


def row_prices(targets: Sequence[LanguageModel], rows: Sequence[int] = (1, 2, 4, 6, 8)) -> Table:
    """How much longer a pass of so many rows takes than one of a single row."""
    lines = []
    for lm in dict.fromkeys(targets):
        curve = _curve(lm, max(rows))
        megabytes = 4 * lm.num_parameters / 1e6
        times = (f"{curve(r) / curve(1):.2f}" for r in rows)
        lines.append((lm.name, f"{megabytes:.0f} MB", *times))
    return Table(("target", "weights", *(many(r, "row") for r in rows)), lines)


def flatness(machine: Machine) -> Table:
    """How much longer a step takes when every request has its drafts in it."""
    rows = []
    for requests in LOADS:
        cells = [str(requests), str(requests * (1 + machine.drafts))]
        for curve in machine.curves.values():
            one, all_rows = curve(requests), curve(requests * (1 + machine.drafts))
            cells.append(f"{all_rows / one:.2f} times")
        rows.append(tuple(cells))
    head = ("requests, one row each", "rows with five drafts each", *machine.curves)
    return Table(head, rows)


def by_load(machine: Machine, planner: Planner) -> Table:
    """Drafts that `planner` verifies, a request, at each load of each target; and whether they are
    expected to give fewer tokens per ms than no drafts and no drafter."""
    rows = []
    for requests in LOADS:
        confidences = machine.confidences[:requests].tolist()
        cells = [str(requests)]
        for target in machine.curves:
            step_ms = machine.step_ms(target, requests, with_drafting=True).tolist()
            drafts = planner(confidences, step_ms)
            tokens = requests + _expected(confidences, drafts)
            rate = tokens / step_ms[requests + sum(drafts)]
            worse = rate < requests / machine.curves[target](requests)
            cells.append(f"{sum(drafts) / requests:.2f}{'; none is better' * bool(worse)}")
        rows.append(tuple(cells))
    return Table(("requests", *(f"drafts a request, {name}" for name in machine.curves)), rows)


def _expected(confidences: list[list[float]], drafts: Sequence[int]) -> float:
    """How many of the first so many drafts of each request stand."""
    return sum(float(np.cumprod(c[:n]).sum()) for c, n in zip(confidences, drafts, strict=True))


def panel(machine: Machine) -> Panel:
    """The curve, and tokens per ms over the rows with the best budget marked."""
    controls = {
        "target": choice("Target", tuple(machine.curves)),
        "requests": stops("Requests in the step", LOADS, 8),
        "with_drafting": toggle("Count the drafter's time", True),
    }
    return Panel(_draw, lambda art, **values: _update(art, machine, **values), controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {"left": left, "right": right}
    (art["curve"],) = left.plot([], [], **unmarked(0))
    (art["ends"],) = left.plot([], [], color=BLACK, marker="o", linestyle="none")
    left.set(xscale="log", xlim=(0.9, 450), title="ms of a step", xlabel="rows")
    plain_ticks(left.xaxis)
    for axes in (left, right):
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}".rjust(4, FIGURE_SPACE))
    (art["rate"],) = right.plot([], [], **unmarked(0), label="tokens per ms")
    look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none", "mew": 2}
    (art["best"],) = right.plot([], [], "o", markersize=12, label="best", **look)
    (art["none"],) = right.plot([], [], "D", markersize=9, label="no drafts, no drafter", **look)
    right.set(xlabel="drafts verified a request", xlim=(-0.2, 5.2), title="expected tokens per ms")
    right.legend(loc="lower right", fontsize=9)
    source_note(right, "Measured here")
    return art


def _update(
    art: dict[str, Any], machine: Machine, target: str, requests: int, with_drafting: bool
) -> str:
    most = requests * (1 + machine.drafts)
    curve = machine.curves[target].up_to(LOADS[-1] * (1 + machine.drafts))
    found = machine.best(target, requests, with_drafting)
    survival = np.concatenate(([requests], found.ranking.survival)).cumsum()
    rates = survival / found.step_ms
    alone = requests / curve[requests]
    art["curve"].set_data(np.arange(1, len(curve)), curve[1:])
    art["ends"].set_data([requests, most], [curve[requests], curve[most]])
    art["left"].set_ylim(0, 1.05 * curve[-1])
    x = np.arange(len(rates)) / requests
    best = found.rows - requests
    art["rate"].set_data(x, rates)
    art["best"].set_data([x[best]], [rates[best]])
    art["none"].set_data([0], [alone])
    art["right"].set_ylim(0, 1.3 * max(rates.max(), alone))
    counted = "the drafter's time counted" if with_drafting else "drafting for free"
    verdict = f"{rates[best] / alone:.2f} times the tokens per ms of no speculation"
    verdict += "; not speculating is better" * bool(rates[best] < alone)
    return (
        f"{target}, {many(requests, 'request')}, {counted}: {most} rows take "
        f"{curve[most] / curve[requests]:.2f} times as long as {requests}. The best budget "
        f"verifies {best / requests:.2f} drafts a request and expects {verdict}; verifying all "
        f"expects {rates[-1] / alone:.2f} times."
    )
