"""The reliability panel: evidence from records, honest heads and lying ones, fitted and judged on
different drafts."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.history import Drafted
from g2c_serving.lab.calibration import LogOddsLine, single
from g2c_serving.lab.reliability import (
    AS_IT_IS,
    ISOTONIC,
    JUDGED,
    TEMPERATURE,
    Evidence,
    collect,
    mend,
    reliability_panel,
)


def drafted(confidences, verified, accepted):
    tokens, kept = (5,) * len(confidences), accepted + 1
    return Drafted(1, 0, 9, tokens, confidences, verified, accepted, 6, kept)


def drawn(rows: int, drafts: int = 5, seed: int = 0) -> Evidence:
    """Drafts whose confidences are true: accepted with just that chance, all verified."""
    rng = np.random.default_rng(seed)
    confidences = rng.beta(2, 1, (rows, drafts))
    stands = (rng.random((rows, drafts)) < confidences).cumprod(axis=1)
    return Evidence(confidences, np.full(rows, drafts), stands.sum(axis=1))


@pytest.fixture(scope="module")
def evidence():
    return drawn(6000)


def error(text: str) -> float:
    return float(text.split("calibration error is ")[1].rstrip("%."))


def test_records_of_different_lengths():
    found = collect(
        [drafted((0.9, 0.8), 2, 1), drafted((0.5,), 1, 1), drafted((0.4, 0.3, 0.2), 0, 0)]
    )
    assert found.verified.tolist() == [2, 1] and found.accepted.tolist() == [1, 1]
    assert found.confidences[0].tolist() == [0.9, 0.8] and np.isnan(found.confidences[1, 1])
    scores, fates = found.pairs("single confidences")
    assert scores.tolist() == [0.9, 0.8, 0.5] and fates.tolist() == [True, False, True]


def test_without_verified_drafts_there_is_nothing_to_judge():
    with pytest.raises(ValueError, match="none that was verified"):
        collect([drafted((0.4,), 0, 0)])


def test_the_halves_are_apart_and_whole():
    whole = drawn(7)
    halves = [whole.half(0), whole.half(1)]
    assert [len(half.verified) for half in halves] == [3, 4]
    assert (np.concatenate([half.confidences for half in halves]) == whole.confidences).all()


def test_an_honest_head_is_honest_and_a_lie_shows(evidence):
    panel = reliability_panel(evidence)
    assert "The head as it is, no remedy" in panel.text and error(panel.text) < 2
    for judged in JUDGED:
        panel.controls["judged"].value = judged
        panel.controls["shift"].value = 0
        honest = error(panel.text)
        panel.controls["shift"].value = 3
        assert error(panel.text) > honest + 10


@pytest.mark.parametrize("remedy", [TEMPERATURE, ISOTONIC])
@pytest.mark.parametrize("judged", list(JUDGED))
def test_remedies_mend_the_lie_for_both(evidence, remedy, judged):
    panel = reliability_panel(evidence)
    panel.controls["judged"].value = judged
    panel.controls["shift"].value = -2.5
    lying = error(panel.text)
    panel.controls["remedy"].value = remedy
    assert error(panel.text) < 2.5 < 10 < lying and f"mended ({remedy})" in panel.text


def test_the_remedy_has_not_seen_what_it_is_judged_on(evidence):
    """The second half is replaced by other drafts: the fitted line stays."""
    other = drawn(3000, seed=1)
    mixed = Evidence(
        np.concatenate([evidence.half(0).confidences, other.confidences]),
        np.concatenate([evidence.half(0).verified, other.verified]),
        np.concatenate([evidence.half(0).accepted, 0 * other.accepted]),
    )
    assert mend(mixed.half(0), TEMPERATURE) == mend(evidence.half(0), TEMPERATURE)
    panel = reliability_panel(mixed)
    panel.controls["remedy"].value = TEMPERATURE
    assert error(panel.text) > 30


def test_no_remedy_changes_nothing_holes_stay_holes():
    holes = Evidence(np.array([[0.5, np.nan], [0.25, 1.0]]), np.array([1, 2]), np.array([1, 0]))
    assert mend(holes, AS_IT_IS) == LogOddsLine()
    remade = holes.through(LogOddsLine(1, 1))
    assert np.isnan(remade.confidences).tolist() == [[False, True], [False, False]]
    assert len(single(remade.confidences, remade.verified, remade.accepted)[0]) == 2


def test_every_control_moves_the_sentence_and_the_picture(evidence):
    each_control_moves(lambda: reliability_panel(evidence))
