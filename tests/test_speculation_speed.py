"""Off, fixed and budgeted under a closed load: the counts are the engine's; no time is asserted."""

import dataclasses

import pytest
from small_models import random_lm

from g2c_serving.lab import speculation_speed
from g2c_serving.lab.speculation_speed import BUDGETED, FIXED, MODES, OFF, Speed


@pytest.fixture(scope="module")
def speeds() -> list[Speed]:
    lm = random_lm(vocab_size=1024, context=128)
    other = dataclasses.replace(lm, name="another")
    return speculation_speed.measure([lm, other], lm, loads=(1, 3), seconds=0.05, num_drafts=2)


def test_each_engine_serves_the_load_and_reports_what_it_verified(speeds) -> None:
    """A target that drafts for itself accepts all; fixed verification checks both drafts."""
    found = [(s.load, s.mode) for s in speeds]
    assert found == 2 * [(n, mode) for n in (1, 3) for mode in MODES]
    for speed in speeds:
        assert speed.tokens_per_s > 0
        if speed.mode == OFF:
            assert speed.verified == 0
        if speed.mode == FIXED:
            assert speed.verified == pytest.approx(2, abs=0.5)  # fewer at the context's end
            assert speed.acceptance_rate == pytest.approx(1)
        if speed.mode == BUDGETED:
            assert speed.verified <= 2


def test_the_table_and_the_panel_tell_the_same(speeds) -> None:
    lines = repr(speculation_speed.table(speeds)).splitlines()
    assert len(lines) == 1 + len(speeds) and lines[1].split()[-1] == "1.00"
    panel = speculation_speed.panel(speeds)
    first = panel.text
    panel.controls["load"].value = 3
    assert panel.error is None and panel.text != first and "3 at a time" in panel.text


def test_the_findings_are_read_off_the_speeds() -> None:
    """By hand: 20 % more, 3 % more and 20 % less than none; a budget 10 % ahead, and level."""

    def speed(load: int, mode: str, tokens_per_s: float) -> Speed:
        return Speed("tiny", load, mode, tokens_per_s, 0.9, 5.0)

    rates = {1: (100, 120, 119), 8: (100, 103, 97), 64: (100, 70, 80)}
    speeds = [
        speed(load, mode, rate)
        for load, three in rates.items()
        for mode, rate in zip(MODES, three, strict=True)
    ]
    assert speculation_speed.findings(speeds).splitlines() == [
        "tiny: at 1 speculation pays (1.20 at best), at 8 speculation changes little (1.03 at "
        "best), at 64 speculation costs (0.80 at best).",
        "Against fixed verification the budget is ahead in 1 of 3 rows, level (within 5%) in 1, "
        "behind in 1. Of fixed drafts 90% to 90% are accepted.",
    ]


def test_a_budget_that_checks_nothing_shows_the_noise_of_the_run() -> None:
    """It does what "off" does. Here it is 12 % apart: 8 % more than none tells nothing then."""
    told = [
        speculation_speed.findings(
            [
                Speed("tiny", 64, OFF, 100, 0.0, 0.0),
                Speed("tiny", 64, FIXED, 108, 0.9, 5.0),
                Speed("tiny", 64, BUDGETED, 88, 0.9, verified),
            ]
        )
        for verified in (0.01, 3.0)
    ]
    assert "at 64 speculation changes little (1.08 at best)" in told[0] and "within 12%" in told[0]
    assert "at 64 speculation pays (1.08 at best)" in told[1] and "within 5%" in told[1]
