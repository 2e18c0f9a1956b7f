"""The production table of budgeted verification, and a panel that tries to explain it by load.

Brief, section 4: about 60 requests per GPU (Reported; "computed from benchmark data", so estimated,
not measured end to end), with a gain of -1.5 % at 16 requests and of +11 % at 96. The model in
load_model.py says what a perfect planner would gain. That is never a loss, so the reported -1.5 %
needs something else. The panel offers three causes (Simulated); which of them it is in DeepInfer is
Not disclosed, and several mixtures fit.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab.calibration import LogOddsLine
from g2c_serving.lab.implied_steps import implied_ms
from g2c_serving.lab.load_model import DRAFTS, LOADS, Outcome, Setting, compare, step_ms
from g2c_serving.lab.panel import Panel, choice, slider, toggle
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table
from g2c_serving.lab.toy_budget import accept_rate, gain

REPORTED = {16: "prod.gain.16", 60: "prod.gain", 96: "prod.gain.96"}  # requests: row of the Brief
SMOOTH, STRAIGHT = "smooth", "straight lines"


def beyond_reported(found: Outcome) -> float:
    """Percentage points by which a gain at 16, 60 or 96 requests exceeds the reported one."""
    return found.gain - value(REPORTED[found.requests])


def production_table() -> Table:
    """The Brief's table, and the step times that it implies beside those of the decode chart
    (Simulated, as its rows lie between the chart's points)."""
    requests = value("prod.load")
    columns = []
    for mode in ("fixed", "budget"):
        verified, accepted = value(f"prod.verified.{mode}"), value(f"prod.accepted.{mode}")
        throughput = value(f"prod.throughput.{mode}")
        chart = step_ms()[round(requests * (1 + verified))]
        columns.append(
            (
                f"{verified:.2f}",
                f"{accepted:.2f}",
                f"{accept_rate(mode):.0f}%",
                f"{throughput:,.0f}",
                f"{gain():+.1f}%" if mode == "budget" else "",
                f"{implied_ms(requests, mode, ordinary=True):.1f}",
                f"{chart:.1f}",
            )
        )
    names = (
        "draft tokens verified per step (Reported)",
        "accepted length (Reported)",
        "accepted of the verified (Derived)",
        "tokens/s per GPU (Reported, an estimate)",
        "gain (Derived)",
        "ms a step that this implies (Derived)",
        "ms a step by the decode chart (Simulated)",
    )
    head = (f"about {requests:.0f} requests per GPU", "fixed 5", "budgeted")
    return Table(head, list(zip(names, *columns, strict=True)))


def load_panel() -> Panel:
    """Gain of the budget over the load, and the drafts that it verifies, beside the reported."""
    controls = {
        "cost": slider("Planner's cost (% of a step)", 0.0, 10.0, 0.0, 0.25),
        "shift": slider("Head's lie (log odds, + is overconfident)", -4.0, 4.0, 0.0, 0.5),
        "changed": slider("Confidences out of date (%)", 0, 100, 0, 5),
        "stale_split": toggle("The drafts are chosen by the old ones too", False),
        "curve": choice("Step times between the chart's points", (SMOOTH, STRAIGHT)),
    }
    return Panel(_draw, _update, controls, size=(8, 3))


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {}
    (art["gain"],) = left.plot([], [], label="Simulated", **line(0))
    reported = [value(row) for row in REPORTED.values()]
    _diamonds(left, list(REPORTED), reported)
    left.axhline(0, color=BLACK, linewidth=1)
    left.set(ylim=(-20, 20), title="gain over fixed five (%)")
    (art["verified"],) = right.plot([], [], label="verified", **line(0))
    (art["accepted"],) = right.plot([], [], label="accepted", **line(1))
    load, names = value("prod.load"), ("prod.verified.budget", "prod.accepted.budget")
    _diamonds(right, [load, load], [value(name) for name in names])
    right.set(ylim=(0, DRAFTS + 0.2), title="drafts a request and step")
    for axes in (left, right):
        axes.set(xlim=(10, 102), xlabel="requests per GPU", xticks=LOADS)
        axes.legend(loc="lower right", fontsize=9, ncols=3 if axes is right else 1)
    source_note(right, "Simulated")
    return art


def _diamonds(axes: Axes, x: list[float], y: list[float]) -> None:
    look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none", "mew": 2}
    axes.plot(x, y, "D", markersize=11, label="Reported", **look)


def _update(
    art: dict[str, Any], cost: float, shift: float, changed: int, stale_split: bool, curve: str
) -> str:
    lie = LogOddsLine(1.0, shift)
    setting = Setting(cost / 100, lie, changed / 100, stale_split, curve == SMOOTH)
    found = {requests: compare(requests, setting) for requests in LOADS}
    for name in ("gain", "verified", "accepted"):
        art[name].set_data(LOADS, [getattr(outcome, name) for outcome in found.values()])
    gains = ", ".join(_against_reported(found[requests]) for requests in REPORTED)
    now = found[round(value("prod.load"))]
    return (
        f"{_what(cost, shift, changed, stale_split, curve)} over fixed five the budget gains, by "
        f"requests per GPU, {gains}. At {now.requests} it verifies {now.verified:.2f} drafts a "
        f"request (reported {value('prod.verified.budget'):.2f}), of which {now.accepted:.2f} are "
        f"accepted (reported {value('prod.accepted.budget'):.2f})."
    )


def _what(cost: float, shift: float, changed: int, stale_split: bool, curve: str) -> str:
    head = "a calibrated head"
    if shift:
        head = f"a head {'over' if shift > 0 else 'under'}confident by {abs(shift):g}"
    split = "total and choice" if stale_split else "total"
    return (
        f"Simulated: a planner that costs {cost:g}% of a step, {head}, {changed}% of the "
        f"confidences out of date for the {split}, step times {curve}:"
    )


def _against_reported(found: Outcome) -> str:
    reported, beyond = value(REPORTED[found.requests]), beyond_reported(found)
    side = "above" if beyond >= 0 else "below"
    return (
        f"at {found.requests} {found.gain:+.1f}% (reported {reported:+g}%: {abs(beyond):.1f} "
        f"points {side})"
    )
