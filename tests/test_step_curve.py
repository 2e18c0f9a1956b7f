"""The step-time curve: between its points, beyond them, and corrected by measured steps."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import random_lm

from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.model import Transformer
from g2c_serving.sample.verify_budget import plan
from g2c_serving.schedule.step_curve import StepCurve, profile


def known() -> StepCurve:
    return StepCurve([1, 4, 8], [10.0, 13.0, 21.0])


# ---- the profile ----


def test_linear_between_the_points_and_beyond_the_last():
    curve = known()
    assert [curve(rows) for rows in (1, 2, 4, 6, 8, 10)] == pytest.approx([10, 11, 13, 17, 21, 25])
    assert curve.up_to(10)[1:] == pytest.approx([curve(rows) for rows in range(1, 11)])
    assert curve.up_to(10).shape == (11,)


def test_one_point_is_a_flat_curve():
    assert StepCurve([4], [7.0]).up_to(9).tolist() == [7.0] * 10


def test_points_that_fall_take_their_mean():
    curve = StepCurve([1, 2, 4, 8], [10.0, 16.0, 14.0, 20.0])
    assert [curve(rows) for rows in (1, 2, 3, 4, 8)] == pytest.approx([10, 15, 15, 15, 20])


def test_the_nearest_rising_curve_by_its_other_formula():
    """Isotonic regression is also, at each point, the largest over all starts before it of the
    smallest over all ends after it of the mean between (Robertson and others, 1988)."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = np.sort(rng.choice(np.arange(1, 99), rng.integers(1, 12), replace=False))
        ms, last = 1 + 9 * rng.random(len(rows)), len(rows)
        curve = StepCurve(rows, ms)
        for k in range(last):
            means = [[ms[i:j].mean() for j in range(k + 1, last + 1)] for i in range(k + 1)]
            assert curve(rows[k]) == pytest.approx(max(map(min, means)))


def test_the_planner_takes_it_either_way():
    confidences, curve = [[0.9, 0.8], [0.5]], known()
    by_function, by_array = plan(confidences, curve), plan(confidences, curve.up_to(5))
    assert by_function.table == by_array.table


# ---- corrected by measured steps ----


def test_measured_steps_move_the_curve_where_they_were():
    curve = StepCurve([1, 64], [10.0, 73.0])  # 9 + rows
    for _ in range(3):
        curve.record(4, 19.5)  # half as much again as in the profile
        curve.record(16, 25.0)  # as profiled
    assert curve(4) == pytest.approx(19.5) and curve(16) == pytest.approx(25)
    assert curve(1) == pytest.approx(15)  # scaled as at the nearest measured rows
    assert curve(64) == pytest.approx(73) and curve(65) > curve(64)
    assert (np.diff(curve.up_to(200)) >= 0).all()


def test_a_hiccup_changes_nothing():
    curve = known()
    before = curve.up_to(20)
    curve.record(4, 900.0)
    curve.record(4, 900.0)
    assert (curve.up_to(20) == before).all()
    for _ in range(5):
        curve.record(4, 13.0)
    assert curve.up_to(20) == pytest.approx(before)  # the median of 2 hiccups and 5 others


def test_the_last_32_decide():
    curve = known()
    for _ in range(100):
        curve.record(8, 42.0)
    assert curve(8) == pytest.approx(42)
    for _ in range(17):
        curve.record(8, 21.0)
    assert curve(8) == pytest.approx(21)


def test_neighbours_share_a_bucket_and_far_rows_do_not():
    curve = StepCurve([1, 256], [10.0, 10.0])
    for rows in (99, 100, 101):
        curve.record(rows, 20.0)
    assert curve(100) == pytest.approx(20)
    for rows in (25, 25, 25):
        curve.record(rows, 10.0)
    assert curve(25) == pytest.approx(10) and curve(100) == pytest.approx(20, rel=0.05)
    assert 10 < curve(50) < 20


def test_a_machine_half_as_fast_everywhere():
    """The truth is twice the profile, with noise of 20 %: rows that were never measured too."""
    rng, curve = np.random.default_rng(1), StepCurve([1, 2, 64, 128], [8.0, 8.0, 16.0, 24.0])
    truth = 2 * curve.up_to(300)
    for rows in rng.integers(1, 100, 2000).tolist():
        curve.record(rows, truth[rows] * (1 + 0.2 * rng.standard_normal()) + 1e-3)
    assert curve.up_to(300)[1:] == pytest.approx(truth[1:], rel=0.12)


# ---- profiled ----


@pytest.mark.parametrize("max_rows, sizes", [(1, [1]), (8, [1, 2, 4, 8]), (11, [1, 2, 4, 8, 11])])
def test_profile_runs_real_passes(max_rows, sizes):
    lm = random_lm()
    model = Transformer(lm.config, lm.weights)
    curve = profile(model, 16, max_rows)
    assert curve.rows.tolist() == sizes and (curve.ms > 0).all()
    assert (np.diff(curve.up_to(2 * max_rows)) >= 0).all()


def test_profile_of_windows_invariant_numerics_and_a_short_context():
    lm = random_lm(context=24, window=8, window_layers=(0,))
    model = Transformer(lm.config, lm.weights).with_numerics(BatchInvariant())
    assert profile(model, 5, 3, context=1000, repeats=1).rows.tolist() == [1, 2, 3]


# ---- what is no curve ----


@pytest.mark.parametrize(
    "rows, ms, words",
    [
        ([], [], "at least one; step_curve.profile"),
        ([1, 2], [1.0], "one time for each"),
        ([2, 1], [1.0, 2.0], "must rise"),
        ([1, 1], [1.0, 2.0], "none twice"),
        ([0], [1.0], "rows=0 must be an integer, from 1"),
        ([1.5], [1.0], "rows=1.5"),
        ([1], [0.0], "ms=0.0 must be positive"),
        ([1], [float("nan")], "ms=nan"),
    ],
)
def test_points_that_are_none(rows, ms, words):
    with pytest.raises(ValueError, match=words):
        StepCurve(rows, ms)


def test_measurements_and_questions_that_are_none():
    for ask in (lambda c: c.record(0, 1.0), lambda c: c(0), lambda c: c.up_to(0)):
        with pytest.raises(ValueError, match="rows=0"):
            ask(known())
    with pytest.raises(ValueError, match="ms=-1"):
        known().record(4, -1.0)
