"""The confidence table: shares counted by hand, no jumps, and a curve that is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2c_serving.sample.confidence_table import ConfidenceTable

TRUE, FALSE = [True], [False]


def test_a_new_table_believes_the_scores():
    scores = np.linspace(0, 1, 401).reshape(-1, 1)
    assert ConfidenceTable().read(scores) == pytest.approx(scores)


def test_shares_counted_by_hand():
    """Bin 7 of 10 has its centre at 0.75. Prior 4: three of the four count as accepted; then 8
    drafts of which 2 were accepted: (3 + 2) / (4 + 8)."""
    table = ConfidenceTable(bins=10, prior=4)
    table.learn([0.75] * 8, [True, False, False, True, False, False, False, False])
    assert table.read(0.75) == pytest.approx(5 / 12)
    assert table.read([0.65, 0.85]) == pytest.approx([0.65, 0.85])  # the neighbours know nothing
    gap = 5 / 12 - 0.75
    assert table.read(0.70) == pytest.approx(0.70 + gap / 2)  # half way to a centre without a gap


def test_a_score_beside_the_centre_counts_with_its_own_value():
    """Four drafts of score 0.72, all accepted, prior 4: the gap is (4 - 2.88) / 8 = 0.14."""
    table = ConfidenceTable(bins=10, prior=4)
    table.learn([0.72] * 4, TRUE * 4)
    assert table.read(0.75) == pytest.approx(0.75 + 0.14)


def test_the_order_and_the_portions_do_not_matter():
    rng = np.random.default_rng(0)
    scores, accepted = rng.random(500), rng.random(500) < 0.5
    whole, parts = ConfidenceTable(), ConfidenceTable()
    whole.learn(scores, accepted)
    for some in np.array_split(rng.permutation(500), 9):
        parts.learn(scores[some], accepted[some])
    assert parts.read(scores) == pytest.approx(whole.read(scores))


def test_it_is_continuous_and_stays_within_0_and_1():
    rng = np.random.default_rng(1)
    table = ConfidenceTable(bins=7, prior=0.5)
    scores = rng.random(300)
    table.learn(scores, rng.random(300) < np.round(scores * 7) % 2)  # neighbours that disagree
    fine = table.read(np.linspace(0, 1, 100_001))
    assert fine.min() >= 0 and fine.max() <= 1
    assert np.abs(np.diff(fine)).max() < 1e-4  # neighbours differ by 1 at most: slope up to 1 + 7


@pytest.mark.parametrize("curve", [lambda s: s**2, lambda s: 0.3 + 0 * s, lambda s: 1 - s / 2])
def test_it_learns_a_known_curve(curve):
    rng = np.random.default_rng(2)
    scores = rng.random(200_000)
    table = ConfidenceTable()
    table.learn(scores, rng.random(200_000) < curve(scores))
    inside = np.linspace(0.025, 0.975, 200)  # beyond the outer centres the gap is their own
    assert np.abs(table.read(inside) - curve(inside)).max() < 0.02


def test_the_ends_belong_to_the_first_and_the_last_bin():
    table = ConfidenceTable(bins=4, prior=1)
    table.learn([0.0, 1.0], TRUE + FALSE)
    assert table.drafts.tolist() == [1, 0, 0, 1]
    assert table.read([0.0, 1.0]) == pytest.approx([0.5, 0.5])


def test_one_bin_is_one_gap():
    table = ConfidenceTable(bins=1, prior=2)
    table.learn([0.5, 0.5], FALSE * 2)
    assert table.read([0.25, 0.5, 1.0]) == pytest.approx([0.0, 0.25, 0.75])


def test_shapes_types_and_nothing():
    table = ConfidenceTable()
    assert table.read(0.5).shape == () and table.read(np.zeros((3, 0))).shape == (3, 0)
    assert table.read(torch.full((2, 5), 0.25)).shape == (2, 5)
    table.learn([], [])
    table.learn(torch.tensor([0.5]), torch.tensor(TRUE))
    assert table.drafts.sum() == 1
    assert table.read(np.float32(1) + np.float32(2e-7)) == pytest.approx(1)  # a softmax rounds


@pytest.mark.parametrize(
    "change, message",
    [({"bins": 0}, "bins=0"), ({"bins": 2.5}, "bins=2.5"), ({"prior": 0}, "prior=0 must be above")],
)
def test_a_table_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        ConfidenceTable(**change)


@pytest.mark.parametrize("score", [-0.1, 1.1, np.nan, np.inf])
def test_scores_are_probabilities(score):
    table = ConfidenceTable()
    for use in (table.read, lambda scores: table.learn(scores, TRUE * 2)):
        with pytest.raises(ValueError, match=f"scores has {score}: .* from 0 to 1"):
            use([0.5, score])
    assert table.drafts.sum() == 0


def test_words_and_wrong_fates():
    table = ConfidenceTable()
    with pytest.raises(ValueError, match="must be numbers"):
        table.read(["sure"])
    with pytest.raises(ValueError, match="1 values for 2 scores"):
        table.learn([0.5, 0.5], TRUE)
    with pytest.raises(ValueError, match="float64: give True or False"):
        table.learn([0.5], [0.7])
