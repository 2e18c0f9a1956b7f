"""Decode GPUs in step: requests come and go once, caches grow, efficiency by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from g2c_serving.cluster import routing
from g2c_serving.cluster.decode_pool import DecodePool, Traffic
from g2c_serving.schedule.cost_model import CostModel

COST = CostModel(10, 0.05, 1e-6, 0, 0, 0)


def test_every_request_leaves_once_or_is_still_there():
    pool = DecodePool(4, 8, routing.both, COST, Traffic(answer=60))
    run = pool.run(100)
    assert (run.requests.sum(1) == 32).all()
    assert len(run.began) == len(run.ended) > 32
    assert all(begin < end for begin, end in zip(run.began, run.ended, strict=True))
    assert sum(end == 101 for end in run.ended) == 32
    leaving, coming = Counter(run.ended), Counter(run.began)
    assert all(leaving[step] == coming[step] for step in range(1, 101))


def test_a_pool_goes_on_where_it_was():
    def pool():
        return DecodePool(4, 8, routing.both, COST, Traffic(answer=60), seed=5)

    whole, halves = pool().run(60), pool()
    first, second = halves.run(25), halves.run(35)
    assert (np.concatenate((first.requests, second.requests)) == whole.requests).all()
    assert (second.began, second.ended) == (whole.began, whole.ended)


def test_cached_tokens_are_those_of_the_requests():
    pool = DecodePool(4, 8, routing.at_random(1), COST, Traffic(spread=1.0, answer=60))
    pool.run(50)
    held = np.bincount(pool._gpu, weights=pool._context, minlength=4)
    assert pool.machines.cached == pytest.approx(held)


def test_caches_grow_with_the_answers():
    """Six requests of 1,000 tokens that do not end: each has 3.25 tokens more at every step."""
    pool = DecodePool(2, 3, routing.round_robin(), COST, Traffic(1000, 0, 1e9, 3.25))
    run = pool.run(40)
    assert (run.requests == 3).all()
    assert run.cached[:, 0] == pytest.approx(3000 + 3 * 3.25 * np.arange(40))
    ms = 10 + 0.05 * 3 + 1e-6 * run.cached[:, 0]
    assert run.gpu_ms[:, 0] == pytest.approx(ms)
    assert pool.clock.now == sum(round(1000 * one) for one in ms)


def test_what_runs_has_been_answered_for_a_mean_answer():
    """Answers are memoryless, so a request that runs has had 600 of them on average, as long as it
    has to go yet; its cache is its prompt of 1,000 tokens and those."""
    pool = DecodePool(4, 100, routing.both, COST, Traffic(1000, 0, 600, 3))
    pool.run(1000)
    run = pool.run(1000)
    assert run.cached.sum(1).mean() / 400 == pytest.approx(1600, rel=0.03)


def test_at_random_the_requests_of_a_gpu_are_binomial():
    run = DecodePool(16, 32, routing.at_random(3), COST, Traffic(answer=30)).run(800)
    assert run.requests.var() == pytest.approx(512 / 16 * 15 / 16, rel=0.15)


def test_the_fewest_requests_keeps_the_counts_equal():
    run = DecodePool(8, 16, routing.fewest_requests, COST).run(200)
    assert (run.requests == 16).all()


def test_efficiency_by_hand():
    """Two GPUs, 3 requests and 1 of 1,000 tokens: 10.153 ms and 10.051, on average 10.102."""
    run = DecodePool(2, 2, lambda seen, r: int(seen.requests[0] >= 3), COST, Traffic(1000, 0, 1e9))
    found = run.run(1)
    assert found.requests.tolist() == [[3, 1]] and found.cached.tolist() == [[3000, 1000]]
    assert found.efficiency() == pytest.approx(10.102 / 10.153)
    assert run.clock.now == 10_153
    assert found.efficiency(1.09, 1.0) == pytest.approx(10.102 / (10.153 + 0.09 * 10.102))
    assert found.efficiency(1.09, 0.0) == found.efficiency()


def test_both_spreads_best():
    traffic = Traffic(spread=1.0, answer=300)
    rules = {
        "random": routing.at_random(0),
        "count": routing.fewest_requests,
        "cache": routing.least_cache,
        "both": routing.both,
    }
    found = {
        name: DecodePool(16, 16, rule, CostModel(5, 0.2, 3e-6, 0, 0, 0), traffic).run(200)
        for name, rule in rules.items()
    }
    rates = {name: run.efficiency() for name, run in found.items()}
    assert max(rates, key=rates.__getitem__) == "both" and min(rates.values()) == rates["random"]
    assert all(0 < rate <= 1 for rate in rates.values())


def test_lengths_that_come():
    contexts, steps = Traffic(1000, 0.5, 325, 3.25).draw(100_000, np.random.default_rng(0))
    assert contexts.mean() == pytest.approx(1000, rel=0.02)
    assert np.log(contexts).std() == pytest.approx(0.5, rel=0.02)
    assert steps.mean() == pytest.approx(100.5, rel=0.02)  # rounded up


def test_what_is_refused():
    with pytest.raises(ValueError, match="spread=-1"):
        Traffic(spread=-1)
    with pytest.raises(ValueError, match="answer=0"):
        Traffic(answer=0)
    with pytest.raises(ValueError, match="experts=0.5"):
        DecodePool(1, 1, routing.both, COST).run(1).efficiency(0.5)
