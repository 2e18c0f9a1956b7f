"""What is on its way in the overlapped engine: the counts say so, and what its device failed to put
into the pages, or left there when it died, is read by nobody."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import traces
from small_models import random_ids
from test_async_engine import LM, MODES, PROMPTS, alone, make, on_forward, params, run, story

import g2c_serving as g

LONG = random_ids(LM, 17, 33)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_device_could_not_load_is_shared_by_nobody(mode, tmp_path):
    """The second request was launched on blocks that the first was to load."""
    how = params(max_tokens=5)
    disk = {"enable_prefix_caching": True, "cache_dir": str(tmp_path), "cache_bytes": 1 << 20}
    make(g.Engine, mode, **disk).generate([LONG], how)
    with make(g.AsyncEngine, mode, **disk) as e:
        real, numbers = e.pages.import_blocks, itertools.count()

        def fails_twice(*arguments):
            if next(numbers) < 2:
                raise MemoryError("none left")
            real(*arguments)

        e.pages.import_blocks = fails_twice
        first = e.add(LONG, how)
        e.step()
        second = e.add(LONG, how)
        final = run(e)
        assert final[first, 0].finish_reason == "error"
        assert story(final[second, 0]) == alone(LONG, how, mode)
        assert e.stats.cached_tokens > 16
        assert story(e.generate([LONG], how)[0]) == alone(LONG, how, mode)


def without_end() -> None:
    while True:
        time.sleep(1e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_after_a_death_nothing_of_the_pages_is_read(mode, steps):
    """They hold no numbers any more: not in named blocks, nor in those of a fork that waits."""
    with make(g.AsyncEngine, mode, max_num_seqs=2, enable_prefix_caching=True) as e:
        e.generate([LONG], params(max_tokens=3))  # leaves named blocks
        how = params(max_tokens=20)
        parent = e.add(PROMPTS[3], how)
        for _ in range(steps):
            e.step()
        ids = {parent: PROMPTS[3]}
        ids |= {e.fork(parent, seed=how.seed): PROMPTS[3] for _ in range(3)}  # a seat for one
        ids |= {e.add(prompt, how): prompt for prompt in (LONG, PROMPTS[3])}
        e.worker.submit(without_end)  # or the step might be done before the kill
        e.step()
        e.worker.kill()
        e.worker.join()
        for cache in [e.cache] + ([] if e.speculator is None else [e.speculator.drafter.cache]):
            cache.keys.fill_(torch.nan)
            cache.values.fill_(torch.nan)
        final = run(e)
    errors = [i for i in ids if final[i, 0].finish_reason == "error"]
    assert 1 <= len(errors) <= 2
    for i, prompt in ids.items():
        if i not in errors:
            assert story(final[i, 0]) == alone(prompt, how, mode)


def test_who_reached_max_tokens_has_no_row_in_the_next_step():
    """With drafts the device knows: no pass of the target is spent on it."""
    passes = []
    for kind in (g.Engine, g.AsyncEngine):
        e, seen = make(kind, "fixed"), []
        on_forward(e, lambda number, batch, seen=seen: seen.append(number))
        for i, prompt in enumerate(PROMPTS):
            e.generate([prompt], params(i, max_tokens=9))
        passes.append(len(seen))
    assert passes[0] == passes[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", range(1, 6))
def test_preempted_while_a_fork_shares_the_block_that_is_being_written(mode, steps):
    with make(g.AsyncEngine, mode) as e:
        how = params(max_tokens=20)
        parent = e.add(PROMPTS[3], how)
        for _ in range(steps):
            e.step()
        twin = e.fork(parent, seed=how.seed)
        e.scheduler._preempt(next(r for r in e.scheduler.running if r.request_id == parent))
        final = run(e)
    expected = alone(PROMPTS[3], how, mode)
    assert story(final[parent, 0]) == story(final[twin, 0]) == expected


@pytest.mark.parametrize("mode", MODES)
def test_what_a_block_held_before_reaches_nobody(mode):
    """Not even what is no number; the wipe waits in the device's queue."""
    with make(g.AsyncEngine, mode) as e:
        for cache in [e.cache] + ([] if e.speculator is None else [e.speculator.drafter.cache]):
            cache.keys.fill_(torch.nan)
            cache.values.fill_(torch.nan)
        for prompt in PROMPTS[:2]:
            assert story(e.generate([prompt], params())[0]) == alone(prompt, params(), mode)


def check_flights(e):
    for request in [*e.scheduler.running, *e.scheduler.waiting]:
        launched = [s for flight in e._flights for s in flight.launched]
        rows = [s for s in launched if s.request is request and not s.is_void]
        assert request.num_in_flight == sum(s.num_tokens + s.num_drafts for s in rows)
        assert request.num_pending == sum(s.samples * (1 + s.num_drafts) for s in rows)


@pytest.mark.parametrize("seed", range(0, 100, 7))
def test_what_counts_as_on_its_way_is_on_its_way(seed):
    traces.play(traces.make(seed), g.AsyncEngine, watch=check_flights)
