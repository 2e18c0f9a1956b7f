"""A panel: a prefix that any machine can use, against caches that each machine has for itself.

Brief, section 2 ("The match happens before routing, so any prefill machine can use any cached
prefix", Reported) and "The parts that are pure infrastructure"; Simulated by prefix_grid.py, where
the assumptions stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import BLACK, Blocks, source_note
from g2c_serving.lab.prefix_grid import (
    LOADS,
    MACHINES,
    PROMPTS,
    SEEDS,
    SETUPS,
    TURNS,
    Outcome,
    find,
)
from g2c_serving.lab.simulated import margin, plus_minus

LOW, HIGH = 0.02, 2.0  # s that are drawn


def panel() -> Panel:
    """Tokens computed, and time to first token, in three setups."""
    controls = {
        "machines": stops("Machines", MACHINES, 8),
        "load": stops("Load, if every prefix is found (%)", LOADS, 20),
        "turns": stops("Turns of a session", TURNS, 8),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art = {"computed": Blocks(left, 0), "first": Blocks(right, 1)}
    left.set(ylim=(0, 100), title="tokens computed (%)")
    right.set(yscale="log", ylim=(LOW, HIGH), title="s to first token (mean)")
    right.set_yticks((0.1, 1), ("0.1", "1"))
    for axes in (left, right):
        axes.set(xlim=(-0.6, len(SETUPS) - 0.4))
        axes.set_xticks(range(len(SETUPS)), list(SETUPS), fontsize=9)
    source_note(right, "Simulated")
    look = {"ha": "center", "va": "bottom", "fontsize": 9}
    words = [right.text(k, 1.2 * LOW, "", **look) for k in range(len(SETUPS))]
    margins = LineCollection([], colors=BLACK, linewidths=1.5, zorder=4)
    right.add_collection(margins, autolim=False)
    return {**art, "words": words, "margins": margins}


def _update(art: dict[str, Any], machines: int, load: int, turns: int) -> str:
    found = find(machines, load, turns)
    places = np.arange(len(found)) - 0.35
    art["computed"].set_boxes(places, 0, 0.7, [100 * one.computed.mean() for one in found])
    heights = [one.first_token.mean() if one.is_steady else 0 for one in found]
    art["first"].set_boxes(places, 0.001, 0.7, heights)
    art["margins"].set_segments([
        [(k, one.first_token.mean() + sign * margin(one.first_token)) for sign in (-1, 1)]
        for k, one in enumerate(found) if one.is_steady
    ])  # fmt: skip
    for text, one in zip(art["words"], found, strict=True):
        text.set_text("" if one.is_steady else "no steady\nstate")
    own, sticky, shared = map(_say, found)
    return (
        f"Simulated, {SEEDS} seeds of {PROMPTS:,} prompts, sessions of {turns} on {machines} "
        f"machines, {load}% load if every prefix is found; \u00b1 two standard errors. With a "
        f"cache per machine, routing by work {own}; routing to the prefix {sticky}. Found before "
        f"routing, any machine can use it: that {shared}."
    )


def _say(one: Outcome) -> str:
    computed, load = plus_minus(one.computed, ".0f", 100), plus_minus(one.load, ".0f", 100)
    first = f"{plus_minus(one.first_token, '.3f')} s to the first token"
    if not one.is_steady:
        first = "not clearly below what the machines can do, so there is no steady state"
    return (
        f"computes {computed}% of the tokens, a load of {load}%: {first} (busiest machine "
        f"{one.busiest.mean():.2f} times the average)"
    )
