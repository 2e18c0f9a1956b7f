"""A panel: a prefix that any machine can use, against caches that each machine has for itself.

Brief, section 2 ("The match happens before routing, so any prefill machine can use any cached
prefix", Reported) and "The parts that are pure infrastructure"; Simulated by
cluster/prefill_pool.py with the Brief's hit rule. Caches never get full here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster import routing
from g2c_serving.cluster.prefill_pool import PrefillPool, busiest, sessions
from g2c_serving.cluster.routing import Router
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import Blocks, source_note
from g2c_serving.lab.prefill_work import COST, pressed

PROMPTS, MORE = 768, 2000  # of a run, whatever the turns; tokens that a turn adds, about
SETUPS: dict[str, tuple[Router, bool]] = {
    "own caches,\nby queued work": (routing.least_work, False),
    "own caches,\nto the prefix": (routing.to_prefix(), False),
    "found first,\nby queued work": (routing.least_work, True),
}


@dataclass(frozen=True)
class Outcome:
    """Share of the prompts' tokens that were computed; mean s to the first token; the busiest
    machine's work over the average."""

    computed: float
    first_token: float
    busiest: float


@lru_cache(maxsize=128)
def outcomes(machines: int, load: float, turns: int) -> list[Outcome]:
    """Of SETUPS. `load`: of the pool in which every prefix is found."""
    number = PROMPTS // turns
    prompts = pressed(lambda gap_us: sessions(number, turns, gap_us, MORE, 4), machines, load)
    found = []
    for router, shared in SETUPS.values():
        served = PrefillPool(machines, router, COST.cost, shared).serve(prompts)
        computed = sum(one.computed for one in served) / sum(p.length for p in prompts)
        first = float(np.mean([float(one.first_token) for one in served])) / 1e6
        found.append(Outcome(computed, first, busiest(served, machines)))
    return found


def panel() -> Panel:
    """Tokens computed, and time to first token, in three setups."""
    controls = {
        "machines": stops("Machines", (2, 4, 8, 16), 8),
        "load": slider("Load, if every prefix is found (%)", 5, 90, 60, 5),
        "turns": stops("Turns of a session", (1, 2, 4, 8, 16, 32), 8),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art = {"computed": Blocks(left, 0), "first": Blocks(right, 1)}
    left.set(ylim=(0, 100), title="tokens computed (%)")
    right.set(yscale="log", ylim=(0.02, 100), title="s to first token (mean)")
    right.set_yticks((0.1, 1, 10, 100), ("0.1", "1", "10", "100"))
    for axes in (left, right):
        axes.set(xlim=(-0.6, len(SETUPS) - 0.4))
        axes.set_xticks(range(len(SETUPS)), list(SETUPS), fontsize=9)
    source_note(right, "Simulated")
    return art


def _update(art: dict[str, Any], machines: int, load: int, turns: int) -> str:
    found = outcomes(machines, load / 100, turns)
    places = np.arange(len(found)) - 0.35
    art["computed"].set_boxes(places, 0, 0.7, [100 * one.computed for one in found])
    art["first"].set_boxes(places, 0.001, 0.7, [one.first_token for one in found])
    own, sticky, shared = found
    return (
        f"Simulated, {PROMPTS} prompts of sessions of {turns} on {machines} machines, {load}% load "
        f"if every prefix is found. With a cache per machine, routing by work computes "
        f"{own.computed:.0%} of the tokens and takes {own.first_token:.2f} s to the first one; "
        f"routing to the prefix {sticky.computed:.0%} and {sticky.first_token:.2f} s (busiest "
        f"machine {sticky.busiest:.2f} times the average). Found before routing, any machine can "
        f"use it: {shared.computed:.0%}, {shared.first_token:.2f} s ({shared.busiest:.2f})."
    )
