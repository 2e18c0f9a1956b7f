"""Experts are placed again, from recent load, while their popularities drift.

Brief, "The parts that are pure infrastructure": experts are periodically reassigned based on recent
load (Reported; how often, and by what rule, it does not say). A placement made anew is best for the
load that it was made from, and moves nearly every expert, because the greedy rule knows nothing of
the placement before. `place_near` starts from that one: it adds and takes away copies where the
counts have changed, and then makes a few swaps.

Simulated, as in experts.py. Left out: the time in which the weights move, while the old placement
serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from g2c_serving.checks import as_int
from g2c_serving.cluster.experts import Placement, apart, copies_for, place, swapped


def place_near(before: Placement, load: np.ndarray, swaps: int) -> Placement:
    """A placement for this load (E,), with as many copies as `before` and few moves from it.

    The copies of each expert are those of `copies_for`. One that is too many leaves the busiest GPU
    that has one, one that is missing goes to the least loaded GPU with an empty slot (where those
    all hold the expert, two slots are swapped), and then up to `swaps` pairs are swapped.
    ValueError for a load of another number of experts.
    """
    if np.shape(load) != np.shape(before.counts):
        raise ValueError(f"load of shape {np.shape(load)} for {len(before.counts)} experts")
    copies = int(before.counts.sum()) - len(before.counts)
    counts = copies_for(load, copies, len(before.experts))
    a_copy = np.append(load / counts, 0)  # the last: an empty slot
    held, change = before.experts.copy(), counts - before.counts
    _take_away(held, a_copy, np.repeat(np.arange(len(load)), np.maximum(-change, 0)))
    _add(held, a_copy, np.repeat(np.arange(len(load)), np.maximum(change, 0)))
    held = apart(held, a_copy)
    return Placement(swapped(held, a_copy, as_int("swaps", swaps, 0)), counts)


def _take_away(held: np.ndarray, a_copy: np.ndarray, experts: np.ndarray) -> None:
    """A copy of each of these from the busiest GPU that has one."""
    for expert in experts.tolist():
        gpus, slots = np.nonzero(held == expert)
        busiest = int(a_copy[held].sum(1)[gpus].argmax())
        held[gpus[busiest], slots[busiest]] = -1


def _add(held: np.ndarray, a_copy: np.ndarray, experts: np.ndarray) -> None:
    """A copy of each of these to the least loaded GPU with room, one without it if there is any."""
    for expert in experts[np.argsort(-a_copy[experts], kind="stable")].tolist():
        room = (held == -1).any(1)
        without = room & ~(held == expert).any(1)
        where = without if without.any() else room
        gpu = int(np.where(where, a_copy[held].sum(1), np.inf).argmin())
        held[gpu, int((held[gpu] == -1).argmax())] = expert


@dataclass(frozen=True)
class Reassigned:
    """What became of a run: balances (T,), one an interval; experts moved at each placement."""

    balances: np.ndarray
    moved: list[int]


def reassigning(
    loads: np.ndarray, gpus: int, copies: int, every: int, swaps: int | None = None
) -> Reassigned:
    """Serve loads (T, E), with a new placement every `every` intervals, made from the interval
    before it: anew, or near the placement before with so many `swaps`. The first interval has only
    itself to go by."""
    every = as_int("every", every, 1)
    placement = place(loads[0], gpus, copies)
    balances, moved = [], []
    for now, load in enumerate(loads):
        if now and now % every == 0:
            before, seen = placement, loads[now - 1]
            if swaps is None:
                placement = place(seen, gpus, copies)
            else:
                placement = place_near(before, seen, swaps)
            moved.append(placement.moved_from(before))
        balances.append(float(placement.balance(load)))
    return Reassigned(np.array(balances), moved)
