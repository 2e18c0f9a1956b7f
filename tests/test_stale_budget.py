"""Stale budgets: one step by hand, many steps through the engine's planner, the model of drift."""

from __future__ import annotations

import math

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.lab import load_model, toy_budget
from g2c_serving.lab.load_model import POOL, step_ms
from g2c_serving.lab.stale_budget import (
    LOADS,
    confidences,
    expected_tokens,
    kept,
    one_step,
    outcome,
)
from g2c_serving.lab.stale_panel import stale_panel
from g2c_serving.sample.verify_budget import plan

TOY = np.array([np.nan, *(toy_budget.step_ms(k) for k in range(1, 9))])


def test_one_step_of_the_toy_by_hand():
    """By the old confidences A is sure and B is not: the Brief's plan, 6 rows, 3 and 1 drafts. Now
    they have changed places. Split afresh A gets 1 and B 3: 2 + .5 + .9 + .81 + .729; split as of
    old A gets 3 and B 1: 2 + .5 + .25 + .125 + .9."""
    old = np.array(toy_budget.CONFIDENCES)
    found = one_step(old, old[::-1], TOY)
    assert (found.total, found.ms) == (4, 13)
    assert found.fresh_split == pytest.approx(4.939)
    assert found.old_split == pytest.approx(3.775)


def test_a_total_that_no_longer_fits_by_hand():
    """Both were unsure: 0.5 pays for 2 drafts in 10 ms (0.3 per ms), not for more. Now both are
    sure of all: the old total brings 2 + .9 + .9 in 10 ms; fresh planning takes all 8 rows,
    2 + 2 * 2.439 in 16 ms."""
    old, fresh = np.full((2, 3), 0.5), np.full((2, 3), 0.9)
    found = one_step(old, fresh, TOY)
    assert (found.total, found.ms, found.fresh_split) == (2, 10, pytest.approx(3.8))
    now = one_step(fresh, fresh, TOY)
    assert (now.total, now.ms, now.fresh_split) == (6, 16, pytest.approx(6.878))
    assert now.fresh_split == now.old_split


def test_expected_tokens():
    sure = np.array([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]])
    assert expected_tokens([0, 0], sure) == 2
    assert expected_tokens([3, 1], sure) == pytest.approx(2 + 0.9 + 0.81 + 0.729 + 0.5)


@pytest.mark.parametrize("requests", [16, 60, 96])
def test_many_steps_are_as_the_planner_has_them(requests):
    """Step by step through plan() and split(), which the fast way knows nothing of."""
    keeps = kept(4, 2)
    now, old = confidences().reshape(-1, requests, 5), confidences(keeps).reshape(-1, requests, 5)
    sums = np.zeros(4)  # tokens and ms by old totals; by fresh ones
    naive = 0.0
    for fresh, former in zip(now, old, strict=True):
        stale, best = one_step(former, fresh, step_ms()), plan(fresh, step_ms())
        sums += (stale.fresh_split, stale.ms, best.expected_tokens, step_ms()[best.rows])
        naive += stale.old_split
    found = outcome(requests, 2, 4)
    assert found.fresh_split == pytest.approx(sums[0] / sums[1])
    assert found.old_split == pytest.approx(naive / sums[1])
    assert found.fresh == pytest.approx(sums[2] / sums[3])


def test_the_confidences_are_fitted_to_the_two_reported_lengths():
    for keeps in (1.0, 0.5, 0.0):
        survival = confidences(keeps).cumprod(axis=1)
        assert survival.sum(axis=1).mean() == pytest.approx(3.30, abs=0.02)
        best = np.sort(survival.ravel())[::-1][: round(3.58 * POOL)]
        assert best.sum() / POOL == pytest.approx(3.21, abs=0.02)


def test_the_drift_is_the_stated_walk():
    """Log odds keep their mean and spread, and exp(-lag / T) of themselves."""
    now = np.log(confidences()) - np.log1p(-confidences())
    assert now.mean() == pytest.approx(7.96, abs=0.01)
    assert now.std() == pytest.approx(7.0, abs=0.01)
    for lag, correlation in ((1, 4), (2, 4), (4, 4), (8, 1)):
        old = np.clip(confidences(kept(correlation, lag)), None, 1 - 1e-16)
        old = np.log(old) - np.log1p(-old)
        z = (now - 7.96) / 7, (old - 7.96) / 7
        seen = np.clip(z, -3, 3)  # near 1 a float has no log odds left
        correlated = np.corrcoef(seen[0].ravel(), seen[1].ravel())[0, 1]
        assert correlated == pytest.approx(math.exp(-lag / correlation), abs=0.02)
    assert kept(4, 1) ** 4 == pytest.approx(kept(4, 4)) == pytest.approx(math.exp(-1))


def test_confidences_of_this_step_lose_nothing():
    for requests in LOADS:
        found = outcome(requests, 0, 4)
        assert found.fresh == pytest.approx(found.fresh_split) == pytest.approx(found.old_split)
        assert found.loss == pytest.approx(0) == found.naive_loss


def test_fresh_planning_is_the_load_model_s():
    """Another distribution with the same two lengths: nearly the same gains and fixed rates."""
    for requests in load_model.LOADS:
        there, here = load_model.compare(requests), outcome(requests, 1, 4)
        assert here.gain(here.fresh) == pytest.approx(there.gain, abs=0.5)
        assert 1000 * here.fixed == pytest.approx(there.fixed, rel=0.002)


def test_what_staleness_costs():
    """A fresh split recovers most of it, at every load and age; the older the worse; and an old
    total costs least where many requests average out."""
    for requests in LOADS:
        rates = [outcome(requests, lag, 4) for lag in range(9)]
        for found in rates[1:]:
            assert found.old_split < found.fresh_split < found.fresh
            assert found.loss < 0.55 * found.naive_loss
        assert [r.naive_loss for r in rates] == sorted(r.naive_loss for r in rates)
        assert rates[1].loss < rates[8].loss
    losses = [outcome(requests, 1, 4).loss for requests in LOADS]
    assert losses[0] > 1 > 0.5 > losses[-1] and losses[0] == max(losses)


def test_a_split_by_confidences_that_say_nothing_is_blind():
    """Nothing kept: whichever draft i is chosen is worth the mean confidence to the power i."""
    old = confidences(0.0).cumprod(axis=1).reshape(-1, 96 * 5)
    found = outcome(96, 10**6, 1)
    totals = [plan(c, step_ms()).rows - 96 for c in confidences(0.0).reshape(-1, 96, 5)]
    order = np.argsort(-old, axis=1, kind="stable")
    chosen = np.concatenate([o[:k] % 5 for o, k in zip(order, totals, strict=True)])
    tokens = POOL + (confidences().mean() ** (chosen + 1.0)).sum()
    ms = sum(step_ms()[96 + k] for k in totals)
    assert found.old_split == pytest.approx(tokens / ms, rel=0.01)


def test_bad_input():
    with pytest.raises(ValueError, match="requests 7: give a divisor of 4800 up to 96"):
        outcome(7, 1, 4)
    with pytest.raises(ValueError, match="lag=-1 must be an integer, 0 or more"):
        outcome(60, -1, 4)
    for wrong in (0, -2.0):
        with pytest.raises(ValueError, match=f"correlation={wrong} must be more than 0 steps"):
            outcome(60, 1, wrong)


def test_the_panel_s_first_words():
    found = outcome(60, 1, 4)
    text = stale_panel().text
    assert text.startswith("Simulated: 60 requests; after 1 step a confidence is correlated 0.78")
    assert f"loses {found.loss:.1f}% of the tokens" in text
    assert f"an old split {found.naive_loss:.1f}%" in text


def test_every_control_moves_the_sentence_and_the_picture():
    each_control_moves(stale_panel)
    panel = stale_panel()
    panel.controls["lag"].value = 0
    assert "nothing is lost" in panel.text
