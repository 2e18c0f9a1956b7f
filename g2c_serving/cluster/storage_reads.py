"""How long a read of a cache block takes, if more shards are asked for than are needed.

Brief, "The parts that are pure infrastructure": any 10 of 11 reads suffice. The block is there when
the tenth of the reads comes back, so one slow disk costs nothing; all ten of ten would wait for it.
That is an order statistic: with F(t) the chance that one read is back by t, ten or more of n are
back with the chance of a binomial tail.

`ReadTimes` says how long one read takes, `Read` what a block's read makes of it, and
`under_load` what the extra reads cost: they keep the disks busy too.

Simulated, under these assumptions: reads are independent; a read's time is a fixed part and an
exponential one, longer by a factor for a share of slow reads. A read that is no longer needed is
finished all the same. Times in ms; DeepSeek's are not disclosed, so these are for the shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int, as_number


def kth_of(chance: ArrayLike, k: int, n: int) -> np.ndarray:
    """The chance that `k` or more of `n` independent reads are back, if one is with `chance`."""
    p = np.asarray(chance, float)
    return sum((comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1)), 0 * p)


@dataclass(frozen=True)
class ReadTimes:
    """One shard's read: `fixed_ms`, and an exponential part of mean `mean_ms`; of a share `slow`
    of the reads that part is `factor` times as long."""

    fixed_ms: float = 0.0
    mean_ms: float = 1.0
    slow: float = 0.0
    factor: float = 10.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("fixed_ms", 0, 1e12),
            ("mean_ms", 1e-9, 1e12),
            ("slow", 0, 1),
            ("factor", 1, 1e12),
        ):
            value = as_number(name, getattr(self, name))
            if not low <= value <= high:
                raise ValueError(f"{name}={value:g} must be from {low:g} to {high:g}")

    def back_by(self, t: ArrayLike) -> np.ndarray:
        """The chance that one read is back by `t` ms."""
        late = np.maximum(np.asarray(t, float) - self.fixed_ms, 0) / self.mean_ms
        return 1 - (1 - self.slow) * np.exp(-late) - self.slow * np.exp(-late / self.factor)

    def draw(self, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        """Random times of reads, an array of shape `size`."""
        part = rng.exponential(self.mean_ms, size)
        return self.fixed_ms + part * np.where(rng.random(size) < self.slow, self.factor, 1)


@dataclass(frozen=True)
class Read:
    """A block's read: `issued` shards are asked for, the first `needed` of them suffice."""

    times: ReadTimes
    issued: int = 11
    needed: int = 10

    def __post_init__(self) -> None:
        as_int("needed", self.needed, 1)
        as_int("issued", self.issued, self.needed)

    def back_by(self, t: ArrayLike) -> np.ndarray:
        """The chance that the block is there by `t` ms."""
        return kth_of(self.times.back_by(t), self.needed, self.issued)

    def quantile(self, share: float) -> float:
        """The time in ms by which `share` of the blocks are there (0.5 is the median)."""
        if not 0 < as_number("share", share) < 1:
            raise ValueError(f"share={share!r} must lie between 0 and 1")
        low, high = self.times.fixed_ms, self.times.fixed_ms + self._end()
        for _ in range(90):  # halve the interval
            middle = (low + high) / 2
            low, high = (middle, high) if self.back_by(middle) < share else (low, middle)
        return high

    def mean(self) -> float:
        """The mean time in ms: the chance of not being there yet, summed over time.

        Over its logarithm, for slow reads may be a million times as long as the others."""
        t = np.geomspace(1e-9 * self.times.mean_ms, self._end(), 8001)  # beyond the fixed part
        rest = t * (1 - replace(self, times=replace(self.times, fixed_ms=0.0)).back_by(t))
        steps = np.diff(np.log(t)) * (rest[1:] + rest[:-1]) / 2
        return self.times.fixed_ms + float(t[0] + steps.sum())

    def _end(self) -> float:
        """So long beyond the fixed part all is back but for one read in e^40."""
        return 40 * self.times.mean_ms * self.times.factor


def under_load(load: ArrayLike, issued: int, needed: int = 10) -> np.ndarray:
    """The mean time until the `needed`-th of `issued` reads is back, in mean reads of a disk that
    has nothing else to do, where reads wait for each other.

    `load` is the share of time that the disks would be busy if `needed` were issued, 0 to 1; with
    more they are busier by issued / needed, and where that is 1 or more the queues never end (inf).
    Each disk is an M/M/1 queue, and a block's reads meet independent ones.
    """
    as_int("issued", issued, as_int("needed", needed, 1))
    asked = np.asarray(load, float)
    if not ((asked >= 0) & (asked <= 1)).all():
        raise ValueError(f"load={load!r} must be from 0 to 1")
    busy = asked * issued / needed
    order = sum(1 / i for i in range(issued - needed + 1, issued + 1))
    with np.errstate(divide="ignore"):
        return np.where(busy < 1, order / np.maximum(1 - busy, 0), np.inf)


def simulate(
    load: float, issued: int, needed: int = 10, *, disks: int = 200, blocks: int = 5000, seed: int
) -> np.ndarray:
    """Times (blocks,) of blocks' reads over real queues, in mean reads: blocks come at random, each
    asks `issued` disks out of all, and every disk serves in order of arrival.

    So a read starts when it comes or when its disk has done all before it, whichever is later: no
    event loop is needed to know when. The first fifth of the blocks finds the queues still short.
    """
    rng = np.random.default_rng(seed)
    if not 0 < as_number("load", load) * as_int("issued", issued, needed, disks) / needed < 1:
        raise ValueError(f"load={load!r} with issued={issued} must keep the disks below 1")
    gap = needed / (load * disks)  # mean reads
    now = np.cumsum(rng.exponential(gap, blocks))
    free, times = np.zeros(disks), np.empty(blocks)
    for i in range(blocks):
        chosen = rng.permutation(disks)[:issued]
        free[chosen] = np.maximum(free[chosen], now[i]) + rng.exponential(1.0, issued)
        times[i] = np.partition(free[chosen], needed - 1)[needed - 1] - now[i]
    return times[blocks // 5 :]
