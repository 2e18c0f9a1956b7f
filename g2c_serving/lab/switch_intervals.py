"""How soon a thread gets Python's interpreter lock, and what is left of the overlap.

Brief, section 6. Python lets only one thread run its code at a time. One that wants the lock waits
for the switch interval, 5 ms unless it is set, before the other is asked to let go. The device's
thread needs it anew after each of its many short operations; so while a caller computes in Python
its step takes longer. Overlapped turns with several intervals, and plain ones between them, as in
lab/overlap_race.py. Measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.lab.overlap_race import INTERVAL_MS, SHARE, busy, contestants, cores, of_ideal
from g2c_serving.lab.table import Table

INTERVALS_MS = (5.0, 1.0, 0.2, INTERVAL_MS, 0.005)
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


def measure(
    lm: LanguageModel,
    share: float = SHARE,
    intervals_ms: Sequence[float] = INTERVALS_MS,
    turns: int = TURNS,
) -> list[AtInterval]:
    """The plain loop first."""
    with contestants(lm, share, rival=False) as (plain, overlapped):
        for _ in range(turns):
            plain.turn()
            for overlapped.interval_ms in intervals_ms:
                overlapped.turn()
    device_ms = mean(lanes.device_ms for lanes in plain.lanes)
    least_ms = max(device_ms, mean(lanes.cpu_ms for lanes in plain.lanes))
    found = [AtInterval(None, plain.step_ms, device_ms, 0.0, median(plain.had_core))]
    for k, interval_ms in enumerate(intervals_ms):
        step_ms = median(overlapped.turns[k :: len(intervals_ms)])
        on_device = mean(lanes.device_ms for lanes in overlapped.lanes[k :: len(intervals_ms)])
        share_of_ideal = of_ideal(plain.step_ms, step_ms, least_ms)
        found.append(AtInterval(interval_ms, step_ms, on_device, share_of_ideal))
    return found


def table(found: Sequence[AtInterval]) -> Table:
    head = "switch interval", "a step", "of it on the device", "of the ideal saving"
    rows = []
    for one in found:
        times = f"{one.step_ms:.1f} ms", f"{one.device_ms:.1f} ms"
        if one.interval_ms is None:
            rows.append(("one after the other", *times, ""))
        else:
            rows.append((f"{one.interval_ms:g} ms", *times, f"{one.of_ideal:.0%}"))
    return Table(head, rows)


def findings(found: Sequence[AtInterval]) -> str:
    """What the table says."""
    if cores() == 1:
        return "This machine has one core: whatever the interval, there is nothing to overlap."
    plain = found[0]
    by_interval = {one.interval_ms: one for one in found}
    long, short = by_interval[DEFAULT_MS], by_interval[INTERVAL_MS]
    return (
        f"At Python's own {DEFAULT_MS:g} ms the device's part takes "
        f"{long.device_ms / plain.device_ms:.2f} times as long as without the other thread, and "
        f"{max(long.of_ideal, 0):.0%} of the ideal saving is reached; at the engine's "
        f"{INTERVAL_MS:g} ms it is {short.device_ms / plain.device_ms:.2f} times, and "
        f"{max(short.of_ideal, 0):.0%}.{busy(plain.had_core)}"
    )
