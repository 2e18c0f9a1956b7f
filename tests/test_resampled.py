"""Means with an interval of resampled texts: against the normal one, and how often they hit."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.lab.resampled import mean


def test_with_many_texts_it_is_the_normal_interval():
    """1.96 standard errors to either side; the deviation is over n, as the bootstrap has it."""
    values = np.random.default_rng(1).normal(3, 2, 400)
    found = mean(values, tries=20_000)
    error = values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.06 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.06 * error)


def test_it_holds_the_true_mean_about_as_often_as_it_says():
    """Of 400 experiments with 32 texts each; the percentile interval misses a little more often."""
    draws = np.random.default_rng(2).exponential(1, (400, 32))
    hits = sum((one := mean(values, tries=500)).low <= 1 <= one.high for values in draws)
    assert 0.88 <= hits / 400 <= 0.97


def test_differences_text_by_text_show_what_two_intervals_hide():
    texts = np.random.default_rng(3).exponential(1, 32)
    more = texts + 0.01
    assert mean(texts).low < mean(more).value < mean(texts).high
    assert not mean(more - texts).is_zero
    assert mean(texts - texts.mean()).is_zero


def test_the_words():
    assert mean([1.0, 1.0]).said("+.1f") == "+1.0 (+1.0 to +1.0)"


@pytest.mark.parametrize("values", [[1.0], [[1.0, 2.0]], []])
def test_bad_input(values):
    with pytest.raises(ValueError, match="one for each of two texts"):
        mean(values)
