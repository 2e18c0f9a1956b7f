"""A pool of prefill machines behind a router, on the virtual clock.

Brief, "The parts that are pure infrastructure" and section 2. Each machine prefills one prompt
after another, in order of arrival. A prompt's work follows from the tokens that must be computed:
all, less what is found of an earlier turn of its session. Reported: DeepInfer finds a prefix before
it routes, in a store that every machine can read (`shared=True`); otherwise each machine knows only
the prefixes that it computed itself.

Simulated. Time runs in whole microseconds, which are the clock's units here. Left out: chunks of
several prompts in turn, the time that reading a found prefix takes, and caches that get full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from g2c_serving.checks import as_int, as_number
from g2c_serving.cluster.routing import Machines, Request, Router
from g2c_serving.schedule.hit_rule import hit
from g2c_serving.virtual_clock import Job, Lane, Time, VirtualClock

Work = Callable[[int, int], float]  # (q new tokens, c cached ones) -> ms, as CostModel.cost
BLOCK, WINDOW, SLACK = 128, 128, 6  # of the Brief's hit rule


@dataclass(frozen=True)
class Prompt:
    """One prompt: when it comes (microseconds), whose it is, its tokens with all earlier turns."""

    time: int
    session: int
    length: int


@dataclass(frozen=True)
class Served:
    """What became of a prompt: where it went, when it began and ended (microseconds), how many of
    its tokens were computed."""

    prompt: Prompt
    machine: int
    start: Time
    end: Time
    computed: int

    @property
    def wait(self) -> Time:
        return self.start - self.prompt.time

    @property
    def work(self) -> Time:
        return self.end - self.start

    @property
    def first_token(self) -> Time:
        """From arrival to the first token, which is there when the prompt is computed."""
        return self.end - self.prompt.time


# ---- traffic ----


def sessions(
    active: int, turns: int, number: int, gap_us: float, more: float, seed: int = 0
) -> list[Prompt]:
    """`number` prompts of `active` sessions at a time: Poisson arrivals, `gap_us` apart on average;
    each session has a turn before one has the next, in a new order every time. A turn has about
    `more` tokens (lognormal, 0.7) beyond the one before; after `turns` of them another session
    takes the place. The first ones have fewer turns, 1 to `turns`, so that they do not all end at
    once: after active * turns prompts all are whole ones."""
    active, turns = as_int("active", active, 1), as_int("turns", turns, 1)
    if as_number("gap_us", gap_us) <= 0 or as_number("more", more) <= 0:
        raise ValueError(f"gap_us={gap_us} and more={more} must be above 0")
    draw, number = np.random.default_rng(seed), as_int("number", number, 1)
    times = np.cumsum(gap_us * draw.exponential(1, number)).round().astype(int)
    cycles = [draw.permutation(active) for _ in range(-(-number // active))]
    added = np.ceil(more * np.exp(draw.normal(0, 0.7, number))).astype(int)
    left, tokens = draw.integers(1, turns + 1, active).tolist(), [0] * active  # by place
    session, prompts = list(range(active)), []
    rows = zip(times.tolist(), np.concatenate(cycles).tolist(), added.tolist(), strict=False)
    for time, place, beyond in rows:
        if not left[place]:
            left[place], tokens[place] = turns, 0
            session[place] += active
        left[place] -= 1
        tokens[place] += beyond
        prompts.append(Prompt(time, session[place], tokens[place]))
    return prompts


# ---- the pool ----


class PrefillPool:
    """`machines` lanes; `serve` plays prompts through them."""

    def __init__(self, machines: int, router: Router, work: Work, shared: bool = False) -> None:
        self.clock = VirtualClock()
        self.lanes = [
            Lane(self.clock, f"machine {m}") for m in range(as_int("machines", machines, 1))
        ]
        self.router, self.work, self.shared = router, work, shared
        self.known: dict[int, dict[int, int]] = {}  # session -> machine -> tokens that it computed
        self.served: list[Served] = []  # in order of arrival

    def serve(self, prompts: Sequence[Prompt]) -> list[Served]:
        """Play prompts, in order of time, to the end of the last, and return all that were served.
        ValueError for another order."""
        if any(a.time > b.time for a, b in zip(prompts, prompts[1:], strict=False)):
            raise ValueError("prompts must be in order of time: sort them by it")
        self.clock.start(self._arrivals(prompts))
        self.clock.run()
        return self.served

    def _arrivals(self, prompts: Sequence[Prompt]) -> Iterator[Job | Time]:
        for prompt in prompts:
            if prompt.time > self.clock.now:
                yield prompt.time - self.clock.now
            self._route(prompt)

    def _route(self, prompt: Prompt) -> None:
        held = self.known.setdefault(prompt.session, {})
        home = max(held, key=lambda m: held[m]) if held else None
        machine = self.router(self._seen(), Request(prompt.length, home))
        cached = max(held.values(), default=0) if self.shared else held.get(machine, 0)
        found = hit(prompt.length, BLOCK, WINDOW, SLACK, cached=cached)
        us = round(1000 * self.work(found.new, found.reused))

        def remember() -> None:
            held[machine] = max(held.get(machine, 0), prompt.length)

        span = self.lanes[machine].submit(us, remember).span
        self.served.append(Served(prompt, machine, span.start, span.end, found.new))

    def _seen(self) -> Machines:
        now = self.clock.now
        queued = np.array([lane.free_at - now for lane in self.lanes], float)
        nothing = np.zeros(len(queued))  # no rule of prefill looks at these
        return Machines(queued, nothing, nothing)


def busiest(served: Sequence[Served], machines: int) -> float:
    """The busiest machine's work over the average, 1 at best."""
    work = np.zeros(machines)
    for one in served:
        work[one.machine] += float(one.work)
    return float(work.max() / work.mean())
