"""Prefill queues without a clock: the virtual clock's own times, and queueing theory's waits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster import prefill_queues, routing
from g2c_serving.cluster.prefill_pool import PrefillPool, Prompt, sessions

RUNS, PROMPTS, MEAN = 20, 40_000, 10_000  # microseconds of work


def per_token(q: int, c: int) -> float:
    return q / 1000


def drawn(per_machine: float, machines: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Poisson arrivals and exponential works, so many runs, at this load of so many machines."""
    draw, shape = np.random.default_rng(seed), (RUNS, PROMPTS)
    times = np.cumsum(draw.exponential(MEAN / per_machine / machines, shape), 1)
    return times.round().astype(np.int64), draw.exponential(MEAN, shape).round().astype(np.int64)


def within(waits: np.ndarray, expected: float) -> None:
    """The mean of the runs' means is within three standard errors, and these are small."""
    means = waits[:, PROMPTS // 5 :].mean(1)
    error = means.std(ddof=1) / math.sqrt(RUNS)
    assert error < 0.02 * expected and abs(means.mean() - expected) < 3 * error


# ---- closed forms ----


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_queue_a_machine_is_m_m_1(load):
    """A mean wait of load / (1 - load) mean works, whichever machine chance takes."""
    times, work = drawn(load, 4)
    machine = np.random.default_rng(9).integers(0, 4, times.shape)
    within(prefill_queues.starts_alone(times, work, machine) - times, MEAN * load / (1 - load))


def test_turns_are_e_4_m_1():
    """Every fourth arrival: gaps of four exponential ones. The wait is exponential but for the
    chance of none, sigma / (1 - sigma) mean works, where sigma = (4 * load / (4 * load + 1 -
    sigma))^4 is what the gaps' transform says."""
    load, sigma = 0.8, 0.5
    for _ in range(200):
        sigma = (4 * load / (4 * load + 1 - sigma)) ** 4
    times, work = drawn(load, 4, seed=1)
    machine = np.broadcast_to(np.arange(PROMPTS) % 4, times.shape)
    within(prefill_queues.starts_alone(times, work, machine) - times, MEAN * sigma / (1 - sigma))


@pytest.mark.parametrize("machines", [1, 4])
def test_one_queue_for_all_is_m_m_c(machines):
    """Erlang's C / (machines * (1 - load)) mean works."""
    load = 0.7
    full = (machines * load) ** machines / math.factorial(machines) / (1 - load)
    waits = full / (full + sum((machines * load) ** k / math.factorial(k) for k in range(machines)))
    times, work = drawn(load, machines, seed=2)
    found = prefill_queues.starts_in_groups(times, work, 0 * times, machines)
    within(found - times, MEAN * waits / (machines * (1 - load)))


# ---- the virtual clock ----

JOBS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 90)), min_size=1, max_size=40)


@given(JOBS, st.sampled_from(["random", "turns", "tiers", "least"]))
@settings(deadline=None)
def test_as_on_the_virtual_clock(jobs, rule):
    """Prompt for prompt the same start as in PrefillPool, by another way."""
    times = np.cumsum([gap for gap, _ in jobs])
    work, edges = np.array([n for _, n in jobs]), [30]
    prompts = [Prompt(int(t), k, int(n)) for k, (t, n) in enumerate(zip(times, work, strict=True))]
    choices = np.random.default_rng(1).integers(0, 4, len(jobs))
    chosen = iter(choices.tolist())
    router = {
        "random": lambda machines, request: next(chosen),
        "turns": routing.round_robin(),
        "tiers": routing.in_tiers(edges),
        "least": routing.least_work,
    }[rule]
    served = PrefillPool(4, router, per_token).serve(prompts)
    queues = {"random": choices, "turns": np.arange(len(jobs)) % 4}
    groups = {"tiers": np.searchsorted(edges, work), "least": 0 * work}
    if rule in queues:
        found = prefill_queues.starts_alone(times[None], work[None], queues[rule][None])
    else:
        size = 4 if rule == "least" else 2
        found = prefill_queues.starts_in_groups(times[None], work[None], groups[rule][None], size)
    assert found[0].tolist() == [one.start for one in served]


@pytest.mark.parametrize("to_prefix", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("gap_us", [100, 500, 20_000])
def test_sessions_as_on_the_virtual_clock(to_prefix, shared, gap_us):
    """With machines that cannot keep up, that just can, and that are idle most of the time."""
    prompts = sessions(12, 5, 400, gap_us, more=700, seed=gap_us)
    router = routing.to_prefix if to_prefix else routing.least_work
    served = PrefillPool(4, router, worked, shared).serve(prompts)
    found = prefill_queues.serve_sessions(prompts, 4, to_prefix, shared, worked)
    expected = [[one.machine, one.start, one.end, one.computed] for one in served]
    assert found.tolist() == expected


def worked(q: int, c: int) -> float:
    return q * (1 + c / 1000) / 1000


def test_efficiency_by_hand():
    """Works of 4, 4 and 2 on two machines: balanced 5; the two of 4 on one machine make 8."""
    work, times = np.array([[4, 4, 2], [4, 4, 2]]), np.zeros((2, 3), int)
    starts = prefill_queues.starts_alone(times, work, np.array([[0, 0, 1], [0, 1, 1]]))
    assert starts.tolist() == [[0, 4, 0], [0, 0, 4]]
    found = prefill_queues.efficiency(starts + work, work, 2)
    assert found.tolist() == [5 / 8, 5 / 6]
