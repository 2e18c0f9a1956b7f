"""The same day at more and more load: until the engine is full, and where that begins to hurt.

A load of 1 is a day so short that a plain engine would be busy all of it (`ablation.calibrate`);
twice the load is the same visitors in half the time. Throughput rises with the load until the
engine cannot follow, and stays there. What visitors feel changes sooner: the knee is the last load
at which NEARLY_ALL of them get what the target promises. Each step takes the processor's time that
it took here, and idle time passes without a wait. Measured here.

The visits come at the hours of a calm day, whether or not the engine keeps up. (If those who come
back waited for their answer first, a full engine would be asked less often, and look better than it
is.) On a calm day everybody is served as if alone, so that its hours are known without serving it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.ablation import NOTHING, PLAIN, Scale, serve
from g2c_serving.lab.counter import counted
from g2c_serving.lab.day import Visit, recorded
from g2c_serving.lab.day_result import Day
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREY, line, source_note

CALM, LOADS = 0.25, (0.5, 1.0, 2.0, 4.0, 8.0)
RUNS = 2  # of each point: other programs make a run slower, none makes it faster
NEARLY_ALL = 0.9
ENGINES = {"continuous, pages, prefix cache": PLAIN, "static, reserved, no cache": NOTHING}


@dataclass(frozen=True)
class Sweep:
    """The day at each load, for each of ENGINES."""

    scale: Scale
    days: Mapping[str, Mapping[float, Day]]

    def knee(self, engine: str, patience: float) -> float | None:
        """The last load up to which NEARLY_ALL visits are on target; None: not even the first."""
        target, last = self.scale.target(patience), None
        for load, day in self.days[engine].items():
            if day.share_met(target) < NEARLY_ALL:
                break
            last = load
        return last


def sweep(
    lm: LanguageModel, visits: Sequence[Visit], scale: Scale, loads: Sequence[float] = LOADS
) -> Sweep:
    """Serve the visits of a calm day at each load, RUNS times, and keep the less busy one. Says how
    far it is."""
    trace = calm_day(lm, visits, scale)
    runs = [(name, on, load) for name, on in ENGINES.items() for load in loads]
    days: dict[str, dict[float, Day]] = {name: {} for name in ENGINES}
    for name, on, load in counted(runs, "points measured"):
        tries = [serve(lm, None, trace, on, scale, load=load) for _ in range(RUNS)]
        days[name][load] = min(tries, key=lambda day: day.busy)
    return Sweep(scale, days)


def calm_day(lm: LanguageModel, visits: Sequence[Visit], scale: Scale) -> list[Visit]:
    """The visits at the hours at which they come if everybody is served as if alone: each with the
    whole prompt that it had when the scale was found, or, for other visits, in a day served now."""
    served = scale.served
    if [one.visit for one in served] != list(visits):
        served = tuple(serve(lm, None, visits, PLAIN, scale, load=CALM).served)
    hours, ends, hour = list[float](), list[float](), scale.hour_ms(CALM)
    for visit in visits:
        came = visit.time + (0 if visit.follows is None else ends[visit.follows])
        took = scale.alone.first_token + (visit.answer - 1) * scale.alone.per_token
        hours.append(came)
        ends.append(came + took / hour)
    return recorded(visits, hours, [one.prompt for one in served])


def panel(found: Sweep) -> Panel:
    """Throughput, goodput and the first token over load; choose the engine and the patience."""
    controls = {
        "engine": choice("Engine", tuple(found.days)),
        "patience": slider("Target (times what a lone visitor gets)", 2, 20, 5),
    }
    return Panel(
        lambda figure: _draw(figure, found),
        lambda art, engine, patience: _update(art, found, engine, patience),
        controls,
    )


def _draw(figure: Figure, found: Sweep) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    days = [day for by_load in found.days.values() for day in by_load.values()]
    loads = tuple(next(iter(found.days.values())))
    art: dict[str, Any] = {}
    for k, name in enumerate(("throughput", "goodput")):
        (art[name],) = left.plot([], [], label=name, **line(k))
    left.set(title="tokens a second", ylim=(0, 1.35 * max(day.per_s for day in days)))
    left.yaxis.set_major_formatter("{x:,g}")
    for k, name in enumerate(("p50", "p99")):
        (art[name],) = right.plot([], [], label=name, **line(k + 2))
    art["target"] = right.axhline(1, color=GREY, linestyle="--", linewidth=1, label="target")
    firsts = [day.first_token(p) for day in days for p in (50, 99)]
    bounds = found.scale.alone.first_token * 2, found.scale.alone.first_token * 20
    right.set(yscale="log", title="ms to the first token")
    right.set_ylim(min(*firsts, *bounds) / 1.5, 5 * max(*firsts, *bounds))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="load", xlim=(loads[0] / 1.2, loads[-1] * 1.2))
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.minorticks_off()
        look = {"color": BLACK, "linewidth": 1.5, "linestyle": ":", "label": "knee"}
        art[axes] = axes.axvline(1, ymax=0.8, **look)  # the legend stands above
        axes.legend(loc="upper left", fontsize=8, ncols=3)
    source_note(right, "Measured here")
    return art


def _update(art: dict[str, Any], found: Sweep, engine: str, patience: int) -> str:
    days, target = found.days[engine], found.scale.target(patience)
    loads, knee = list(days), found.knee(engine, patience)
    art["throughput"].set_data(loads, [day.per_s for day in days.values()])
    art["goodput"].set_data(loads, [day.goodput(target) for day in days.values()])
    art["p50"].set_data(loads, [day.first_token(50) for day in days.values()])
    art["p99"].set_data(loads, [day.first_token(99) for day in days.values()])
    art["target"].set_ydata([target.first_token] * 2)
    for axes, mark in art.items():
        if not isinstance(axes, str):
            mark.set_xdata([knee or 0] * 2)
            mark.set_visible(knee is not None)
    first, last = days[loads[0]], days[loads[-1]]
    return (
        f"{engine}, target {target.first_token:.0f} ms to the first token and "
        f"{target.per_token:.1f} ms for each further one: {_knee_words(knee, loads, days, target)} "
        f"From load {loads[0]:g} to {loads[-1]:g} throughput goes from {first.per_s:,.0f} to "
        f"{last.per_s:,.0f} tokens a second, goodput from {first.goodput(target):,.0f} to "
        f"{last.goodput(target):,.0f}, the first token's p99 from {first.first_token(99):,.0f} to "
        f"{last.first_token(99):,.0f} ms."
    )


def _knee_words(
    knee: float | None, loads: Sequence[float], days: Mapping[float, Day], target: Any
) -> str:
    if knee is None:
        share = days[loads[0]].share_met(target)
        return f"already at load {loads[0]:g} only {share:.0%} of the visits are on target."
    if knee == loads[-1]:
        return f"at every load at least {NEARLY_ALL:.0%} of the visits are on target."
    beyond = loads[loads.index(knee) + 1]
    return (
        f"the knee is at load {knee:g}; at {beyond:g} only {days[beyond].share_met(target):.0%} of "
        "the visits are on target."
    )
