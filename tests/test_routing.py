"""Routing and the prefill pool: closed forms of queueing, the rules by hand, nobody lost.

More closed forms, and tighter, stand in test_prefill_queues.py, whose queues are this pool's.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster import routing
from g2c_serving.cluster.prefill_pool import PrefillPool, Prompt, busiest, sessions
from g2c_serving.cluster.routing import Machines, Request


def per_token(q: int, c: int) -> float:
    """ms: a microsecond a token, whatever is cached."""
    return q / 1000


def exponential(number: int, rate: float, mean: float, seed: int = 0) -> list[Prompt]:
    """Poisson arrivals, `rate` a microsecond; exponential lengths."""
    draw = np.random.default_rng(seed)
    return arriving(draw.exponential(1 / rate, number), draw.exponential(mean, number))


def lognormal(number: int, gap_us: float, spread: float, seed: int = 0) -> list[Prompt]:
    """Poisson arrivals; lengths about 5,000."""
    draw = np.random.default_rng(seed)
    lengths = 5000 * np.exp(spread * draw.standard_normal(number))
    return arriving(draw.exponential(gap_us, number), lengths)


def arriving(gaps: np.ndarray, lengths: np.ndarray) -> list[Prompt]:
    """Prompts of sessions of one turn."""
    times = np.cumsum(gaps).round().astype(int).tolist()
    whole = np.maximum(1, lengths.round()).astype(int).tolist()
    return [Prompt(t, k, n) for k, (t, n) in enumerate(zip(times, whole, strict=True))]


def mean_wait(served) -> float:
    return float(np.mean([float(one.wait) for one in served]))


# ---- closed forms ----


def test_one_machine_is_m_m_1():
    """The mean wait is load / (1 - load) mean works: at a load of 0.6 one and a half."""
    prompts = exponential(30_000, 0.6 / 1e4, 1e4, seed=1)
    found = PrefillPool(1, routing.least_work, per_token).serve(prompts)
    assert mean_wait(found) == pytest.approx(1.5e4, rel=0.08)


def test_a_tier_is_m_g_1_with_the_prompts_that_it_gets():
    """Pollaczek and Khinchine: rate * mean square of the work / (2 * (1 - load)), a tier."""
    prompts = lognormal(30_000, 8000, 0.8, seed=4)
    lengths = [prompt.length for prompt in prompts]
    router = routing.in_tiers(routing.equal_work_edges(lengths, lengths, 2))
    found = PrefillPool(2, router, per_token).serve(prompts)
    for tier in (0, 1):
        mine = [one for one in found if one.machine == tier]
        work = np.array([one.prompt.length for one in mine], float)
        rate = len(mine) / prompts[-1].time
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


def test_of_idle_machines_the_one_that_waits_longest():
    """Machine 0 ends at 300, machine 1 at 100: the prompt of 400 goes to 1, not to the first."""
    prompts = [Prompt(0, 0, 300), Prompt(0, 1, 100), Prompt(400, 2, 50), Prompt(420, 3, 50)]
    found = PrefillPool(2, routing.least_work, per_token).serve(prompts)
    assert [one.machine for one in found] == [0, 1, 1, 0]


def test_work_counts_what_is_cached():
    """500 new tokens on 10,000, of which 9,984 in whole blocks: 516 * (1 + 9,984) microseconds."""
    prompts = [Prompt(0, 0, 10_000), Prompt(50_000_000_000, 0, 10_500)]
    found = PrefillPool(1, routing.least_work, lambda q, c: q * (1 + c) / 1000).serve(prompts)
    assert [one.work for one in found] == [10_000, 516 * 9_985]


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
    lengths = [prompt.length for prompt in lognormal(4000, 1, 1.0)]
    edges = routing.equal_work_edges(lengths, lengths)
    tiers = np.array([routing.tier_of(length, edges) for length in lengths])
    work = np.bincount(tiers, weights=lengths)
    assert work / work.sum() == pytest.approx(0.25, abs=0.01)


def test_to_where_the_prefix_lies():
    seen = machines([9, 1])
    assert routing.to_prefix(seen, Request(5, home=0)) == 0
    assert routing.to_prefix(seen, Request(5)) == 1


# ---- prefixes ----

TURNS = [Prompt(0, 0, 10_000), Prompt(50_000, 0, 10_500), Prompt(100_000, 0, 11_000)]


def computed(router, shared: bool) -> list[int]:
    return [one.computed for one in PrefillPool(2, router, per_token, shared).serve(TURNS)]


def test_a_prefix_is_found_where_it_is_looked_for():
    """Of 10,500 tokens 10,000 are known: 78 blocks of 128, so 516 are computed; of 11,000 the
    10,500: 82 blocks, 504. With turns on other machines nothing is, or what that machine knows."""
    assert computed(routing.round_robin(), shared=True) == [10_000, 516, 504]
    assert computed(routing.to_prefix, shared=False) == [10_000, 516, 504]
    assert computed(routing.round_robin(), shared=False) == [10_000, 10_500, 1016]  # 78 blocks
    assert computed(lambda seen, request: 0, shared=False) == [10_000, 516, 504]


def test_what_is_not_computed_yet_is_not_found():
    both_at_once = [Prompt(0, 0, 10_000), Prompt(9_999, 0, 10_500), Prompt(20_500, 0, 10_500)]
    found = PrefillPool(1, routing.least_work, per_token, shared=True).serve(both_at_once)
    assert [one.computed for one in found] == [10_000, 10_500, 10_500 - 80 * 128]


def test_sessions_grow_end_and_are_replaced():
    """Ten at a time in a new order every cycle; of six turns, but for the first ten."""
    prompts = sessions(10, 6, 600, 1e6, more=300, seed=1)
    assert [p.time for p in prompts] == sorted(p.time for p in prompts)
    cycles = [[p.session for p in prompts[at : at + 10]] for at in range(0, 600, 10)]
    assert all({session % 10 for session in cycle} == set(range(10)) for cycle in cycles)
    assert len({tuple(session % 10 for session in cycle) for cycle in cycles}) > 50
    lengths = {s: [p.length for p in prompts if p.session == s] for s in range(max(cycles[-1]) + 1)}
    assert all(grown == sorted(set(grown)) for grown in lengths.values())
    over = [s for s in lengths if s + 10 in lengths]
    assert {len(lengths[s]) for s in over if s >= 10} == {6}
    assert len({len(lengths[s]) for s in range(10)}) > 3  # they do not end all at once
    added = np.concatenate([np.diff([0, *grown]) for grown in lengths.values()])
    assert np.median(added) == pytest.approx(300, rel=0.1)
    assert prompts[-1].time / 600 == pytest.approx(1e6, rel=0.1)


def test_every_prompt_is_served_once():
    prompts = sessions(60, 4, 240, 2e4, more=500)
    for router in (routing.at_random(), routing.least_work, routing.to_prefix):
        found = PrefillPool(4, router, per_token).serve(prompts)
        assert [one.prompt for one in found] == prompts
        assert {one.machine for one in found} == {0, 1, 2, 3}
        spans = sorted((one.machine, one.start, one.end) for one in found)
        for (m, _, end), (n, start, _) in zip(spans, spans[1:], strict=False):
            assert m != n or start >= end
        assert busiest(found, 4) >= 1


def test_the_busiest_machine():
    found = PrefillPool(2, routing.round_robin(), per_token).serve(
        [Prompt(0, 0, 300), Prompt(0, 1, 100)]
    )
    assert busiest(found, 2) == 1.5


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
        sessions(3, 2, 9, 0, 100)
    with pytest.raises(ValueError, match="more=0"):
        sessions(3, 2, 9, 1e3, 0)
    with pytest.raises(ValueError, match="number=0"):
        sessions(3, 2, 0, 1e3, 100)
