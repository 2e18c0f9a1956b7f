"""The toy planner: the Brief's seven rows, and what the handles must do to them."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.lab import toy_budget, toy_panel
from g2c_serving.lab.published import value
from g2c_serving.lab.toy_panel import step_ms, toy


def test_the_steps_are_the_brief_s_and_go_on():
    assert [step_ms(k) for k in range(1, 9)] == [toy_budget.step_ms(k) for k in range(1, 9)]
    assert [step_ms(k) for k in (9, 10, 11, 64)] == [19, 19, 22, 100]


def test_the_brief_s_table():
    found = toy()
    assert [candidate.rows for candidate in found.plan.table] == [2, 3, 4, 5, 6, 7, 8]
    for candidate, ms in zip(found.plan.table, (10, 10, 10, 13, 13, 16, 16), strict=True):
        rows = candidate.rows
        assert candidate.expected_tokens == pytest.approx(value(f"toy.expected.{rows}"), abs=0.006)
        assert candidate.tokens_per_ms == pytest.approx(value(f"toy.rate.{rows}"), abs=0.001)
        assert candidate.step_ms == ms
    assert found.plan.rows == value("toy.best_rows") == 6
    assert found.drafts == (value("toy.best.A"), value("toy.best.B")) == (3, 1)
    assert round(100 * found.loss) == value("toy.fixed_loss") == 13


def test_the_table_reads_as_the_brief_s():
    text = repr(toy_panel.table())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "2 one ordinary row each 2.00 10 ms 0.200"
    assert lines[5] == "6 B's draft 1 (0.5) 4.94 13 ms 0.380 best"
    assert lines[7] == "8 B's draft 3 (0.125) 5.31 16 ms 0.332"


def test_the_panel_begins_with_the_brief_s_numbers():
    panel = toy_panel.toy_panel()
    assert "Best: 6 rows, 3 of A's drafts and 1 of B's, 4.94 tokens in 13 ms, 0.380" in panel.text
    assert "All 8 rows: 5.31 tokens in 16 ms, 0.332 per ms, 13% less." in panel.text
    assert "fewer tokens a step, but more per unit of time" in panel.text


def test_every_handle_moves_the_sentence_and_the_picture():
    each_control_moves(toy_panel.toy_panel)


def test_rows_for_nothing_verify_everything_and_dear_rows_little():
    free, dear = toy(steepness=0), toy(steepness=6)
    assert free.plan.rows == 8 and free.loss == 0
    assert dear.plan.rows == 4 and dear.drafts == (2, 0)
    panel = toy_panel.toy_panel()
    panel.controls["steepness"].value = 0
    assert "every draft" in panel.text and "fewer tokens" not in panel.text


def test_load_moves_the_budget_away_from_the_unsure():
    """By hand: from 16 rows on, each further row costs 1.5 ms of 28 and more; B's second draft
    (0.25) never pays that."""
    found = toy(each=8)
    assert found.drafts[1] <= 8 and found.loss > toy().loss
    assert found.plan.step_ms[0] == step_ms(16) == 28
    assert np.argmax(found.rates) + 16 == found.plan.rows


def test_drafts_of_confidence_0_are_left_out():
    assert toy(b=0.0).drafts[1] == 0 and toy(a=0.0, b=0.0).plan.rows == 2
