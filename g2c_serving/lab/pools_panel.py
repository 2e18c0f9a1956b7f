"""Eight machines as one pool or as two: how long users wait for the first token, and between two.

Brief, section 1. Simulated by lab/pools_grid.py. Both pictures show the share of requests (of
tokens) that waited longer than that; what matters is where a curve ends. A pool that is offered
more than it can do has no curve: its waits grow as long as requests come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab import pools_grid
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import line, plain_ticks, source_note
from g2c_serving.lab.pools_grid import COUNTED, DRAWS, LONGER, MACHINES, Waits

FIRST, BETWEEN = (10, 20_000), (8, 250)  # ms that are drawn
FIRST_LABEL, BETWEEN_LABEL = "time to first token (ms)", "time between tokens (ms)"


def pools_panel() -> Panel:
    """Controls: what comes, how the machines are split, and the chunk of the one pool."""
    controls = {
        "rate": stops("Requests a second", pools_grid.RATES, 30),
        "prompt": stops("Prompt (tokens)", pools_grid.PROMPTS, 4_000),
        "prefill": stops("Machines for prefill, of 8", pools_grid.PREFILL, 4),
        "chunk": stops("Chunk in one pool (tokens)", pools_grid.CHUNKS, 2_048),
    }
    return Panel(_draw, _update, controls, size=(8, 2.7))


def _draw(figure: Figure) -> dict[str, Any]:
    first, between = figure.subplots(1, 2, sharey=True)
    art: dict[str, Any] = {}
    for axes, limits, label in ((first, FIRST, FIRST_LABEL), (between, BETWEEN, BETWEEN_LABEL)):
        axes.set(xscale="log", yscale="log", xlim=limits, ylim=(0.45, 115), xlabel=label)
        plain_ticks(axes.xaxis)
        art[label] = [_curve(axes, k, name) for k, name in enumerate(("one pool", "two pools"))]
    first.set_ylabel("waited longer (%)")
    first.set_xticks((10, 100, 1_000, 10_000))
    plain_ticks(first.yaxis)
    first.set_yticks((1, 10, 100))
    first.legend(fontsize=9, loc="lower right")
    source_note(between, "Simulated")
    art["unsteady"] = between.text(
        0.98, 0.88, "", fontsize=9, ha="right", transform=between.transAxes
    )
    return art


def _curve(axes: Axes, k: int, name: str) -> Any:
    look = {**line(k), "markevery": len(LONGER) // 6, "markersize": 4}
    return axes.plot([], [], label=name, **look)[0]


def _update(art: dict[str, Any], rate: int, prompt: int, prefill: int, chunk: int) -> str:
    one = pools_grid.find_one(rate, prompt, chunk)
    two = pools_grid.find_two(rate, prompt, prefill)
    for label, name in ((FIRST_LABEL, "first"), (BETWEEN_LABEL, "between")):
        for curve, waits in zip(art[label], (one, two), strict=True):
            curve.set_data(getattr(waits, name), LONGER)
    art["unsteady"].set_text(_unsteady(one, two))
    offered = pools_grid.one_load(rate, prompt, chunk)
    filling, decoding = pools_grid.two_loads(rate, prompt, prefill)
    return (
        f"Simulated, {rate} requests a second with {prompt:,} tokens each, {MACHINES} machines, "
        f"{DRAWS} draws of {COUNTED:,} requests. One pool (chunks of {chunk:,}; offered load "
        f"{offered:.2f}): {_said(one)}. Two pools ({prefill} of {MACHINES} prefill, offered load "
        f"{filling:.2f}, the others decode, {decoding:.2f}): {_said(two)}."
    )


def _is_steady(waits: Waits) -> bool:
    return not np.isnan(waits.first_99).any()


def _unsteady(one: Waits, two: Waits) -> str:
    """Which of them have no curve, for the picture."""
    names = [name for name, it in (("one pool", one), ("two pools", two)) if not _is_steady(it)]
    return f"{' and '.join(names)}: no steady state" if names else ""


def _said(waits: Waits) -> str:
    if not _is_steady(waits):
        return "no steady state, waits grow as long as requests come"
    return (
        f"99% of the first tokens come within {_times(waits.first_99)}, of the later ones within "
        f"{_times(waits.between_99)} of the one before"
    )


def _times(draws: np.ndarray) -> str:
    """The median of the draws, and their range where it shows."""
    middle, low, high = (_time(ms) for ms in (np.median(draws), draws.min(), draws.max()))
    return middle if low == high else f"{middle} ({low} to {high})"


def _time(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1e3 else f"{ms:.0f} ms"
