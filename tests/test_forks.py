"""Samples of one prompt: blocks by hand, and what the panel says."""

from __future__ import annotations

import pytest
from small_models import random_lm

from g2c_serving.lab import forks
from g2c_serving.lab.plots import new_figure, style


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266, context=512, layers=1)


@pytest.mark.parametrize("samples", [1, 4, 32])
def test_forks_compute_the_prompt_once_and_hold_its_full_blocks_once(lm, samples):
    """100 tokens are 6 full blocks of 16 and 4 more; these and 19 answered ones are 2 blocks. (The
    last of 20 is never written.)"""
    found = forks.draw(lm, 100, samples, shared=True)
    assert found.computed == 100
    assert found.blocks == 6 + 2 * samples


@pytest.mark.parametrize("samples", [1, 4, 32])
def test_each_for_itself_computes_and_holds_everything(lm, samples):
    found = forks.draw(lm, 100, samples, shared=False)
    assert (found.computed, found.blocks) == (100 * samples, 8 * samples)  # 119 tokens: 8 blocks


def test_a_scheduled_run_counts_what_a_computed_one_counts(lm, monkeypatch):
    dry = forks.draw(lm, 100, 3, shared=False)
    monkeypatch.setattr(forks, "DryEngine", forks.Engine)
    assert forks.draw(lm, 100, 3, shared=False) == dry


@pytest.mark.parametrize("samples", [1, 2, 32])
@pytest.mark.parametrize("prompt", forks.PROMPTS)
def test_the_labels_over_the_last_bars_do_not_meet(samples, prompt):
    figure = new_figure()
    with style():
        art = forks._draw(figure)
    computed = {True: prompt, False: prompt * samples}
    costs = {s: [forks.Cost(n, computed[s], 17 + s) for n in forks.SAMPLES if n <= samples]
             for s in (True, False)}  # fmt: skip
    forks._update(art, costs, samples, prompt)
    figure.canvas.draw()
    for name in ("blocks", "computed"):
        own, forked = (text.get_window_extent() for text in art[name]["words"])
        assert not own.overlaps(forked)


def test_the_panel(lm):
    panel = forks.panel(lm)
    assert panel.text.startswith("32 samples of a prompt of 250 tokens, 20 tokens each.")
    assert "250 prompt tokens computed, 79 blocks (15 of the prompt and 64" in panel.text
    assert panel.text.endswith("Each for itself: 8,000 tokens, 544 blocks.")
    panel.controls["samples"].value = 1
    assert "1 sample of" in panel.text and panel.error is None


def test_a_bar_ends_at_its_number(lm):
    """On a logarithmic axis bars stand on 1: those of one sample of 100 tokens end at 8 blocks."""
    panel = forks.panel(lm)
    panel.controls["prompt"].value, panel.controls["samples"].value = 100, 1
    for shared in (True, False):
        for name, top in (("blocks", 8), ("computed", 100)):
            assert panel.artists[name][shared].get_path().get_extents().y1 == top
