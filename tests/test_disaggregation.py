"""Prefill and decode apart, on the virtual clock: by hand, against closed forms, and what must hold
of any run."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster.disaggregation import (
    Job,
    Link,
    Load,
    Machine,
    one_pool,
    ship_job,
    two_pools,
)
from g2c_serving.cluster.layer_transfer import arrival_ms, ship, shown_ms
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.virtual_clock import VirtualClock

COSTS = CostModel(10.0, 0.5, 0.0, 0.02, 0.0, 0.0)  # 10 ms a step, 0.5 a row, 0.02 a prompt token
NOW = Link(gb_per_s=1e9)  # a link that takes no time

# ---- layer by layer ----


def spans(lane) -> list[tuple[float, float]]:
    return [(float(s.start), float(s.end)) for s in lane.spans]


def test_three_layers_by_hand():
    """6 ms of prefill. A link that is faster, one that is slower, and all at the end."""
    fast = ship(3, 6, 3)
    assert spans(fast.link) == [(2, 3), (4, 5), (6, 7)] and fast.shown == 1
    slow = ship(3, 6, 12)
    assert spans(slow.link) == [(2, 6), (6, 10), (10, 14)] and slow.shown == 8
    late = ship(3, 6, 3, layer_by_layer=False)
    assert spans(late.link) == [(6, 7), (7, 8), (8, 9)] and late.shown == 3
    assert spans(fast.compute) == spans(late.compute) == [(0, 2), (2, 4), (4, 6)]


@given(st.integers(1, 40), st.integers(0, 400), st.integers(0, 400))
def test_the_closed_form_is_the_clock_s(layers, compute, transfer):
    shipment = ship(layers, Fraction(compute, 8), Fraction(transfer, 8))
    assert shown_ms(layers, compute / 8, transfer / 8) == pytest.approx(float(shipment.shown))
    assert shipment.shown <= ship(layers, Fraction(compute, 8), Fraction(transfer, 8), False).shown


def test_hidden_but_for_a_layer_as_long_as_the_link_keeps_up():
    n = 32
    assert shown_ms(n, 100.0, np.array([10.0, 100.0])) == pytest.approx([10 / n, 100 / n])
    assert shown_ms(n, 100.0, 300.0) == pytest.approx(300 - 100 * (n - 1) / n)
    assert shown_ms(1, 100.0, 10.0) == 10  # one layer hides nothing


@given(
    st.integers(1, 12), st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60)), min_size=1, max_size=6),
)  # fmt: skip
def test_caches_one_after_the_other_on_a_link(layers, transfer, prompts):
    """Against a link that takes layer after layer, each when it is there. A prompt is the pause
    before it and its prefill."""
    began = free_at = by_rule = Fraction(0)
    for pause, compute in prompts:
        began += pause
        for layer in range(1, layers + 1):
            ready = began + Fraction(compute * layer, layers)
            free_at = max(free_at, ready) + Fraction(transfer, layers)
        times = (layers, float(began), float(began + compute), transfer, float(by_rule))
        by_rule = Fraction(float(arrival_ms(*times)))
        assert float(by_rule) == pytest.approx(float(free_at))
        began += compute


def test_a_transfer_hides_behind_the_computation_and_not_behind_the_wait():
    """30 ms of prefill that began at 100, 40 of transfer, in 4 layers: from 107.5 to 147.5."""
    link = Link(gb_per_s=1, bytes_per_token=40_000, layers=4)
    assert link.arrival_us(1000, 100_000, 130_000, free_at=0) == 147_500
    assert link.arrival_us(1000, 100_000, 130_000, free_at=120_000) == 160_000
    assert link.arrival_us(250, 100_000, 130_000, free_at=0) == 132_500


# ---- one request ----


def test_one_request_by_hand():
    """1,000 tokens: 10 + 20 ms to the first; then a step of 10.5 for each."""
    load = Load(1, 1, 1000, 4)
    for run in (one_pool(load, 1, COSTS), two_pools(load, 1, 1, COSTS, NOW)):
        assert run.first_token.tolist() == [30.0]
        assert run.between.tolist() == [10.5] * 3


def test_the_link_shows_once_between_the_first_token_and_the_second():
    """8 MB over 1 GB/s take 8 ms, a prefill takes 30: with 4 layers 2 ms are not hidden."""
    link = Link(gb_per_s=1, bytes_per_token=8000, layers=4)
    run = two_pools(Load(1, 1, 1000, 4), 1, 1, COSTS, link)
    assert run.first_token.tolist() == [30.0] and run.between.tolist() == [12.5, 10.5, 10.5]


def test_what_waited_for_its_prefill_is_shipped_from_then_on():
    """The first of two prompts has no second token, so the link is free. The other's prefill is
    from 30 to 60 ms, its cache on the link from 37.5 to 77.5."""
    clock = VirtualClock()
    filling, decoding = (Machine(clock, COSTS, 1000) for _ in range(2))
    link = Link(gb_per_s=1, bytes_per_token=40_000, layers=4)
    filling.computed = partial(ship_job, filling, link, [decoding])
    jobs = [Job(0, 1000, 1), Job(0, 1000, 3)]
    for job in jobs:
        filling.prefill(job)
    clock.run()
    assert [job.first for job in jobs] == [30_000, 60_000]
    assert jobs[0].gaps == [] and jobs[1].gaps == [17_500 + 10_500, 10_500]


def test_the_second_of_two_caches_waits_for_the_link():
    """As above, both prompts at once: the second's cache has the link from 47.5 ms to 87.5."""
    link = Link(gb_per_s=1, bytes_per_token=40_000, layers=4)
    run = two_pools(Load(1e6, 2, 1000, 2), 1, 2, COSTS, link)
    assert run.between.round(2).tolist() == [17.5 + 10.5, 27.5 + 10.5]


def test_a_row_reads_what_its_request_has_got_so_far():
    """0.01 ms for each token read: 1,001 in the first step, and one more in each."""
    reads = CostModel(10.0, 0.5, 0.01, 0.02, 0.0, 0.0)
    for run in (
        one_pool(Load(1, 1, 1000, 4), 1, reads),
        two_pools(Load(1, 1, 1000, 4), 1, 1, reads, NOW),
    ):
        assert run.between.round(2).tolist() == [20.51, 20.52, 20.53]
    both = two_pools(Load(1e6, 2, 1000, 4), 2, 1, reads, NOW)  # the second joins a step later
    assert both.between.round(2).tolist() == [20.51, 31.03, 31.05, 51.54, 31.05, 20.53]


def test_a_later_chunk_costs_what_it_looks_back_on():
    """Two chunks of 500: 0.0001 ms for each pair with a cached token, 0.00002 for one within."""
    looks = CostModel(10.0, 0.5, 0.0, 0.02, 1e-4, 2e-5)
    first, later = 10 + 10 + 5, 10 + 10 + 25 + 5
    run = one_pool(Load(1, 1, 1000, 1), 1, looks, chunk=500)
    assert run.first_token.tolist() == [first + later]


def test_in_one_pool_a_stranger_s_prompt_comes_between_two_tokens():
    """Chunks of 500 tokens: steps of 10 ms, 10 for a chunk, and 0.5 for a row."""
    together = Load(1e6, 2, 1000, 2)  # both at once, within microseconds
    run = one_pool(together, 1, COSTS, chunk=500)
    assert run.first_token.round(2).tolist() == [40.0, 80.5]
    assert run.between.round(2).tolist() == [20.5, 10.5]
    apart = two_pools(together, 1, 1, COSTS, NOW)
    assert apart.first_token.round(2).tolist() == [30.0, 60.0]
    assert apart.between.tolist() == [10.5, 10.5]


def test_chunks_make_the_wait_shorter_and_the_prompt_later():
    load = Load(8, 60, 4000, 50, seed=2)
    whole, pieces = (one_pool(load, 1, COSTS, chunk) for chunk in (4000, 250))
    assert pieces.between.max() < 0.5 * whole.between.max()
    assert np.median(pieces.first_token) > np.median(whole.first_token)


# ---- many ----


def test_a_prefill_machine_is_an_m_d_1_queue():
    """Answers of one token, so nothing decodes: Pollaczek and Khinchine's mean wait is rho * s / (2
    (1 - rho)) for a service of s; 30 ms here, 20 a second."""
    run = two_pools(Load(20, 20_000, 1000, 1, seed=1), 1, 1, COSTS)
    rho, s = 20 * 0.030, 30.0
    assert run.first_token.mean() == pytest.approx(s + rho * s / (2 * (1 - rho)), rel=0.03)
    assert run.busy[0] == pytest.approx(rho, rel=0.02) and len(run.between) == 0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 3000), st.integers(1, 12), st.integers(1, 3),
    st.integers(1, 3), st.integers(1, 4000), st.floats(1, 200),
)  # fmt: skip
def test_every_request_leaves_once_with_all_its_tokens(
    count, prompt, answer, few, many, chunk, rate
):
    load = Load(rate, count, prompt, answer)
    for run in (one_pool(load, few, COSTS, chunk), two_pools(load, few, many, COSTS, NOW)):
        assert len(run.first_token) == count and len(run.between) == count * (answer - 1)
        assert (run.first_token >= 10 + 0.02 * prompt - 1e-3).all()
        assert (run.between >= 10.5 - 1e-3).all() and (run.busy <= 1).all()


def test_apart_nobody_waits_for_a_prompt():
    """Between two tokens lies at most the rest of a step that others had begun, the step itself,
    and what the link shows."""
    load, link = Load(40, 200, 4000, 60, seed=3), Link(25.0)
    apart, together = two_pools(load, 4, 4, COSTS, link), one_pool(load, 8, COSTS)
    longest = 10 + 0.5 * 200
    assert apart.between.max() <= 2 * longest
    assert np.percentile(apart.between, 99) < 0.6 * np.percentile(together.between, 99)


def test_bad_input():
    with pytest.raises(ValueError, match=r"rate=0 must be more than 0"):
        Load(0, 1, 1, 1)
    with pytest.raises(ValueError, match="prompt_tokens=0"):
        Load(1, 1, 0, 1)
    for bad in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="=0 must be an integer, 1 or more"):
            two_pools(Load(1, 1, 1, 1), *bad, COSTS)
    with pytest.raises(ValueError, match="layers=0"):
        ship(0, 1, 1)
    with pytest.raises(ValueError, match="transfer_ms=-1 must be 0 ms or more"):
        ship(1, 1, -1)
