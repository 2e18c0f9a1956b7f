"""The overlapped engine: one step late, and otherwise as Engine. What was in flight when a request
ended, was aborted, preempted, or when the device itself died, harms nobody."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import math
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import fits
from grammars import CALL, regex
from small_models import random_ids, random_lm
from traces import (
    CONTEXT,
    FAULT_AT,
    GRAMMARS,
    SMALL,
    VOCAB,
    chatty,
    check_idle,
    check_order,
    model,
    new_engine,
)

import g2c_serving as g

LM, NEAR, FAULTY = model("plain"), model("near"), model("faulty")
PROMPT = random_ids(LM, 9, 3)
PROMPTS = [random_ids(LM, 3 + 2 * i, 20 + i) for i in range(5)]
MODES = ["off", "fixed"]  # in which the tokens are the request's own
Finals = dict[tuple[int, int], g.RequestOutput]


@pytest.fixture(autouse=True)
def nothing_hangs():
    """Who waits for ever ends the run, and shows where."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def params(seed: int = 3, **how: Any) -> g.SamplingParams:
    return g.SamplingParams(**{"max_tokens": 12, "seed": seed, "ignore_eos": True, **how})


def make(kind: type, mode: str = "off", lm: Any = LM, **config: Any) -> Any:
    sizes = {"num_blocks": 64, "block_size": 4, "batch_invariant": True, **config}
    if mode != "off":
        times = {"step_time": lambda rows: 10.0 + rows} if mode == "budgeted" else {}
        sizes["speculation"] = g.Speculation(mode, 3, NEAR, **times)
    return new_engine(kind, lm, g.EngineConfig(**sizes))


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    """Makes overlapped engines, and closes them."""
    with contextlib.ExitStack() as stack:
        yield lambda *how, **config: stack.enter_context(make(g.AsyncEngine, *how, **config))


def run(e: Any) -> Finals:
    """Step to the end with the blocks proved after each; final outputs by request and sample."""
    final: Finals = {}
    for _ in range(3000):
        if not e.has_unfinished:
            check_idle(e)
            return final
        take(e, final)
    raise AssertionError("3,000 steps and no end")


def take(e: Any, final: Finals) -> list[g.RequestOutput]:
    outputs = e.step()
    e.block_manager.check()
    ended = {(o.request_id, o.sample_index): o for o in outputs if o.finish_reason}
    assert not ended.keys() & final.keys()
    final |= ended
    return outputs


def story(o: g.RequestOutput) -> tuple:
    return o.token_ids, o.finish_reason, o.message, o.text, o.seed, o.logprobs


_alone: dict[tuple, list[tuple]] = {}


def alone(prompt: list[int], how: g.SamplingParams, mode: str = "off", lm: Any = LM) -> tuple:
    """What Engine gives the request by itself."""
    key = tuple(prompt), repr(how), mode, lm.name, id(lm)
    if key not in _alone:
        _alone[key] = [story(o) for o in make(g.Engine, mode, lm).generate([prompt], how)]
    return _alone[key][0]


def on_forward(e: Any, hook: Callable[[int, Any], None], models: str = "target") -> None:
    """Call hook(number, batch) before each forward, on the device's thread."""
    model = e.model if models == "target" else e.speculator.drafter.model
    real, numbers = model.forward, itertools.count()

    def forward(batch: Any, cache: Any) -> torch.Tensor:
        hook(next(numbers), batch)
        return real(batch, cache)

    model.forward = forward


# ---- one step late ----


def test_the_first_step_has_nothing_to_tell_and_the_others_are_one_late(engine):
    e = engine()
    e.add(PROMPT, params(max_tokens=4))
    outputs = []
    while e.has_unfinished:
        outputs.append(e.step())
    assert [[len(o.token_ids) for o in some] for some in outputs] == [[], [1], [2], [3], [4]]
    assert story(outputs[-1][0]) == alone(PROMPT, params(max_tokens=4))
    assert e.step() == []
    check_idle(e)


@pytest.mark.parametrize("mode", MODES)
def test_the_late_token_of_a_request_that_ended_is_thrown_away(engine, mode):
    """vLLM 47900: its third token is a stop token, which nobody knows when step 4 is launched. In
    step 5 it has no row."""
    tokens = alone(PROMPT, params(), mode)[0]
    stop = next(t for i, t in enumerate(tokens) if i > 1 and t not in tokens[:i])
    how = params(stop_token_ids=(stop,))
    calls: dict[type, list] = {g.Engine: [], g.AsyncEngine: []}
    for kind, seen in calls.items():
        e = engine(mode) if kind is g.AsyncEngine else make(kind, mode)
        on_forward(e, lambda number, batch, seen=seen: seen.append(number))
        e.add(PROMPT, how)
        (final,) = run(e).values()
        assert final.finish_reason == "stop" and story(final) == alone(PROMPT, how, mode)
        if kind is g.AsyncEngine:
            e.close()  # the late row may be under way
    assert len(calls[g.AsyncEngine]) == len(calls[g.Engine]) + 1


@pytest.mark.parametrize("mode", MODES)
def test_late_rows_write_into_no_ones_blocks(engine, mode):
    """The pool holds one request at a time, so each next one takes the blocks of the last, whose
    late row is on the device when they are given away."""
    tokens = {i: alone(p, params(i), mode)[0] for i, p in enumerate(PROMPTS)}
    asked = [params(i, stop_token_ids=(tokens[i][3 + i],)) for i in range(len(PROMPTS))]
    e = engine(mode, num_blocks=CONTEXT // 4, max_num_seqs=1)
    outputs = e.generate(PROMPTS, asked)
    assert [story(o) for o in outputs] == [
        alone(p, how, mode) for p, how in zip(PROMPTS, asked, strict=True)
    ]
    check_idle(e)


@pytest.mark.parametrize("mode", MODES)
def test_generate_is_engines(engine, mode):
    """Twice, with several samples, logprobs, stop strings and a bad prompt between."""
    asked = params(5, n=3, logprobs=2, stop="c", max_tokens=20)
    expected = [story(o) for o in make(g.Engine, mode).generate(PROMPTS, asked)]
    e = engine(mode, max_num_seqs=4)
    assert [story(o) for o in e.generate(PROMPTS, asked)] == expected
    with pytest.raises(ValueError, match="empty"):
        e.generate([[1], []], asked)
    check_idle(e)
    assert [story(o) for o in e.generate(PROMPTS, asked)] == expected


def test_every_launch_but_the_first_comes_before_the_step_before_is_processed(engine):
    """One request that nobody else disturbs: nothing ever waits."""
    e = engine()
    e.generate([PROMPT], params(max_tokens=20))
    assert check_order(e.events) == 1.0
    launches = [event.step for event in e.events if event.phase == "launch"]
    assert launches == list(range(len(launches))) and len(launches) in (20, 21)


def test_the_log_says_where_the_device_waits(engine):
    """Under a grammar sampling needs the state after the last token; without one nobody waits."""
    e = engine()
    e.generate([PROMPT], params())
    assert not [event for event in e.events if (event.lane, event.phase) == ("device", "wait")]
    e.generate([PROMPT], params(grammar=regex(["abcabcabc"])))
    waits = [event.step for event in e.events if (event.lane, event.phase) == ("device", "wait")]
    assert len(waits) >= 8
    check_order(e.events)


def test_the_log_has_the_drafters_part(engine):
    e = engine("fixed")
    e.generate([PROMPT], params())
    lanes = {(event.lane, event.phase) for event in e.events}
    assert ("device", "draft") in lanes and check_order(e.events) > 0.8
    plain = engine()
    plain.generate([PROMPT], params())
    lanes = {(event.lane, event.phase) for event in plain.events}
    device = {("device", "forward"), ("device", "sample")}
    assert lanes == device | {("CPU", p) for p in ("schedule", "launch", "wait", "process")}


# ---- what the device is fed ----


@pytest.mark.parametrize("chunk", [3, 64])
def test_what_is_fed_is_what_engine_feeds(engine, chunk):
    """vLLM 46899, 40768: each position has the token that stands there, although it was not known
    when its step was laid out."""
    fed: dict[type, dict[int, int]] = {g.Engine: {}, g.AsyncEngine: {}}
    for kind, at in fed.items():
        e = engine(max_num_batched_tokens=chunk) if kind is g.AsyncEngine else make(kind)
        batches: list[Any] = []
        on_forward(e, lambda number, batch, seen=batches: seen.append(batch))
        e.generate([PROMPT], params())
        for batch in batches:
            for position, token in zip(
                batch.positions.tolist(), batch.token_ids.tolist(), strict=True
            ):
                assert at.setdefault(position, token) == token
    late = max(fed[g.AsyncEngine]) if max(fed[g.AsyncEngine]) > max(fed[g.Engine]) else None
    fed[g.AsyncEngine].pop(late, None)
    assert fed[g.AsyncEngine] == fed[g.Engine]
    assert list(fed[g.Engine].values())[: len(PROMPT)] == PROMPT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [3, FAULT_AT - 2, FAULT_AT + 4])
def test_a_row_without_numbers_feeds_no_placeholder(engine, mode, length):
    """Its token is none, and the next row of it is under way. The neighbour has room to end."""
    bad, good = random_ids(LM, length, 8), PROMPTS[0]
    how, short = params(max_tokens=40), params(4, max_tokens=10)
    e = engine(mode, lm=FAULTY)
    fed: list[torch.Tensor] = []
    on_forward(e, lambda number, batch: fed.append(batch.token_ids))
    outputs = e.generate([bad, good], [how, short])
    assert outputs[0].finish_reason == "error" and "not numbers" in outputs[0].message
    assert story(outputs[0]) == alone(bad, how, mode, FAULTY)
    assert story(outputs[1]) == alone(good, short, mode, FAULTY)
    ids = torch.cat(fed)
    assert ((ids >= 0) & (ids < VOCAB)).all()
    check_idle(e)


# ---- abort, preempt and fork, at every point ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(7))
def test_abort_at_each_point(engine, mode, steps):
    """Before the first step, with a chunk of its prompt in flight, with its first token in flight,
    and later; the others do not notice."""
    e = engine(mode, max_num_batched_tokens=16)
    others = [e.add(p, params(i)) for i, p in enumerate(PROMPTS[:2])]
    long, how = random_ids(LM, 21, 5), params(max_tokens=27)
    request_id = e.add(long, how)
    final: Finals = {}
    shown: list[int] = []
    for _ in range(steps):
        for o in take(e, final):
            shown = o.token_ids if o.request_id == request_id else shown
    (output,) = e.abort(request_id)
    e.block_manager.check()
    assert output.finish_reason == "abort" and output.token_ids == shown
    assert shown == alone(long, how, mode)[0][: len(shown)]
    final |= run(e)
    assert [story(final[i, 0]) for i in others] == [
        alone(p, params(i), mode) for i, p in enumerate(PROMPTS[:2])
    ]
    with pytest.raises(KeyError, match=str(request_id)):
        e.abort(request_id)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(4))
def test_the_blocks_of_an_aborted_one_are_safe_at_once(engine, mode, steps):
    """A new request gets them in the next step, while the old one's row is on the device."""
    e = engine(mode, num_blocks=CONTEXT // 4)
    old = e.add(PROMPT, params(max_tokens=CONTEXT - len(PROMPT)))
    for _ in range(steps):
        e.step()
    e.abort(old)
    new = e.add(PROMPTS[4], params(9))
    assert story(run(e)[new, 0]) == alone(PROMPTS[4], params(9), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_preempted_while_in_flight(engine, mode, at):
    """vLLM 49620: while step `at` is on the device the next one is scheduled, and takes the blocks
    of a request that has a row in it. Its token of that step is not lost, or drawn again."""
    e = engine(mode, num_blocks=40)
    how = [params(i, max_tokens=30) for i in range(3)]
    ids = [e.add(p, one) for p, one in zip(PROMPTS, how, strict=False)]
    real, number = e.scheduler.schedule, itertools.count()

    def schedule():
        if next(number) == at and e.scheduler.running:
            e.scheduler._preempt(e.scheduler.running[-1])
        return real()

    e.scheduler.schedule = schedule
    final = run(e)
    assert e.stats.preemptions == 1
    for i, request_id in enumerate(ids):
        assert story(final[request_id, 0]) == alone(PROMPTS[i], how[i], mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(5))
def test_a_fork_in_flight(engine, mode, steps):
    """It begins with the tokens that its parent shows, and draws the next one itself; with the
    parent's seed it is the parent's twin. The same seed replays it from its beginning."""
    e = engine(mode, max_num_batched_tokens=8)
    parent = e.add(PROMPT, params())
    final: Finals = {}
    shown: list[int] = []
    for _ in range(steps):
        for o in take(e, final):
            shown = o.token_ids
    child, twin, third = e.fork(parent, seed=8), e.fork(parent, seed=3), e.fork(parent, seed=8)
    final |= run(e)
    whole = alone(PROMPT, params(), mode)
    assert story(final[parent, 0]) == story(final[twin, 0]) == whole
    assert final[child, 0].token_ids == final[third, 0].token_ids
    assert final[child, 0].token_ids[: len(shown)] == shown == whole[0][: len(shown)]
    left = params(8, max_tokens=12 - len(shown))
    assert final[child, 0].token_ids[len(shown) :] == alone(PROMPT + shown, left, mode)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seats", [1, 8])
def test_samples_whose_prompt_is_in_flight(engine, mode, seats):
    """They fork off once its first tokens are known; an abort before, while and after ends all."""
    asked = params(7, n=3, max_tokens=30)
    expected = [story(o) for o in make(g.Engine, mode).generate([PROMPT], asked)]
    e = engine(mode, max_num_seqs=seats, max_num_batched_tokens=6)
    assert [story(o) for o in e.generate([PROMPT], asked)] == expected
    for steps in range(5):
        request_id = e.add(PROMPT, asked)
        for _ in range(steps):
            assert not any(o.finish_reason for o in e.step())
        outputs = e.abort(request_id)
        assert [o.sample_index for o in outputs] == [0, 1, 2]
        for o, (tokens, *_) in zip(outputs, expected, strict=True):
            assert o.token_ids == tokens[: len(o.token_ids)]
        assert not run(e)  # what was in flight is thrown away


@pytest.mark.parametrize("steps", range(5))
def test_generate_after_an_abort(engine, steps):
    """The late row of a request that is gone is nobody's unfinished request."""
    e = engine()
    request_id = e.add(PROMPTS[1], params(8))
    for _ in range(steps):
        e.step()
    e.abort(request_id)
    assert run_again(e, "off")


@pytest.mark.parametrize("mode", MODES)
def test_grammars_abort_fork_and_preempt(engine, mode):
    """The states are those of the tokens, whatever was in flight and thrown away."""
    word = regex(["abc" * 9, "b" * 25])
    asked = params(grammar=word, max_tokens=30)
    whole = alone(PROMPT, asked, mode)
    for steps in range(1, 6):
        e = engine(mode, max_num_batched_tokens=16)
        parent, free = e.add(PROMPT, asked), e.add(PROMPTS[2], params())
        victim = e.add(PROMPTS[1], params(4, max_tokens=30, grammar=regex(["c" * 28])))
        final: Finals = {}
        for _ in range(steps):
            take(e, final)
        twin = e.fork(parent, seed=3)
        e.abort(victim)
        if steps % 2 and e.scheduler.running:
            e.scheduler._preempt(e.scheduler.running[-1])
        final |= run(e)
        assert story(final[parent, 0]) == story(final[twin, 0]) == whole
        assert story(final[free, 0]) == alone(PROMPTS[2], params(), mode)


# ---- at the limits ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [5, 64])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_context_that_is_filled_exactly(engine, mode, chunk, spare):
    """No row is laid out beyond the last position, though the step before is not known yet."""
    prompt = random_ids(LM, CONTEXT - 5, 6)
    how = params(max_tokens=5 - spare if spare else 99)
    e = engine(mode, num_blocks=CONTEXT // 4, max_num_batched_tokens=chunk)
    positions: list[torch.Tensor] = []
    on_forward(e, lambda number, batch: positions.append(batch.positions))
    (output,) = e.generate([prompt], how)
    assert output.finish_reason == "length" and story(output) == alone(prompt, how, mode)
    assert torch.cat(positions).max() < CONTEXT
    check_idle(e)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [5, 8, 9, 11, 12])
def test_a_lone_request_that_outgrows_the_pool(engine, mode, length):
    """12 tokens have room. The error is Engine's, and comes after the same tokens; one that ends
    with the token that has none is whole."""
    how = params(max_tokens=30)
    config: dict[str, Any] = {"num_blocks": 3, "block_size": 4}
    prompt = random_ids(LM, length, 40 + length)

    def both(how: g.SamplingParams) -> g.RequestOutput:
        (expected,) = make(g.Engine, mode, **config).generate([prompt], how)
        (output,) = engine(mode, **config).generate([prompt], how)
        assert story(output) == story(expected)
        return output

    error = both(how)
    assert error.finish_reason == "error" and "raise EngineConfig.num_blocks" in error.message
    assert both(params(max_tokens=len(error.token_ids))).finish_reason == "length"
    last = error.token_ids[-1]
    if last not in error.token_ids[:-1]:
        assert both(params(max_tokens=30, stop_token_ids=(last,))).finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
def test_one_that_outgrows_the_pool_harms_nobody(engine, mode):
    e = engine(mode, num_blocks=4)
    big = e.add(PROMPTS[2], params(max_tokens=30))
    small = [e.add(p, params(i, max_tokens=4)) for i, p in enumerate(PROMPTS[:2])]
    final = run(e)
    assert final[big, 0].finish_reason == "error"
    for i, request_id in enumerate(small):
        (expected,) = make(g.Engine, mode, num_blocks=4).generate(
            [PROMPTS[i]], params(i, max_tokens=4)
        )
        assert story(final[request_id, 0]) == story(expected)


# ---- steps that fail ----


def once(number: int, error: Callable[[], BaseException]) -> Callable[[int, Any], None]:
    def hook(n: int, batch: Any) -> None:
        if n == number:
            raise error()

    return hook


def some_failed(e: Any, ids: list[int], mode: str, asked: list, most: int) -> Finals:
    """Run; those that did not end with an error are as Engine has them."""
    final = run(e)
    errors = [o for o in final.values() if o.finish_reason == "error"]
    assert 1 <= len(errors) <= most
    for i, request_id in enumerate(ids):
        if final[request_id, 0].finish_reason != "error":
            assert story(final[request_id, 0]) == alone(PROMPTS[i], asked[i], mode)
    return final


@pytest.mark.parametrize("mode", ["off", "fixed", "drafter"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_step_that_fails_ends_its_own_requests(engine, mode, number):
    """Two run at a time, of five; what the failed step had on the way to the next one is left out
    there. Under a grammar, too."""
    mode, which = ("fixed", "drafter") if mode == "drafter" else (mode, "target")
    e = engine(mode, max_num_seqs=2)
    asked = [params(i, max_tokens=4 + i) for i in range(len(PROMPTS))]
    asked[1] = params(1, grammar=regex(["abc" * 3]))
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
    on_forward(e, once(number, lambda: RuntimeError("no more memory")), which)
    final = some_failed(e, ids, mode, asked, 2)
    for o in final.values():
        assert o.finish_reason != "error" or "RuntimeError in the step: no more memory" in o.message
    assert run_again(e, mode)


@pytest.mark.parametrize("mode", MODES)
def test_sampling_that_fails_ends_its_own_requests(engine, mode):
    """The logits of one step are too few."""
    e = engine(mode, max_num_seqs=2)
    asked = [params(i) for i in range(len(PROMPTS))]
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
    real, numbers = e.model.forward, itertools.count()

    def forward(batch, cache):
        logits = real(batch, cache)
        return logits[:0] if next(numbers) == 3 else logits

    e.model.forward = forward
    some_failed(e, ids, mode, asked, 2)
    assert run_again(e, mode)


@pytest.mark.parametrize("mode", MODES)
def test_two_steps_in_a_row_that_fail(engine, mode):
    e = engine(mode, max_num_seqs=2)
    asked = [params(i) for i in range(len(PROMPTS))]
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]

    def hook(number: int, batch: Any) -> None:
        if number in (2, 3):
            raise MemoryError("none left")

    on_forward(e, hook)
    some_failed(e, ids, mode, asked, 4)
    assert run_again(e, mode)


def run_again(e: Any, mode: str) -> bool:
    """The engine is as good as new."""
    asked = [params(50 + i, max_tokens=6) for i in range(3)]
    outputs = e.generate(PROMPTS[:3], asked)
    expected = [alone(p, how, mode) for p, how in zip(PROMPTS, asked, strict=False)]
    check_idle(e)
    return [story(o) for o in outputs] == expected


def test_a_user_who_raises_in_a_patched_phase_gets_an_error_and_not_a_hang(engine):
    """As in a notebook cell: `engine._forward` is replaced by something wrong."""
    e = engine()
    e._forward = lambda batch: 1 / 0
    (output,) = e.generate([PROMPT], params())
    assert output.finish_reason == "error" and "ZeroDivisionError" in output.message
    del e._forward
    assert run_again(e, "off")


# ---- the device dies ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(5))
def test_the_worker_is_killed_between_steps(engine, mode, steps):
    """In flight end with an error, of those that wait nobody notices, and it all goes on."""
    e = engine(mode, max_num_seqs=2)
    asked = [params(i) for i in range(len(PROMPTS))]
    asked[1] = params(1, grammar=regex(["abc" * 3]))
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
    on_forward(e, lambda number, batch: time.sleep(0.05 * (number == steps - 1)))
    final: Finals = {}
    for _ in range(steps):
        take(e, final)
    e.worker.kill()  # the last step that was launched is on the device
    final |= run(e)
    errors = [o for o in final.values() if o.finish_reason == "error"]
    assert len(errors) <= 4 and (errors or not steps)
    for i, request_id in enumerate(ids):
        if final[request_id, 0].finish_reason != "error":
            assert story(final[request_id, 0]) == alone(PROMPTS[i], asked[i], mode)
    assert run_again(e, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(4))
def test_the_worker_is_killed_in_the_middle_of_a_forward(engine, mode, number):
    """By itself, as a crash would; the step after it is queued already."""
    e = engine(mode, max_num_seqs=2)
    asked = [params(i) for i in range(len(PROMPTS))]
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]

    def hook(n: int, batch: Any) -> None:
        if n == number:
            e.worker.kill()
            time.sleep(0.01)

    on_forward(e, hook)
    some_failed(e, ids, mode, asked, 4)
    assert run_again(e, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(1, 4))
def test_the_worker_is_killed_while_the_next_step_is_scheduled(engine, mode, number):
    """So that a launch meets a dead worker."""
    e = engine(mode, max_num_seqs=2)
    asked = [params(i) for i in range(len(PROMPTS))]
    ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
    real, numbers = e.scheduler.schedule, itertools.count()

    def schedule():
        if next(numbers) == number:
            e.worker.kill()
        return real()

    e.scheduler.schedule = schedule
    some_failed(e, ids, mode, asked, 4)
    assert run_again(e, mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_worker_is_killed_at_any_moment_again_and_again(engine, mode):
    dice = random.Random(mode)
    e = engine(mode, max_num_seqs=3, num_blocks=24, enable_prefix_caching=True)
    asked = [params(i, n=1 + i % 2) for i in range(len(PROMPTS))]
    stop = threading.Event()

    def killer() -> None:
        while not stop.wait(dice.uniform(0, 0.03)):
            with contextlib.suppress(Exception):
                e.worker.kill()

    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    try:
        for _ in range(4):
            ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
            final = run(e)
            for i, request_id in enumerate(ids):
                o = final[request_id, 0]
                if o.finish_reason != "error":
                    assert story(o) == alone(PROMPTS[i], params(i), mode)
    finally:
        stop.set()
        thread.join()
    assert run_again(e, mode)


@pytest.mark.parametrize("tier", ["pool", "disk"])
def test_blocks_that_a_killed_worker_should_have_filled_are_not_found(engine, tier, tmp_path):
    """The device was to load them, or to compute them, when it died: whoever asks next gets them
    anew."""
    prompt = random_ids(LM, 30, 77)
    how = {"enable_prefix_caching": True}
    if tier == "disk":
        how |= {"cache_dir": tmp_path, "cache_bytes": 1 << 20}
        make(g.Engine, **how).generate([prompt], params())
    e = engine(**how)

    def die_at_the_next_launch() -> None:
        while not e.events or e.events[-1].phase != "launch":
            time.sleep(0.001)
        e.worker.kill()

    for _ in range(2):
        e.worker.submit(die_at_the_next_launch)
        e.add(prompt, params())
        (lost,) = run(e).values()
        assert lost.finish_reason == "error"
        (found,) = e.generate([prompt], params())
        assert story(found) == alone(prompt, params())


# ---- close, and who is gone ----


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("device") and t.is_alive()]


def eventually(true: Callable[[], bool]) -> bool:
    """Whether it comes true within five seconds."""
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(5))
def test_close_with_work_in_flight(mode, steps):
    """It waits for what is in flight, aborts what is not finished, and gives all of it."""
    before, interval = len(workers()), sys.getswitchinterval()
    e = make(g.AsyncEngine, mode, max_num_seqs=2)
    ids = [e.add(p, params(i, max_tokens=3 + i)) for i, p in enumerate(PROMPTS[:4])]
    final: Finals = {}
    for _ in range(steps):
        take(e, final)
    outputs = e.close()
    final |= {(o.request_id, o.sample_index): o for o in outputs}
    assert sorted(final) == [(i, 0) for i in ids] and all(o.finish_reason for o in final.values())
    for i, request_id in enumerate(ids):
        tokens, *whole = alone(PROMPTS[i], params(i, max_tokens=3 + i), mode)
        o = final[request_id, 0]
        assert o.token_ids == tokens[: len(o.token_ids)]
        assert o.finish_reason == ("length" if len(o.token_ids) == len(tokens) else "abort")
    check_idle(e)
    assert sys.getswitchinterval() == interval and eventually(lambda: len(workers()) <= before)
    assert not e.close()


def test_nothing_can_be_asked_of_a_closed_engine():
    with make(g.AsyncEngine) as e:
        request_id = e.add(PROMPT, params())
        e.step()
    for call in (
        lambda: e.add(PROMPT, params()),
        e.step,
        lambda: e.generate([PROMPT], params()),
        lambda: e.fork(request_id),
    ):
        with pytest.raises((RuntimeError, KeyError)) as error:
            call()
        assert "closed" in str(error.value) or isinstance(error.value, KeyError)
    with pytest.raises(RuntimeError, match="the engine is closed"):
        e.add(PROMPT, params())
    with pytest.raises(RuntimeError, match="the engine is closed"):
        e.step()
    assert not e.has_unfinished


def test_an_engine_that_nobody_used_can_be_closed():
    e = make(g.AsyncEngine)
    assert not e.close() and not e.close()


def test_close_after_an_error_in_the_with_block():
    interval = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError), make(g.AsyncEngine) as e:
        e.add(PROMPT, params())
        e.step()
        1 / 0  # noqa: B018
    check_idle(e)
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize("steps", [0, 1, 3, 99])
def test_an_engine_that_is_forgotten_stops_its_worker(steps):
    """With work in flight, and with none."""
    before, interval = len(workers()), sys.getswitchinterval()
    e = make(g.AsyncEngine)
    e.add(PROMPT, params())
    for _ in range(steps):
        e.step()
    gone = weakref.ref(e)
    del e
    assert eventually(lambda: gone() is None)
    assert eventually(lambda: len(workers()) <= before)
    assert eventually(lambda: sys.getswitchinterval() == interval)


def test_engines_side_by_side(engine):
    """Each has a device of its own; stepped in turns they do not mix."""
    interval = sys.getswitchinterval()
    engines = [engine(mode) for mode in ("off", "fixed", "off")]
    ids = [[e.add(p, params(i)) for i, p in enumerate(PROMPTS[:3])] for e in engines]
    finals: list[Finals] = [{} for _ in engines]
    while any(e.has_unfinished for e in engines):
        for e, final in zip(engines, finals, strict=True):
            if e.has_unfinished:
                take(e, final)
    for mode, mine, final in zip(("off", "fixed", "off"), ids, finals, strict=True):
        for i, request_id in enumerate(mine):
            assert story(final[request_id, 0]) == alone(PROMPTS[i], params(i), mode)
    for e in engines:
        e.close()
    assert sys.getswitchinterval() == interval


def test_ordinary_engines_side_by_side_share_a_model(engine):
    """Without the invariant mode all engines compute with the loaded model itself, each on a thread
    of its own: they take the same steps, with the same rounding."""
    asked = [params(i) for i in range(len(PROMPTS))]
    alone = engine(batch_invariant=False).generate(PROMPTS, asked)
    expected = [o.token_ids for o in alone]
    assert {o.finish_reason for o in alone} == {"length"}
    engines = [engine(batch_invariant=False) for _ in range(3)]
    assert engines[0].model is engines[1].model
    found: list[dict[int, list[int]]] = [{} for _ in engines]
    for e in engines:
        for prompt, one in zip(PROMPTS, asked, strict=True):
            e.add(prompt, one)
    while any(e.has_unfinished for e in engines):
        for e, tokens in zip(engines, found, strict=True):
            tokens |= {o.request_id: o.token_ids for o in e.step() if o.finish_reason}
    assert all([tokens[i] for i in sorted(tokens)] == expected for tokens in found)


# ---- the stop button ----


def press() -> None:
    """Ctrl+C, as a terminal gives it: to the main thread, whatever that waits for."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(1, 6))
def test_the_stop_button_while_the_engine_waits(engine, mode, number):
    """The step's forward takes long, and the learner has seen enough. The run can go on."""
    e = engine(mode)
    asked = [params(i) for i in range(3)]
    asked[1] = params(1, grammar=regex(["abc" * 3]))
    ids = [e.add(p, how) for p, how in zip(PROMPTS[:3], asked, strict=True)]

    def hook(n: int, batch: Any) -> None:
        if n == number:
            time.sleep(0.05)  # it has nothing else to do by now
            press()
            time.sleep(0.01)

    on_forward(e, hook)
    final: Finals = {}
    with pytest.raises(KeyboardInterrupt):
        while True:
            take(e, final)
    final |= run(e)
    for i, request_id in enumerate(ids):
        assert story(final[request_id, 0]) == alone(PROMPTS[i], asked[i], mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_stop_button_at_any_moment(engine, mode):
    """Fifteen times, wherever the main thread is within step(): no token is lost or doubled."""
    e = engine(mode, num_blocks=20, max_num_seqs=3, enable_prefix_caching=True)
    asked = [params(i, max_tokens=12) for i in range(len(PROMPTS))]
    dice, stop, pressed = random.Random(1), threading.Event(), 0
    before = signal.getsignal(signal.SIGINT)
    stepping = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal pressed
        leaving = frame is not None and frame.f_code.co_name in ("step", "take", "impatient")
        if stepping and not leaving:  # what step() has returned is the caller's to keep
            pressed += 1
            raise KeyboardInterrupt

    def impatient(final: Finals) -> None:
        nonlocal stepping
        outputs: list[g.RequestOutput] = []
        stepping = True
        try:
            outputs = e.step()
        except KeyboardInterrupt:
            pass
        finally:
            stepping = False
        e.block_manager.check()
        final |= {(o.request_id, o.sample_index): o for o in outputs if o.finish_reason}

    def presser() -> None:
        while not stop.wait(dice.uniform(0, 0.03)):
            press()

    signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=presser, daemon=True)
    thread.start()
    try:
        while pressed < 15:
            ids = [e.add(p, how) for p, how in zip(PROMPTS, asked, strict=True)]
            final: Finals = {}
            while e.has_unfinished:
                impatient(final)
            check_idle(e)
            for i, request_id in enumerate(ids):
                assert story(final[request_id, 0]) == alone(PROMPTS[i], asked[i], mode)
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert run_again(e, mode)


def test_an_interrupted_generate_leaves_nothing_behind(engine):
    e = engine()

    def hook(n: int, batch: Any) -> None:
        if n == 3:
            time.sleep(0.05)
            press()
            time.sleep(0.01)

    on_forward(e, hook)
    with pytest.raises(KeyboardInterrupt):
        e.generate(PROMPTS, params())
    check_idle(e)
    assert run_again(e, "off")


def test_the_stop_button_in_a_patched_wait(engine):
    """Whatever the engine waits with, it comes through: the result of a step is taken once."""
    e = engine()
    request_id = e.add(PROMPT, params())
    real, numbers = e.worker.submit, itertools.count()

    def submit(*job: Any) -> Any:
        future = real(*job)
        if next(numbers) in (1, 4):
            result = future.result

            def interrupted(timeout: float | None = None) -> Any:
                future.result = result
                raise KeyboardInterrupt

            future.result = interrupted
        return future

    e.worker.submit = submit
    final: Finals = {}
    interrupts = 0
    while e.has_unfinished:
        try:
            take(e, final)
        except KeyboardInterrupt:
            interrupts += 1
    assert story(final[request_id, 0]) == alone(PROMPT, params())


# ---- a budget: by distribution ----

CHI_SIZES = {**SMALL, "dim": 8, "heads": 1, "hidden": 8}
CHI_LM, CHI_DRAFTER = (chatty(random_lm(seed=3, **CHI_SIZES), 1, noise) for noise in (0, 0.3))


def exact(length: int, top_k: int) -> dict[tuple[int, ...], float]:
    """The probability of each output of `length` tokens, from the target's raw log-probabilities
    after each beginning."""
    e = g.Engine(CHI_LM)
    found = {(): 1.0}
    asked = g.SamplingParams(max_tokens=1, seed=0, logprobs=top_k, ignore_eos=True)
    for _ in range(length):
        outputs = e.generate([[*PROMPT, *tokens] for tokens in found], asked)
        longer = {}
        for (tokens, p), o in zip(found.items(), outputs, strict=True):
            best = {token: math.exp(logprob) for token, logprob in o.logprobs[0].top}
            for token, share in best.items():
                longer[(*tokens, token)] = p * share / sum(best.values())
        found = longer
    return found


def test_budgeted_outputs_follow_the_target(engine):
    """2,000 outputs of four tokens, each token one of the three likeliest; the total of drafts is
    settled from confidences that are a step old and more."""
    count, length, top_k = 2000, 4, 3
    expected = exact(length, top_k)
    times = {"step_time": lambda rows: 10.0 + 0.01 * rows}
    how = g.Speculation("budgeted", 3, CHI_DRAFTER, **times)
    e = g.AsyncEngine(
        CHI_LM, g.EngineConfig(speculation=how, num_blocks=2048, max_num_seqs=128, block_size=8)
    )
    asked = [
        g.SamplingParams(max_tokens=length, seed=i, top_k=top_k, ignore_eos=True)
        for i in range(count)
    ]
    with e:
        found = Counter(tuple(o.token_ids) for o in e.generate([PROMPT] * count, asked))
        stats = e.stats
    assert set(found) <= set(expected)
    likely = [key for key, p in expected.items() if p * count >= 5]
    counts = np.array([*(found[key] for key in likely), 0])
    shares = np.array([*(expected[key] for key in likely), 0])
    counts[-1], shares[-1] = count - counts.sum(), 1 - shares.sum()
    if shares[-1] * count < 5:
        counts[-2], shares[-2] = counts[-2:].sum(), shares[-2:].sum()
        counts, shares = counts[:-1], shares[:-1]
    assert len(counts) > 20 and fits(counts, count * shares)
    assert 0.05 < stats.acceptance_rate < 0.95 and stats.verified > count / 3


@pytest.mark.parametrize("mode", ["off", "fixed", "budgeted"])
def test_nobody_starves(engine, mode):
    """Whoever runs gets a token each step, while prompts come in; and everybody runs at last."""
    e = engine(mode, num_blocks=200, max_num_seqs=8, max_num_batched_tokens=40)
    ids = [e.add(random_ids(LM, 5 + i, i), params(i, temperature=0)) for i in range(20)]
    shown: dict[int, list[int]] = {i: [] for i in ids}
    final: Finals = {}
    for call in range(400):
        if not e.has_unfinished:
            break
        for o in take(e, final):
            if o.token_ids:
                shown[o.request_id].append(call)
    assert len(final) == len(ids)
    for calls in shown.values():
        assert calls == list(range(calls[0], calls[0] + len(calls)))


@pytest.mark.parametrize("total", [1, 3, 100])
def test_greedy_under_any_budget_is_greedy(engine, total):
    e = engine("budgeted", max_num_batched_tokens=12 if total < 100 else 64)
    e.speculator.budget.total = lambda able, room: (min(total, room), able)
    e.scheduler.drafting.planner = e.speculator.budget.total
    asked = params(temperature=0, max_tokens=20)
    outputs = e.generate(PROMPTS, asked)
    assert [o.token_ids for o in outputs] == [alone(p, asked)[0] for p in PROMPTS]


# ---- the rest of the face ----


def test_generate_while_others_run_is_refused(engine):
    e = engine()
    request_id = e.add(PROMPT, params())
    e.step()
    with pytest.raises(RuntimeError, match="1 requests are unfinished"):
        e.generate([PROMPT], params())
    assert story(run(e)[request_id, 0]) == alone(PROMPT, params())


@pytest.mark.parametrize("name", sorted(GRAMMARS))
@pytest.mark.parametrize("mode", ["fixed"])
def test_grammars_are_kept_to(engine, mode, name):
    """Rows that wait for a state beside rows that do not; one trigger lies in the prompt's last
    token, which does not count."""
    asked = params(grammar=GRAMMARS[name](), max_tokens=30, temperature=1.5)
    prompts = [PROMPT, [*PROMPT, CALL], *PROMPTS[:2]]
    mixed = [asked, asked, params(), asked]
    outputs = engine(mode).generate(prompts, mixed)
    for prompt, how, o in zip(prompts, mixed, outputs, strict=True):
        assert story(o) == alone(prompt, how, mode)


def test_stats_and_history_count_each_step_once(engine):
    """What is computed for nothing, the late rows, is computed all the same and counts."""
    e = engine(max_num_batched_tokens=16)
    ids = [e.add(p, params(i)) for i, p in enumerate(PROMPTS)]
    run(e)
    e.close()
    records = list(e.history)
    assert e.stats.steps == len(records)
    assert e.stats.prefill_tokens + e.stats.decode_tokens == sum(r.num_tokens for r in records)
    assert sorted(i for r in records for i in r.finished) == ids
    least = sum(map(len, PROMPTS)) + 11 * len(PROMPTS)
    assert least <= sum(r.num_tokens for r in records) <= least + len(PROMPTS)


def test_the_ledger_has_each_draw_that_counts(engine):
    """Of a request that nobody disturbed, what Engine notes; a late draw may follow it."""
    from g2c_serving.sample.ledger import Ledger

    noted = []
    for kind in (g.Engine, g.AsyncEngine):
        e = make(kind)
        e.ledger = Ledger()
        e.generate([PROMPT], params())
        if kind is g.AsyncEngine:
            e.close()
        noted.append([(d.position, d.use, d.token) for d in e.ledger.of(3)])
    assert noted[1][: len(noted[0])] == noted[0]
