"""Overlapped scheduling as two lanes: a panel with sliders (Brief, section 6).

Simulated by lab/overlap_model.py. `lab/overlap_gap.py` goes on with where such a gap matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.lab import two_lanes
from g2c_serving.lab.overlap_model import Saving, Timeline, alike, least, overlapped, plain, run
from g2c_serving.lab.panel import Panel, slider, toggle
from g2c_serving.lab.plots import source_note
from g2c_serving.lab.two_lanes import TwoLanes

COUNT = 100  # steps of a run
WINDOW = 120.0  # ms of it that are drawn
STEP_MS, SHARE = 17.0, 0.8  # of the device's time, what the processor needs a step
BRIEF_STEPS = (10, 30)  # ms: "an engine running a step every 10-30 ms"


@dataclass(frozen=True)
class Both:
    """The same steps in the two loops."""

    step_ms: float
    cpu_ms: float
    runs: dict[bool, Timeline]  # by whether it is overlapped
    saving: Saving


@lru_cache(maxsize=64)
def both(step_ms: float, share: float) -> Both:
    """COUNT steps whose work on the processor is `share` of the device's time."""
    cpu_ms = round(step_ms * share, 6)
    todo = alike(COUNT, step_ms, cpu_ms)
    runs = {False: run(plain, todo), True: run(overlapped, todo)}
    return Both(step_ms, cpu_ms, runs, Saving(runs[False].total, runs[True].total, least(todo)))


def lanes_panel() -> Panel:
    """Sliders for the step time and the processor's share; a switch between the two loops."""
    controls = {
        "step_ms": slider("Step on the device (ms)", *BRIEF_STEPS, STEP_MS, 0.5),
        "share": slider("CPU work, as a share of the step", 0.0, 1.5, SHARE, 0.05),
        "overlap": toggle("Overlapped", True),
    }
    return Panel(_draw_lanes, _update_lanes, controls, size=(8, 2.2))


def _draw_lanes(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    lanes = TwoLanes(axes, 0, WINDOW)
    axes.set_xlabel("ms")
    two_lanes.legend(axes, lanes)
    source_note(axes, "Simulated")
    return {"lanes": lanes, "moving": lanes.artists}


def _update_lanes(art: dict[str, Any], step_ms: float, share: float, overlap: bool) -> str:
    found = both(step_ms, share)
    _show(art["lanes"], found.runs[overlap])
    return _said(found, overlap)


def _show(lanes: TwoLanes, timeline: Timeline) -> None:
    cpu, device = timeline.cpu, timeline.device
    lanes.show(cpu.spans, device.spans, cpu.gaps(0, WINDOW) + device.gaps(0, WINDOW))


def _said(found: Both, overlap: bool) -> str:
    step, cpu, saving = f"{found.step_ms:g}", f"{found.cpu_ms:.3g}", found.saving
    one, other = float(saving.plain) / COUNT, float(saving.overlapped) / COUNT
    waits = {k: f"{timeline.device_waits:.0%}" for k, timeline in found.runs.items()}
    given = f"Simulated, {COUNT} steps of {step} ms with {cpu} ms of CPU work each. "
    if not overlap:
        return (
            f"{given}One after the other they take {one:.1f} ms a step, and the device waits "
            f"{waits[False]} of the time; overlapped they would take {other:.1f}."
        )
    if not found.cpu_ms:
        return f"{given}There is nothing to hide: {step} ms a step, overlapped or not."
    return (
        f"{given}Overlapped they take {other:.1f} ms a step instead of {one:.1f}, "
        f"{float(saving.of_ideal):.0%} of the ideal saving (max({step}, {cpu}) instead of {step} + "
        f"{cpu}); the device waits {waits[True]} of the time instead of {waits[False]}."
    )
