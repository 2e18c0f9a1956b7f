"""The pictures of notebook 03's integer half: filters, targets, orders of summation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from small_models import random_lm

from g2c_serving.lab import filters, remainders, sum_order

LOGITS = torch.log(torch.tensor([0.3, 0.1, 0.1, 0.5]))


# ---- filters ----


@pytest.mark.parametrize(
    "settings, kept",
    [
        (dict(temperature=1.0, top_k=0, top_p=1.0), [0, 1, 2, 3]),
        (dict(temperature=1.0, top_k=0, top_p=0.8), [0, 3]),  # transformers 18976
        (dict(temperature=1.0, top_k=3, top_p=1.0), [0, 1, 3]),  # the lowest id of a tie
        (dict(temperature=1.0, top_k=2, top_p=0.5), [3]),
        (dict(temperature=0.0, top_k=0, top_p=1.0), [3]),
    ],
)
def test_what_stays(settings, kept):
    drawn = filters.draw(LOGITS, **settings, seed=7, position=5)
    assert drawn.weights.nonzero()[0].tolist() == kept and drawn.kept == len(kept)
    assert drawn.unfiltered.nonzero()[0].tolist() == (
        [3] if settings["temperature"] == 0 else [0, 1, 2, 3]
    )


def test_the_token_is_the_first_whose_sum_is_above_the_target():
    seen = set()
    for seed in range(50):
        drawn = filters.draw(LOGITS, 1.0, 0, 1.0, seed, position=5)
        sums = np.cumsum(drawn.weights)
        assert 0 <= drawn.target < drawn.total == sums[-1]
        assert drawn.token == int((sums > drawn.target).argmax())
        seen.add(drawn.token)
    assert len(seen) == 4


def test_temperature_is_a_power_of_the_odds():
    warm = filters.draw(LOGITS, 0.5, 0, 1.0, 7, 5).weights
    assert warm[3] / warm[0] == pytest.approx((0.5 / 0.3) ** 2, rel=1e-6)


def test_the_filters_panel():
    lm = random_lm(vocab_size=266)
    panel = filters.panel(lm, prompt="abc")
    assert " of 266 tokens stay" in panel.text
    panel.controls["top_k"].value = 1
    assert (
        panel.text.startswith("1 of 266 tokens stay") and "has 100.0% of what stays" in panel.text
    )


# ---- targets ----


def test_all_words_counted_by_hand():
    """256 words over 100 targets: the remainder favours the first 56; the product gives the same
    number of them one word more, spread out; rejection gives two words to each."""
    assert remainders.counts(100, 8, "remainder").tolist() == [3] * 56 + [2] * 44
    product = remainders.counts(100, 8, "product")
    assert sorted(product.tolist()) == [2] * 44 + [3] * 56 and set(product[:4]) == {2, 3}
    assert remainders.counts(100, 8, "product, with rejection").tolist() == [2] * 100


@pytest.mark.parametrize("bits, total", [(4, 2), (5, 7), (8, 99), (10, 64), (4, 16)])
def test_rejection_is_fair_and_throws_away_the_rest(bits, total):
    counts = remainders.counts(total, bits, remainders.RULES[2])
    assert counts.tolist() == [2**bits // total] * total
    for word in range(2**bits):
        exact = math.floor(Fraction(word * total, 2**bits))
        assert remainders.targets(total, bits, remainders.RULES[2])[word] in (exact, -1)


def test_the_remainders_panel():
    panel = remainders.panel()
    assert "the first come 3 times, the last 2. With rejection 56 words" in panel.text
    assert (
        "word 255 moves from 55 to 53 as a remainder and from 99 to 100 as a product" in panel.text
    )
    panel.controls["bits"].value, panel.controls["total"].value = 4, 100
    assert panel.text == (
        "16 words, 16 targets (a total of 100 is more than the words: taken as 16). As a remainder "
        "each comes once. With rejection no word is thrown away (0.0%), and each target comes once."
    )


@pytest.mark.parametrize(
    "bits, total, words",
    [
        (4, 15, "the first come 2 times, the last 1. With rejection 1 word is thrown away (6.2%)"),
        (4, 15, "and each target comes once. With one target more, word 15 moves from 0 to 15"),
        (5, 5, "word 31 stays at 1 as a remainder and moves from 4 to 5 as a product"),
        (10, 2, "each comes 512 times. With rejection no word is thrown away (0.0%)"),
    ],
)
def test_the_sentence_of_the_remainders_is_true_at_the_edges(bits, total, words):
    panel = remainders.panel()
    panel.controls["bits"].value, panel.controls["total"].value = bits, total
    assert words in panel.text and panel.error is None
    for rule in ("remainder", "product"):  # where the sentence says that the last word goes
        old, new = (remainders.targets(n, bits, rule)[-1] for n in (total, total + 1))
        assert f"from {old} to {new} as a {rule}" in panel.text or f"at {old} as a" in panel.text


def _room_left_of_the_label(panel, axes):
    """How far the y label stands to the right of the picture's edge, in pixels."""
    return axes.yaxis.label.get_window_extent(panel.figure.canvas.get_renderer()).x0


def test_the_label_of_the_remainders_stays_on_the_page_beside_three_digits():
    panel = remainders.panel()
    panel.controls["bits"].value, panel.controls["total"].value = 10, 2
    assert _room_left_of_the_label(panel, panel.artists["axes remainder"]) >= 0


# ---- orders of summation ----


@pytest.mark.parametrize(
    "kind, apart", [("float32", True), ("float64", True), ("whole numbers", False)]
)
def test_floats_depend_on_the_order_and_whole_numbers_do_not(kind, apart):
    _, found = sum_order.sums_apart(kind, seed=0, block=32)
    assert (np.abs(found).max() > 0) == apart
    assert np.abs(found).max() < 1e-5


def test_the_order_panel():
    panel = sum_order.panel()
    assert panel.text.startswith("float32, blocks of 32") and "draws token" in panel.text
    panel.controls["kind"].value = "whole numbers"
    assert "every target gives the same token" in panel.text
    panel.controls["block"].value = 256
    assert panel.error is None


@pytest.mark.parametrize("kind", sum_order.KINDS)
def test_the_order_panel_fits_its_page_and_marks_no_worst_sum_of_equal_ones(kind):
    panel = sum_order.panel()
    panel.controls["kind"].value = kind
    axes, floats = panel.artists["axes"], kind.startswith("float")
    for seed in (0, 7, 19):
        panel.controls["seed"].value = seed
        assert _room_left_of_the_label(panel, axes) >= 0
        assert len(panel.artists["worst"].get_xdata()) == floats
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert (len(labels) > 3) if floats else (labels == ["0"])
