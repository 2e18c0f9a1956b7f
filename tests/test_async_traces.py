"""AsyncEngine gives what Engine gives: a hundred random traces, with everything that may befall a
request while it is in flight. See traces.py for what a trace is, and by which rules two engines are
compared; there is also a way to play one by hand."""

from __future__ import annotations

import faulthandler
import functools
import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from traces import CONTEXT, VOCAB, Played, assert_equal, check_order, make, play

import g2c_serving as g

SEEDS = 100


@pytest.fixture(autouse=True)
def nothing_hangs():
    """Who waits for ever ends the run, and shows where."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@functools.cache
def expected(seed: int) -> Played:
    """What Engine makes of a trace."""
    return play(make(seed))


class Watched(g.AsyncEngine):
    """Its device is late at times, and what is fed to the models is noted."""

    def __init__(self, lm: Any, config: g.EngineConfig) -> None:
        super().__init__(lm, config)
        self.fed: list[torch.Tensor] = []
        self.dice = random.Random(lm.name)
        models = [self.model]
        models += [] if self.speculator is None else [self.speculator.drafter.model]
        for model in models:
            model.forward = self.watched(model.forward)

    def watched(self, forward):
        def late(batch, cache):
            self.fed.append(batch.token_ids)
            time.sleep(self.dice.choice([0, 0, 0.002]))
            return forward(batch, cache)

        return late


def overlapped(trace, **changed) -> tuple[Played, float]:
    """The trace with AsyncEngine, and the share of its steps that overlapped. No placeholder ever
    reaches an embedding."""
    played = play(trace, Watched, **changed)
    fed = torch.cat(played.engine.fed) if played.engine.fed else torch.zeros(0)
    assert ((fed >= 0) & (fed < VOCAB)).all(), f"a placeholder was fed in {trace}"
    return played, check_order(played.engine.events)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_as_engine(seed):
    trace = make(seed)
    played, share = overlapped(trace)
    assert_equal(trace, expected(seed), played)
    if played.engine.stats.steps > 20:
        assert share > 0.3


@pytest.mark.parametrize("seed", range(1, SEEDS, 7))
def test_the_device_dies_now_and_then(seed):
    """Its worker is killed at random: in flight end with an error, the others have what Engine
    gives them, and all blocks come back."""
    trace, dice = make(seed), random.Random(seed)
    kill_at = {dice.randrange(3), dice.randrange(40), dice.randrange(40)}
    calls = itertools.count()
    played = play(trace, Watched, lambda e: next(calls) in kill_at and e.worker.kill())
    killed = [key for key, final in played.final.items() if "killed" in (final.message or "")]
    assert all(played.final[key].finish_reason == "error" for key in killed)
    whole = expected(seed)
    both = (played.final.keys() & whole.final.keys()) - set(killed)
    one, other = (replace(p, final={key: p.final[key] for key in both}) for p in (whole, played))
    assert_equal(trace, one, other)


def test_the_traces_hold_what_they_should():
    """Enough of everything, or the comparison above says little."""
    count: Counter[str] = Counter()
    for seed in range(SEEDS):
        trace, played = make(seed), expected(seed)
        stats = played.engine.stats
        count.update({trace.mode: 1, trace.model: 1, "cached": stats.cached_tokens > 0})
        count.update(preemptions=stats.preemptions, accepted=stats.accepted)
        count.update(rejected=stats.verified - stats.accepted)
        for (name, sample), final in played.final.items():
            count[final.finish_reason] += 1
            count.update(forks="." in name, samples=sample > 0, calls=len(final.calls))
            for text in ("stop string", "context limit", "not numbers", "need more than all"):
                count[text] += text in (final.message or "")
        for ask in trace.asks:
            count.update(grammars="grammar" in ask.params, logprobs="logprobs" in ask.params)
    least = {"off": 30, "fixed": 20, "budgeted": 8, "window": 20, "faulty": 8, "cached": 8,
             "preemptions": 40, "accepted": 400, "rejected": 400, "stop": 80, "length": 100,
             "abort": 80, "error": 20, "forks": 60, "samples": 60, "calls": 50, "stop string": 20,
             "context limit": 20, "not numbers": 10, "need more than all": 10, "grammars": 80,
             "logprobs": 100}  # fmt: skip
    assert not {name: count[name] for name in least if count[name] < least[name]}


@pytest.mark.parametrize("seed", range(0, SEEDS, 9))
def test_engine_gives_the_same_at_any_size(seed):
    """What the comparison rests on: in invariant mode neither the size of a step nor the company
    nor the cache changes anything; nor does a pool that holds every request in any case."""
    trace = make(seed)
    size = trace.sizes["block_size"]
    roomy = trace.sizes["num_blocks"] * size > CONTEXT
    pool = {"num_blocks": 400 // size} if roomy else {}
    how = {"max_num_batched_tokens": 100, "max_num_seqs": 40, "enable_prefix_caching": False}
    assert_equal(trace, expected(seed), play(trace, **how, **pool))


class Forgetful(g.Engine):
    """Preempts, and forgets a token."""

    def _schedule(self):
        preempted = [r for r in self.scheduler.waiting if r.num_preemptions and r.num_generated]
        for request in preempted[:1]:
            request.token_ids.pop()
            request.num_computed_tokens = min(
                request.num_computed_tokens, len(request.token_ids) - 1
            )
        return super()._schedule()


class Slow(g.Engine):
    """Notices an end one token late."""

    def _append(self, request, sampled):
        super()._append(request, sampled)
        if request.finish_reason == "stop":
            request.token_ids.append(sampled[-1][0])


@pytest.mark.parametrize("broken", [Forgetful, Slow])
def test_an_engine_that_errs_is_found(broken):
    def is_found(seed: int) -> bool:
        try:
            assert_equal(make(seed), expected(seed), play(make(seed), broken))
        except AssertionError:
            return True
        return False

    assert any(is_found(seed) for seed in range(30))
