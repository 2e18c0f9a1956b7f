"""Any engine, and anything that may befall its requests in any order: what each gets is what it
would get alone, and nothing is lost or leaked.

A failing example is printed as the calls that led to it. The model's tokens are checksums of what
it reads from the pages (fakes.py), what is right is worked out by a loop without any (alone.py).
After every call the books are checked: engine_books.py.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterable
from concurrent import futures
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from alone import LANGUAGES, Wish, new_lm
from asked import Asked
from engine_books import LEAST, Books, caches
from fakes import new_engine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from traces import COSTS, check_idle

import g2c_serving as g

SHARED = "abcabdacbdeafghb"  # the beginning of many prompts
FAULT = "made to fail"
MOST_STEPS = 6000
NUMBERS = st.integers(0, 7)  # which of the requests under way


def one_of(requests: Iterable[int], number: int) -> int:
    return (some := sorted(requests))[number % len(some)]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    @initialize(
        kind=st.sampled_from(["Engine", "AsyncEngine"]),
        mode=st.sampled_from(["off", "fixed", "budgeted"]),
        drafts=st.integers(1, 3),
        window=st.sampled_from([0, 0, 5]),
        block_size=st.integers(1, 5),
        room=st.sampled_from([30, 45, 60, 120]),
        chunk=st.sampled_from([1, 3, 6, 20, 64]),
        seats=st.sampled_from([1, 2, 3, 8]),
        cache=st.sampled_from(["none", "pool", "pool", "disk"]),
        hurried=st.booleans(),
    )
    def make(
        self, kind, mode, drafts, window, block_size, room, chunk, seats, cache, hurried
    ) -> None:
        self.kind, self.mode, self.key = kind, mode, (window, drafts)
        self.sizes: dict[str, Any] = {
            "num_blocks": -(-room // block_size),
            "block_size": block_size,
            "max_num_batched_tokens": max(chunk, 1 + drafts) if mode != "off" else chunk,
            "max_num_seqs": seats,
            "enable_prefix_caching": cache != "none",
            "forbid_sync": False,
        }
        if cache == "disk":
            self.sizes |= {"cache_dir": self.folder.name, "cache_bytes": 1 << 20}
        if hurried:
            self.sizes |= {"step_time_budget_ms": 3.0, "cost_model": COSTS}
        if mode != "off":
            how = {"step_time": lambda rows: 10.0 + rows} if mode == "budgeted" else {}
            self.sizes["speculation"] = g.Speculation(mode, drafts, new_lm(), **how)
        self.most = self.sizes["num_blocks"] * block_size
        self.books = Books()
        self.begin()

    def begin(self) -> None:
        self.lm = new_lm(self.key[0])
        self.asked = Asked(self.lm, self.mode, self.key, self.most)
        self.engine = new_engine(getattr(g, self.kind), self.lm, g.EngineConfig(**self.sizes))
        self.books.open()

    # what users do

    @rule(
        shared=st.integers(0, 16),
        own=st.text("abc", min_size=1, max_size=8),
        max_tokens=st.integers(1, 14),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        seed=st.integers(0, 3),
        hot=st.booleans(),
        stop=st.sampled_from([(), (), ("d",), ("ab", "ho")]),
        language=st.sampled_from([None, None, None, *LANGUAGES]),
        salt=st.sampled_from(["", "", "a"]),
    )
    def add(self, shared, own, max_tokens, n, seed, hot, stop, language, salt) -> None:
        prompt = tuple((SHARED[:shared] + own).encode())
        temperature = float(hot and self.mode != "budgeted")
        wish = Wish(prompt[: self.most], max_tokens, temperature, stop, language)
        request_id = self.engine.add(list(wish.prompt), wish.params(seed, n), salt)
        self.asked.add(request_id, wish, seed, n)
        compiling = [future for _, future in self.engine.waiting_room._waiting.values()]
        assert not futures.wait(compiling, 60).not_done  # the same at each time, as below

    @rule(what=st.sampled_from(["empty", "outside", "long", "salt", "traffic", "fork", "abort"]))
    def refused(self, what) -> None:
        e, ids = self.engine, [97, 98]
        calls = {
            "empty": lambda: e.add([]), "outside": lambda: e.add([97, 266]),
            "long": lambda: e.add(ids * 20),
            "salt": lambda: e.add(ids, cache_salt=3), "traffic": lambda: e.add(ids, traffic="x"),
            "fork": lambda: e.fork(10_000), "abort": lambda: e.abort(10_000),
        }  # fmt: skip
        with pytest.raises((ValueError, TypeError, KeyError)):
            calls[what]()

    @rule()
    def go_on(self) -> None:
        self.step(6)

    @rule(times=st.sampled_from([1, 1, 2, 4]))
    def step(self, times) -> None:
        for _ in range(times):
            self.note(self.engine.step())
            self.books.check(self.engine)
            self.let_the_device_finish()

    @precondition(lambda self: self.asked.open)
    @rule(number=NUMBERS)
    def abort(self, number) -> None:
        self.note(self.engine.abort(request_id := one_of(self.asked.open, number)))
        assert request_id not in self.asked.open, "some samples live on after an abort"

    @precondition(lambda self: any(len(samples) == 1 for samples in self.asked.open.values()))
    @rule(number=NUMBERS, seed=st.sampled_from([None, 0, 5]))
    def fork(self, number, seed) -> None:
        single = [i for i, samples in self.asked.open.items() if len(samples) == 1]
        parent = one_of(single, number)
        (request,) = self.engine.unfinished(parent)
        given = request.token_ids[request.num_prompt_tokens :]
        if seed == request.seed:  # it draws on as its parent does, drafts and all
            given = self.asked.given[parent]
        child = self.engine.fork(parent, seed)
        self.asked.add(child, self.asked.wishes[parent], seed, 1, given)

    # what the machine does

    @rule(passes=st.integers(0, 12), drafter=st.booleans(), dies=st.booleans())
    def fail(self, passes, drafter, dies) -> None:
        """One of the next passes of a model raises; or it is the end of the device's thread, which
        leaves nothing in the pages that anybody could read."""
        model = self.lm.model
        if drafter and self.mode != "off":
            model = self.engine.speculator.drafter.model
        error = SystemExit if dies and self.kind == "AsyncEngine" else RuntimeError
        left = [passes]

        def on_forward(batch) -> None:
            left[0] -= 1
            if left[0] < 0:
                model.on_forward = lambda batch: None
                for cache in caches(self.engine) if error is SystemExit else ():
                    cache.clear(list(range(self.sizes["num_blocks"])))
                raise error(FAULT)

        model.on_forward = on_forward
        self.asked.faults.append(FAULT)

    @precondition(lambda self: not self.asked.open and "cache_dir" in self.sizes)
    @rule(damaged=st.booleans())
    def restart(self, damaged) -> None:
        """Another engine finds what the last one left on disk; or finds it damaged."""
        self.end_engine()
        if damaged:
            for path in Path(self.folder.name).rglob("*"):
                if path.is_file() and "index" not in path.name:
                    content = path.read_bytes()
                    path.write_bytes(content[:-3] + b"\0\1\2")
        self.begin()

    def let_the_device_finish(self) -> None:
        """So that an example does the same each time, whenever a thread dies."""
        for flight in getattr(self.engine, "_flights", ()):
            assert futures.wait([flight.done], 20).done, "the device hangs"

    # what comes of it

    def note(self, outputs: list[g.RequestOutput]) -> None:
        for output in outputs:
            self.books.learn(self.engine, output._request)
            self.asked.note(output)
            self.books.seen[str(output.finish_reason)] += 1
            assert output.num_cached_tokens <= self.books.most_cached(output)

    @invariant(check_during_init=False)
    def the_books_are_right(self) -> None:
        self.books.check(self.engine)

    def end_engine(self) -> None:
        for _ in takewhile(lambda _: self.engine.has_unfinished, range(MOST_STEPS)):
            self.step(1)
        assert not self.asked.open, f"no end of {self.asked.open}"
        check_idle(self.engine)
        self.books.close(self.engine)
        if self.kind == "AsyncEngine":
            assert self.engine.close() == []

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.end_engine()
        finally:
            getattr(self.engine, "close", list)()
            self.folder.cleanup()


@pytest.fixture(autouse=True)
def quiet():
    """What is made to fail is told in the log, with its traceback."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def play(examples: int, steps: int, **how: Any) -> None:
    how |= {"max_examples": examples, "stateful_step_count": steps, "deadline": None}
    how |= {"suppress_health_check": list(HealthCheck), "database": None}
    run_state_machine_as_test(Machine, settings=settings(**how))


def test_any_engine_under_anything():
    """The same examples each time; enough of everything, or they say little."""
    Books.seen.clear()
    play(200, 40, derandomize=True)
    assert not {name: Books.seen[name] for name in LEAST if Books.seen[name] < LEAST[name]}


@pytest.mark.slow
def test_any_engine_under_anything_for_long():
    play(5000, 80)
