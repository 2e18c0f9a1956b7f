"""What a day of traffic was like: what every visitor saw, and what it took (by `day_replay.py`).

A step that brings a request several tokens, as with speculation, counts as one time between two
tokens: what a reader waits for is text. All times are in the unit of the replay's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from g2c_serving.lab.day import Visit


@dataclass
class Stream:
    """One sample of a visit, or a fork: when its text came, and the ids. A fork has those that it
    was forked with in `ids`, too; `given` counts them."""

    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    given: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.ids) - self.given


@dataclass
class Served:
    """One visit as it went; times in the clock's unit."""

    visit: Visit
    arrived: float
    prompt: list[int]
    streams: list[Stream] = field(default_factory=list)
    num_cached: int = 0

    @property
    def first_token(self) -> float:
        return self.streams[0].times[0] - self.arrived

    @property
    def finished(self) -> float:
        return max(stream.times[-1] for stream in self.streams)

    @property
    def num_tokens(self) -> int:
        return sum(stream.num_tokens for stream in self.streams)

    @property
    def gaps(self) -> list[float]:
        """Times between two pieces of text, of all streams."""
        return [float(gap) for stream in self.streams for gap in np.diff(stream.times)]

    @property
    def per_token(self) -> float:
        """Mean time for a token after the first, of the slowest stream."""
        spans = [(s.times[-1] - s.times[0]) / max(s.num_tokens - 1, 1) for s in self.streams]
        return max(spans)


@dataclass(frozen=True)
class Target:
    """What a visitor should get: the first token, and each further one on average, in so much
    time."""

    first_token: float
    per_token: float

    def is_met(self, one: Any) -> bool:
        """`one` has the same two: a `Served`, or a `Sent` of another server's."""
        return one.first_token <= self.first_token and one.per_token <= self.per_token


class Mark(NamedTuple):
    """How things stood when a step had ended: requests that waited and ran, blocks in use."""

    time: float
    waiting: int
    running: int
    blocks: int


@dataclass
class Day:
    """A day as it was served, visits in their order, and a mark for every step.

    duration, busy   from the first arrival to the last token; of that, time with anything to do
    rebuilt          prompt tokens that were computed although this engine had computed them before
                     for the same tenant: after a return, after a preemption
    """

    served: list[Served]
    marks: list[Mark]
    duration: float
    busy: float
    steps: int
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int
    preemptions: int
    verified: int
    accepted: int
    peak_blocks: int
    rebuilt: int

    @property
    def num_tokens(self) -> int:
        return sum(one.num_tokens for one in self.served)

    @property
    def per_busy_s(self) -> float:
        """Tokens of answers in a second with anything to do, on a clock of ms."""
        return 1e3 * self.num_tokens / self.busy

    @property
    def per_s(self) -> float:
        """Tokens of answers a second, idle time included, on a clock of ms."""
        return 1e3 * self.num_tokens / self.duration

    def goodput(self, target: Target) -> float:
        """The same, of those visitors alone who got what they should."""
        return 1e3 * sum(s.num_tokens for s in self.served if target.is_met(s)) / self.duration

    def share_met(self, target: Target) -> float:
        return float(np.mean([target.is_met(one) for one in self.served]))

    def first_token(self, percent: float) -> float:
        return float(np.percentile([one.first_token for one in self.served], percent))

    def gap(self, percent: float) -> float:
        gaps = [gap for one in self.served for gap in one.gaps]
        return float(np.percentile(gaps, percent)) if gaps else 0.0
