"""Panels: how many copies of popular experts balance the GPUs, and what drift does to it.

Brief, "The parts that are pure infrastructure"; Simulated by lab/expert_grid.py. Reported is one
number: in decode the busiest GPU carries 1.090 times the average expert load. The panels ask what
could be behind it: too few copies, a load that has changed since, or chance within a step. Lines
are medians of eight draws of popularities, bands go from the lowest to the highest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from g2c_serving.lab import expert_grid
from g2c_serving.lab.expert_grid import COPIES, DRAWS, EXPERTS, INTERVALS, ON
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import BLACK, COLOURS, line, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table

# ---- copies ----


def copies_panel() -> Panel:
    """Balance over the number of redundant copies, for a load that is known and one that is not."""
    controls = {
        "skew": stops("Skew of the popularities", expert_grid.SKEWS, 0.8),
        "gpus": stops("GPUs", expert_grid.GPUS, 64),
        "drift": stops("Drift since the placement (%)", expert_grid.DRIFTS, 0.5),
        "tokens": stops("Tokens per GPU in a step", expert_grid.TOKENS, 256),
    }
    return Panel(_draw_copies, _update_copies, controls)


def _draw_copies(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    names = ("load known exactly", "steps of an interval later")
    lines = [_banded(axes, k, name) for k, name in enumerate(names)]
    _reported(axes)
    places = range(len(COPIES))  # equal steps: the first copies matter most
    axes.set(xlim=(-0.3, len(COPIES) - 0.7), ylim=(0.96, 2.75))
    axes.set_xticks(places, [f"{copies:,}" for copies in COPIES])
    axes.set(xlabel="redundant copies of experts, in all", ylabel="busiest GPU / average")
    axes.legend(loc="lower left", ncols=3, fontsize=9, bbox_to_anchor=(0, 0.98))
    source_note(axes, "Simulated", f"{DRAWS} draws")
    return {"lines": lines}


def _update_copies(art: dict[str, Any], skew: float, gpus: int, drift: float, tokens: int) -> str:
    known, later = expert_grid.find_copies(skew, gpus, drift, tokens)  # (C, DRAWS) each
    for banded, balances in zip(art["lines"], (known, later), strict=True):
        _show(banded, np.arange(len(COPIES)), balances)
    return (
        f"Simulated, {EXPERTS} experts of skew {skew:g} on {gpus} GPUs, median of {DRAWS} draws "
        f"(lowest to highest): without copies the busiest GPU carries {spread(known[0])} times the "
        f"average; if the load is known exactly, {reached(known)}. In steps of {tokens:,} tokens a "
        f"GPU an interval later ({drift:g}% drift) it is {spread(later[0])} without copies and "
        f"{spread(later[-1])} with {COPIES[-1]:,}; {reached(later)}."
    )


def spread(numbers: np.ndarray, form: str = ".2f") -> str:
    """Median, lowest and highest as words."""
    median, low, high = np.median(numbers), numbers.min(), numbers.max()
    return f"{median:{form}} ({low:{form}} to {high:{form}})"


def copies_needed(balances: np.ndarray) -> np.ndarray:
    """The fewest of COPIES with which a draw (C, DRAWS) comes to the reported balance or stays
    below it; infinity where none does."""
    enough = balances <= value("lb.moe")
    return np.where(enough.any(0), np.array(COPIES)[enough.argmax(0)], np.inf)


def reached(balances: np.ndarray) -> str:
    """How many copies bring the draws to the reported balance, in words."""
    mark, needed = f"the reported {value('lb.moe'):.3f}", np.sort(copies_needed(balances))
    if np.isinf(needed[0]):
        return f"{mark} is not reached"
    if not needed[-1]:
        return f"that is within {mark}"
    middle, low, high = (_count(needed[at]) for at in (DRAWS // 2, 0, -1))
    return f"{mark} takes {middle} {'copy' if middle == '1' else 'copies'} ({low} to {high})"


def _count(copies: float) -> str:
    return f"more than {COPIES[-1]:,}" if np.isinf(copies) else f"{copies:,.0f}"


# ---- lines with bands ----


def _banded(axes: Axes, k: int, label: str) -> tuple[Any, Polygon]:
    """The k-th line and its band, both empty."""
    band = Polygon(np.zeros((1, 2)), facecolor=COLOURS[k], alpha=0.2, linewidth=0)
    axes.add_patch(band)
    return axes.plot([], [], label=label, **line(k))[0], band


def _show(banded: tuple[Any, Polygon], x: np.ndarray, draws: np.ndarray) -> None:
    """The median of draws (X, DRAWS) as a line, lowest to highest as the band."""
    curve, band = banded
    curve.set_data(x, np.median(draws, 1))
    edge = np.concatenate((draws.min(1), draws.max(1)[::-1]))
    band.set_xy(np.column_stack((np.concatenate((x, x[::-1])), edge)))


def _reported(axes: Axes) -> None:
    mark = value("lb.moe")
    look: dict[str, Any] = {"color": BLACK, "linestyle": ":", "linewidth": 1.4}
    axes.axhline(mark, label=f"{mark:.3f} (Reported)", **look)


# ---- drift ----


def drift_panel() -> Panel:
    """Balance over the intervals of a run: placed once, anew, or with a few swaps."""
    controls = {
        "drift": stops("Drift per interval (%)", expert_grid.RATES, 1.0),
        "every": stops("Reassign every ... intervals", expert_grid.EVERY, 2),
        "swaps": stops("Swaps, where few move", expert_grid.SWAPS, 8),
        "copies": stops("Redundant copies", expert_grid.SPARE, 64),
    }
    return Panel(_draw_drift, _update_drift, controls)


def _draw_drift(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    names = ("placed once", "a few swaps", "placed anew")
    lines = [_banded(axes, k, name) for k, name in enumerate(names)]
    _reported(axes)
    axes.set(xlim=(0, INTERVALS + 0.5), ylim=(0.95, 3.3), ylabel="busiest GPU / average")
    axes.set(xlabel="interval")
    axes.legend(loc="lower left", ncols=4, fontsize=9, bbox_to_anchor=(0, 0.98))
    source_note(axes, "Simulated", f"{DRAWS} draws")
    return {"lines": lines}


def _update_drift(art: dict[str, Any], drift: float, every: int, swaps: int, copies: int) -> str:
    found = expert_grid.find_drift(drift, copies, every, swaps)
    runs = {name: numbers[:-1] for name, numbers in found.items()}  # (INTERVALS, DRAWS)
    moved = {name: numbers[-1].mean() for name, numbers in found.items()}
    for banded, name in zip(art["lines"], ("once", "near", "anew"), strict=True):
        _show(banded, np.arange(1, INTERVALS + 1), runs[name])
    mean = {name: spread(run.mean(0), ".3f") for name, run in runs.items()}
    return (
        f"Simulated, {ON} GPUs, {copies} redundant copies, {drift:g}% drift an interval, median of "
        f"{DRAWS} draws (lowest to highest): placed once, the busiest GPU carries {mean['once']} "
        f"times the average, {spread(runs['once'][-1])} at the end. Reassigned every {every} from "
        f"the interval before: anew {mean['anew']}, for {moved['anew']:.0f} of {EXPERTS + copies} "
        f"experts moved each time; with {swaps} swaps {mean['near']}, for {moved['near']:.0f} "
        f"(reported {value('lb.moe'):.3f})."
    )


# ---- beside training ----


def training_and_serving() -> Table:
    """The same problem on the two sides, in words."""
    rows = [
        ("what is unequal", "how often a router picks each expert", "the same"),
        ("what may change", "the router: it learns", "where experts lie, and how many copies"),
        ("by what means", "an auxiliary loss on unequal loads", "placement from recent loads"),
        ("what it costs", "some of the model's quality", "memory, and moving weights"),
        ("whether outputs change", "yes, the model is another one",
         "no, but for the order of sums"),
        ("how long it holds", "over the training data, on average", "until the traffic changes"),
    ]  # fmt: skip
    return Table(("Balancing experts", "training (Beyond: MoE)", "serving"), rows, words=3)
