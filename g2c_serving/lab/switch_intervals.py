"""How soon a thread gets Python's interpreter lock, and what is left of the overlap.

Brief, section 6. Python lets only one thread run its code at a time. One that wants the lock waits
for the switch interval, 5 ms unless it is set, before the other is asked to let go. The device's
thread needs it anew after each of its many short operations; so while a caller computes in Python
its step takes longer. Overlapped turns with several intervals, and plain ones between them, as in
lab/overlap_race.py; the engine's own interval twice, to see what differs by chance alone, and
every second round the other way about. Measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.machine import cores
from g2c_serving.lab.overlap_race import (
    INTERVAL_MS,
    SHARE,
    busy,
    contestants,
    cores_for_two,
    middle,
    of_ideal,
)
from g2c_serving.lab.real_lanes import Lanes
from g2c_serving.lab.table import Table

INTERVALS_MS = (5.0, 1.0, 0.05, INTERVAL_MS, INTERVAL_MS)
DEFAULT_MS = INTERVALS_MS[0]  # Python's own
TURNS = 2


@dataclass(frozen=True)
class AtInterval:
    """ms of a step, and of its part on the device. None as an interval: the plain loop."""

    interval_ms: float | None
    step_ms: float
    device_ms: float
    of_ideal: float
    had_core: float = 1.0  # the plain loop: what share of the time
    for_two: float = 2.0  # with the plain loop's: how many cores two threads got


def measure(
    lm: LanguageModel,
    share: float = SHARE,
    intervals_ms: Sequence[float] = INTERVALS_MS,
    turns: int = TURNS,
) -> list[AtInterval]:
    """The plain loop first."""
    with contestants(lm, share, rival=False) as (plain, overlapped):
        taken: list[list[tuple[float, Lanes]]] = [[] for _ in intervals_ms]
        for_two = []
        for turn in range(turns):
            for_two.append(cores_for_two())
            plain.turn()
            for k in range(len(intervals_ms))[:: -1 if turn % 2 else 1]:
                overlapped.interval_ms = intervals_ms[k]
                overlapped.turn()
                taken[k].append((overlapped.turns[-1], overlapped.lanes[-1]))
    device_ms = plain.shown.device_ms
    least_ms = max(device_ms, plain.shown.cpu_ms)
    disturbed = median(plain.had_core), median(for_two)
    found = [AtInterval(None, plain.step_ms, device_ms, 0.0, *disturbed)]
    for interval_ms, of in zip(intervals_ms, taken, strict=True):
        step_ms, lanes = of[middle([ms for ms, _ in of])]
        share_of_ideal = of_ideal(plain.step_ms, step_ms, least_ms)
        found.append(AtInterval(interval_ms, step_ms, lanes.device_ms, share_of_ideal))
    return found


def table(found: Sequence[AtInterval]) -> Table:
    head = "switch interval", "a step", "of it on the device", "of the ideal saving"
    rows: list[tuple[str, ...]] = []
    for one, former in zip(found, [None, *found], strict=False):
        times = f"{one.step_ms:.1f} ms", f"{one.device_ms:.1f} ms"
        if one.interval_ms is None:
            rows.append(("one after the other", *times, ""))
        else:
            again = former is not None and former.interval_ms == one.interval_ms
            name = f"{one.interval_ms:g} ms" + ", once more" * again
            rows.append((name, *times, _share(one.of_ideal)))
    return Table(head, rows)


def _share(of_ideal: float) -> str:
    return f"{of_ideal:.0%}" if of_ideal >= 0.005 else "none"


def findings(found: Sequence[AtInterval]) -> str:
    """What the table says."""
    if cores() == 1:
        return "This machine has one core: whatever the interval, there is nothing to overlap."
    plain = found[0]
    by_interval = {one.interval_ms: one for one in reversed(found)}
    long, short = by_interval[DEFAULT_MS], by_interval[INTERVAL_MS]
    return (
        f"At Python's own {DEFAULT_MS:g} ms the device's part takes "
        f"{long.device_ms / plain.device_ms:.2f} times as long as without the other thread, and "
        f"{_share(long.of_ideal)} of the ideal saving is reached; at the engine's "
        f"{INTERVAL_MS:g} ms it is {short.device_ms / plain.device_ms:.2f} times, and "
        f"{_share(short.of_ideal)}.{busy(plain.had_core, plain.for_two)}"
    )
