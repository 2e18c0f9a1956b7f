"""The production table as the Brief prints it, and the panel that tries to explain it."""

from __future__ import annotations

import pytest
from panels import each_control_moves

from g2c_serving.lab import production_load
from g2c_serving.lab.implied_steps import implied_ms
from g2c_serving.lab.load_model import Setting, compare
from g2c_serving.lab.production_load import beyond_reported, load_panel


def test_the_table_is_the_brief_s():
    lines = repr(production_load.production_table()).splitlines()
    cells = [line.split()[-2:] for line in lines]
    assert cells[1:5] == [["5.00", "3.58"], ["3.30", "3.21"], ["66%", "90%"], ["13,730", "14,466"]]
    assert cells[5][-1] == "+5.4%"
    assert "about 60 requests per GPU" in lines[0] and "an estimate" in lines[4]


def test_the_step_times_behind_the_table():
    """60 * 4.30 tokens at 13,730 a second, 60 * 4.21 at 14,466."""
    assert implied_ms(60, "fixed", True) == pytest.approx(18.791, abs=0.001)
    assert implied_ms(60, "budget", True) == pytest.approx(17.461, abs=0.001)
    assert ["18.8", "17.5"] in [r[1:] for r in map(list, production_load.production_table().rows)]


def test_the_reported_loss_is_nothing_that_a_perfect_planner_has():
    perfect = [beyond_reported(compare(requests)) for requests in (16, 60, 96)]
    assert compare(16).gain > 0 and min(perfect) > 2.5
    with_cost = [beyond_reported(compare(r, Setting(cost=0.0375))) for r in (16, 60, 96)]
    assert max(map(abs, with_cost)) < 1  # one number comes near all three


def test_the_panel_says_how_far_it_is_from_what_is_reported():
    panel = load_panel()
    for requests, reported in ((16, "-1.5"), (60, "+5.4"), (96, "+11")):
        found = compare(requests)
        beyond = found.gain - float(reported)
        said = f"at {requests} {found.gain:+.1f}% (reported {reported}%: {beyond:.1f} points above)"
        assert said in panel.text
    assert panel.text.startswith("Simulated") and "reported 3.58" in panel.text


def test_every_control_moves_the_sentence_and_the_picture():
    each_control_moves(load_panel, "cost", "shift", "changed", "curve")
    panel = load_panel()
    panel.controls["changed"].value = 50
    before = panel.png
    panel.controls["stale_split"].value = True
    assert "total and choice" in panel.text and panel.png != before


def test_the_head_is_named_for_what_it_is():
    panel = load_panel()
    assert "a calibrated head" in panel.text
    panel.controls["shift"].value = 1.5
    assert "a head overconfident by 1.5" in panel.text
    panel.controls["shift"].value = -2
    assert "a head underconfident by 2," in panel.text
