"""Streams: outputs as they come, whatever consumers, event loops and the engine do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch

import g2c_serving as g
from g2c_serving.async_engine import AsyncEngine
from g2c_serving.channel import MAX_QUEUED, Stream
from g2c_serving.streams import Streams
from tests.fakes import FakeLM, continuation
from tests.small_models import random_lm

SOON = 10.0
PROMPT = [1, 2, 3, 4, 5]


def params(count: int = 8, **others) -> g.SamplingParams:
    return g.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **others)


class Served:
    """An engine over the fake model, and its streams. While `may_step` is not set, its forward
    waits."""

    def __init__(self, kind: type[g.Engine] = AsyncEngine) -> None:
        self.lm = FakeLM(max_seq_len=2000)
        self.engine = kind(self.lm, g.EngineConfig(num_blocks=600, block_size=4))
        self.streams = Streams(self.engine)
        self.may_step, self.is_stepping = threading.Event(), threading.Event()
        self.may_step.set()
        self.lm.model.on_forward = self._on_forward

    def _on_forward(self, batch) -> None:
        self.is_stepping.set()
        assert self.may_step.wait(SOON)

    def stream(self, prompt, params=None, cache_salt="", traffic="chat") -> Stream:
        return Stream(self.streams, self.engine, (prompt, params, cache_salt, traffic))

    async def stepping(self) -> None:
        """Until a step is at its forward."""
        self.is_stepping.clear()
        while not self.is_stepping.is_set():
            await asyncio.sleep(1e-3)

    def assert_idle_and_free(self) -> None:
        self.streams.check()
        if self.streams._is_closed and isinstance(self.engine, AsyncEngine):
            assert self.engine.close() == []  # which takes in what is on its way
        assert not self.engine.has_unfinished
        assert self.engine.block_manager.num_free == self.engine.config.num_blocks
        self.engine.block_manager.check()


@pytest.fixture(params=[g.Engine, AsyncEngine], ids=["plain", "async"])
def served(request):
    one = Served(request.param)
    yield one
    one.may_step.set()
    one.streams.close()


def run(coroutine):
    async def limited():
        return await asyncio.wait_for(coroutine, SOON)

    return asyncio.run(limited())


async def collect(stream) -> list[g.RequestOutput]:
    return [output async for output in stream]


# outputs


def test_outputs_come_one_token_at_a_time_and_end(served):
    outputs = run(collect(served.stream(PROMPT, params())))
    want = continuation(PROMPT, 8)
    assert outputs[-1].token_ids == want and outputs[-1].finish_reason == "length"
    lengths = [len(output.token_ids) for output in outputs]
    assert lengths == list(range(1, 9))  # fewer than MAX_QUEUED: none is left out
    assert all(output.finish_reason is None for output in outputs[:-1])
    served.assert_idle_and_free()


def test_many_at_once_each_get_their_own(served):
    async def main():
        prompts = [[i, i + 1, i + 2] for i in range(20)]
        finals = await asyncio.gather(*[collect(served.stream(p, params(6))) for p in prompts])
        for prompt, outputs in zip(prompts, finals, strict=True):
            assert outputs[-1].token_ids == continuation(prompt, 6)
            assert len({output.request_id for output in outputs}) == 1

    run(main())
    assert len({record.num_running for record in served.engine.history}) > 1  # they ran together
    served.assert_idle_and_free()


def test_all_samples_of_a_prompt(served):
    outputs = run(collect(served.stream(PROMPT, params(4, n=3))))
    finals = [output for output in outputs if output.finish_reason is not None]
    assert sorted(output.sample_index for output in finals) == [0, 1, 2]
    assert all(output.token_ids == continuation(PROMPT, 4) for output in finals)


def test_params_are_optional_and_options_reach_the_engine(served, monkeypatch):
    asked = []
    add = served.engine.add
    monkeypatch.setattr(served.engine, "add", lambda *args: (asked.append(args), add(*args))[1])
    outputs = run(collect(served.stream(PROMPT, cache_salt="tenant", traffic="agent")))
    assert len(outputs[-1].token_ids) == 64
    assert asked == [(PROMPT, None, "tenant", "agent")]


def test_a_bad_prompt_raises_in_its_consumer_only(served):
    async def main():
        good = asyncio.create_task(collect(served.stream(PROMPT, params(30))))
        with pytest.raises(ValueError, match="empty"):
            await anext(served.stream([], params()))
        with pytest.raises(ValueError, match="traffic"):
            await anext(served.stream(PROMPT, params(), traffic="mail"))
        with pytest.raises((ValueError, TypeError, AttributeError)):
            await anext(served.stream(PROMPT, "no params"))
        assert (await good)[-1].token_ids == continuation(PROMPT, 30)

    run(main())
    served.assert_idle_and_free()


def test_a_stream_that_nobody_reads_is_never_added(served):
    async def main():
        stream = served.stream(PROMPT, params())
        await asyncio.sleep(0.02)
        await stream.aclose()
        assert [output async for output in stream] == []

    run(main())
    assert served.engine.stats.steps == 0
    assert served.streams._thread is None


def test_a_stream_is_read_by_one_task(served):
    async def main():
        served.may_step.clear()
        stream = served.stream(PROMPT, params())
        first = asyncio.create_task(anext(stream))
        await served.stepping()
        with pytest.raises(RuntimeError, match="already being read"):
            await anext(stream)
        served.may_step.set()
        assert len((await first).token_ids) == 1

    run(main())


def test_event_loops_one_after_the_other_and_at_once(served):
    for count in (3, 5):
        outputs = run(collect(served.stream(PROMPT, params(count))))
        assert outputs[-1].token_ids == continuation(PROMPT, count)
    results = {}

    def other(i: int) -> None:
        results[i] = run(collect(served.stream([i, 7], params(40))))

    threads = [threading.Thread(target=other, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    for i in range(3):
        assert results[i][-1].token_ids == continuation([i, 7], 40)
    served.assert_idle_and_free()


# slow and vanished consumers


def test_a_slow_consumer_gets_the_newest_and_holds_up_nobody(served):
    async def main():
        slow = served.stream(PROMPT, params(60))
        first = await anext(slow)
        quick = await collect(served.stream([9, 9], params(100)))
        assert len(quick[-1].token_ids) == 100  # beside a consumer that reads nothing
        rest = await collect(slow)
        lengths = [len(output.token_ids) for output in [first, *rest]]
        assert len(rest) <= MAX_QUEUED + 1 and lengths == sorted(set(lengths))
        assert lengths[-MAX_QUEUED - 1 :] == list(range(60 - MAX_QUEUED, 61))
        assert rest[-1].finish_reason == "length"
        assert rest[-1].token_ids == continuation(PROMPT, 60)

    run(main())


def test_no_final_output_is_dropped(served):
    async def main():
        stream = served.stream(PROMPT, params(3, n=40))
        first = await anext(stream)
        while served.engine.has_unfinished or served.streams._live:
            time.sleep(1e-3)  # the event loop stands still
        outputs = [first, *await collect(stream)]
        finals = [output.sample_index for output in outputs if output.finish_reason is not None]
        assert sorted(finals) == list(range(40))

    run(main())


async def leave_by_cancelling(served):
    task = asyncio.create_task(collect(served.stream(PROMPT, params(1900))))
    await served.stepping()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_break(served):
    async for output in served.stream(PROMPT, params(1900)):
        if len(output.token_ids) > 2:
            break


async def leave_by_aclose(served):
    stream = served.stream(PROMPT, params(1900, n=3))
    await anext(stream)
    await stream.aclose()
    request_id = stream._channel.request_id
    assert request_id not in served.engine._requests  # back when it is done, not soon after
    assert [output async for output in stream] == []


async def leave_by_aclosing(served):
    async with contextlib.aclosing(served.stream(PROMPT, params(1900))) as stream:
        async for _ in stream:
            break


async def leave_by_timeout(served):
    served.may_step.clear()
    stream = served.stream(PROMPT, params(1900))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(stream), 0.05)
    served.may_step.set()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    while stream._channel in served.streams._live:  # aborted, though we still hold it
        await asyncio.sleep(1e-3)


async def leave_by_collection(served):
    stream = served.stream(PROMPT, params(1900))
    await anext(stream)
    del stream


async def leave_by_error(served):
    with pytest.raises(ZeroDivisionError):
        async for _ in served.stream(PROMPT, params(1900)):
            _ = 1 / 0


WAYS = [
    leave_by_cancelling, leave_by_break, leave_by_aclose, leave_by_aclosing, leave_by_timeout,
    leave_by_collection, leave_by_error,
]  # fmt: skip


@pytest.mark.parametrize("leave", WAYS)
def test_who_leaves_frees_its_blocks_and_others_go_on(served, leave):
    async def main():
        other = asyncio.create_task(collect(served.stream([8, 8], params(40))))
        await leave(served)
        assert (await other)[-1].token_ids == continuation([8, 8], 40)

    run(main())
    served.assert_idle_and_free()
    assert served.engine.stats.decode_tokens < 1000  # nobody ran to its end


@pytest.mark.parametrize("leave", WAYS)
def test_the_engine_can_be_used_at_once_after_leaving(served, leave):
    run(leave(served))
    served.streams.check()  # what its add, step and generate call first
    (output,) = served.engine.generate([PROMPT], params(5))
    assert output.token_ids == continuation(PROMPT, 5)


def test_cancelled_before_it_was_added(served):
    async def main():
        served.may_step.clear()
        other = asyncio.create_task(collect(served.stream([8, 8], params(5))))
        await served.stepping()
        await asyncio.sleep(0.05)  # the driver is in a step: the inbox waits
        task = asyncio.create_task(collect(served.stream(PROMPT, params(1900))))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        served.may_step.set()
        await other

    run(main())
    served.assert_idle_and_free()
    assert served.engine.stats.prefill_tokens == 2  # only the other's


def test_cancelled_between_the_final_output_and_its_delivery(served):
    async def main():
        served.may_step.clear()
        task = asyncio.create_task(collect(served.stream(PROMPT, params(3))))
        await served.stepping()
        served.may_step.set()
        while served.streams._live:
            time.sleep(1e-3)  # it ends in the engine; the event loop has not seen it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outputs = await collect(served.stream(PROMPT, params(3)))
        assert outputs[-1].token_ids == continuation(PROMPT, 3)

    run(main())
    served.assert_idle_and_free()


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_at_any_moment(served, seed):
    generator = torch.Generator().manual_seed(seed)

    async def one(i: int):
        delay = 0.02 * float(torch.rand((), generator=generator))
        task = asyncio.create_task(collect(served.stream([i, 3], params(60, n=1 + i % 2))))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert (await task)[-1].token_ids == continuation([i, 3], 60)

    async def main():
        await asyncio.gather(*[one(i) for i in range(30)])

    run(main())
    served.assert_idle_and_free()


def test_an_event_loop_that_is_closed_takes_nobody_with_it(served):
    """The loop goes away while outputs are on their way to it, without cancelling anything."""
    loop = asyncio.new_event_loop()
    stream = served.stream(PROMPT, params(1900))
    loop.run_until_complete(anext(stream))

    async def main():
        other = asyncio.create_task(collect(served.stream([8, 8], params(40))))
        await served.stepping()
        loop.close()
        return await other

    assert run(main())[-1].token_ids == continuation([8, 8], 40)
    assert len(served.engine.history) < 1900
    deadline = time.monotonic() + SOON
    while served.streams._live and time.monotonic() < deadline:
        time.sleep(1e-3)
    served.assert_idle_and_free()
    assert len(served.engine.history) < 1900


# the engine fails


def test_a_step_that_raises_ends_all_streams_and_the_next_one_works(served, monkeypatch):
    step, fails = served.engine.step, threading.Event()

    def broken():
        if fails.is_set():
            raise SystemExit("of a step")
        return step()

    monkeypatch.setattr(served.engine, "step", broken)

    async def main():
        tasks = [asyncio.create_task(collect(served.stream([i], params(1000)))) for i in range(3)]
        await served.stepping()
        fails.set()
        for task in tasks:
            with pytest.raises(RuntimeError, match="of a step") as caught:
                await task
            assert isinstance(caught.value.__cause__, SystemExit)
        fails.clear()
        assert (await collect(served.stream(PROMPT, params(4))))[-1].token_ids == continuation(
            PROMPT, 4
        )

    run(main())
    served.assert_idle_and_free()
    assert served.engine.stats.decode_tokens < 1000  # those of the failed step did not run on


def test_a_request_that_the_engine_loses_does_not_hang(served, monkeypatch):
    monkeypatch.setattr(served.engine, "step", lambda: served.engine._requests.clear() or [])
    with pytest.raises(RuntimeError, match="without an end"):
        run(collect(served.stream(PROMPT, params(4))))


# closing


def test_closing_gives_every_stream_its_final_output(served):
    async def main():
        tasks = [
            asyncio.create_task(collect(served.stream([i], params(1900, n=1 + i))))
            for i in range(3)
        ]
        await served.stepping()
        served.streams.close()  # in the event loop's own thread, while the driver is in a step
        assert not served.streams._thread.is_alive()
        for i, task in enumerate(tasks):
            finals = [output for output in await task if output.finish_reason is not None]
            assert [output.finish_reason for output in finals] == ["abort"] * (1 + i)
        with pytest.raises(RuntimeError, match="closed"):
            served.stream(PROMPT, params())

    run(main())
    served.streams.close()
    served.assert_idle_and_free()


def test_closing_with_requests_that_are_still_in_the_inbox(served):
    async def main():
        served.may_step.clear()
        first = asyncio.create_task(collect(served.stream([1], params(50))))
        await served.stepping()
        late = asyncio.create_task(collect(served.stream([2], params(50))))
        unread = served.stream([3], params(50))
        await asyncio.sleep(0.01)
        threading.Timer(0.05, served.may_step.set).start()
        served.streams.close()
        for task in (first, late):
            assert (await task)[-1].finish_reason == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            await anext(unread)

    run(main())
    served.assert_idle_and_free()


def test_closing_an_idle_driver_and_one_that_never_began(served):
    Streams(served.engine).close()
    run(collect(served.stream(PROMPT, params(3))))
    served.streams.close()
    assert not served.streams._thread.is_alive()


# the engine's own methods meanwhile


def test_direct_calls_are_refused_while_streams_are_read(served):
    served.streams.check()

    async def main():
        task = asyncio.create_task(collect(served.stream(PROMPT, params(1900))))
        await asyncio.sleep(0)  # submitted, if not added yet
        with pytest.raises(RuntimeError, match=r"streams of this engine are read \(1\)"):
            served.streams.check()
        await served.stepping()
        with pytest.raises(RuntimeError, match="engine.stream"):
            served.streams.check()
        task.cancel()

    run(main())
    served.streams.check()


def test_after_the_last_output_direct_calls_are_welcome_at_once(served):
    for _ in range(50):
        run(collect(served.stream(PROMPT, params(2))))
        assert not served.streams._live
        served.streams.check()
        assert not served.streams._is_busy


def test_the_driver_itself_may_call(served, monkeypatch):
    step = served.engine.step
    monkeypatch.setattr(served.engine, "step", lambda: (served.streams.check(), step())[1])
    assert run(collect(served.stream(PROMPT, params(3))))[-1].finish_reason == "length"


def test_requests_that_were_added_directly_are_not_run_or_lost(served):
    request_id = served.engine.add([7, 7], params(4))
    with pytest.raises(RuntimeError, match="added without a stream"):
        run(collect(served.stream(PROMPT, params(3))))
    served.streams.check()
    outputs = []
    while served.engine.has_unfinished:
        outputs += served.engine.step()
    assert outputs[-1].token_ids == continuation([7, 7], 4)
    assert outputs[-1].request_id == request_id and len(outputs) == 4
    run(collect(served.stream(PROMPT, params(3))))


def test_a_stream_that_was_left_wakes_no_step_of_somebody_else(served):
    """What the driver hears of after its own work is done must not make it run direct requests."""
    run(leave_by_break(served))
    served.streams.check()
    served.engine.add([7, 7], params(4))
    served.streams._inbox.put(object())  # as a stream that ended long ago
    time.sleep(0.05)
    assert (served.engine.step() or served.engine.step())[0].token_ids == continuation([7, 7], 1)


# the thread


def test_it_sleeps_without_polling(served, monkeypatch):
    run(collect(served.stream(PROMPT, params(3))))
    served.streams.check()
    asked = []
    monkeypatch.setattr(type(served.engine), "has_unfinished", property(asked.append))
    thread = served.streams._thread
    used = time.process_time()
    time.sleep(0.3)
    assert thread.is_alive() and not asked
    assert time.process_time() - used < 0.1


def test_an_idle_driver_keeps_no_engine_alive_and_ends_with_it():
    served = Served()
    run(collect(served.stream(PROMPT, params(3))))
    thread, gone = served.streams._thread, weakref.ref(served.engine)
    served.streams.check()
    del served
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive() and gone() is None


def test_a_stream_keeps_its_engine_while_it_is_read():
    async def main():
        served = Served()
        stream, gone = served.stream(PROMPT, params(30)), weakref.ref(served.engine)
        del served
        gc.collect()
        outputs = await collect(stream)
        assert outputs[-1].token_ids == continuation(PROMPT, 30)
        del stream, outputs
        for _ in range(100):
            gc.collect()
            if gone() is None:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the engine lives on")

    run(main())


@pytest.mark.parametrize("kind", [g.Engine, AsyncEngine])
def test_it_computes_with_as_many_threads_as_the_engines_maker_had(kind):
    former = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        served, seen = Served(kind), []
        torch.set_num_threads(1)  # torch alone would take this one
        served.lm.model.on_forward = lambda batch: seen.append(torch.get_num_threads())
        run(collect(served.stream(PROMPT, params(2))))
        assert set(seen) == {3}
        served.streams.close()
    finally:
        torch.set_num_threads(former)


def test_the_interpreter_ends_with_a_driver_in_the_middle_of_a_step():
    script = """
import asyncio, torch
import g2c_serving as g
from g2c_serving.channel import Stream
from g2c_serving.streams import Streams
from tests.small_models import random_lm
engine = g.Engine(random_lm(context=4096), g.EngineConfig(num_blocks=300))
forward, matrix = engine.model.forward, torch.ones(200, 200)
def slow_forward(*batch):
    for _ in range(100):
        matrix @ matrix
    return forward(*batch)
engine.model.forward = slow_forward
streams = Streams(engine)
loop = asyncio.new_event_loop()
stream = Stream(streams, engine, ([1, 2, 3], g.SamplingParams(max_tokens=4000)))
print(len(loop.run_until_complete(anext(stream)).token_ids))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# through the engine


def test_text_is_read_in_the_event_loop_while_the_engine_reads_it_too(monkeypatch):
    """With stop strings both threads feed what was generated to the same parser; here each lets
    the other in between two tokens."""
    feed = g.OutputParser.feed

    def slow_feed(parser, token_id):
        time.sleep(2e-4)
        return feed(parser, token_id)

    asked = params(40, stop=["a string that never comes"])
    ids, config = [[i, 2 * i] for i in range(6)], g.EngineConfig(num_blocks=100)
    want = [output.text for output in g.Engine(FakeLM(), config).generate(ids, asked)]
    monkeypatch.setattr(g.OutputParser, "feed", slow_feed)

    async def read(engine, prompt) -> str:
        async for output in engine.stream(prompt, asked):
            until = time.monotonic() + 0.003  # so that it meets the next step
            while time.monotonic() < until:
                text = output.text
            assert want[prompt[0]].startswith(text)
        return text

    async def main(engine):
        return await asyncio.gather(*[read(engine, prompt) for prompt in ids])

    with AsyncEngine(FakeLM(), config) as engine:
        assert run(main(engine)) == want


def test_an_async_engine_streams_and_closes_its_streams():
    lm = random_lm()
    (want,) = g.Engine(lm).generate([PROMPT], params(20))

    async def main(engine):
        assert (await collect(engine.stream(PROMPT, params(20))))[-1].token_ids == want.token_ids
        async for _ in engine.stream(PROMPT, params(50)):
            for call in (lambda: engine.step(), lambda: engine.add(PROMPT),
                         lambda: engine.generate([PROMPT]), lambda: engine.abort(1)):  # fmt: skip
                with pytest.raises(RuntimeError, match="streams of this engine are read"):
                    call()
            break
        stream = engine.stream(PROMPT, params(50))
        await anext(stream)
        engine.close()
        assert (await collect(stream))[-1].finish_reason == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            engine.stream(PROMPT)

    engine = AsyncEngine(lm)
    run(main(engine))
    assert engine.block_manager.num_free == engine.config.num_blocks
