"""The fit of the cost model to measured steps, and the chunks that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import random_lm

from g2c_serving.lab import cost_fit
from g2c_serving.lab.cost_fit import Fit
from g2c_serving.schedule.cost_model import CostModel, StepShape

MODEL = CostModel(1.0, 0.1, 0.001, 0.05, 1e-4, 2e-4)


@pytest.fixture(scope="module")
def records():
    return cost_fit.profile(random_lm(vocab_size=266, context=512, layers=1))


def test_the_profile_determines_all_six_coefficients(records):
    """Steps whose times are made from known coefficients give exactly those back."""
    shapes = [record.shape for record in records]
    fitted = CostModel.fit(shapes, [MODEL.predict(shape) for shape in shapes])
    assert vars(fitted) == pytest.approx(vars(MODEL), rel=1e-6)


def test_the_profile_has_chunks_decode_rows_and_both(records):
    kinds = {(bool(r.shape.chunks), bool(r.shape.decode_rows)) for r in records}
    assert kinds == {(True, False), (False, True), (True, True)}
    assert {r.shape.chunks[0][0] for r in records if r.shape.chunks} >= set(cost_fit.CHUNKS)


def shapes():
    chunks = [StepShape(((q, c),)) for q in cost_fit.CHUNKS for c in range(0, 512 - q, q)]
    rows = [StepShape((), n, 50 * n) for n in (1, 8, 32)]
    return tuple([*chunks, *rows, StepShape(((56, 64),), 8, 100)])


def test_residuals_are_relative_to_what_was_measured():
    ms = np.array([MODEL.predict(shape) for shape in shapes()])
    found = Fit(MODEL, shapes(), tuple(ms / 1.25))
    assert found.residuals == pytest.approx(np.full(len(ms), 0.25))
    text = cost_fit.picture(found).text
    assert "50.0 q + 0.100 q c + 0.200 q^2 microseconds, and 1.00 ms" in text
    assert "25% (median) and 25% (worst)" in text


def test_chunks_cover_the_prompt_and_are_the_largest_that_fit():
    cut = cost_fit.chunks(MODEL, 5.0, 500)
    assert sum(q for _, q in cut) == 500
    assert [c for c, _ in cut] == [sum(q for _, q in cut[:i]) for i in range(len(cut))]
    for c, q in cut[:-1]:
        assert MODEL.cost(q, c) <= 5.0 < MODEL.cost(q + 1, c)
    assert cost_fit.chunks(MODEL, 0.0, 500) == []


def test_the_panel_takes_the_decode_rows_off_first():
    """8 rows with 100 tokens each: 1 + 0.8 + 0.8 = 2.6 ms. With 3.4 ms left and nothing cached,
    0.0002 q^2 + 0.05 q = 3.4 gives q = 55.7."""
    panel = cost_fit.panel(Fit(MODEL, shapes(), (1.0,) * len(shapes())))
    panel.controls["rows"].value = 8
    panel.controls["budget"].value = 6
    assert "take 2.6 of 6 ms" in panel.text
    assert "first chunk has 55 tokens" in panel.text
    panel.controls["rows"].value = 64
    assert "one token of the prompt" in panel.text


def test_each_shape_of_step_counts_once_in_a_fit():
    found = cost_fit.fit(random_lm(vocab_size=266, context=512, layers=1), repeats=1)
    assert len(found.shapes) == len(set(found.shapes)) == len(found.ms)
    assert np.isfinite(found.residuals).all()
