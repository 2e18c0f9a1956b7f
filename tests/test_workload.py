"""Workloads and the runs that engines make of them, counted by hand."""

from __future__ import annotations

import fakes
import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import workload
from g2c_serving.lab.workload import Arrival, DryEngine

A, B, C = ((1, 2, 3), 4), ((4, 5), 2), ((6,), 3)  # prompt, tokens to answer


def arrivals(*times):
    return [Arrival(t, prompt, n) for t, (prompt, n) in zip(times, (A, B, C), strict=False)]


def engine(seats=2, **config):
    return fakes.engine(max_num_seqs=seats, **config)


def test_continuous_batching_counted_by_hand():
    """Two seats. A runs in steps 1 to 4, B in 1 and 2, so C takes B's seat in steps 3 to 5."""
    run = workload.run(engine(), arrivals(0, 0, 0))
    a, b, c = run.lives
    assert (a.started, a.tokens) == (0, [1, 2, 3, 4])
    assert (b.started, b.tokens) == (0, [1, 2])
    assert (c.started, c.tokens) == (2, [3, 4, 5])
    assert [len(record.rows) for record in run.steps] == [2, 2, 2, 2, 1]
    assert (run.num_tokens, run.duration, run.throughput) == (9, 5, 9 / 5)
    assert run.first_token == pytest.approx((1 + 1 + 3) / 3)
    assert run.gap == 1


def test_static_batching_lets_nobody_in_until_all_have_left():
    run = workload.run(engine(), arrivals(0, 0, 0), static=True)
    assert run.lives[1].tokens == [1, 2]  # done, and its seat stays empty
    assert (run.lives[2].started, run.lives[2].tokens) == (4, [5, 6, 7])


def test_requests_arrive_when_they_should_and_idle_time_passes():
    run = workload.run(engine(), arrivals(0, 1.5, 20))
    assert [life.started for life in run.lives] == [0, 2, 20]
    assert run.lives[2].tokens == [21, 22, 23]
    assert run.lives[2].first_token == 1


def test_the_lives_stand_in_the_order_of_the_workload_not_of_the_arrivals():
    run = workload.run(engine(), arrivals(3, 0))
    assert [len(life.tokens) for life in run.lives] == [4, 2]
    assert [life.started for life in run.lives] == [3, 0]


def test_the_tokens_are_those_of_the_model():
    run = workload.run(engine(), arrivals(0, 1))
    for life, (prompt, count) in zip(run.lives, (A, B), strict=True):
        assert life.ids == fakes.continuation(list(prompt), count)


def test_on_the_clock_of_ms_time_is_what_the_steps_took():
    run = workload.run(engine(), arrivals(0, 0), clock="ms")
    took = [record.total_ms for record in run.steps]
    assert run.lives[0].tokens == pytest.approx([sum(took[: k + 1]) for k in range(4)])
    assert run.duration == pytest.approx(sum(took))


def test_a_run_in_steps_translated_to_ms():
    run = workload.run(engine(), arrivals(0, 0, 2))
    for record, ms in zip(run.steps, (10, 20, 30, 40, 50), strict=True):
        record.schedule_ms, record.forward_ms, record.sample_ms = ms, 0, 0
        record.process_ms = 0
    ms = workload.in_ms(run)
    assert ms.lives[0].tokens == pytest.approx([10, 30, 60, 100])
    assert (ms.lives[2].arrived, ms.lives[2].started) == (30, 30)
    assert ms.lives[2].tokens == pytest.approx([60, 100, 150])
    assert ms.spans[1] == (10, 30)


def test_the_dry_engine_makes_the_real_engine_s_steps():
    """With prompts in chunks and a pool so small that requests are preempted."""
    made = workload.arrivals(8, gap=1, prompt=(3, 20), answer=(2, 20), seed=5)
    config = g.EngineConfig(num_blocks=16, block_size=4, max_num_batched_tokens=12)
    lm = random_lm(vocab_size=266)
    real, dry = [workload.run(kind(lm, config), made) for kind in (g.Engine, DryEngine)]
    assert any(record.preempted for record in real.steps)
    rows = [[sorted(record.rows, key=repr) for record in run.steps] for run in (real, dry)]
    assert rows[0] == rows[1]
    assert [life.tokens for life in dry.lives] == [life.tokens for life in real.lives]


def test_arrivals_are_seeded_and_the_gap_moves_only_the_times():
    few, same, wide = [workload.arrivals(50, gap, seed=1) for gap in (1, 1, 4)]
    assert few == same
    assert [a.prompt for a in wide] == [a.prompt for a in few]
    assert [a.time for a in wide] == pytest.approx([4 * a.time for a in few])
    assert [a.time for a in workload.arrivals(3)] == [0, 0, 0]
    assert workload.arrivals(50, 1, seed=2) != few


def test_lengths_reach_both_ends_and_no_further():
    made = workload.arrivals(400, prompt=(3, 5), answer=(1, 4))
    assert {len(a.prompt) for a in made} == {3, 4, 5}
    assert {a.answer for a in made} == {1, 2, 3, 4}


def test_the_mean_gap_is_as_asked():
    made = workload.arrivals(4000, gap=2.5)
    assert made[-1].time / 3999 == pytest.approx(2.5, rel=0.06)  # exponential: sd 2.5 / sqrt(n)


def test_a_request_that_ends_with_an_error_is_not_passed_over():
    with pytest.raises(RuntimeError, match="raise EngineConfig.num_blocks"):
        workload.run(engine(num_blocks=1), [Arrival(0, (1, 2, 3), 8)])


def test_an_unknown_clock_is_refused():
    with pytest.raises(ValueError, match="clock='s' must be 'steps' or 'ms'"):
        workload.run(engine(), [], clock="s")
