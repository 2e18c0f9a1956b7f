"""Two loops around a device, on a virtual clock: one waits for each step, the other overlaps.

Brief, section 6. The plain loop schedules a step, launches it, waits for it, and processes what
came of it; so one of processor and device always waits for the other. In the overlapped loop, while
the device runs step N, the processor post-processes N-1 and schedules N+1, whose launch queues
behind N. `plain` and `overlapped` are these two loops; `saving` compares them with what no loop
could beat: a run takes at least as long as the busier of the two.

Simulated: three times for each step, and nothing else. A launch costs nothing, neither lane slows
the other down, and to schedule a step nothing is needed from the step before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int
from g2c_serving.virtual_clock import Job, Lane, Number, Time, VirtualClock, as_duration

SCHEDULE, RUN, PROCESS = "schedule", "run", "process"  # labels of spans: "schedule 3", "run 3"


@dataclass(frozen=True)
class Step:
    """What one step takes, in ms, exactly: on the device, and the processor before and after."""

    device: Time
    schedule: Time
    process: Time


def steps(device: Sequence[Number], cpu: Sequence[Number]) -> list[Step]:
    """Steps from their times on the device and the processor, in ms, (N,) each. Half of the
    processor's time schedules, half processes.

    ValueError for lengths that differ, no step at all, and times that are negative or no numbers.
    """
    if len(device) != len(cpu) or not len(device):
        raise ValueError(
            f"{len(device)} device times with {len(cpu)} cpu times: give one of each a step, for "
            "at least one step"
        )
    found = []
    for device_ms, cpu_ms in zip(device, cpu, strict=True):
        half = Fraction(as_duration("cpu", cpu_ms)) / 2
        found.append(Step(as_duration("device", device_ms), half, half))
    return found


def alike(count: int, device_ms: Number, cpu_ms: Number) -> list[Step]:
    """`count` equal steps."""
    count = as_int("count", count, 1)
    return steps([device_ms] * count, [cpu_ms] * count)


def uneven(count: int, mean_ms: float, spread: float) -> np.ndarray:
    """Random ms (count,) around a mean, to the microsecond: gamma, with a standard deviation of
    `spread` times the mean."""
    if spread <= 0 or mean_ms <= 0:
        return np.full(count, float(mean_ms))
    draws = np.random.default_rng(0).gamma(spread**-2, mean_ms * spread**2, count)
    return draws.round(3)


# ---- the two loops ----

Loop = Callable[[Lane, Lane, Sequence[Step]], Iterator[Job]]


def plain(cpu: Lane, device: Lane, steps: Sequence[Step]) -> Iterator[Job]:
    """Schedule N, launch N, wait for it, process N; then N+1."""
    for n, step in enumerate(steps):
        yield cpu.submit(step.schedule, label=f"{SCHEDULE} {n}")
        yield device.submit(step.device, label=f"{RUN} {n}")
        yield cpu.submit(step.process, label=f"{PROCESS} {n}")


def overlapped(cpu: Lane, device: Lane, steps: Sequence[Step]) -> Iterator[Job]:
    """While the device runs N: process N-1, schedule N+1 and launch it, to run when N is done."""
    running: list[Job] = []  # launched, and not processed yet: two at most
    for n, step in enumerate(steps):
        yield cpu.submit(step.schedule, label=f"{SCHEDULE} {n}")
        running.append(device.submit(step.device, label=f"{RUN} {n}"))  # no waiting
        if n > 0:
            yield running.pop(0)
            yield cpu.submit(steps[n - 1].process, label=f"{PROCESS} {n - 1}")
    yield running.pop(0)
    yield cpu.submit(steps[-1].process, label=f"{PROCESS} {len(steps) - 1}")


@dataclass(frozen=True)
class Timeline:
    """What became of a run: both lanes with all their spans, and the ms that it took."""

    cpu: Lane
    device: Lane
    total: Time

    @property
    def device_waits(self) -> float:
        """The share of the run in which the device had nothing to do."""
        return float(1 - Fraction(self.device.busy) / self.total) if self.total else 0.0


def run(loop: Loop, steps: Sequence[Step]) -> Timeline:
    """One run of `plain` or `overlapped`, from time 0."""
    clock = VirtualClock()
    cpu, device = Lane(clock, "CPU"), Lane(clock, "device")
    clock.start(loop(cpu, device, steps))
    clock.run()
    return Timeline(cpu, device, clock.now)


# ---- what overlapping saves ----


def least(steps: Sequence[Step]) -> Time:
    """ms that no loop can beat: all of the device's work, or all of the processor's."""
    work = sum(step.schedule + step.process for step in steps)
    return max(sum(step.device for step in steps), work)


@dataclass(frozen=True)
class Saving:
    """ms of a whole run in either loop, and the least that it could take."""

    plain: Time
    overlapped: Time
    least: Time

    @property
    def saved(self) -> float:
        """The share of the plain loop's time that overlapping saves, 0 to 1/2."""
        return float(1 - Fraction(self.overlapped) / self.plain) if self.plain else 0.0

    @property
    def of_ideal(self) -> Fraction:
        """The part of the ideal saving that is reached; 1 where there is nothing to save."""
        ideal = Fraction(self.plain - self.least)
        return (self.plain - self.overlapped) / ideal if ideal else Fraction(1)


def saving(steps: Sequence[Step]) -> Saving:
    return Saving(run(plain, steps).total, run(overlapped, steps).total, least(steps))


def totals(device: ArrayLike, cpu: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """ms of whole runs in the plain and the overlapped loop, for many settings at once: times (...,
    N) that broadcast, results (...). The same as `run`, in floats and without a clock."""
    device, cpu = np.broadcast_arrays(device, cpu)
    half = cpu / 2
    launched = half[..., 0]
    free, former_ends, ends = launched, launched, launched + device[..., 0]
    for n in range(1, device.shape[-1]):
        launched = free + half[..., n]
        former_ends, ends = ends, np.maximum(launched, ends) + device[..., n]
        free = np.maximum(launched, former_ends) + half[..., n - 1]
    overlapped_ms = np.maximum(free, ends) + half[..., -1]
    return (device + cpu).sum(-1), overlapped_ms
