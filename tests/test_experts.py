"""Experts on GPUs: copies and placement against brute force, drift and loads against statistics."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.cluster.experts import (
    Placement,
    apart,
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


def lowest(a_copy: list[float], counts: list[int], gpus: int) -> float:
    """The smallest possible load of the busiest GPU, over every way to give each expert's copies to
    different GPUs with as many slots each."""
    slots = -(-sum(counts) // gpus)

    def rest(expert: int, loads: tuple[float, ...], used: tuple[int, ...]) -> float:
        if max(used) > slots:
            return np.inf
        if expert == len(counts):
            return max(loads)
        ways = combinations(range(gpus), counts[expert])
        return min(rest(expert + 1, *added(loads, used, way, a_copy[expert])) for way in ways)

    return rest(0, (0.0,) * gpus, (0,) * gpus)


def added(loads, used, way, weight):
    pairs = [(load + weight * (g in way), n + (g in way)) for g, (load, n) in
             enumerate(zip(loads, used, strict=True))]  # fmt: skip
    return tuple(load for load, _ in pairs), tuple(n for _, n in pairs)


def doubled(placed: Placement) -> int:
    """How many slots hold what another slot of the same GPU holds."""
    held = [[e for e in mine if e >= 0] for mine in placed.experts.tolist()]
    return sum(len(mine) - len(set(mine)) for mine in held)


@pytest.mark.parametrize("gpus", [2, 3])
def test_placement_against_every_other(gpus):
    draw, gaps = np.random.default_rng(1), []
    for _ in range(120):
        load = draw.lognormal(0, 1, draw.integers(gpus, 7))
        placed = place(load, gpus, int(draw.integers(0, min(4, len(load) * (gpus - 1)))))
        a_copy, counts = (load / placed.counts).tolist(), placed.counts.tolist()
        assert doubled(placed) == 0
        gaps.append(placed.loads(load).max() / lowest(a_copy, counts, gpus))
    assert min(gaps) >= 1 - 1e-12 and max(gaps) < 1.25
    assert np.median(gaps) < 1.001 and np.mean(gaps) < 1.02


@given(st.lists(st.floats(0, 100), min_size=1, max_size=24), st.integers(1, 6), st.integers(0, 12))
@settings(deadline=None)
def test_every_copy_has_one_slot_and_no_load_is_lost(load, gpus, copies):
    copies = min(copies, len(load) * (gpus - 1))
    placed = place(np.array(load), gpus, copies)
    held = placed.experts[placed.experts >= 0]
    assert doubled(placed) == 0
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


def test_copies_lie_apart_where_the_greedy_rule_and_the_swaps_would_join_them():
    """Loads 5 and 1 on two GPUs with a copy of each: the heavy one's halves, then both light ones
    have only one place each. And 128 copies for eight GPUs: the heaviest has one on each."""
    placed = place(np.array([5.0, 1]), 2, copies=2)
    assert sorted(map(sorted, placed.experts.tolist())) == [[0, 1], [0, 1]]
    assert doubled(place(np.array([8.0, 1, 1, 1, 1, 1]), 4, copies=2)) == 0
    many = place(popularity(64, 1.4)[0], 8, copies=128)
    assert many.counts.max() == 8 and doubled(many) == 0


def test_what_lies_together_is_put_apart():
    """Expert 0 twice on the first GPU, loads 3 + 3 + 3 against 1 + 2 + 0.1. Swapped with the 0.1 it
    makes 6.1 against 6, with the others 7 against 5.1 or 8 against 4.1."""
    held = apart(np.array([[0, 0, 3], [1, 2, 4]]), np.array([3, 1, 2, 3, 0.1, 0]))
    assert held.tolist() == [[0, 4, 3], [1, 2, 0]]
    only = np.array([[0, 0, 1, 2], [1, 1, 2, 2], [0, 3, 4, 5]])  # one GPU may take a 0; all of its
    held = apart(only, np.ones(7))  # experts are here too, but it has them twice
    assert doubled(Placement(held, np.ones(6))) == 0
    with pytest.raises(AssertionError, match="expert 0 has more copies than there are GPUs"):
        apart(np.array([[0, 0], [0, 1]]), np.ones(3))


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 5))
@settings(deadline=None)
def test_whatever_lies_together_can_be_put_apart(seed, gpus, slots):
    """Any arrangement of experts with `gpus` copies each at most."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, gpus + 1, 2 * slots)
    copies = np.repeat(np.arange(len(counts)), counts)[: gpus * slots]
    all_slots = np.append(copies, np.full(gpus * slots - len(copies), -1))
    held = draw.permutation(all_slots).reshape(gpus, slots)
    after = apart(held, np.append(draw.random(len(counts)), 0))
    assert doubled(Placement(after, counts)) == 0
    assert sorted(after.ravel().tolist()) == sorted(held.ravel().tolist())


def test_what_has_to_be_moved():
    before = Placement(np.array([[0, 1], [2, 3]]), np.ones(4, int))
    after = Placement(np.array([[1, 2], [3, -1]]), np.ones(4, int))
    assert after.moved_from(before) == 1  # expert 2, to the first GPU
    assert before.moved_from(before) == 0


def test_the_balance_of_a_placement_that_nobody_planned():
    assert unplanned(4, 2).balance(np.array([3, 2, 1, 2])) == pytest.approx(5 / 4)
    assert unplanned(4, 2).balance(np.array([[1, 1, 1, 1], [4, 4, 0, 0]])).tolist() == [1, 2]


def test_where_there_is_no_load_nobody_waits():
    assert unplanned(4, 2).balance(np.zeros(4)) == 1
    assert unplanned(4, 2).balance(np.array([[0, 0, 0, 0], [4, 4, 0, 0]])).tolist() == [1, 2]
    assert place(np.zeros(4), 2, 1).balance(np.zeros(4)) == 1


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


def test_what_was_recent():
    """By the last interval the two 1s lie together, and then carry 5 and 3 of 10."""
    load = np.array([[9.0, 5, 0, 0], [1, 1, 4, 0], [5, 3, 2, 0]])
    (one,) = reassigning(load, 2, 0, every=2).balances[2:]
    assert one == pytest.approx(8 / 5)


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
    assert (np.bincount(held, minlength=16) == copies_for(now, copies, most=4)).all()
    assert after.experts.shape == before.experts.shape and doubled(after) == 0
    new_copies = np.maximum(after.counts - before.counts, 0).sum()
    most = 3 * new_copies + 2 * swaps  # a copy without a place of its own takes a swap
    assert after.moved_from(before) <= most
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
    with pytest.raises(ValueError, match="copies=5 is more than 4 experts can use, each on 2"):
        place(np.ones(4), 2, 5)
    with pytest.raises(ValueError, match="gpus=0"):
        place(np.ones(4), 0)
    with pytest.raises(ValueError, match="every=0"):
        reassigning(np.ones((2, 4)), 2, 0, 0)
