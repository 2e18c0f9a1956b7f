"""The small facts of notebook 03: each is so, and the engine's way does not have the fault."""

from fractions import Fraction

import numpy as np
import pytest

from g2c_serving.lab import sampling_pitfalls as pitfalls


@pytest.mark.parametrize("seed", range(5))
def test_two_orders_of_adding_floats_give_two_tokens(seed):
    """Both sums are within float32's rounding of the exact one, and yet the tokens differ."""
    probs = pitfalls.probabilities(seed=seed)
    part = pitfalls.order_changes_token(probs)
    assert part.in_a_row != part.in_blocks
    exact = np.cumsum([Fraction(p) for p in probs.tolist()])
    for sums in (probs.cumsum(dtype=np.float32), pitfalls.sum_in_blocks(probs)):
        assert abs(sums - exact.astype(float)).max() < 1e-5
    assert abs(float(exact[part.in_a_row]) - part.target) < 1e-2


@pytest.mark.parametrize("seed", range(5))
def test_whole_numbers_do_not_care_for_the_order(seed):
    whole = pitfalls.whole_numbers(pitfalls.probabilities(seed=seed))
    assert pitfalls.order_changes_token(whole) is None
    assert pitfalls.sum_in_blocks(whole)[-1] == sum(whole.tolist())


def test_the_courses_top_p_keeps_one_token_more_where_the_sum_is_just_p():
    """Four quarters: exact in floats too, so this is the rule and not a rounding."""
    for top_p, ours in ((0.25, 1), (0.5, 2), (0.75, 3)):
        assert pitfalls.our_top_p(top_p=top_p) == list(range(ours))
        assert pitfalls.course_top_p(top_p=top_p) == list(range(ours + 1))
    for top_p in (0.2, 0.3, 0.6, 0.8, 1.0):  # elsewhere they agree
        assert pitfalls.course_top_p(top_p=top_p) == pitfalls.our_top_p(top_p=top_p)


def test_the_bare_clamp_lets_a_near_tie_through():
    """9 and the float32 after it, 2^-20 more: at 1e-5 the odds are exp(0.0954), 52 to 48."""
    counts = pitfalls.near_tie(10_000)
    share = 1 / (1 + np.exp(-(2.0**-20) / 1e-5))
    assert counts["clamp alone"][1] == pytest.approx(10_000 * share, abs=4 * 50)
    assert counts["temperature 0"].tolist() == [0, 10_000]
