"""The same steps in three ways: one after the other, overlapped, and all cores for the forward.

Brief, section 6. The engine's own work on the CPU is little, so a caller's is added: arithmetic in
Python that stands for a server's streams, logs and metrics, so much that alone it takes a given
share of the time that a step has on the device. It is done with each step's outputs before the next
is asked for. The engines take turns of a few steps each, in one run, on requests that are alike.
The third way is the rival that needs no thread: the plain loop, its forward pass on all cores.
Measured here; with one core there is nothing to overlap.

lab/switch_intervals.py has how soon the device's thread gets the interpreter lock,
lab/race_panel.py the pictures.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_low

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.machine import cores, num_threads
from g2c_serving.lab.real_lanes import Lanes, overlapped_lanes, plain_lanes
from g2c_serving.request import SamplingParams
from g2c_serving.switch_interval import SECONDS

REQUESTS, TOKENS = 16, 400  # of a step; that nobody gets to the end of
TURNS, STEPS, WARM = 3, 6, 6
LONGEST_S = 0.5  # of a turn, on a machine that is busy otherwise
INTERVAL_MS = 1e3 * SECONDS  # the switch interval that an AsyncEngine sets
SHARE = 0.8
PROBE = 50_000  # rounds of python_work, to see how long they take
PROMPT = "Once upon a time there was a"
LOOK_S, LOOK_BYTES = 0.05, 1 << 18  # how long to look for a second core, hashing so much at a time
PLAIN, OVERLAPPED, ALL_CORES = "one after the other", "overlapped", "all cores for the forward"
CONFIG = EngineConfig(forbid_sync=False)


def cores_for_two() -> float:
    """How many cores two threads get between them, up to 2, while they do what needs no lock."""

    def work(_: int) -> float:
        start, computed, data = time.perf_counter(), time.thread_time(), bytes(LOOK_BYTES)
        while time.perf_counter() - start < LOOK_S:
            hashlib.sha256(data)
        return (time.thread_time() - computed) / (time.perf_counter() - start)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(work, range(2)))


# ---- work in Python ----


def python_work(rounds: int) -> int:
    """Small numbers, so that each round takes as long as any other."""
    number = 1
    for _ in range(rounds):
        number = (number * 5 + 1) % 1009
    return number


# ---- one way to run the steps ----


class Contestant:
    """An engine with its requests. What its turns took: `turns`, ms of a step in each, and `lanes`.

    rounds        of python_work after each step
    interval_ms   the switch interval while steps overlap
    """

    def __init__(self, engine: Engine, threads: int = 1) -> None:
        self.engine, self.threads = engine, threads
        self.rounds, self.interval_ms = 0, INTERVAL_MS
        self.turns: list[float] = []
        self.work_ms: list[float] = []  # of each step
        self.had_core: list[float] = []  # of each turn: the share of it that this thread computed
        self.lanes: list[Lanes] = []
        for seed in range(REQUESTS):
            engine.add(PROMPT, SamplingParams(TOKENS, seed=seed, ignore_eos=True))

    @property
    def middle(self) -> int:
        """The turn that the numbers are of: all of them, so that they belong together."""
        return middle(self.turns)

    @property
    def step_ms(self) -> float:
        return self.turns[self.middle]

    @property
    def shown(self) -> Lanes:
        return self.lanes[self.middle]

    def turn(self, steps: int = STEPS) -> None:
        """A step that does not count, as nothing is on its way after a pause, then `steps`, and one
        more by which the last has come to its end."""
        with num_threads(self.threads):
            self._step()
            first = max(event.step for event in list(self.engine.events)) + 1
            start, computed, taken = time.perf_counter(), time.thread_time(), 0
            while taken < steps and (taken < 2 or time.perf_counter() - start < LONGEST_S):
                self._step()
                taken += 1
            took, computed = time.perf_counter() - start, time.thread_time() - computed
            self.turns.append(1e3 * took / taken)
            self.had_core.append(computed / took)
            self._step()
        time.sleep(2e-3 * self.turns[-1])  # what is on its way ends, and threads go to sleep
        self.lanes.append(self._read(first, taken))

    def _step(self) -> None:
        self.engine.step()
        if isinstance(self.engine, AsyncEngine):
            sys.setswitchinterval(1e-3 * self.interval_ms)
        start = time.perf_counter()
        python_work(self.rounds)
        self.work_ms.append(1e3 * (time.perf_counter() - start))

    def _read(self, first: int, taken: int) -> Lanes:
        """From step `first` on."""
        if not isinstance(self.engine, AsyncEngine):
            return plain_lanes(list(self.engine.history)[first : first + taken + 1])
        events = [e for e in list(self.engine.events) if e.step < first + taken]
        begins = min(e.start_ms for e in events if e.step == first and e.phase == "schedule")
        return overlapped_lanes(e for e in events if e.end_ms > begins)


def middle(turns: Sequence[float]) -> int:
    """Which of the turns is the median; of two in the middle the shorter."""
    return list(turns).index(median_low(turns))


@contextmanager
def contestants(lm: LanguageModel, share: float, rival: bool = True) -> Iterator[list[Contestant]]:
    """Plain, overlapped, and with all cores, warm, and with work for the caller."""
    before = sys.getswitchinterval()
    try:
        with AsyncEngine(lm, CONFIG) as engine:
            ways = [Contestant(Engine(lm, CONFIG)), Contestant(engine)]
            if rival:
                ways.append(Contestant(Engine(lm, CONFIG), threads=cores()))
            for one in ways:
                one.rounds = PROBE
                one.turn(WARM)
            per_ms = PROBE / median(ways[0].work_ms)  # of the plain loop: nobody else computes
            rounds = round(share * ways[0].lanes[0].device_ms * per_ms)
            for one in ways:
                one.rounds, one.turns, one.lanes, one.had_core = rounds, [], [], []
            yield ways
    finally:
        sys.setswitchinterval(before)


# ---- all of them ----


@dataclass(frozen=True)
class Race:
    """ms of a step in each of the three ways, by name; what a step of the plain loop took on the
    device and on the CPU; the two loops' lanes; and the share of its time that the plain loop had a
    core, which is all of it where nothing else goes on. Of each way's turns all are of the middle
    one, but the last, which is the median. `for_two`: how many cores two threads got."""

    step_ms: dict[str, float]
    device_ms: float
    cpu_ms: float
    lanes: dict[str, Lanes]
    cores: int
    had_core: float = 1.0
    for_two: float = 2.0

    @property
    def least_ms(self) -> float:
        """No loop of these steps takes less: the busier of the two."""
        return max(self.device_ms, self.cpu_ms)

    @property
    def of_ideal(self) -> float:
        """The part of the ideal saving that the overlapped loop reaches."""
        return of_ideal(self.step_ms[PLAIN], self.step_ms[OVERLAPPED], self.least_ms)


def of_ideal(plain_ms: float, overlapped_ms: float, least_ms: float) -> float:
    return (plain_ms - overlapped_ms) / max(plain_ms - least_ms, 1e-9)


def busy(had_core: float, for_two: float = 2.0) -> str:
    """A sentence, where other work has disturbed a measurement."""
    if had_core <= 0.9:
        seen = f"the plain loop had a core {had_core:.0%} of the time"
    elif for_two <= 1.7:
        seen = f"two threads at once got {for_two:.1f} cores"
    else:
        return ""
    return f" But this machine was busy: {seen}. Measure again when nothing else runs."


def race(lm: LanguageModel, share: float = SHARE, turns: int = TURNS) -> Race:
    """Measure all three on the model `lm`; the caller's work takes `share` of a step's time on the
    device."""
    for_two = []
    with contestants(lm, share) as ways:
        for _ in range(turns):
            for_two.append(cores_for_two())
            for one in ways:
                one.turn()
        plain, overlapped, _ = ways
        return Race(
            dict(zip((PLAIN, OVERLAPPED, ALL_CORES), (one.step_ms for one in ways), strict=True)),
            plain.shown.device_ms,
            plain.shown.cpu_ms,
            {PLAIN: plain.shown, OVERLAPPED: overlapped.shown},
            cores(),
            median(plain.had_core),
            median(for_two),
        )
