"""One pool of machines for everything, or a pool for prefill and a pool for decode.

In one pool each step of a machine has a row for every request that decodes there, and a chunk of
the prompts that wait: whoever decodes waits for other people's prompts. With two pools a machine
does one or the other. A request's first token is drawn where its prompt is computed; then its cache
is shipped to the decode machine with fewest requests, and decoding goes on there.

    one pool     machine   | rows + chunk | rows + chunk | rows | ...
    two pools    prefill   | prompt | prompt | ...             decode   | rows | rows | rows | ...

Brief, section 1, Reported: DeepInfer prefills on 8-GPU servers and decodes on 64 to 128 GPUs. Here
machines are alike, so what the sizes buy is left out: only who waits for whom remains.

Simulated: steps take what a `CostModel` says, arrivals are random (Poisson), all prompts and all
answers are of one length, memory never runs out. Each prefill machine sends its caches over a link
of its own, one after the other. Time is in whole microseconds, the clock's units here. Left out: a
decode machine that receives from several at once. offered_load.py has the loads that come.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from g2c_serving.checks import as_int, as_number
from g2c_serving.cluster.layer_transfer import arrival_ms
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.virtual_clock import VirtualClock

US = 1000  # microseconds in a ms


@dataclass(frozen=True)
class Load:
    """What comes: `rate` requests a second, `count` in all, each with a prompt of so many tokens
    and an answer of so many. ValueError names the field and the range."""

    rate: float
    count: int
    prompt_tokens: int
    answer_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if as_number("rate", self.rate) <= 0:
            raise ValueError(f"rate={self.rate} must be more than 0 requests a second")
        for name in ("count", "prompt_tokens", "answer_tokens"):
            as_int(name, getattr(self, name), 1)

    def arrivals(self) -> list[int]:
        """Microseconds (count,)."""
        gaps = np.random.default_rng(self.seed).exponential(1e6 / self.rate, self.count)
        return np.cumsum(gaps).astype(int).tolist()


@dataclass(frozen=True)
class Link:
    """Between the pools: GB/s, bytes of cache a token, layers that are shipped one by one."""

    gb_per_s: float = 50.0
    bytes_per_token: float = 890.0  # V4.1-Flash, Reported
    layers: int = 32

    def transfer_ms(self, tokens: int) -> float:
        return tokens * self.bytes_per_token / (self.gb_per_s * 1e6)

    def arrival_us(self, tokens: int, began: int, done: int, free_at: int) -> int:
        """When a cache has arrived that was computed from `began` to `done`, on a link that is busy
        until `free_at`. All in us."""
        times = (began / US, done / US, self.transfer_ms(tokens), free_at / US)
        return max(done, round(US * float(arrival_ms(self.layers, *times))))


@dataclass(eq=False)
class Job:
    """One request, and when its tokens came (microseconds)."""

    arrived: int
    prompt_tokens: int
    answer_tokens: int
    done: int = 0  # of its prompt
    began: int = -1
    first: int = -1
    joined: int = -1  # the first step of its decode machine that has a row for it
    gaps: list[int] = field(default_factory=list)


class Machine:
    """Takes steps as long as it has something to do. A job whose prompt is computed goes to
    `computed`, which is this machine's own `decode` unless it ships its caches.

    Every row gets a token in every step, so a job's tokens are the steps since it `joined`.
    """

    def __init__(self, clock: VirtualClock, costs: CostModel, chunk: int) -> None:
        self.clock, self.costs, self.chunk = clock, costs, chunk
        self.computed: Callable[[Job], None] = self.decode
        self.prompts: deque[Job] = deque()
        self.coming: list[Job] = []  # to decode from the next step on
        self.rows = self.context = 0  # those that decode, and the tokens that they read
        self.ends: list[int] = []  # of all steps
        self.leaving: defaultdict[int, list[Job]] = defaultdict(list)  # by their last step
        self.busy_us = self.link_free_at = 0
        self._is_busy = False

    @property
    def load(self) -> int:
        """Requests here."""
        return len(self.prompts) + len(self.coming) + self.rows

    def prefill(self, job: Job) -> None:
        self.prompts.append(job)
        self._wake()

    def decode(self, job: Job) -> None:
        self.coming.append(job)
        self._wake()

    def _wake(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self.clock.after(0, self._begin)

    def _begin(self) -> None:
        """A row for each that decodes, and a chunk of the prompts in the order of their arrival."""
        if not self.load:
            self._is_busy = False
            return
        self._take_in()
        ms, room, taken = self.costs.decode_cost(self.rows, self.context), self.chunk, []
        for job in self.prompts:
            count = min(job.prompt_tokens - job.done, room)
            if not count:
                break
            if job.began < 0:
                job.began = int(self.clock.now)
            ms += self.costs.cost(count, job.done)
            room -= count
            taken.append((job, count))
        us = max(1, round(US * ms))
        self.busy_us += us
        self.clock.after(us, lambda: self._end(taken))

    def _take_in(self) -> None:
        """Each that comes has its first token, and reads it and its prompt."""
        for job in self.coming:
            job.joined = len(self.ends)
            self.leaving[job.joined + job.answer_tokens - 2].append(job)
            self.context += job.prompt_tokens + 1
        self.rows += len(self.coming)
        self.coming.clear()

    def _end(self, taken: list[tuple[Job, int]]) -> None:
        now, step = int(self.clock.now), len(self.ends)
        self.ends.append(now)
        self.context += self.rows
        for job in self.leaving.pop(step, ()):
            job.gaps = np.diff([job.first, *self.ends[job.joined :]]).tolist()
            self.rows -= 1
            self.context -= job.prompt_tokens + job.answer_tokens
        for job, count in taken:
            job.done += count
            if job.done == job.prompt_tokens:
                self.prompts.popleft()
                job.first = now
                if job.answer_tokens > 1:
                    self.computed(job)
        self._begin()


@dataclass(frozen=True)
class Outcome:
    """What users saw, in ms: the time to the first token of each request (R,), the time between two
    tokens of all (T,). busy: of each machine, the share of the run (M,)."""

    first_token: np.ndarray
    between: np.ndarray
    busy: np.ndarray

    @classmethod
    def of(cls, jobs: Sequence[Job], machines: Sequence[Machine], end: float) -> Outcome:
        first = np.array([job.first - job.arrived for job in jobs]) / US
        between = np.array([gap for job in jobs for gap in job.gaps]) / US
        return cls(first, between, np.array([m.busy_us for m in machines]) / end)


def one_pool(load: Load, machines: int, costs: CostModel, chunk: int = 2048) -> Outcome:
    """Every machine does everything; a request goes to the one with fewest. `chunk`: most prompt
    tokens in a step."""
    clock, number = VirtualClock(), as_int("machines", machines, 1)
    pool = [Machine(clock, costs, as_int("chunk", chunk, 1)) for _ in range(number)]
    return _run(clock, load, pool, pool)


def two_pools(
    load: Load, prefill: int, decode: int, costs: CostModel, link: Link | None = None
) -> Outcome:
    """Prompts whole, one after the other, in the one pool; rows in the other."""
    link, clock = Link() if link is None else link, VirtualClock()
    decoding = [Machine(clock, costs, 1) for _ in range(as_int("decode", decode, 1))]
    number = as_int("prefill", prefill, 1)
    filling = [Machine(clock, costs, load.prompt_tokens) for _ in range(number)]
    for machine in filling:
        machine.computed = partial(ship_job, machine, link, decoding)
    return _run(clock, load, filling, [*filling, *decoding])


def ship_job(machine: Machine, link: Link, decoding: Sequence[Machine], job: Job) -> None:
    """Send a job's cache over the machine's link, to the pool that decodes."""
    times = job.began, job.first, machine.link_free_at
    machine.link_free_at = link.arrival_us(job.prompt_tokens, *times)
    machine.clock.at(machine.link_free_at, partial(_decode, decoding, job))


def _decode(pool: Sequence[Machine], job: Job) -> None:
    min(pool, key=lambda machine: machine.load).decode(job)


def _enter(entrance: Sequence[Machine], job: Job) -> None:
    """To the machine with fewest requests, the first among equals."""
    min(entrance, key=lambda machine: machine.load).prefill(job)


def _run(
    clock: VirtualClock, load: Load, entrance: Sequence[Machine], all_machines: Sequence[Machine]
) -> Outcome:
    jobs = [Job(at, load.prompt_tokens, load.answer_tokens) for at in load.arrivals()]
    for job in jobs:
        clock.at(job.arrived, partial(_enter, entrance, job))
    clock.run()
    return Outcome.of(jobs, all_machines, float(clock.now))
