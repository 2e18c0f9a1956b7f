"""Routing and the pools: closed forms of queueing, the rules by hand, nobody lost."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster import routing
from g2c_serving.cluster.decode_pool import DecodePool, Traffic
from g2c_serving.cluster.prefill_pool import PrefillPool, Prompt, busiest, sessions, single_prompts
from g2c_serving.cluster.routing import Machines, Request
from g2c_serving.schedule.cost_model import CostModel


def per_token(q: int, c: int) -> float:
    """ms: a microsecond a token, whatever is cached."""
    return q / 1000


def exponential(number: int, rate: float, mean: float, seed: int = 0) -> list[Prompt]:
    """Poisson arrivals, `rate` a microsecond; exponential lengths."""
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1 / rate, number)).round().astype(int)
    lengths = np.maximum(1, draw.exponential(mean, number).round()).astype(int)
    pairs = zip(times.tolist(), lengths.tolist(), strict=True)
    return [Prompt(time, k, length) for k, (time, length) in enumerate(pairs)]


def mean_wait(served) -> float:
    return float(np.mean([float(one.wait) for one in served]))


# ---- closed forms ----


def test_one_machine_is_m_m_1():
    """The mean wait is load / (1 - load) mean works: at a load of 0.6 one and a half."""
    prompts = exponential(30_000, 0.6 / 1e4, 1e4, seed=1)
    found = PrefillPool(1, routing.least_work, per_token).serve(prompts)
    assert mean_wait(found) == pytest.approx(1.5e4, rel=0.08)


def test_at_random_each_machine_is_m_m_1_of_its_own():
    """At a load of 0.5 the mean wait is one mean work."""
    prompts = exponential(30_000, 4 * 0.5 / 1e4, 1e4, seed=2)
    found = PrefillPool(4, routing.at_random(1), per_token).serve(prompts)
    assert mean_wait(found) == pytest.approx(1e4, rel=0.08)


def erlang_c(machines: int, load: float) -> float:
    """The chance to wait, of M/M/machines at this load a machine."""
    offered = machines * load
    full = offered**machines / math.factorial(machines) / (1 - load)
    return full / (full + sum(offered**k / math.factorial(k) for k in range(machines)))


def test_least_work_is_one_queue_for_all():
    """So its mean wait is that of M/M/4: Erlang's C / (machines * (1 - load)) mean works."""
    prompts = exponential(30_000, 4 * 0.7 / 1e4, 1e4, seed=3)
    found = PrefillPool(4, routing.least_work, per_token).serve(prompts)
    assert mean_wait(found) == pytest.approx(1e4 * erlang_c(4, 0.7) / (4 * 0.3), rel=0.08)


def test_a_tier_is_m_g_1_with_the_prompts_that_it_gets():
    """Pollaczek and Khinchine: rate * mean square of the work / (2 * (1 - load)), a tier."""
    prompts = single_prompts(30_000, 4000, 5000, 0.8, seed=4)
    lengths = [prompt.length for prompt in prompts]
    edges = routing.equal_work_edges(lengths, lengths, 2)
    router = routing.in_tiers(edges, routing.at_random(2))
    found = PrefillPool(4, router, per_token).serve(prompts)
    for tier in (0, 1):
        mine = [one for one in found if one.machine // 2 == tier]
        work = np.array([one.prompt.length for one in mine], float)
        rate = len(mine) / 2 / prompts[-1].time  # at each of its two machines
        expected = rate * (work**2).mean() / (2 * (1 - rate * work.mean()))
        assert mean_wait(mine) == pytest.approx(expected, rel=0.1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 80)), min_size=1, max_size=30))
@settings(deadline=None)
def test_waits_by_lindley(jobs):
    """A wait is the one before, and the work before, less the time between; or nothing."""
    times = np.cumsum([gap for gap, _ in jobs]).tolist()
    prompts = [Prompt(t, k, n) for k, (t, (_, n)) in enumerate(zip(times, jobs, strict=True))]
    found, wait = PrefillPool(1, routing.least_work, per_token).serve(prompts), 0
    for k, one in enumerate(found):
        if k:
            wait = max(0, wait + jobs[k - 1][1] - jobs[k][0])
        assert one.wait == wait and one.work == jobs[k][1]


# ---- the rules by hand ----


def machines(queued, requests=None, cached=None) -> Machines:
    rows = [queued, queued if requests is None else requests, queued if cached is None else cached]
    return Machines(*(np.array(row, float) for row in rows))


def test_what_each_rule_looks_at():
    seen = machines([5, 1, 3], [2, 2, 1], [10, 50, 90])
    assert routing.least_work(seen, Request(7)) == 1
    assert routing.fewest_requests(seen, Request(7)) == 2
    assert routing.least_cache(seen, Request(7)) == 0
    assert routing.both(seen, Request(7)) == 0  # 2/5 + 10/150, 2/5 + 50/150, 1/5 + 90/150
    assert routing.both(Machines.idle(3), Request(7)) == 0
    assert [routing.round_robin()(seen, Request(7)) for _ in range(3)] == [0, 0, 0]
    turn = routing.round_robin()
    assert [turn(seen, Request(7)) for _ in range(4)] == [0, 1, 2, 0]


def test_at_random_is_even_and_seeded():
    seen = Machines.idle(4)
    one, again = routing.at_random(5), routing.at_random(5)
    picks = [one(seen, Request(1)) for _ in range(4000)]
    assert picks == [again(seen, Request(1)) for _ in range(4000)]
    assert all(abs(n - 1000) < 4 * math.sqrt(750) for n in Counter(picks).values())


def test_tiers():
    choose = routing.in_tiers([10, 20, 20])
    seen = machines([9, 1, 2, 8, 7, 3, 0, 4])
    picks = {length: choose(seen, Request(length)) for length in (1, 10, 11, 20, 21, 999)}
    assert picks == {1: 1, 10: 1, 11: 2, 20: 2, 21: 6, 999: 6}
    assert [routing.tier_of(n, [10, 20, 30]) for n in (10, 11, 30, 31)] == [0, 1, 2, 3]


def test_edges_share_the_work():
    """Works 1 to 8 are 36; a third of it is done with 5 (15), two thirds with 7 (28)."""
    assert routing.equal_work_edges(range(1, 9), range(1, 9), 3) == [5, 7]
    lengths = [prompt.length for prompt in single_prompts(4000, 1, 5000, 1.0)]
    edges = routing.equal_work_edges(lengths, lengths)
    tiers = np.array([routing.tier_of(length, edges) for length in lengths])
    work = np.bincount(tiers, weights=lengths)
    assert work / work.sum() == pytest.approx(0.25, abs=0.01)


def test_to_where_the_prefix_lies():
    seen = machines([9, 1])
    assert routing.to_prefix()(seen, Request(5, home=0)) == 0
    assert routing.to_prefix()(seen, Request(5)) == 1


# ---- prefixes ----

TURNS = [Prompt(0, 0, 10_000), Prompt(50_000, 0, 10_500), Prompt(100_000, 0, 11_000)]


def computed(router, shared: bool) -> list[int]:
    return [one.computed for one in PrefillPool(2, router, per_token, shared).serve(TURNS)]


def test_a_prefix_is_found_where_it_is_looked_for():
    """Of 10,500 tokens 10,000 are known: 78 blocks of 128, so 516 are computed; of 11,000 the
    10,500: 82 blocks, 504. With turns on other machines nothing is, or what that machine knows."""
    assert computed(routing.round_robin(), shared=True) == [10_000, 516, 504]
    assert computed(routing.to_prefix(), shared=False) == [10_000, 516, 504]
    assert computed(routing.round_robin(), shared=False) == [10_000, 10_500, 1016]  # 78 blocks
    assert computed(lambda seen, request: 0, shared=False) == [10_000, 516, 504]


def test_what_is_not_computed_yet_is_not_found():
    both_at_once = [Prompt(0, 0, 10_000), Prompt(9_999, 0, 10_500), Prompt(20_500, 0, 10_500)]
    found = PrefillPool(1, routing.least_work, per_token, shared=True).serve(both_at_once)
    assert [one.computed for one in found] == [10_000, 10_500, 10_500 - 80 * 128]


def test_sessions_grow_and_come_in_order():
    prompts = sessions(20, 5, 1e6, more=300, seed=1)
    assert [p.time for p in prompts] == sorted(p.time for p in prompts) and len(prompts) == 100
    for session in range(20):
        lengths = [p.length for p in prompts if p.session == session]
        assert len(lengths) == 5 and lengths == sorted(set(lengths))


def test_every_prompt_is_served_once():
    prompts = sessions(60, 4, 2e4, more=500)
    for router in (routing.at_random(), routing.least_work, routing.to_prefix()):
        found = PrefillPool(4, router, per_token).serve(prompts)
        assert [one.prompt for one in found] == prompts
        spans = sorted((one.machine, one.start, one.end) for one in found)
        for (m, _, end), (n, start, _) in zip(spans, spans[1:], strict=False):
            assert m != n or start >= end
        assert busiest(found, 4) >= 1


def test_the_busiest_machine():
    found = PrefillPool(2, routing.round_robin(), per_token).serve(
        [Prompt(0, 0, 300), Prompt(0, 1, 100)]
    )
    assert busiest(found, 2) == 1.5


# ---- decode ----

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


# ---- what is refused ----


def test_what_is_refused():
    with pytest.raises(ValueError, match="must not fall"):
        routing.in_tiers([20, 10])
    with pytest.raises(ValueError, match="6 machines in 4 tiers"):
        routing.in_tiers([1, 2, 3])(Machines.idle(6), Request(5))
    with pytest.raises(ValueError, match="machines=0"):
        PrefillPool(0, routing.least_work, per_token)
    with pytest.raises(ValueError, match="in order of time"):
        PrefillPool(1, routing.least_work, per_token).serve([Prompt(5, 0, 1), Prompt(4, 1, 1)])
    with pytest.raises(ValueError, match="gap_us=0"):
        single_prompts(3, 0, 100, 1)
    with pytest.raises(ValueError, match="spread=-0.1"):
        single_prompts(3, 1, 100, -0.1)
    with pytest.raises(ValueError, match="more=0"):
        sessions(3, 2, 1e3, 0)
    with pytest.raises(ValueError, match="spread=-1"):
        Traffic(spread=-1)
    with pytest.raises(ValueError, match="answer=0"):
        Traffic(answer=0)
    with pytest.raises(ValueError, match="experts=0.5"):
        DecodePool(1, 1, routing.both, COST).run(1).efficiency(0.5)
