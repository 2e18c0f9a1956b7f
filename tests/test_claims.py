"""The claims of the pushback with their evidence, names to recognise, the reading route, 08.xxx."""

from __future__ import annotations

import pytest

from g2c_serving.lab import exercises, pushback, where_to_look
from g2c_serving.lab.exercises import EXERCISES, check
from g2c_serving.lab.pushback import AGAINST, CLAIMS, FOR, OPEN, Evidence
from g2c_serving.paths import ROOT


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


# ---- pushback ----


def test_every_claim_has_evidence_for_and_against_and_says_what_is_open():
    assert len(CLAIMS) == 5  # the Brief's
    for claim in CLAIMS:
        assert {one.side for one in claim.evidence} == {FOR, AGAINST, OPEN}, claim.name
        assert all(one.text for one in claim.evidence)
        assert all(one.label == "Not disclosed" for one in claim.evidence if one.side == OPEN)


def test_evidence_that_is_worked_out():
    text = repr(pushback.table())
    assert "144, 400 and 10,000 computed tokens" in text  # the Brief's example
    assert "quotient of the printed throughputs: +5.4 %" in text and "75.3% of three" in text
    assert "66 %" not in text  # holds only if 3.30 is drafts alone
    assert "about 1 in 98,000 draws" in text and "never more than 1 in 20,000" in text
    assert "as long at 65 requests, and at 62 for the budget; said is about 60" in text
    assert len(text.splitlines()) == 1 + sum(len(claim.evidence) for claim in CLAIMS)


def test_evidence_of_no_side_or_label_is_refused():
    with pytest.raises(ValueError, match="side 'maybe' must be for, against or open"):
        Evidence("maybe", "Derived", "")
    with pytest.raises(ValueError, match="label 'Rumour' must be one of"):
        Evidence(FOR, "Rumour", "")


# ---- names and route ----


def test_the_files_of_ours_are_there():
    for one in (*where_to_look.THINGS, *where_to_look.ROUTE):
        assert (ROOT / "g2c_serving" / one.ours).is_file(), one.ours


def test_the_brief_s_seven_names_and_six_steps():
    text = repr(where_to_look.things())
    for name in ("3FS", "GPU-direct RDMA", "FlashMLA", "DeepGEMM", "DeepEP", "TileLang", "Ascend"):
        assert name in text
    lines = repr(where_to_look.route()).splitlines()[1:]
    assert [line.split(".")[0] for line in lines] == list("123456")
    assert "update_best" in lines[4] and "sample/verify_budget.py" in lines[4]


# ---- exercises ----


def plain_shown(measured, drafts, acceptance, verification):
    return measured * (1 + drafts * acceptance) if verification == "fixed" else measured


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("08.step_time", "10 ms", 2.5),  # tau 4: 100 steps a second
        ("08.other_reading", 238.336, 400),  # 1.6 + 0.36 + 0.216 + 0.1296 + 0.07776
        ("08.implied_step", 17.46, 13.31),  # 60 * 4.21 / 14,466
        ("08.two_numbers", [2 / 3, 0.8], [0.8, 2 / 3]),
        (
            "08.refuse",
            plain_shown,
            lambda measured, drafts, acceptance, _: measured * (1 + drafts * acceptance),
        ),
        (
            "08.derivable",
            [True, False, True, True, False, False],
            [True, True, True, True, False, False],
        ),
    ],
)
def test_exercises_by_hand(name, right, wrong):
    assert check(name, right)
    assert check(name, wrong).right is False


def test_all_exercises_of_the_page_are_tried_here():
    assert sum(name.startswith("08.") for name in EXERCISES) == 6
