"""Experts on GPUs: how unequal their loads are, copies of the popular ones, and who holds which.

Brief, "The parts that are pure infrastructure". In a mixture-of-experts layer a router sends each
token to a few of many experts, and the experts lie on different GPUs. Some experts are popular, so
some GPUs have more to do, and all wait for the busiest. Reported: each GPU holds a few redundant
copies of popular experts, experts are reassigned from recent load, and in decode the busiest GPU
carries 1.090 times the average. Its rules are not released; here two greedy ones do:

    copies_for   one more copy, again and again, to the expert with the most load a copy
    place        the heaviest copies first, each on the least loaded GPU that has room

and then swaps between the busiest GPU and others. A copied expert's tokens are shared equally. No
GPU holds an expert twice: the second copy would relieve nobody.

Simulated: popularities are lognormal and drift as a random walk that is pulled back, and a step's
tokens choose independently. Left out: several layers, nodes with faster links inside.
reassignment.py goes on with loads that change.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from g2c_serving.checks import as_int, as_number

MOST_SWAPS = 64  # of one placement
ENOUGH_GAIN = 1e-4  # of the busiest GPU's load: a swap that gains less is not worth it


# ---- loads ----


def popularity(
    experts: int, skew: float, intervals: int = 1, drift: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Shares of the tokens that each expert gets: (intervals, experts), each row sums to 1.

    skew    standard deviation of the logarithm of a popularity; 0: all alike
    drift   how much of it is new in an interval, 0 to 1: a popularity's correlation with the
            one before is 1 - drift, and the skew stays the same
    """
    experts, intervals = as_int("experts", experts, 1), as_int("intervals", intervals, 1)
    if as_number("skew", skew) < 0:
        raise ValueError(f"skew={skew} must be 0 or more: 0 makes all experts equally popular")
    if not 0 <= as_number("drift", drift) <= 1:
        raise ValueError(f"drift={drift} must be from 0 (nothing changes) to 1 (all is new)")
    kept, new = 1 - drift, np.sqrt(1 - (1 - drift) ** 2)
    noise = np.random.default_rng(seed).standard_normal((intervals, experts))
    for now in range(1, intervals):
        noise[now] = kept * noise[now - 1] + new * noise[now]
    weights = np.exp(skew * noise)
    return weights / weights.sum(1, keepdims=True)


def step_load(shares: np.ndarray, choices: int, seed: int = 0) -> np.ndarray:
    """How many of a step's `choices` (tokens times experts a token) fall on each expert: (E,)."""
    draw = np.random.default_rng(seed)
    return draw.multinomial(as_int("choices", choices, 1), shares).astype(float)


# ---- copies and placement ----


@dataclass(frozen=True)
class Placement:
    """experts (G, S): which expert each slot of each GPU holds, -1 for none; counts (E,): copies of
    each."""

    experts: np.ndarray
    counts: np.ndarray

    def loads(self, load: np.ndarray) -> np.ndarray:
        """What each GPU carries (..., G) of the experts' loads (..., E)."""
        a_copy = np.asarray(load, float) / self.counts
        nothing = np.zeros((*a_copy.shape[:-1], 1))
        return np.concatenate((a_copy, nothing), -1)[..., self.experts].sum(-1)

    def balance(self, load: np.ndarray) -> np.ndarray:
        """Busiest GPU over the average, 1 at best: a number for loads (E,), (T,) for (T, E). It is
        1 where there is no load at all: nobody waits for anybody."""
        found = self.loads(load)
        busiest, average = found.max(-1), found.mean(-1)
        return np.where(average > 0, busiest, 1) / np.where(average > 0, average, 1)

    def moved_from(self, before: Placement) -> int:
        """How many experts have to be copied to a GPU that did not hold them before."""
        pairs = zip(self.experts.tolist(), before.experts.tolist(), strict=True)
        return sum(len(set(now) - set(then) - {-1}) for now, then in pairs)


def copies_for(load: np.ndarray, copies: int, most: int | None = None) -> np.ndarray:
    """How many of each expert there are, (E,): one, and `copies` more shared out so that the
    largest load a copy is the least that there can be, with `most` of one expert or fewer. Ties go
    to the lower number. ValueError where that leaves some over."""
    load, copies = _as_load(load), as_int("copies", copies, 0)
    most = copies + 1 if most is None else most
    if copies > (most - 1) * len(load):
        raise ValueError(
            f"copies={copies} is more than {len(load)} experts can use, each on {most} GPUs at most"
        )
    counts, a_copy = np.ones(len(load), int), load.copy()
    for _ in range(copies):
        expert = a_copy.argmax()
        counts[expert] += 1
        a_copy[expert] = load[expert] / counts[expert] if counts[expert] < most else -1
    return counts


def place(load: np.ndarray, gpus: int, copies: int = 0) -> Placement:
    """Where experts with this load (E,) go, with so many redundant copies in all. Each GPU has as
    many slots, ceil((E + copies) / gpus); where that leaves some over, they stay empty.

    ValueError for a load that is negative or no number, for no GPU, and for more copies than
    `gpus` GPUs can hold with no expert twice on one.
    """
    gpus = as_int("gpus", gpus, 1)
    counts = copies_for(load, copies, gpus)
    a_copy = np.append(_as_load(load) / counts, 0)  # the last: an empty slot
    held = apart(_heaviest_first(a_copy, counts, gpus), a_copy)  # the greedy rule promises nothing
    return Placement(swapped(held, a_copy, MOST_SWAPS), counts)


def unplanned(experts: int, gpus: int) -> Placement:
    """One copy of each, in order of their numbers: before anybody looks at loads. ValueError where
    `gpus` does not divide `experts`."""
    if as_int("experts", experts, 1) % as_int("gpus", gpus, 1):
        raise ValueError(f"gpus={gpus} must divide experts={experts}: each GPU holds as many")
    return Placement(np.arange(experts).reshape(gpus, -1), np.ones(experts, int))


def _heaviest_first(a_copy: np.ndarray, counts: np.ndarray, gpus: int) -> np.ndarray:
    """held (G, S): the heaviest copies first, each on the least loaded GPU that has room."""
    slots = -(-int(counts.sum()) // gpus)
    held: list[list[int]] = [[] for _ in range(gpus)]
    open_gpus = [(0.0, gpu) for gpu in range(gpus)]  # a heap: load so far, GPU; those with room
    for expert in np.argsort(-a_copy[:-1], kind="stable").tolist():
        for _ in range(counts[expert]):
            load_so_far, gpu = _least_loaded(open_gpus, held, expert)
            held[gpu].append(expert)
            if len(held[gpu]) < slots:
                heapq.heappush(open_gpus, (load_so_far + a_copy[expert], gpu))
    return np.array([mine + [-1] * (slots - len(mine)) for mine in held])


def _least_loaded(
    open_gpus: list[tuple[float, int]], held: list[list[int]], expert: int
) -> tuple[float, int]:
    """Take the least loaded GPU off the heap, one that has no copy of `expert` if there is any;
    `apart` mends the others."""
    passed = []
    while open_gpus and expert in held[open_gpus[0][1]]:
        passed.append(heapq.heappop(open_gpus))
    found = heapq.heappop(open_gpus) if open_gpus else passed.pop(0)
    for item in passed:
        heapq.heappush(open_gpus, item)
    return found


def apart(held: np.ndarray, a_copy: np.ndarray) -> np.ndarray:
    """held (G, S) with swaps until no GPU holds an expert twice, of those that help the one that
    leaves the least load on the busier of the two GPUs. `a_copy` as in `swapped`.

    No expert has more copies than there are GPUs, so there is always one that helps: some GPU has
    none of the expert, and some slot of it holds what may come here, or what is there twice itself.
    """
    held = held.copy()
    while len(twice := np.argwhere(repeated(held))):
        gpu, slot = twice[0]
        expert = held[gpu, slot]
        here = (held[:, :, None] == held[gpu]).any(-1) & (held != -1)  # (G, S): is on `gpu` too
        helps = ~(held == expert).any(1)[:, None] & (~here | repeated(held))
        total, gain = a_copy[held].sum(1), a_copy[expert] - a_copy[held]  # (G,), (G, S)
        after = np.where(helps, np.maximum(total[gpu] - gain, total[:, None] + gain), np.inf)
        assert after.min() < np.inf, f"expert {expert} has more copies than there are GPUs"
        other = np.unravel_index(after.argmin(), after.shape)
        held[gpu, slot], held[other] = held[other], expert
    return held


def repeated(held: np.ndarray) -> np.ndarray:
    """Which slots (G, S) hold an expert that an earlier slot of the same GPU holds."""
    equal = (held[:, :, None] == held[:, None, :]) & (held != -1)[:, :, None]  # (G, S, S)
    return np.tril(equal, -1).any(-1)


def swapped(held: np.ndarray, a_copy: np.ndarray, swaps: int) -> np.ndarray:
    """held (G, S) with up to so many swaps of two slots, one of the busiest GPU's each time, as
    long as that lowers the higher of the two, and brings no expert to where it is. The last entry
    of `a_copy` (E + 1,) is an empty slot's load."""
    held = held.copy()
    for _ in range(swaps):
        weight = a_copy[held]  # (G, S)
        total = weight.sum(1)
        busiest = int(total.argmax())
        gain = weight[busiest][:, None, None] - weight[None]  # (S, G, S): what the busiest loses
        after = np.maximum(total[busiest] - gain, total[None, :, None] + gain)
        after[:, busiest] = np.inf
        same = (held[busiest][:, None, None] == held) & (held != -1)  # (S, G, S)
        after[same.any(2)] = np.inf  # the GPU has the expert that would come
        after[:, same.any(0)] = np.inf  # the busiest has
        slot, gpu, other = np.unravel_index(after.argmin(), after.shape)
        if not after[slot, gpu, other] < total[busiest] * (1 - ENOUGH_GAIN):
            break
        held[busiest, slot], held[gpu, other] = held[gpu, other], held[busiest, slot]
    return held


def _as_load(load: np.ndarray) -> np.ndarray:
    load = np.asarray(load, float)
    if load.ndim != 1 or not len(load) or not (np.isfinite(load) & (load >= 0)).all():
        raise ValueError(f"load={load!r} must be (E,) finite numbers of 0 or more, one an expert")
    return load
