"""Panels: how many copies of popular experts balance the GPUs, and what drift does to it.

Brief, "The parts that are pure infrastructure"; Simulated by cluster/experts.py. Reported is one
number: in decode the busiest GPU carries 1.090 times the average expert load. The panels ask what
could be behind it: too few copies, a load that has changed since, or chance within a step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.cluster.experts import place, popularity, step_load
from g2c_serving.cluster.reassignment import reassigning
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table

EXPERTS, CHOSEN = 256, 8  # of a layer, and of them a token's: made up, as the popularities are
SKEW, GPUS = 0.8, 64
COPIES = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128)  # redundant ones, in all
STEPS = 8  # drawn to average chance
INTERVALS = 32  # of a run


# ---- copies ----


@lru_cache(maxsize=64)
def over_copies(skew: float, gpus: int, drift: float, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Balances (C,) over COPIES: with the very load that the placement was made from, and in steps
    of an interval later, of `tokens` tokens a GPU."""
    before, now = popularity(EXPERTS, skew, 2, drift)
    steps = np.array([step_load(now, gpus * tokens * CHOSEN, seed) for seed in range(STEPS)])
    placements = [place(before, gpus, copies) for copies in COPIES]
    known = [placed.balance(before) for placed in placements]
    return np.array(known), np.array([placed.balance(steps).mean() for placed in placements])


def copies_panel() -> Panel:
    """Balance over the number of redundant copies, for a load that is known and one that is not."""
    controls = {
        "skew": slider("Skew of the popularities", 0.0, 1.4, SKEW, 0.1),
        "gpus": stops("GPUs", (8, 16, 32, 64, 128), GPUS),
        "drift": slider("Drift since the placement (%)", 0.0, 5.0, 0.5, 0.25),
        "tokens": stops("Tokens per GPU in a step", (8, 32, 64, 256, 1024), 256),
    }
    return Panel(_draw_copies, _update_copies, controls)


def _draw_copies(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    (known,) = axes.plot([], [], label="load known exactly", **line(0))
    (real,) = axes.plot([], [], label="steps of an interval later", **line(1))
    _reported(axes)
    places = range(len(COPIES))  # equal steps: the first copies matter most
    axes.set(xlim=(-0.3, len(COPIES) - 0.7), ylim=(0.96, 2.6))
    axes.set_xticks(places, [str(copies) for copies in COPIES])
    axes.set(xlabel="redundant copies of experts, in all", ylabel="busiest GPU / average")
    axes.legend(loc="upper right")
    source_note(axes, "Simulated")
    return {"known": known, "real": real}


def _update_copies(art: dict[str, Any], skew: float, gpus: int, drift: float, tokens: int) -> str:
    known, real = over_copies(skew, gpus, drift / 100, tokens)
    for name, balances in (("known", known), ("real", real)):
        art[name].set_data(range(len(COPIES)), balances)
    return (
        f"Simulated, {EXPERTS} experts of skew {skew:g} on {gpus} GPUs: without copies the busiest "
        f"GPU carries {known[0]:.2f} times the average; if the load is known exactly, "
        f"{_reached(known)}. In steps of {tokens:,} tokens a GPU an interval later ({drift:g}% "
        f"drift) it is {real[0]:.2f} without copies and {real[-1]:.3f} with {COPIES[-1]}; "
        f"{_reached(real)}."
    )


def _reached(balances: np.ndarray) -> str:
    mark = f"the reported {value('lb.moe'):.3f}"
    reached = np.flatnonzero(balances <= value("lb.moe"))
    if not len(reached):
        return f"{mark} is not reached"
    copies = COPIES[int(reached[0])]
    if not copies:
        return f"that is within {mark}"
    return f"{mark} takes {copies} {'copy' if copies == 1 else 'copies'}"


def _reported(axes: Axes) -> None:
    mark = value("lb.moe")
    look: dict[str, Any] = {"color": BLACK, "linestyle": ":", "linewidth": 1.4}
    axes.axhline(mark, label=f"{mark:.3f} (Reported)", **look)


# ---- drift ----


@lru_cache(maxsize=64)
def over_time(
    drift: float, copies: int, every: int, swaps: int | None = None
) -> tuple[np.ndarray, list[int]]:
    """Balances (INTERVALS,) with a placement every so many intervals, made from the interval
    before, anew or with a few swaps; and the experts moved each time."""
    loads = popularity(EXPERTS, SKEW, INTERVALS + 1, drift, seed=1)
    run = reassigning(loads, GPUS, copies, every, swaps=swaps)
    return run.balances[1:], run.moved


def drift_panel() -> Panel:
    """Balance over the intervals of a run: placed once, anew, or with a few swaps."""
    controls = {
        "drift": slider("Drift per interval (%)", 0.25, 5.0, 1.0, 0.25),
        "every": stops("Reassign every ... intervals", (1, 2, 4, 8, 16), 2),
        "swaps": stops("Swaps, where few move", (0, 2, 4, 8, 16, 32), 8),
        "copies": stops("Redundant copies", (0, 16, 32, 64, 128), 64),
    }
    return Panel(_draw_drift, _update_drift, controls)


def _draw_drift(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    names = ("placed once", "a few swaps", "placed anew")
    lines = {name: axes.plot([], [], label=name, **line(k))[0] for k, name in enumerate(names)}
    _reported(axes)
    axes.set(xlim=(0, INTERVALS + 0.5), ylim=(0.95, 3.3), ylabel="busiest GPU / average")
    axes.set(xlabel="interval")
    axes.legend(loc="upper left", ncols=4)
    source_note(axes, "Simulated")
    return lines


def _update_drift(art: dict[str, Any], drift: float, every: int, swaps: int, copies: int) -> str:
    share = drift / 100
    never, _ = over_time(share, copies, INTERVALS + 1)
    near, few = over_time(share, copies, every, swaps)
    anew, many = over_time(share, copies, every)
    for line_of, balances in zip(art.values(), (never, near, anew), strict=True):
        line_of.set_data(np.arange(1, INTERVALS + 1), balances)
    return (
        f"Simulated, {GPUS} GPUs, {copies} redundant copies, {drift:g}% drift an interval: placed "
        f"once, the busiest GPU carries {never.mean():.3f} times the average, {never[-1]:.2f} at "
        f"the end. Reassigned every {every} from the interval before: anew {anew.mean():.3f}, for "
        f"{np.mean(many):.0f} of {EXPERTS + copies} experts moved each time; with {swaps} swaps "
        f"{near.mean():.3f}, for {np.mean(few):.0f} (reported {value('lb.moe'):.3f})."
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
