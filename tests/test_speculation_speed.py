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
