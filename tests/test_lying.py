"""The cost of a lying head: the toy by hand, the truth as its own best, and the panel."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.lab import load_model, lying, toy_budget
from g2c_serving.lab.calibration import LogOddsLine
from g2c_serving.lab.lying import cost_of_lying, lying_panel, step_ms

TOY = np.array(toy_budget.CONFIDENCES)


def test_a_head_that_tells_the_truth_costs_nothing():
    found = cost_of_lying(TOY, toy_budget.step_ms, LogOddsLine())
    assert found.loss == 0 and found.on_lies == found.on_truth == found.promised
    assert found.fixed == pytest.approx(5.314 / 16)


def test_the_toy_with_an_overconfident_head_by_hand():
    """A shift of log 9 tells 0.5 as 0.9 and 0.9 as 81/82. Told survivals: A .988, .976, .964, B .9,
    .81, .729. Eight rows promise 7.367 tokens in 16 ms (0.460), six 5.828 in 13 (0.448), so the
    planner verifies all eight, and gets 5.314 tokens in 16 ms instead of 4.939 in 13."""
    found = cost_of_lying(TOY, toy_budget.step_ms, LogOddsLine(1, np.log(9)))
    a = 81 / 82
    told = 2 + a + a**2 + a**3 + 0.9 + 0.81 + 0.729
    assert found.promised == pytest.approx(told / 16)
    assert found.told.rows == 8 and found.on_lies == pytest.approx(5.314 / 16)
    assert found.loss == pytest.approx(1 - (5.314 / 16) / (4.939 / 13))


def test_the_toy_with_an_underconfident_head_by_hand():
    """A shift of -log 9 tells 0.9 as 0.5 and 0.5 as 0.1. Four rows promise 2.75 tokens in 10 ms;
    further ones cost more than they promise. True: 3.71 tokens in 10 ms."""
    found = cost_of_lying(TOY, toy_budget.step_ms, LogOddsLine(1, -np.log(9)))
    assert found.told.rows == 4 and found.promised == pytest.approx(0.275)
    assert found.on_lies == pytest.approx(0.371)


def test_a_lie_can_change_who_gets_the_drafts():
    """Scale 0 tells 0.5 of every draft: the head orders by position only. First drafts first: A's
    and B's, 2.9 + 0.5 tokens in four rows."""
    found = cost_of_lying(TOY, toy_budget.step_ms, LogOddsLine(0, 0))
    assert found.told.ranking.draft.tolist() == [1, 1, 2, 2, 3, 3]
    assert found.rates[2] == pytest.approx(3.4 / 10)


@pytest.mark.parametrize("requests", load_model.LOADS)
def test_no_lie_beats_the_truth(requests):
    true = load_model.confidences()[:requests]
    for steepness in (0.0, 1.0, 4.0):
        curve = step_ms(steepness)
        for scale in (0.25, 1, 3):
            for shift in (-4, -1, 0, 1, 4):
                found = cost_of_lying(true, curve, LogOddsLine(scale, shift))
                assert found.loss >= -1e-12 and found.on_truth >= found.fixed - 1e-12


def test_where_rows_are_free_no_lie_costs_anything():
    true = load_model.confidences()[:60]
    for shift in (-4, 4):
        found = cost_of_lying(true, step_ms(0.0), LogOddsLine(1, shift))
        assert found.loss == pytest.approx(0) and found.told.rows == 360


def test_the_step_times_are_scaled_in_what_rows_add():
    assert (step_ms(1.0) == load_model.step_ms()).all() and np.ptp(step_ms(0.0)) == 0
    assert np.diff(step_ms(3.0)) == pytest.approx(3 * np.diff(load_model.step_ms()))


def test_every_control_moves_the_sentence_and_the_picture():
    each_control_moves(lying_panel)


def test_the_panel_tells_promise_from_gain():
    panel = lying_panel()
    now = cost_of_lying(load_model.confidences()[:60], step_ms(1.0), LogOddsLine(1, 2))
    assert f"promises {now.promised:.2f} tokens per ms and gives {now.on_lies:.2f}" in panel.text
    assert f"the lie costs {now.loss:.1%}" in panel.text and now.promised > now.on_lies
    panel.controls["shift"].value = 0
    assert "a calibrated head" in panel.text and "the lie costs 0.0%" in panel.text
    assert lying.SHIFTS[8] == 0
