"""A panel: what each GPU carries, with the experts in any order, placed by load, or copied as well.

Brief, "The parts that are pure infrastructure"; Simulated by cluster/experts.py. It shows what the
balance is, busiest GPU over average; expert_panels.py goes on with what decides it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster.experts import place, popularity, unplanned
from g2c_serving.lab.expert_grid import DRAWS, EXPERTS
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, Blocks, source_note
from g2c_serving.lab.published import value

GPUS = 32
DARK = "#003B5C"  # edges of the experts
UNPLANNED, PLACED = "in the order of their numbers", "by load"


def panel() -> Panel:
    """The load of each GPU, stacked from its experts, the busiest first."""
    controls = {
        "how": choice("Experts lie", (UNPLANNED, PLACED), PLACED),
        "copies": slider("Redundant copies, by load", 0, 64, 0),
        "skew": slider("Skew of the popularities", 0.2, 1.2, 1.0, 0.1),
        "draw": slider("Draw of the popularities", 1, DRAWS, 1),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    # dark edges: white ones would hide the many experts that are thinner than they are
    single = Blocks(axes, 0, "an expert", edgecolor=DARK, linewidth=0.5)
    copied = Blocks(axes, 1, "one of several copies", linewidth=0.4)
    (average,) = axes.plot([-1, GPUS], [1, 1], color=BLACK, linestyle=":", label="average")
    (mark,) = axes.plot([-1, GPUS], [value("lb.moe")] * 2, color=BLACK, linewidth=1,
                        label=f"{value('lb.moe'):.3f} (Reported)")  # fmt: skip
    axes.set(xlim=(-0.7, GPUS - 0.3), ylim=(0, 3.5), xticks=(), ylabel="load / average")
    axes.set_xlabel(f"{GPUS} GPUs, the busiest first")
    axes.legend(loc="upper right", ncols=2)
    source_note(axes, "Simulated")
    return {"single": single, "copied": copied, "average": average, "mark": mark}


def _update(art: dict[str, Any], how: str, copies: int, skew: float, draw: int) -> str:
    load = popularity(EXPERTS, skew, seed=draw - 1)[0]
    placed = unplanned(EXPERTS, GPUS) if how == UNPLANNED else place(load, GPUS, copies)
    order = np.argsort(-placed.loads(load))
    held = placed.experts[order]  # (G, S)
    heights = np.where(held >= 0, (load / placed.counts)[held], 0) * GPUS
    bottoms = heights.cumsum(1) - heights
    left = np.broadcast_to(np.arange(GPUS)[:, None] - 0.4, held.shape)
    copied = placed.counts[held] > 1
    for name, mine in (("single", ~copied), ("copied", copied)):
        art[name].set_boxes(left[mine], bottoms[mine], 0.8, heights[mine])
    words = f"lying {how}, without copies"
    if how == PLACED:
        on = int(placed.counts.max())
        words = (
            f"placed {how} with {copies} redundant {'copy' if copies == 1 else 'copies'} (the most "
            f"popular on {on} {'GPU' if on == 1 else 'GPUs'})"
        )
    return (
        f"Simulated, {EXPERTS} experts of skew {skew:g} (draw {draw}), {words}: the most popular "
        f"gets {load.max() * EXPERTS:.1f} times an expert's average, the busiest of {GPUS} GPUs "
        f"carries {placed.balance(load):.3f} times the average (reported {value('lb.moe'):.3f})."
    )
