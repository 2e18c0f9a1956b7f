"""Experts on GPUs: copies and placement against brute force, drift and loads against statistics."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster.experts import (
    Placement,
    copies_for,
    place,
    popularity,
    step_load,
    unplanned,
)
from g2c_serving.cluster.reassignment import place_near, reassigning

loads = st.lists(st.integers(1, 40), min_size=2, max_size=5)


@given(loads, st.integers(0, 4))
@settings(deadline=None)
def test_copies_leave_the_least_largest_load(load, copies):
    """Against every way to give the copies out."""
    best = min(
        max(w / n for w, n in zip(load, counts, strict=True))
        for counts in product(range(1, copies + 2), repeat=len(load))
        if sum(counts) == len(load) + copies
    )
    counts = copies_for(np.array(load), copies)
    assert counts.sum() == len(load) + copies and counts.min() >= 1
    assert (load / counts).max() == pytest.approx(best)


def best_of_two(a_copy: list[float]) -> float:
    """The smallest possible load of the busier of two GPUs with as many slots each."""
    half = -(-len(a_copy) // 2)
    items = range(len(a_copy))
    splits = [set(c) for size in {half, len(a_copy) - half} for c in combinations(items, size)]
    return min(
        max(sum(a_copy[i] for i in s), sum(a_copy[i] for i in items if i not in s)) for s in splits
    )


def test_placement_against_every_split_between_two_gpus():
    draw, gaps = np.random.default_rng(1), []
    for _ in range(150):
        load = draw.lognormal(0, 1, draw.integers(4, 9))
        copies = int(draw.integers(0, 3))
        placed = place(load, 2, copies)
        a_copy = np.repeat(load / placed.counts, placed.counts)
        gaps.append(placed.loads(load).max() / best_of_two(a_copy.tolist()))
    assert min(gaps) >= 1 - 1e-12 and max(gaps) < 1.12
    assert np.median(gaps) < 1.001 and np.mean(gaps) < 1.01


@given(st.lists(st.floats(0, 100), min_size=1, max_size=24), st.integers(1, 6), st.integers(0, 12))
@settings(deadline=None)
def test_every_copy_has_one_slot_and_no_load_is_lost(load, gpus, copies):
    placed = place(np.array(load), gpus, copies)
    held = placed.experts[placed.experts >= 0]
    assert np.bincount(held, minlength=len(load)).tolist() == placed.counts.tolist()
    assert placed.experts.shape == (gpus, -(-(len(load) + copies) // gpus))
    assert placed.loads(np.array(load)).sum() == pytest.approx(sum(load))


def test_a_worked_placement():
    """Loads 6, 3, 2, 1 on two GPUs: 6 + 1 against 3 + 2. A fifth copy halves the 6, and a sixth
    slot stays empty: 3, 3, 3, 2, 1 in threes is 6 against 6."""
    load = np.array([6, 3, 2, 1])
    assert sorted(place(load, 2).loads(load)) == [5, 7]
    assert place(load, 2).balance(load) == pytest.approx(7 / 6)
    placed = place(load, 2, copies=1)
    assert placed.counts.tolist() == [2, 1, 1, 1] and (placed.experts == -1).sum() == 1
    assert placed.loads(load).tolist() == [6, 6] and placed.balance(load) == 1


def test_two_copies_lie_apart():
    placed = place(np.array([8.0, 1, 1, 1, 1, 1]), 4, copies=2)
    for mine in placed.experts.tolist():
        assert mine.count(0) <= 1


def test_what_has_to_be_moved():
    before = Placement(np.array([[0, 1], [2, 3]]), np.ones(4, int))
    after = Placement(np.array([[1, 2], [3, -1]]), np.ones(4, int))
    assert after.moved_from(before) == 1  # expert 2, to the first GPU
    assert before.moved_from(before) == 0


def test_the_balance_of_a_placement_that_nobody_planned():
    assert unplanned(4, 2).balance(np.array([3, 2, 1, 2])) == pytest.approx(5 / 4)
    assert unplanned(4, 2).balance(np.array([[1, 1, 1, 1], [4, 4, 0, 0]])).tolist() == [1, 2]


def test_popularity_is_skewed_as_asked_and_drifts_as_asked():
    shares = popularity(4000, skew=0.7, intervals=3, drift=0.1, seed=3)
    assert shares.sum(1) == pytest.approx(1)
    logs = np.log(shares)
    assert logs.std(1) == pytest.approx(0.7, rel=0.05)
    assert np.corrcoef(logs[0], logs[1])[0, 1] == pytest.approx(0.9, abs=0.01)
    assert np.corrcoef(logs[0], logs[2])[0, 1] == pytest.approx(0.81, abs=0.02)
    assert np.ptp(popularity(8, 0.0)) == 0
    still = popularity(8, 1.0, intervals=4)
    assert (still == still[0]).all()


def test_chance_alone_unbalances_even_shares():
    """Against the largest of 64 normal draws, 2.344 standard deviations on average: each of 64 GPUs
    gets n / 64 choices, give or take the root of that."""
    placed, n = unplanned(256, 64), 140_000
    found = [placed.balance(step_load(np.full(256, 1 / 256), n, seed)) for seed in range(300)]
    assert np.mean(found) - 1 == pytest.approx(2.344 / np.sqrt(n / 64), rel=0.05)


def test_a_step_s_load_has_all_choices():
    assert step_load(np.array([0.5, 0.25, 0.25]), 1000).sum() == 1000


def test_reassigning_by_hand():
    """Two GPUs, four experts; interval 2 turns the popularities round."""
    load = np.array([[3, 3, 1, 1], [3, 3, 1, 1], [3, 1, 3, 1], [3, 1, 3, 1]], float)
    run = reassigning(load, gpus=2, copies=0, every=1)
    assert run.balances[0] == run.balances[1] == 1  # a 3 and a 1 each
    assert run.balances[3] == 1 and len(run.moved) == 3
    never = reassigning(load, gpus=2, copies=0, every=4)
    assert never.moved == [] and never.balances[2] == never.balances[3]


def test_the_more_seldom_the_worse():
    load = popularity(128, 0.8, 40, drift=0.02, seed=2)
    means = [reassigning(load, 32, 32, every).balances.mean() for every in (1, 4, 40)]
    assert means == sorted(means) and means[2] > means[0] + 0.2


def test_near_moves_only_what_it_must():
    """Loads 6, 3, 2, 1 as 6 + 1 and 3 + 2; now the 1 is a 3: 9 against 5, and one swap makes it 8
    against 6. Of two copies of the 6 one leaves when the 3 becomes a 9, and the 9 gets one where
    it has none."""
    before = Placement(np.array([[0, 3], [1, 2]]), np.ones(4, int))
    load = np.array([6.0, 3, 2, 3])
    still, swap = place_near(before, load, 0), place_near(before, load, 1)
    assert still.moved_from(before) == 0 and still.balance(load) == pytest.approx(9 / 7)
    assert swap.moved_from(before) == 2 and swap.balance(load) == pytest.approx(8 / 7)
    before = Placement(np.array([[0, 3, -1], [0, 1, 2]]), np.array([2, 1, 1, 1]))
    after = place_near(before, np.array([6.0, 9, 2, 1]), 0)
    assert after.counts.tolist() == [1, 2, 1, 1] and after.moved_from(before) == 1
    assert after.experts.tolist() == [[0, 3, 1], [-1, 1, 2]]


@given(st.integers(0, 30), st.integers(0, 12), st.integers(0, 6))
@settings(deadline=None, max_examples=40)
def test_near_keeps_every_copy_and_its_word(seed, copies, swaps):
    then, now = popularity(16, 1.0, 2, 0.3, seed)
    before = place(then, 4, copies)
    after = place_near(before, now, swaps)
    held = after.experts[after.experts >= 0]
    assert (np.bincount(held, minlength=16) == copies_for(now, copies)).all()
    assert after.experts.shape == before.experts.shape
    new_copies = np.maximum(after.counts - before.counts, 0).sum()
    assert after.moved_from(before) <= new_copies + 2 * swaps
    assert after.balance(now) <= place_near(before, now, 0).balance(now) + 1e-12


def test_a_few_swaps_do_nearly_as_much_as_placing_anew():
    loads = popularity(256, 0.8, 33, drift=0.01, seed=1)
    anew, near = reassigning(loads, 64, 64, 1), reassigning(loads, 64, 64, 1, swaps=16)
    assert near.balances[1:].mean() < anew.balances[1:].mean() + 0.04
    assert np.mean(near.moved) < np.mean(anew.moved) / 5


def test_what_is_refused():
    with pytest.raises(ValueError, match="load of shape"):
        place_near(unplanned(8, 2), np.ones(4), 1)
    with pytest.raises(ValueError, match="skew=-1"):
        popularity(8, -1)
    with pytest.raises(ValueError, match="drift=2"):
        popularity(8, 1, drift=2)
    with pytest.raises(ValueError, match="gpus=3 must divide experts=8"):
        unplanned(8, 3)
    for bad in ([-1.0, 2], [float("nan")], [], [[1.0]]):
        with pytest.raises(ValueError, match="load="):
            place(np.array(bad), 1)
    with pytest.raises(ValueError, match="copies=-1"):
        place(np.ones(4), 2, -1)
    with pytest.raises(ValueError, match="gpus=0"):
        place(np.ones(4), 0)
    with pytest.raises(ValueError, match="every=0"):
        reassigning(np.ones((2, 4)), 2, 0, 0)
