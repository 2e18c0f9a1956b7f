"""Budgeted verification, counted out in fractions: which rules keep the target's distribution."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from g2c_serving.lab import exact_budget as exact
from g2c_serving.lab.budget_draws import draw
from g2c_serving.lab.exact_words import KEYS, example, two_steps

EVEN, SKEWED = exact.chances(5, 5), exact.chances(9, 1)


def one_draft() -> list[exact.TinyRequest]:
    return [exact.request(lambda tokens: SKEWED, lambda tokens: EVEN, drafts=1)]


def random_request(rng: np.random.Generator, vocab_size: int, drafts: int) -> exact.TinyRequest:
    """Any target, drafter and confidences, right or wrong; some chances are zero."""

    @cache
    def some(what: str, tokens: exact.Tokens) -> exact.Chances:
        shares = rng.integers(0, 7, vocab_size)
        shares[rng.integers(vocab_size)] += 1
        return exact.chances(*shares.tolist())

    @cache
    def sure(tokens: exact.Tokens) -> Fraction:
        return Fraction(int(rng.integers(0, 9)), 8)

    return exact.request(lambda t: some("p", t), lambda t: some("q", t), drafts, sure)


def random_worlds(count: int, seed: int):
    """Two requests of one or two drafts, two or three tokens; any confidences."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        vocab_size = int(rng.integers(2, 4))
        yield (
            rng,
            [random_request(rng, vocab_size, int(n)) for n in rng.integers(1, 3, size=2)],
        )


# ---- one draft, by hand ----


def test_accept_and_replace_by_hand():
    """q = (1/2, 1/2), p = (9/10, 1/10): token 0 always stands, token 1 in one case of five, and
    what replaces it is token 0, the only one that p has more of."""
    assert [exact.accept_chance(SKEWED, EVEN, t) for t in (0, 1)] == [1, Fraction(1, 5)]
    assert exact.overlap(SKEWED, EVEN) == Fraction(6, 10)
    assert exact.residual(SKEWED, EVEN) == (1, 0)


@pytest.mark.parametrize("p", [(9, 1, 0), (1, 1, 1), (0, 0, 7), (2, 5, 3)])
@pytest.mark.parametrize("q", [(1, 1, 1), (9, 0, 1), (0, 1, 0), (2, 5, 3)])
def test_a_verified_draft_leaves_the_target_s_distribution(p, q):
    p, q = exact.chances(*p), exact.chances(*q)
    tiny = [exact.request(lambda tokens: p, lambda tokens: q, drafts=1)]
    assert exact.joint(tiny, exact.fixed(tiny, 1)) == exact.wanted(tiny)
    assert exact.wanted(tiny)[((0,),)] == p[0]


def test_a_draft_that_decides_whether_it_is_verified():
    """The counterexample: .5 * 1 + .5 * .9 = .95, not .9."""
    tiny = one_draft()
    found = exact.joint(tiny, lambda drafts: [int(drafts[0][0] == 0)])
    assert exact.first_token(found, 0, 0) == Fraction(95, 100)
    assert exact.distance(found, exact.wanted(tiny)) == Fraction(5, 100)


def test_confidences_see_the_tokens_before_their_draft_only():
    (a, b), _ = exact.on_stairs()
    assert a.confidences((1, 1)) == [0.9, 0.9]
    assert [b.confidences((0, t)) for t in (0, 1)] == [[0.6, 0.9]] * 2
    assert [b.confidences((1, t)) for t in (0, 1)] == [[0.6, 0.1]] * 2


# ---- the planner itself ----


def test_plan_on_fresh_confidences_is_off_with_a_head_that_is_exactly_right():
    """B's first draft gets a row if it is token 0: .95 again, by the Brief's own step times."""
    world, step_time = exact.on_stairs()
    rule = exact.fresh(world, step_time)
    assert [rule(((0, 0), (first, 0))) for first in (0, 1)] == [[2, 2], [2, 0]]
    found = exact.joint(world, rule)
    assert sum(found.values()) == 1
    assert exact.distance(found, exact.wanted(world)) == Fraction(1, 20)
    assert exact.first_token(found, 1, 0) == Fraction(19, 20)
    assert exact.first_token(found, 0, 0) == Fraction(6, 10)  # A's are as they should be


@pytest.mark.parametrize("total", range(5))
def test_a_settled_total_is_exact_there(total):
    world, step_time = exact.on_stairs()
    assert exact.joint(world, exact.stale(world, total)) == exact.wanted(world)
    assert exact.joint(world, exact.first_peak(world, step_time)) == exact.wanted(world)


def test_a_settled_total_is_exact_in_every_random_world():
    for rng, world in random_worlds(300, seed=1):
        total = int(rng.integers(0, 5))
        wanted = exact.wanted(world)
        assert exact.joint(world, exact.stale(world, total)) == wanted
        assert exact.joint(world, exact.fixed(world, 1)) == wanted


def test_a_split_depends_on_the_drafts_and_is_exact_all_the_same():
    """How many drafts a request gets does change with what was drawn, its own tokens included."""
    changing = 0
    for _, world in random_worlds(60, seed=2):
        rule = exact.stale(world, 2)
        drafts = exact.wanted(world)
        changing += len({tuple(rule(each)) for each in drafts}) > 1
    assert changing > 10


def test_plan_is_exact_in_every_random_world_where_rows_never_get_cheaper():
    for rng, world in random_worlds(200, seed=3):
        step_ms = 3 + np.cumsum(np.cumsum(rng.random(7)))
        assert exact.joint(world, exact.fresh(world, step_ms)) == exact.wanted(world)


def test_on_a_stair_plan_is_often_off_and_the_first_peak_never():
    off = 0
    for rng, world in random_worlds(200, seed=4):
        stair = [1.0] * 3 + [1 + 1.3 * rng.random()] * 4
        wanted = exact.wanted(world)
        off += exact.joint(world, exact.fresh(world, stair)) != wanted
        assert exact.joint(world, exact.first_peak(world, stair)) == wanted
    assert off > 5


# ---- drafts that are drawn with old words ----


def test_words_keyed_by_the_position_alone_make_a_stale_total_inexact():
    """.4 * .95 + .6 * .9: the first draft is rejected in .4, and then the second one's word is back
    and decides with the total whether it is verified."""
    found = two_steps(*example(), key="position")
    second = sum(chance for (tokens,), chance in found.items() if tokens[1] == 0)
    assert second == Fraction(92, 100) and sum(found.values()) == 1
    assert exact.distance(found, exact.wanted([example()[0]])) == Fraction(1, 50)


def test_words_keyed_by_position_and_draft_are_exact():
    assert two_steps(*example(), key=KEYS[1]) == exact.wanted([example()[0]])


def test_words_keyed_by_position_and_draft_are_exact_in_random_worlds():
    rng = np.random.default_rng(5)
    for _ in range(30):
        wild = random_request(rng, 2, drafts=6)
        tiny = exact.request(wild.target.__getitem__, lambda t: EVEN, 6, wild.confidence.get)
        totals = rng.integers(0, 3, size=100)
        first = int(rng.integers(0, 3))

        def total(confidences, totals=totals):
            return int(totals[int(8 * confidences[0] + 64 * confidences[1]) % 100])

        assert two_steps(tiny, 2, first, total, KEYS[1]) == exact.wanted([tiny])


def test_two_steps_say_what_they_cannot_count():
    tiny, num_drafts, first, total = example()
    with pytest.raises(ValueError, match="key='request' must be one of"):
        two_steps(tiny, num_drafts, first, total, key="request")
    with pytest.raises(ValueError, match="tables of 8 tokens are too short; make them for 12"):
        two_steps(tiny, 5, 5, total, key=KEYS[0])
    uneven = exact.request(lambda t: EVEN, lambda t: SKEWED, drafts=8)
    with pytest.raises(ValueError, match="equally likely"):
        two_steps(uneven, num_drafts, first, total, key=KEYS[0])


# ---- by drawing ----


def test_chi_square_over_200_000_steps():
    world, step_time = exact.on_stairs()
    assert draw(world, exact.fresh(world, step_time)).deviations > 30
    for rule in (exact.stale(world, 3), exact.fixed(world, 2), exact.first_peak(world, step_time)):
        test = draw(world, rule)
        assert test.counts.sum() == 200_000 and test.freedom == 15
        assert test.deviations < 4.75


def test_what_is_drawn_agrees_with_what_is_counted_even_where_both_are_off():
    world, step_time = exact.on_stairs()
    rule = exact.fresh(world, step_time)
    counts = draw(world, rule, seed=1).counts
    expected = 200_000 * np.array(list(exact.joint(world, rule).values()), dtype=float)
    assert ((counts - expected) ** 2 / expected).sum() < 60  # of 15 degrees of freedom


def test_drawing_random_worlds_with_impossible_tokens():
    for rng, world in random_worlds(10, seed=6):
        rule = exact.stale(world, int(rng.integers(0, 4)))
        found = draw(world, rule, steps=20_000, seed=int(rng.integers(99)))
        if found.freedom:
            assert found.deviations < 4.75
