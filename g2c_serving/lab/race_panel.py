"""Both loops' lanes from real timestamps, one above the other: a panel that measures.

Brief, section 6. What is measured, and how, is in lab/overlap_race.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.overlap_race import (
    ALL_CORES,
    OVERLAPPED,
    PLAIN,
    REQUESTS,
    SHARE,
    Race,
    busy,
    race,
)
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import source_note
from g2c_serving.lab.two_lanes import TwoLanes

SHOWN = 4.2  # steps of the plain loop in the picture
WORTH_IT = 0.05  # a smaller ideal saving is lost in what else the machine does


def panel(lm: LanguageModel) -> Panel:
    controls = {"share": slider("CPU work, as a share of the device's time", 0.0, 1.2, SHARE, 0.1)}

    def update(art: dict[str, Any], share: float) -> Generator[str, None, str]:
        yield "Measuring: three engines take turns, for some seconds ..."
        found = race(lm, share)
        show(art, found)
        return said(found, share)

    return Panel(_draw, update, controls, run="Measure", size=(8, 3.4))


def _draw(figure: Figure) -> dict[str, Any]:
    upper, lower = figure.subplots(2, 1, sharex=True)
    lanes, names = {}, {}
    for axes, name in ((upper, PLAIN), (lower, OVERLAPPED)):
        lanes[name] = TwoLanes(axes, 0, 100)
        place: dict[str, Any] = {"xycoords": "axes fraction", "va": "bottom"}
        names[name] = axes.annotate(name, (0, 1.02), **place)
    handles = list(lanes[PLAIN].blocks.values())
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=9)
    lower.set_xlabel("ms")
    source_note(lower, "Measured here")
    return {"lanes": lanes, "names": names, "moving": [one.artists for one in lanes.values()]}


def show(art: dict[str, Any], found: Race) -> None:
    end = min(SHOWN * found.step_ms[PLAIN], *(one.end for one in found.lanes.values()))
    for name, lanes in art["lanes"].items():
        lanes.end = end
        lanes.blocks["run"].axes.set_xlim(0, end)
        one = found.lanes[name]
        lanes.show(one.cpu, one.device, one.gaps(end))
        waits = f"the device waits {one.device_waits:.0%} of the time"
        art["names"][name].set_text(f"{name}: {found.step_ms[name]:.1f} ms a step, {waits}")


def said(found: Race, share: float) -> str:
    """The numbers in a sentence."""
    plain, least = found.step_ms[PLAIN], found.least_ms
    said = (
        f"Measured here, {REQUESTS} requests, CPU work of {share:g} of the device's time added: "
        f"one after the other {plain:.1f} ms a step ({found.device_ms:.1f} on the device, "
        f"{found.cpu_ms:.1f} on the CPU), overlapped {found.step_ms[OVERLAPPED]:.1f}"
    )
    if found.cores == 1:
        return f"{said}. This machine has one core, so there is nothing to overlap."
    if 1 - least / plain < WORTH_IT:
        said += f"; the ideal saving is {1 - least / plain:.1%}, too little to tell from chance."
    else:
        said += f", {max(found.of_ideal, 0):.0%} of the ideal saving (ideal: {least:.1f})."
    return (
        f"{said} The rival, one after the other with the forward pass on all {found.cores} cores: "
        f"{found.step_ms[ALL_CORES]:.1f} ms.{busy(found.had_core, found.for_two)}"
    )
