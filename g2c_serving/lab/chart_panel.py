"""A throughput chart taken apart: measured steps, times tau, times requests.

Brief, "Reading the numbers". Works for DeepInfer's decode chart and for any other that
`speed_chart.read` has read. Move the acceptance: the left third stays where it is, and what stands
on it moves. The number of drafts is no slider, since other drafts make other steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Control, Panel, choice, slider
from g2c_serving.lab.plots import BLACK, PINK, line, source_note
from g2c_serving.lab.speed_chart import READINGS, SHARE, Point
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

MOST_RUNS, MOST_POINTS = 3, 40
MOST_TICKS = 5  # loads that are written below each third
LONGEST = 20  # characters of a run's name in the picture
Column = list[float]  # of one axes, a number a point


def panel(points: Sequence[Point], label: str = "Derived") -> Panel:
    """The chart's anatomy. `label`: one of published.LABELS, or "Invented". ValueError for no
    points, more points or runs than can be told apart, and a run with two points at the same load.
    """
    points = sorted(points, key=lambda p: p.requests)
    runs = list(dict.fromkeys(p.run for p in points))
    if not 1 <= len(runs) <= MOST_RUNS:
        raise ValueError(f"points hold {len(runs)} runs: give 1 to {MOST_RUNS}")
    if len(points) > MOST_POINTS:
        raise ValueError(
            f"points hold {len(points)} points: the picture has room for {MOST_POINTS}; leave "
            "loads out"
        )
    named = {_name(p, len(runs) > 1): p for p in points}
    if len(named) < len(points):
        raise ValueError("points: a run has two points at the same requests; name two runs")

    def update(art: dict, point: str = "", percent: float = 0, reading: str = SHARE) -> str:
        chosen = named.get(point, points[0])
        return _update(art, points, chosen, percent / 100, reading)

    return Panel(lambda figure: _draw(figure, points, runs, label), update, _controls(named))


def _name(point: Point, with_run: bool) -> str:
    load = many(point.requests, "request")
    return f"{point.run}, {load}" if with_run else load


def _controls(named: dict[str, Point]) -> dict[str, Control]:
    controls = {}
    names = list(named)
    if len(names) > 1:
        controls["point"] = choice("Point", names, names[len(names) // 2])
    given = [p.assumed_acceptance for p in named.values() if p.assumed_acceptance is not None]
    if given:
        start = round(200 * given[0]) / 2
        whole = all(abs(100 * a - round(100 * a)) < 1e-9 for a in given)
        controls["percent"] = (
            slider("Acceptance a (%)", 0, 100, round(start))
            if whole
            else slider("Acceptance a (%)", 0.0, 100.0, start, 0.5)
        )
        controls["reading"] = choice("a is", tuple(READINGS))
    return controls


# ---- the three factors ----


def _steps(points: Sequence[Point]) -> Column:
    nan = float("nan")
    return [nan if p.steps_per_s is None else p.steps_per_s for p in points]


def _draw(figure: Figure, points: list[Point], runs: list[str], label: str) -> dict[str, Any]:
    steps, user, machine = figure.subplots(1, 3)
    art: dict[str, Any] = {"user": [], "machine": [], "runs": runs}
    printed: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none"}
    for k, run in enumerate(runs):
        own = [p for p in points if p.run == run]
        steps.plot([p.requests for p in own], _steps(own), **line(k))
        for axes, name in ((user, "user"), (machine, "machine")):
            art[name] += axes.plot([], [], label=_short(run), **line(k))
    for axes, column in ((user, _user(points)), (machine, _machine(points))):
        loads = [p.requests for p in points]
        axes.plot(loads, column, "o", markersize=11, label="as printed", **printed)
    chosen: dict[str, Any] = {"color": PINK, "marker": "D", "markersize": 7, "linestyle": "none"}
    art["chosen"] = [axes.plot([], [], **chosen)[0] for axes in (steps, user, machine)]
    most = [1.0] * len(points)
    tops = (_steps(points), _user(points, most), _machine(points, most))
    titles = ("steps/s", "× tau: tokens/s of a user", "× requests: of all")
    for axes, top, title in zip((steps, user, machine), tops, titles, strict=True):
        _frame(axes, points, top, title)
    if not any(p.is_assumed for p in points):
        words = "tokens were\ncounted: no tau"
        steps.text(0.5, 0.5, words, transform=steps.transAxes, ha="center")
        steps.set_yticks([])
    user.legend(loc="best", fontsize=8)
    source_note(machine, label)
    return art


def _frame(axes: Axes, points: list[Point], tops: Column, title: str) -> None:
    loads = sorted({p.requests for p in points})
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = _ticks(loads)
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    top = max((t for t in tops if t == t), default=1.0)
    axes.set(xlim=(loads[0] / 1.4, loads[-1] * 1.4), ylim=(0, 1.1 * top), xlabel="requests")
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.yaxis.set_major_formatter("{x:,g}")


def _ticks(loads: list[int]) -> list[int]:
    """A few of the loads, evenly spread on the logarithmic axis."""
    if len(loads) <= MOST_TICKS:
        return loads
    steps = range(MOST_TICKS)
    wanted = [loads[0] * (loads[-1] / loads[0]) ** (k / (MOST_TICKS - 1)) for k in steps]
    return sorted({min(loads, key=lambda n: abs(math.log(n / at))) for at in wanted})


def _short(run: str) -> str:
    return run if len(run) <= LONGEST else f"{run[: LONGEST - 3]}..."


def _user(
    points: Sequence[Point], acceptance: Sequence[float] | None = None, reading: str = SHARE
) -> Column:
    """tokens/s of one user, as printed or with other acceptances."""
    if acceptance is None:
        return [p.tokens_per_s for p in points]
    return [p.read_with(a, reading) for p, a in zip(points, acceptance, strict=True)]


def _machine(
    points: Sequence[Point], acceptance: Sequence[float] | None = None, reading: str = SHARE
) -> Column:
    users = _user(points, acceptance, reading)
    return [p.requests * speed for p, speed in zip(points, users, strict=True)]


def _update(
    art: dict[str, Any], points: list[Point], chosen: Point, acceptance: float, reading: str
) -> str:
    for k, run in enumerate(art["runs"]):
        own = [p for p in points if p.run == run]
        loads, a = [p.requests for p in own], [acceptance] * len(own)
        art["user"][k].set_data(loads, _user(own, a, reading))
        art["machine"][k].set_data(loads, _machine(own, a, reading))
    one, a = [chosen], [acceptance]
    heights = (_steps(one), _user(one, a, reading), _machine(one, a, reading))
    for mark, height in zip(art["chosen"], heights, strict=True):
        mark.set_data([chosen.requests], height)
    return _said(points, chosen, acceptance, reading)


def _said(points: list[Point], chosen: Point, acceptance: float, reading: str) -> str:
    speed = chosen.read_with(acceptance, reading)
    load, total = chosen.requests, speed * chosen.requests
    requests = many(load, "request")
    head = f"{chosen.run}, {requests}: "
    if chosen.steps_per_s is None:
        return (
            f"{head}{speed:,.0f} tokens a second of a user were counted ({chosen.source}), "
            f"{total:,.0f} of all; no tau in them, so nothing moves. "
            f"{_others(points, acceptance, reading)}"
        )
    tau = speed / chosen.steps_per_s
    off = speed / chosen.tokens_per_s - 1
    change = "as printed"
    if abs(off) >= 5e-4:
        change = f"{off:+.0%} against the {chosen.tokens_per_s:,.0f} printed"
    return (
        f"{head}{chosen.steps_per_s:.1f} steps a second ({chosen.source}), times tau {tau:.2f} "
        f"(assumed: {chosen.assumed_drafts} drafts, a = {100 * acceptance:g}% as "
        f"{reading.split(':')[0]}), are {speed:,.0f} tokens a second of a user, {change}; times "
        f"{requests} {total:,.0f}.{_more_than_one(points)}"
    )


def _more_than_one(points: list[Point]) -> str:
    """Said where the points assume different acceptances."""
    found = sorted({p.assumed_acceptance for p in points if p.assumed_acceptance is not None})
    if len(found) < 2:
        return ""
    words = [f"{100 * a:g}%" for a in found]
    listed = f"{', '.join(words[:-1])} and {words[-1]}"
    return f" This chart assumes {listed}; the slider sets one for all."


def _others(points: list[Point], acceptance: float, reading: str) -> str:
    """What the points with a tau do meanwhile."""
    off = [p.read_with(acceptance, reading) / p.tokens_per_s - 1 for p in points if p.is_assumed]
    if not off:
        return "Nor is there one in any other point."
    low, high = f"{min(off):+.0%}", f"{max(off):+.0%}"
    by = low if low == high else f"{low} to {high}"
    who = "assumes one: with" if len(off) == 1 else "assume one: with"
    goes = "it goes" if len(off) == 1 else "they go"
    return (
        f"{len(off)} of the chart's {len(points)} points {who} a = {100 * acceptance:g}% as "
        f"{reading.split(':')[0]} {goes} by {by}."
    )


def steps_table(points: Sequence[Point]) -> Table:
    """What lies behind each point: tau, steps a second, ms a step."""
    rows = []
    for p in points:
        steps, behind = p.steps_per_s, ("counted", "", "")
        if steps is not None:
            behind = (f"{p.tau:.2f}", f"{steps:.1f}", f"{1000 / steps:.1f}")
        kind = (p.verification, p.source)
        rows.append((p.run, f"{p.requests:,}", f"{p.tokens_per_s:,.1f}", *behind, *kind))
    head = ("run", "requests", "tokens/s, a user", "tau", "steps/s", "ms a step")
    return Table((*head, "verification", "source"), rows)
