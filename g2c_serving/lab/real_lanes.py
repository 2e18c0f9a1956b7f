"""Two lanes from real timestamps: what CPU and device did, step by step, in both loops.

Brief, section 6. `plain_lanes` reads an `Engine`'s history, `overlapped_lanes` an `AsyncEngine`'s
events; both give the spans that lab/two_lanes.py draws. On a CPU the device is a thread. What is
called device here is the forward pass and the sampling; all the rest is the CPU's: to schedule, to
process, and what the caller does with the outputs before it asks for the next step.
lab/overlap_race.py measures the loops against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from g2c_serving.history import StepRecord
from g2c_serving.lab.overlap_model import PROCESS, RUN, SCHEDULE
from g2c_serving.virtual_clock import Lane, Span, VirtualClock, exact

CPU, DEVICE = "CPU", "device"


@dataclass(frozen=True)
class Lanes:
    """The spans of some steps in a row, in ms from the first one's beginning. Labels count from 0:
    "schedule 0", "run 0", "process 0"."""

    cpu: list[Span]
    device: list[Span]

    @property
    def end(self) -> float:
        return max(float(span.end) for span in (*self.cpu, *self.device))

    @property
    def device_ms(self) -> float:
        """What a step took on the device, on average."""
        return mean(float(span.duration) for span in self.device)

    @property
    def cpu_ms(self) -> float:
        """What a step took on the CPU, on average: of the steps that it both began and ended."""
        steps = {_number(span) for span in self.cpu}
        both = [n for n in steps if len([s for s in self.cpu if _number(s) == n]) == 2]
        times = [float(span.duration) for span in self.cpu if _number(span) in both]
        return sum(times) / max(len(both), 1)

    def gaps(self, end: float) -> list[Span]:
        """When either of them had nothing to do, up to `end` ms."""
        return [*gaps(CPU, self.cpu, end), *gaps(DEVICE, self.device, end)]

    @property
    def device_waits(self) -> float:
        """The share of the time, from its first step to its last, in which the device waited."""
        start, end = float(self.device[0].start), float(self.device[-1].end)
        return 1 - sum(float(span.duration) for span in self.device) / (end - start)


def plain_lanes(history: Sequence[StepRecord]) -> Lanes:
    """Of an `Engine`'s steps, one after the other and nothing between them but what the caller did
    with the outputs: it counts as processing. The last one's is unknown, so that step is left out.
    """
    cpu, device = [], []
    for n, (record, following) in enumerate(zip(history, history[1:], strict=False)):
        start = record.start_ms - history[0].start_ms
        launched = start + record.schedule_ms
        done = launched + record.forward_ms + record.sample_ms
        cpu.append(_span(CPU, f"{SCHEDULE} {n}", start, launched))
        device.append(_span(DEVICE, f"{RUN} {n}", launched, done))
        until = following.start_ms - history[0].start_ms
        cpu.append(_span(CPU, f"{PROCESS} {n}", done, max(done, until)))
    return Lanes(cpu, device)


def overlapped_lanes(events: Iterable[Any], whole: bool = True) -> Lanes:
    """Of an `AsyncEngine`'s events, of steps that were taken one after the other; what the caller
    did after a step counts as its processing.

    whole   a step on the device is one span; otherwise its forward pass and its sampling are two,
            and where it waits for a mask there is a gap
    """
    events = sorted(events, key=lambda event: (event.start_ms, event.end_ms))
    begun = [event for event in events if event.phase == "schedule"]
    if not begun:
        raise ValueError("events: no step begins in them; take steps before you draw them")
    zero, first = begun[0].start_ms, begun[0].step
    events = [event for event in events if event.end_ms > zero]  # some began before
    found = _on_cpu([event for event in events if event.lane == CPU])
    found += _on_device([event for event in events if event.lane == DEVICE], whole)
    spans = [
        _span(lane, f"{kind} {step - first}", max(start - zero, 0.0), end - zero)
        for lane, kind, step, start, end in found
    ]
    return Lanes([s for s in spans if s.lane == CPU], [s for s in spans if s.lane == DEVICE])


Found = tuple[str, str, int, float, float]  # lane, kind, step, start, end


def _on_cpu(events: list[Any]) -> list[Found]:
    """To launch is the end of scheduling. To wait is not drawn: nothing happens."""
    found: list[Found] = []
    for event, following in zip(events, [*events[1:], None], strict=True):
        if event.phase == "schedule":
            found.append((CPU, SCHEDULE, event.step, event.start_ms, event.end_ms))
        elif event.phase == "launch" and found and found[-1][1:3] == (SCHEDULE, event.step):
            found[-1] = (*found[-1][:4], event.end_ms)
        elif event.phase == "process":
            until = event.end_ms if following is None else following.start_ms
            found.append((CPU, PROCESS, event.step, event.start_ms, max(event.end_ms, until)))
    return found


def _on_device(events: list[Any], whole: bool) -> list[Found]:
    found: list[Found] = []
    for step in sorted({event.step for event in events}):
        parts = [e for e in events if e.step == step and e.phase != "wait"]
        if whole and parts:
            start, end = min(e.start_ms for e in parts), max(e.end_ms for e in parts)
            found.append((DEVICE, RUN, step, start, end))
        else:
            waits = [e for e in events if e.step == step and e.phase == "wait"]
            pieces = [piece for e in parts for piece in _without(e.start_ms, e.end_ms, waits)]
            found += [(DEVICE, RUN, step, *piece) for piece in pieces]
    return found


def _without(start: float, end: float, waits: Sequence[Any]) -> list[tuple[float, float]]:
    """What is left of a time when these are cut out of it."""
    pieces = []
    for wait in waits:
        if start < wait.end_ms and wait.start_ms < end:
            pieces.append((start, wait.start_ms))
            start = wait.end_ms
    return [(a, b) for a, b in [*pieces, (start, end)] if a < b]


def gaps(lane: str, spans: Sequence[Span], end: float) -> list[Span]:
    """Between 0 and `end` ms."""
    idle = Lane(VirtualClock(), lane)
    idle.spans = list(spans)
    return idle.gaps(0, end)


def _span(lane: str, label: str, start: float, end: float) -> Span:
    return Span(lane, label, exact("start", start), exact("end", end))


def _number(span: Span) -> int:
    return int(span.label.split()[1])
