"""The simulation of lifetimes, against a cache that is stepped through use by use."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from g2c_serving.lab import lifetimes, traffic
from g2c_serving.lab.reuse import (
    TOKEN_BYTES,
    Reuse,
    distances,
    greater_before,
    previous,
    weights_of,
)
from g2c_serving.lab.traffic import AGAIN, DAY, ONCE, SHARED, TASK, Habits, Uses
from g2c_serving.schedule.hit_rule import hit

SMALL = Habits(6, 3, (90, 1.0), 2, (DAY, 1.5), (120, 1.0), (350, 0.8), 2, 500)


@pytest.fixture(scope="module")
def small():
    """Some 1,500 uses of both classes."""
    chat = traffic.uses(SMALL, 0.5, (ONCE, AGAIN), 0, seed=3)
    agent = traffic.uses(SMALL, 0.1, (TASK, TASK), int(chat.thing.max()) + 1, seed=4)
    return traffic._merged(chat, agent)


# ---- the distances ----


def naive_hits(uses: Uses, weights: list[float], lifetime: list[float], capacity: float):
    """Least recently used, step by step: object -> (bytes, when it was used), oldest first."""
    store: OrderedDict[int, tuple[float, float]] = OrderedDict()
    for t, thing, kind, asked, size in zip(uses.time, uses.thing, uses.kind, uses.asked, uses.size,
                                           strict=True):  # fmt: skip
        _, used = store.pop(thing, (0, -np.inf))
        yield t - used <= lifetime[int(asked == TASK)]
        store[thing] = weights[kind] * size * TOKEN_BYTES, t
        while sum(size for size, _ in store.values()) > capacity:
            store.popitem(last=False)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("capacity", [0, 6e5, 2e6, 1e7, 1e12])
def test_vectors_and_a_stepped_cache_hit_the_same(small, share, capacity):
    found = Reuse(small)
    lifetime = [2 * DAY, 0.01 * DAY]
    weights = weights_of(share)
    limit = np.where(small.is_chat, lifetime[0], lifetime[1])
    ours = (found.age <= limit) & found.fits(share, capacity + 1e-6)
    want = np.array(list(naive_hits(small, list(weights), lifetime, capacity + 1e-6)))
    assert np.array_equal(ours, want)
    assert capacity in (0, 1e12) or 0 < ours.mean() < 0.9


@pytest.mark.parametrize("chat", [True, False])
def test_rates_are_the_counted_ones(small, chat):
    found, share, capacity = Reuse(small), 0.3, 2e6
    weights = weights_of(share)
    hits = np.array(list(naive_hits(small, list(weights), [3 * DAY] * 2, capacity)))
    rows = (small.time >= traffic.WARM_UP) & (small.is_chat == chat)
    w = weights[small.asked[rows]]
    want = (w * small.found[rows] * hits[rows]).sum() / (w * small.length[rows]).sum()
    (got,) = found.rates(chat, np.array([3 * DAY]), share, capacity)
    assert got == pytest.approx(want)


def test_distances_by_hand():
    """a b b c a: between the two uses of a lie b, as its second use left it, and c."""
    things, size = np.array([0, 1, 1, 2, 0]), np.array([10, 20, 25, 7, 11])
    before = previous(things)
    assert before.tolist() == [-1, -1, 1, -1, 0]
    found = distances(before, np.array([0, 1, 1, 3, 0]), size)
    assert found[4].tolist() == [0, 25, 0, 7] and found[2].tolist() == [0, 0, 0, 0]


def test_greater_before_against_counting():
    draw = np.random.default_rng(0)
    keys, weights = draw.permutation(37), draw.integers(0, 9, (37, 4)).astype(float)
    want = [weights[:i][keys[:i] > keys[i]].sum(axis=0) for i in range(37)]
    assert np.array_equal(greater_before(keys, weights), want)


# ---- the traffic ----


def test_running_sums_start_anew():
    assert traffic.within(np.array([1, 2, 3, 4, 5]), np.array([2, 3])).tolist() == [1, 3, 3, 7, 12]


def test_reusable_is_the_hit_rule():
    cached, length = np.array([0, 500, 9_990, 9_990]), np.array([100, 700, 10_000, 20_000])
    want = [hit(n, 128, 128, 6, cached=c).reused for c, n in zip(cached, length, strict=True)]
    assert traffic.reusable(cached, length).tolist() == want and want[2] == 9856


def test_a_request_uses_its_history_and_its_preamble(small):
    own, shared = small.rows(small.kind != SHARED), small.rows(small.kind == SHARED)
    assert len(own.time) == len(shared.time)
    assert np.all(np.diff(small.time) >= 0)
    first = own.rows(previous(own.thing) < 0)
    assert np.all(first.found == 0)  # nothing of a new conversation is cached
    assert np.all(own.found + 500 // 128 * 128 <= own.length - 134 + 1e9 * (own.found == 0))
    one = own.rows(own.thing == own.thing[-1])
    assert np.all(np.diff(one.size) > 0) and np.all(one.size[:-1] < one.length[1:])


def test_the_trace_has_three_measured_weeks_after_a_warm_up_of_the_longest_lifetime():
    assert traffic.MEASURED >= 21 * DAY and traffic.WARM_UP >= lifetimes.DAYS[-1] * DAY


# ---- what comes out ----


def test_a_longer_lifetime_and_a_larger_store_never_hit_less():
    found = lifetimes.reuse()
    for chat in (True, False):
        assert np.all(np.diff(found.rates(chat, lifetimes.AXIS * DAY, 0.3)) >= 0)
        rates = [found.rates(chat, np.array([7 * DAY]), 0.3, 1e9 * c)[0]
                 for c in lifetimes.CAPACITIES]  # fmt: skip
        assert rates == sorted(rates)
    assert found.held(True, 3 * DAY, 0.3) < found.held(True, 7 * DAY, 0.3)


def test_what_the_brief_reports_is_within_reach_and_moves_with_the_assumption():
    """3 days cost chats 0.5 to 1 % (Reported); nobody who comes back, nothing to lose."""
    found = lifetimes.reuse()
    costs = [lifetimes.three_or_seven(found, share / 100) for share in (0, 15, 30, 45, 60)]
    assert costs[0] == 0 and costs == sorted(costs) and 0.2 < costs[2] < 2


def test_the_two_classes_are_what_the_brief_says_of_them():
    found = lifetimes.reuse()
    hour, three, seven = (found.rates(False, np.array([d * DAY]), 0.3)[0] for d in (1 / 24, 3, 7))
    assert hour > 0.98 * three and seven - three < 0.001  # a burst, and then never again
    assert reread(found, 0.01) > 0.15  # a small part of the chats' cache is reread very often


def reread(found, most: float) -> float:
    """Share of the chats' reused tokens that the most reread `most` of their bytes give."""
    uses = found.by_age[True].uses
    things, group = np.unique(uses.thing, return_inverse=True)
    used, size = np.bincount(group, uses.found), np.zeros(len(things))
    np.maximum.at(size, group, uses.size)
    order = np.argsort(-used / size)
    return used[order][np.cumsum(size[order]) <= most * size.sum()].sum() / used.sum()


def test_the_panel_says_the_cost_and_is_quick():
    panel = lifetimes.panel()
    assert "Lifetimes of 7 days for chats and 3 for agents" in panel.text
    panel.controls["chat"].value = 0.01
    assert panel.error is None and "Lifetimes of 0.01 days" in panel.text


@pytest.mark.parametrize("capacity", [0.5, 100])
def test_what_a_lifetime_holds_is_said_of_a_store_without_a_limit(capacity):
    """Right value: `held` counts without a capacity, and more than 0.5 GB does not fit into it."""
    panel = lifetimes.panel()
    panel.controls["capacity"].value = capacity
    days = [lifetimes.reuse().held(True, n * DAY, 0.2) / 1e9 for n in (3, 7)]
    assert days[0] > 0.5
    want = f"Without a limit, 3 days of chats would hold {days[0]:.1f} GB, 7 days {days[1]:.1f}."
    assert panel.text.endswith(want)


def test_tables():
    assert "the slider" in repr(traffic.assumptions())
    assert repr(lifetimes.sensitivity((1,), (15, 30))).count("within 1 day ") == 1
