"""Calibration: which drafts count, errors by hand, and remedies that find the line they should."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from g2c_serving.lab import calibration
from g2c_serving.lab.calibration import LogOddsLine, fit_isotonic, fit_temperature, reliability

# Three continuations of three drafts: the first rejected at draft 2 of 3, the second accepted as
# far as verified (2 of 3), the third not verified at all.
CONFIDENCES = np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.3, 0.2, 0.1]])
VERIFIED, ACCEPTED = np.array([3, 2, 0]), np.array([1, 2, 0])


def in_shares(shares: dict[float, tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and fates in which exactly `hits` of `drafts` of each score came true."""
    scores = np.concatenate([[score] * drafts for score, (_, drafts) in shares.items()])
    fates = [[True] * hits + [False] * (drafts - hits) for hits, drafts in shares.values()]
    return scores, np.concatenate(fates)


# ---- which drafts count ----


def test_a_single_confidence_counts_up_to_the_first_rejection():
    scores, fates = calibration.single(CONFIDENCES, VERIFIED, ACCEPTED)
    assert scores.tolist() == [0.9, 0.8, 0.6, 0.5]
    assert fates.tolist() == [True, False, True, True]


def test_a_product_counts_wherever_its_draft_was_verified():
    scores, fates = calibration.survival(CONFIDENCES, VERIFIED, ACCEPTED)
    assert scores == pytest.approx([0.9, 0.72, 0.504, 0.6, 0.3])
    assert fates.tolist() == [True, False, False, True, True]


def test_what_is_not_verified_may_be_missing():
    holes = np.array([[0.9, np.nan], [np.nan, np.nan]])
    assert calibration.single(holes, [1, 0], [1, 0])[0].tolist() == [0.9]
    assert calibration.survival(holes, [1, 0], [0, 0])[1].tolist() == [False]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"verified": [3, 2]}, r"give shapes \(K, n\), \(K,\), \(K,\)"),
        ({"verified": [4, 2, 0]}, "verified must be from 0 to 3"),
        ({"accepted": [1, 3, 0]}, "accepted must be from 0 to the row's verified"),
        ({"confidences": CONFIDENCES * 1.2}, "confidences has 1.08: .* from 0 to 1"),
        ({"confidences": CONFIDENCES * np.nan}, "confidences has nan"),
    ],
)
def test_evidence_that_does_not_fit_together(change, message):
    evidence = {"confidences": CONFIDENCES, "verified": VERIFIED, "accepted": ACCEPTED} | change
    for pairs in (calibration.single, calibration.survival):
        with pytest.raises(ValueError, match=message):
            pairs(**evidence)


# ---- how far from the truth ----


def test_the_calibration_error_by_hand():
    """Bins of a fifth. 0.1, 0.1, 0.15 with one true; 0.4 (on an edge: goes up) and 0.5 with one
    true; 1.0 (last bin) true. Gaps |0.35 - 1|, |0.9 - 1|, 0 of six drafts: the bin means times
    their drafts are the sums."""
    found = reliability([0.1, 0.1, 0.15, 0.4, 0.5, 1.0], [1, 0, 0, 0, 1, 1], bins=5)
    assert found.edges == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert found.drafts.tolist() == [3, 0, 2, 0, 1]
    assert found.said[[0, 2, 4]] == pytest.approx([0.35 / 3, 0.45, 1])
    assert found.came_true[[0, 2, 4]] == pytest.approx([1 / 3, 0.5, 1])
    assert np.isnan(found.said[[1, 3]]).all() and np.isnan(found.came_true[[1, 3]]).all()
    assert found.error == pytest.approx((0.65 + 0.1 + 0) / 6)


def test_bins_of_equally_many_drafts_by_hand():
    """Two bins of three: 0.9, 0.95, 0.96 and 0.97, 0.99, 1. The cut lies half way, at 0.965."""
    scores, fates = [0.9, 0.99, 0.95, 1.0, 0.97, 0.96], [0, 1, 1, 1, 0, 1]
    found = reliability(scores, fates, bins=2, equal_drafts=True)
    assert found.edges == pytest.approx([0.9, 0.965, 1.0])
    assert found.drafts.tolist() == [3, 3]
    assert found.said == pytest.approx([2.81 / 3, 2.96 / 3])
    assert found.came_true == pytest.approx([2 / 3, 2 / 3])
    assert found.error == pytest.approx((0.81 + 0.96) / 6)
    same = reliability([0.5] * 4, [1, 0, 1, 0], bins=3, equal_drafts=True)
    assert same.drafts.tolist() == [0, 0, 4] and same.error == 0


def test_shares_that_are_what_was_said_have_no_error():
    scores, fates = in_shares({0.25: (25, 100), 0.7: (7, 10), 1.0: (5, 5)})
    assert reliability(scores, fates).error == pytest.approx(0)
    assert reliability([], []).error == 0


def test_products_of_true_confidences_are_true():
    """Enumerated: drafts of confidences 1/2 and 3/4, all outcomes by their exact weight."""
    confidences = [Fraction(1, 2), Fraction(3, 4)]
    weights = {0: Fraction(1, 2), 1: Fraction(1, 8), 2: Fraction(3, 8)}  # by accepted drafts
    accepted = np.repeat(list(weights), [int(8 * weight) for weight in weights.values()])
    rows = np.tile(np.array(confidences, float), (8, 1))
    for pairs in (calibration.single, calibration.survival):
        assert reliability(*pairs(rows, np.full(8, 2), accepted)).error == pytest.approx(0)


# ---- two remedies ----


def test_two_scores_are_put_right_exactly():
    """A line has two unknowns: shares of two scores are met. Said 0.6 and 0.9, true 1/2 and 3/4:
    scale = log 3 / (log 9 - log 1.5), shift = -scale * log 1.5."""
    line = fit_temperature(*in_shares({0.6: (500, 1000), 0.9: (750, 1000)}))
    scale = math.log(3) / (math.log(9) - math.log(1.5))
    assert line.scale == pytest.approx(scale, abs=1e-4)
    assert line.shift == pytest.approx(-scale * math.log(1.5), abs=1e-4)
    assert line([0.6, 0.9]) == pytest.approx([0.5, 0.75], abs=1e-4)


@pytest.mark.parametrize("scale, shift", [(1, 1.5), (0.5, -1), (3, 0), (1, 0)])
def test_the_fit_finds_the_way_back_from_a_lie(scale, shift):
    """Eight true confidences, each exactly as often true as it says, told through a line."""
    honest = np.arange(1, 9) / 9
    lie = LogOddsLine(scale, shift)
    told = lie(honest).tolist()
    line = fit_temperature(*in_shares({c: (k, 9) for k, c in enumerate(told, 1)}))
    assert line.scale == pytest.approx(1 / scale, abs=1e-2)
    assert line.shift == pytest.approx(-shift / scale, abs=1e-2)
    assert line(told) == pytest.approx(honest, abs=1e-3)
    assert line.temperature == pytest.approx(scale, rel=1e-2)


def test_the_line_survives_drafts_that_all_came_true_and_sure_scores():
    line = fit_temperature([0.5, 0.9, 1.0, 0.0], [True] * 4)
    assert np.isfinite([line.scale, line.shift]).all()
    assert (line([0.5, 0.9]) > 0.95).all()
    assert fit_temperature([1.0, 0.0], [False, True]).scale < 0  # a head that has it backwards


def test_no_change_keeps_0_and_1():
    assert LogOddsLine()([0.0, 0.3, 1.0]).tolist() == [0, 0.3, 1]
    assert LogOddsLine(1, 2)([0.0, 1.0]) == pytest.approx([0, 1], abs=1e-4)


def test_pooling_by_hand():
    """Shares 1/2, 0, 1/3, 1, 1: the second violates and takes the first along, (1 + 0) / 4; 1/3
    stands; the last two are equal."""
    curve = fit_isotonic(
        *in_shares({0.1: (1, 2), 0.2: (0, 2), 0.3: (1, 3), 0.8: (2, 2), 0.9: (1, 1)})
    )
    assert curve([0.1, 0.2, 0.3, 0.8, 0.9]) == pytest.approx([0.25, 0.25, 1 / 3, 1, 1])
    assert curve([0.0, 0.25, 1.0]) == pytest.approx([0.25, (0.25 + 1 / 3) / 2, 1])


def test_pooling_cascades():
    """3/4, 2/4, 0/4 in this order fall throughout: one pool of 5/12."""
    curve = fit_isotonic(*in_shares({0.2: (3, 4), 0.4: (2, 4), 0.6: (0, 4)}))
    assert curve([0, 0.2, 0.5, 1]) == pytest.approx([5 / 12] * 4)


def test_no_rising_curve_lies_nearer():
    """Against all rising curves on a grid of twelfths, for random shares of four scores."""
    grid = np.linspace(0, 1, 13)
    curves = np.array(np.meshgrid(*[grid] * 4)).reshape(4, -1).T
    curves = curves[(np.diff(curves, axis=1) >= 0).all(axis=1)]
    rng = np.random.default_rng(0)
    for _ in range(20):
        drafts = rng.integers(1, 5, 4)
        hits = rng.integers(0, drafts + 1)
        shares = dict(zip(grid[1:5], zip(hits, drafts, strict=True), strict=True))
        fitted = fit_isotonic(*in_shares(shares))(list(shares))
        assert (np.diff(fitted) >= 0).all()
        best = (drafts * (curves - hits / drafts) ** 2).sum(axis=1).min()
        assert (drafts * (fitted - hits / drafts) ** 2).sum() <= best + 1e-12


def test_a_remedy_helps_on_drafts_that_it_has_not_seen():
    rng = np.random.default_rng(0)
    true = rng.beta(2, 1, 20_000)
    told, fates = LogOddsLine(2, 0.5)(true), rng.random(20_000) < true
    before = reliability(told[10_000:], fates[10_000:]).error
    for fit in (fit_temperature, fit_isotonic):
        remedy = fit(told[:10_000], fates[:10_000])
        assert reliability(remedy(told[10_000:]), fates[10_000:]).error < before / 4


@pytest.mark.parametrize("fit", [fit_temperature, fit_isotonic])
def test_nothing_to_fit(fit):
    with pytest.raises(ValueError, match="record some verified drafts"):
        fit([], [])
    with pytest.raises(ValueError, match="1 values for 2 scores"):
        fit([0.5, 0.5], [True])
    with pytest.raises(ValueError, match="scores has 1.5"):
        fit([1.5], [True])
