"""A clock that moves from event to event: order and gaps are exact, and no wall time is involved.

Things happen at a time in ms, in order of time, and at the same time in the order in which they
were asked for. A `Lane` is something that does one job at a time, such as a processor or a device;
a process is a generator that says what it waits for, and so reads like the loop that it stands for:

    clock = VirtualClock()
    cpu, device = Lane(clock, "CPU"), Lane(clock, "device")

    def loop():
        for n in range(3):
            yield cpu.submit(4, label=f"schedule {n}")   # wait until it is done
            yield device.submit(17, label=f"step {n}")
            yield cpu.submit(6, label=f"process {n}")

    clock.start(loop())
    clock.run()
    device.spans, device.gaps(), clock.now               # clock.now == 3 * (4 + 17 + 6)

Times are exact: whole numbers stay ints, all others become fractions, and a float counts as the
decimal that it prints as. So 0.1 + 0.2 is 0.3, and two things due at 0.3 are a tie. Whatever comes
out of a model that runs on it is Simulated (Brief, section 6: the overlap of processor and GPU).

Left out: jobs that are interrupted, lanes that do several jobs at once, priorities.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from numbers import Integral

from g2c_serving.checks import as_number

Time = int | Fraction  # ms, exact
Number = int | float | Fraction  # what callers give
Action = Callable[[], object]


def exact(name: str, value: object) -> Time:
    """`value` in ms as an int or a Fraction; 0.1 is one tenth. ValueError, with its name, for what
    is no finite number."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    number = value if isinstance(value, Fraction) else repr(as_number(name, value))
    fraction = Fraction(number)
    return fraction.numerator if fraction.denominator == 1 else fraction


def as_duration(name: str, value: object) -> Time:
    """As `exact`, and 0 or more."""
    duration = exact(name, value)
    if duration < 0:
        raise ValueError(f"{name}={value!r} must be 0 ms or more: time does not run backwards")
    return duration


class VirtualClock:
    """Runs actions at their times. `now` is the time in ms, 0 at first."""

    def __init__(self) -> None:
        self.now: Time = 0
        self._events: list[tuple[Time, int, Action]] = []  # a heap: time, order of asking, action
        self._order = count()
        self._running = False

    def at(self, time: Number, action: Action) -> None:
        """Call `action()` at `time`. ValueError for a time before `now`."""
        when = exact("time", time)
        if when < self.now:
            raise ValueError(
                f"time={time!r} lies before now={float(self.now):g} ms: give a time from now on, "
                "or a delay to after()"
            )
        if not callable(action):
            raise ValueError(f"action={action!r} must be a function without arguments")
        heapq.heappush(self._events, (when, next(self._order), action))

    def after(self, delay: Number, action: Action) -> None:
        """Call `action()` in `delay` ms. ValueError for a negative delay."""
        self.at(self.now + as_duration("delay", delay), action)

    def start(self, process: Iterator[Job | Number]) -> None:
        """Run a generator, from now on. What it yields it waits for: the job that a lane's `submit`
        returned, or a number of ms."""
        if not isinstance(process, Iterator):
            raise ValueError(
                f"process={process!r} must be a generator: call the function that yields, "
                "as in clock.start(loop())"
            )
        self.at(self.now, lambda: self._resume(process))

    def run(self) -> None:
        """Let everything happen. What an action raises is raised here. RuntimeError inside an
        action, where the clock is running already."""
        if self._running:
            raise RuntimeError("the clock is running: an action asks for more by at() or after()")
        self._running = True
        try:
            while self._events:
                self.now, _, action = heapq.heappop(self._events)
                action()
        finally:
            self._running = False

    def _resume(self, process: Iterator[Job | Number]) -> None:
        try:
            awaited = next(process)
        except StopIteration:
            return
        if isinstance(awaited, Job):
            awaited.when_done(lambda: self._resume(process))
        else:
            delay = as_duration("what a process yields (a Job, or ms)", awaited)
            self.after(delay, lambda: self._resume(process))


@dataclass(frozen=True)
class Span:
    """One job of a lane, or a gap between two: from `start` to `end`, in ms."""

    lane: str
    label: str
    start: Time
    end: Time

    @property
    def duration(self) -> Time:
        return self.end - self.start


class Job:
    """A job that a lane has taken on; its `span` is settled from the first. A process waits for it
    by yielding it."""

    def __init__(self, clock: VirtualClock, span: Span) -> None:
        self.span, self.done = span, False
        self._clock = clock
        self._waiting: list[Action] = []
        clock.at(span.end, self._finish)

    def when_done(self, action: Action) -> None:
        """Call `action()` when the job is done, after those who asked before; now, if it is."""
        if self.done:
            self._clock.at(self._clock.now, action)
        else:
            self._waiting.append(action)

    def _finish(self) -> None:
        self.done = True
        for action in self._waiting:
            action()


class Lane:
    """Does one job at a time, in the order in which they are submitted.

    `spans` are its jobs in that order, the waiting ones with the times that they will have.
    """

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self.clock, self.name = clock, name
        self.spans: list[Span] = []
        self.free_at: Time = 0  # when it will have done all that it was given

    def submit(self, duration: Number, on_done: Action | None = None, label: str = "") -> Job:
        """Queue a job of `duration` ms behind the others; `on_done()` is called at its end.
        Returns at once. ValueError for a negative duration."""
        start = max(self.clock.now, self.free_at)
        self.free_at = start + as_duration("duration", duration)
        self.spans.append(Span(self.name, label, start, self.free_at))
        job = Job(self.clock, self.spans[-1])
        if on_done is not None:
            job.when_done(on_done)
        return job

    @property
    def busy(self) -> Time:
        """ms of all its jobs."""
        return sum(span.duration for span in self.spans)

    def gaps(self, start: Number = 0, end: Number | None = None) -> list[Span]:
        """When it had nothing to do between `start` and `end` (without one: its last job's)."""
        low, high = exact("start", start), self.free_at if end is None else exact("end", end)
        edges = [(low, low), *((s.start, s.end) for s in self.spans), (high, high)]
        free, found = low, []
        for begins, ends in edges:
            if free < min(begins, high):
                found.append(Span(self.name, "", free, min(begins, high)))
            free = max(free, ends)
        return found
