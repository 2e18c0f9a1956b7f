"""The model of speculation under load: what it is fitted to, the planner beside it, its knobs."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.lab import load_model
from g2c_serving.lab.calibration import LogOddsLine
from g2c_serving.lab.load_model import LOADS, POOL, Setting, compare, confidences, step_ms
from g2c_serving.sample.verify_budget import plan

POINTS = {32: 10.0, 256: 1000 * 3.25 / 246, 1024: 1000 * 3.25 / 103}  # rows: ms, from the chart


def through_the_points(rows: float) -> float:
    """Lagrange's form of the one parabola."""
    terms = []
    for k, ms in POINTS.items():
        others = [other for other in POINTS if other != k]
        terms.append(ms * np.prod([(rows - o) / (k - o) for o in others]))
    return float(sum(terms))


def test_the_step_times_are_the_chart_s():
    for smooth in (True, False):
        ms = step_ms(smooth)
        assert ms[[32, 256]] == pytest.approx([10, 13.211], abs=0.001)
        assert (np.diff(ms[32:]) > 0).all() and len(ms) == 577
    assert step_ms()[[1, 96, 360, 576]] == pytest.approx(
        [through_the_points(k) for k in (1, 96, 360, 576)]
    )
    slope = (POINTS[1024] - POINTS[256]) / 768
    assert step_ms(smooth=False)[576] == pytest.approx(POINTS[256] + 320 * slope)


def test_the_confidences_are_fitted_to_the_two_reported_lengths():
    assert sum(load_model.MEAN**i for i in range(1, 6)) == pytest.approx(3.30, abs=0.0005)
    survival = confidences().cumprod(axis=1)  # (POOL, 5)
    assert survival.sum(axis=1).mean() == pytest.approx(3.30, abs=0.005)
    best = np.sort(survival.ravel())[::-1][: round(3.58 * POOL)]
    assert best.sum() / POOL == pytest.approx(3.21, abs=0.005)


@pytest.mark.parametrize("requests", [80, 96])
def test_the_engine_s_planner_finds_the_same(requests):
    """Step by step through plan(), which knows nothing of this model's sorting."""
    tokens = spent = drafts = 0.0
    for batch in confidences().reshape(-1, requests, 5):
        found = plan(batch, step_ms())
        drafts += found.rows - requests
        tokens += found.expected_tokens
        spent += found.expected_tokens / found.tokens_per_ms
    outcome = compare(requests)
    assert outcome.budgeted == pytest.approx(1000 * tokens / spent)
    assert outcome.verified == pytest.approx(drafts / POOL)
    assert outcome.accepted == pytest.approx(tokens / POOL - 1)


def test_fixed_five_by_hand():
    """60 requests: 360 rows, 4.30 tokens each."""
    assert compare(60).fixed == pytest.approx(60 * 4.30 / through_the_points(360) * 1000, rel=1e-3)


@pytest.mark.parametrize("smooth", [True, False])
def test_a_perfect_planner_never_loses_and_gains_with_the_load(smooth):
    gains = [compare(requests, Setting(smooth=smooth)).gain for requests in LOADS]
    assert gains[0] > 0 and gains == sorted(gains)
    drafts = [compare(requests, Setting(smooth=smooth)).verified for requests in LOADS]
    assert drafts == sorted(drafts, reverse=True)


def test_each_flaw_costs():
    flaws = [
        Setting(cost=0.01),
        Setting(lie=LogOddsLine(1, 2)),
        Setting(lie=LogOddsLine(1, -2)),
        Setting(lie=LogOddsLine(0.25)),
        Setting(changed=0.5),
        Setting(changed=0.5, stale_split=True),
    ]
    for requests in LOADS:
        for flaw in flaws:
            assert compare(requests, flaw).budgeted < compare(requests).budgeted
            assert compare(requests, flaw).fixed == compare(requests).fixed


def test_a_stale_total_is_cheap_and_a_stale_choice_is_not():
    """Why DeepInfer fixes the total early and splits it late (the Brief, section 6)."""
    for requests in LOADS:
        perfect, total = compare(requests), compare(requests, Setting(changed=1.0))
        both = compare(requests, Setting(changed=1.0, stale_split=True))
        assert 0 < perfect.gain - total.gain < 2 < 10 < total.gain - both.gain


def test_a_choice_that_knows_nothing_is_a_draw_among_the_draft_positions():
    """Everything out of date for the choice too: survivals are then independent of the choice, so
    each verified draft i is worth MEAN^i."""
    old = load_model.former(1.0).cumprod(axis=1).reshape(-1, 480)  # 96 requests a step
    found = compare(96, Setting(changed=1.0, stale_split=True))
    chosen = np.argsort(-old, axis=1, kind="stable")[:, : round(found.verified * 96)] % 5
    worth = (load_model.MEAN ** (chosen + 1.0)).sum() / POOL
    assert found.accepted == pytest.approx(worth, abs=0.05)


def test_the_cost_is_plain_arithmetic():
    whole, dear = compare(16), compare(16, Setting(cost=0.25))
    assert dear.budgeted == pytest.approx(whole.budgeted / 1.25)


def test_an_overconfident_head_verifies_more_and_an_underconfident_one_less():
    shifts = (-3, -1, 0, 1, 3)
    drafts = [compare(60, Setting(lie=LogOddsLine(1, shift))).verified for shift in shifts]
    assert drafts == sorted(drafts)


def test_what_has_changed_is_drawn_from_the_same_numbers():
    now = confidences()
    assert (load_model.former(0.0) == now).all()
    assert (np.sort(load_model.former(1.0), axis=0) == np.sort(now, axis=0)).all()
    assert (load_model.former(0.3) != now).mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("requests", [0, 7, 100, 160])
def test_a_load_that_the_pool_cannot_give(requests):
    with pytest.raises(ValueError, match=f"requests {requests}: give a divisor of 4800 up to 96"):
        compare(requests)
