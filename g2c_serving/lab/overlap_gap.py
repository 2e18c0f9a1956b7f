"""Where the gap matters: what overlapping saves, over the step time and the processor's work.

Brief, section 6: "for one user on a laptop that gap is noise", at 10 to 30 ms a step it is "a
meaningful fraction". No loop takes less than the busier of device and processor, so at most half of
the time is saved, and that where both need the same. Simulated by lab/overlap_model.py, for steps
that are alike and for work that varies from step to step: a loop one step deep cannot lend one
step's time to another, so it stays below what would be ideal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from g2c_serving.history import StepRecord
from g2c_serving.lab import plots
from g2c_serving.lab.overlap_model import totals, uneven
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import line, source_note

COUNT = 200  # steps of a run
STEP_MS, CPU_MS = 17.0, 13.6
MOST_STEP, MOST_CPU = 40.0, 45.0  # ms, the ends of the two axes
BRIEF_STEPS = (10, 30)  # ms


@dataclass(frozen=True)
class Own:
    """A step of the learner's own engine, in ms: on the device, and the processor's work."""

    step_ms: float
    cpu_ms: float


def own_step(history: Iterable[StepRecord]) -> Own:
    """The usual step of a plain engine's history: what decodes, and nothing else. The forward pass
    and the sampling are the device's. ValueError where no step is like that."""
    steps = [r for r in history if r.rows and r.num_decode_rows == r.num_tokens]
    if not steps:
        raise ValueError("the history has no step in which all requests decode: run the engine on")
    device = median(r.forward_ms + r.sample_ms for r in steps)
    return Own(device, median(r.schedule_ms + r.process_ms for r in steps))


def per_step(step_ms: ArrayLike, cpu_ms: ArrayLike, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """ms a step in the plain and the overlapped loop, for times that broadcast; the processor's
    work has this mean, and a standard deviation of `spread` times it."""
    factors = uneven(COUNT, 1.0, spread)
    factors = factors / factors.mean()  # (COUNT,)
    device, mean = np.broadcast_arrays(np.asarray(step_ms, float), np.asarray(cpu_ms, float))
    one, other = totals(device[..., None], mean[..., None] * factors)
    return one / COUNT, other / COUNT


def saved(step_ms: ArrayLike, cpu_ms: ArrayLike, spread: float) -> np.ndarray:
    """The share of the time that overlapping saves, in %."""
    one, other = per_step(step_ms, cpu_ms, spread)
    return 100 * (1 - other / one)


def most_saved(step_ms: ArrayLike, cpu_ms: ArrayLike) -> np.ndarray:
    """The share, in %, that could be saved at most: the less of the two times, out of their sum."""
    return 100 * np.minimum(step_ms, cpu_ms) / np.add(step_ms, cpu_ms)


def gap_panel(own: Own | None = None) -> Panel:
    """ms a step over the processor's work, and the time saved over the step time, each with what
    is ideal. `own` is marked by a star."""
    controls = {
        "step_ms": slider("Step on the device (ms)", 0.5, MOST_STEP, STEP_MS, 0.5),
        "cpu_ms": slider("CPU work a step (ms)", 0.0, MOST_CPU, CPU_MS, 0.1),
        "spread": slider("Spread of the CPU work (%)", 0, 150, 0, 10),
    }
    return Panel(
        lambda figure: _draw(figure, own),
        lambda art, **values: _update(art, own, **values),
        controls,
        size=(8, 3.0),
    )


def _draw(figure: Figure, own: Own | None) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    furthest = MOST_STEP if own is None else max(MOST_STEP, 1.1 * own.step_ms)
    highest = max(MOST_STEP + MOST_CPU, furthest)
    left.set(xlim=(0, MOST_CPU), ylim=(0, highest), xlabel="CPU work a step (ms)")
    left.set_title("ms a step", fontsize=11)
    right.set(xlim=(0, furthest), ylim=(0, 60), xlabel="step on the device (ms)")
    right.set_title("time saved (%)", fontsize=11)
    right.axvspan(*BRIEF_STEPS, color="#EEEEEE", zorder=0)
    right.text(np.mean(BRIEF_STEPS), 54, "the Brief's 10 to 30 ms", ha="center", fontsize=9)
    ideal = line(4) | {"marker": "", "linestyle": ":", "linewidth": 2.6}
    dot = {"marker": "o", "markersize": 9, "color": plots.BLUE, "linestyle": "", "clip_on": False}
    art: dict[str, Any] = {
        "sum": left.plot([], [], label="one after the other: the sum", **_plain(1))[0]
    }
    for name, axes in (("left", left), ("right", right)):
        art[name] = axes.plot([], [], label="overlapped", **_plain(0))[0]
        art[name + " ideal"] = axes.plot([], [], label="ideal: the busier of the two", **ideal)[0]
        art[name + " here"] = axes.plot([], [], **dot)[0]
    handles = [art["sum"], art["left"], art["left ideal"]]
    if own is not None:
        star: dict[str, Any] = {"marker": "*", "markersize": 14, "color": plots.PINK}
        star |= {"markeredgecolor": "black", "clip_on": False, "zorder": 5}
        ms = per_step(own.step_ms, own.cpu_ms, 0)[1]
        handles += left.plot([own.cpu_ms], [ms], label="yours", linestyle="", **star)
        right.plot([own.step_ms], [saved(own.step_ms, own.cpu_ms, 0)], **star)
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=9)
    source_note(right, "Simulated")
    return art


def _plain(k: int) -> dict[str, Any]:
    return line(k) | {"marker": ""}


def _update(
    art: dict[str, Any], own: Own | None, step_ms: float, cpu_ms: float, spread: int
) -> str:
    work = np.linspace(0, MOST_CPU, 46)
    step = np.linspace(0.5, art["right"].axes.get_xlim()[1], 80)
    one, other = per_step(step_ms, work, spread / 100)
    art["sum"].set_data(work, one)
    art["left"].set_data(work, other)
    art["left ideal"].set_data(work, np.maximum(step_ms, work))
    art["right"].set_data(step, saved(step, cpu_ms, spread / 100))
    art["right ideal"].set_data(step, most_saved(step, cpu_ms))
    both, now = per_step(step_ms, cpu_ms, spread / 100)
    share, most = saved(step_ms, cpu_ms, spread / 100), most_saved(step_ms, cpu_ms)
    art["left here"].set_data([cpu_ms], [now])
    art["right here"].set_data([step_ms], [share])
    varies = f", varying by {spread}%," if spread else ""
    return (
        f"Simulated: a step of {step_ms:g} ms with {cpu_ms:g} ms of CPU work{varies} takes "
        f"{both:.1f} ms one after the other and {now:.1f} overlapped; that saves {share:.1f}% of "
        f"the time, of {most:.1f}% at most.{_yours(own)}"
    )


def _yours(own: Own | None) -> str:
    if own is None:
        return ""
    most = most_saved(own.step_ms, own.cpu_ms)
    return f" Yours ({own.step_ms:.3g} ms, {own.cpu_ms:.3g} ms of CPU work): {most:.1f}% at most."
