"""The panels about experts: every control moves them, and what they say at known settings."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.lab import combine_panel, expert_loads, expert_panels, wide_ep_panel
from g2c_serving.lab.published import value

PANELS = (
    expert_loads.panel,
    expert_panels.copies_panel,
    expert_panels.drift_panel,
    wide_ep_panel.panel,
    combine_panel.panel,
)


@pytest.mark.parametrize("panel", PANELS)
def test_every_control_moves_the_sentence_and_the_picture(panel):
    shown = panel()
    for control in shown.controls.values():
        before = control.value
        for end in control.ends if control.ends[0] != control.value else control.ends[::-1]:
            text, png, draws = shown.text, shown.png, shown.draws
            control.value = end
            assert shown.error is None and shown.draws == draws + 1
            assert shown.text != text and shown.png != png
        control.value = before


def test_few_copies_do_where_the_load_is_known_and_nothing_does_against_drift():
    known, real = expert_panels.over_copies(0.8, 64, 0.005, 256)
    assert known[0] > 2 and known[expert_panels.COPIES.index(8)] < 1.01
    assert (np.diff(known) < 0.01).all()
    known, real = expert_panels.over_copies(0.8, 64, 0.05, 256)
    assert real.min() > value("lb.moe")
    assert "the reported 1.090 takes 4 copies" in expert_panels.copies_panel().text


def test_popularities_that_stay_need_one_placement():
    for swaps in (None, 8):
        balances, moved = expert_panels.over_time(0.0, 64, 4, swaps)
        assert (balances == balances[0]).all() and set(moved) == {0}
    seldom, _ = expert_panels.over_time(0.01, 64, expert_panels.INTERVALS + 1)
    often, _ = expert_panels.over_time(0.01, 64, 1)
    assert often.mean() < 1.2 < seldom.mean()


def test_the_bars_are_the_gpus_loads():
    """Against the sums of the experts that the picture stacks; 13.0 experts are 1.63 GPUs."""
    shown = expert_loads.panel()
    shown.controls["copies"].value = 16
    tops = np.zeros(expert_loads.GPUS)
    for name in ("single", "copied"):
        corners = shown.artists[name].get_path().vertices.reshape(-1, 5, 2)
        for box in corners:
            tops[round(box[0, 0] + 0.4)] += box[2, 1] - box[0, 1]
    assert tops.mean() == pytest.approx(1) and (np.diff(tops) < 1e-9).all()
    assert f"carries {tops.max():.3f} times the average" in shown.text
    assert "13.0 times an expert's average" in shown.text


def test_what_a_gpu_reads():
    """137 GB of experts on 64 GPUs are 2.1 each, and 6 beside them."""
    shown = wide_ep_panel.panel()
    assert "on 64 GPUs each reads 8.1 GB a step, 2.1 of them experts, 1.0 ms" in shown.text
    shown.controls["tokens"].value = 1
    assert "1 token per GPU and step" in shown.text


def test_whose_bits_change():
    """Only tokens with an expert that moved, if each GPU adds up first; none in a fixed order."""
    for dtype in combine_panel.DTYPES:
        arrival, gpu, expert = (combine_panel.both(rule, 3, dtype) for rule in combine_panel.RULES)
        assert not arrival.all_equal and not gpu.all_equal and expert.all_equal
        assert (gpu.changed[~gpu.touched] == 0).all() and (gpu.changed[gpu.touched] > 0).any()
        assert gpu.vectors < expert.vectors == combine_panel.CHOSEN
        assert combine_panel.both("each GPU first, then GPU after GPU", 0, dtype).all_equal


def test_training_and_serving_are_told_apart():
    table = expert_panels.training_and_serving()
    assert "auxiliary loss" in repr(table) and "placement" in repr(table)
