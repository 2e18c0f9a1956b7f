"""The roofline: operations and bytes of a step against counts by hand."""

from __future__ import annotations

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import phases, roofline
from g2c_serving.lab.roofline import Machine, Points, Work


@pytest.fixture(scope="module")
def lm():
    """One layer of width 8, hidden 16, 266 tokens: 4 * 64 + 2 * 128 = 512 weights in the layer,
    2,128 in the head."""
    return random_lm(vocab_size=266, dim=8, layers=1, hidden=16, context=512)


def test_one_decode_row_by_hand(lm):
    """2 * 512 + 2 * 2128 operations, and 4 * 8 for each of the 5 + 1 tokens that it sees; 2,640
    weights and 6 tokens of 16 numbers, 4 bytes each."""
    one = roofline.work(lm, 1, 1, cached=5)
    assert one.flops == 1024 + 4256 + 32 * 6
    assert one.bytes == 4 * (2640 + 6 * 16)


def test_two_prompts_of_three_tokens_by_hand(lm):
    """Each token sees itself and those before it: 1 + 2 + 3 pairs a prompt."""
    two = roofline.work(lm, 2, 3)
    assert two.flops == 2 * 6 * 512 + 2 * 4256 + 2 * 32 * 6
    assert two.bytes == 4 * (2640 + 2 * 3 * 16)


def test_inflated_weights_are_read_and_have_no_attention(lm):
    big = g.inflate(lm, megabytes=0.5)
    more = roofline.work(big, 1, 1, cached=5)
    linear = sum(w.numel() for n, w in big.weights.items() if n.endswith(".W"))
    assert more.bytes == 4 * (linear + 2128 + 6 * 16)
    assert more.flops == 2 * linear + 4256 + 32 * 6


def test_intensity_grows_with_rows_and_the_ridge_divides_the_roof():
    machine = Machine(gflops=100, gbytes=20)
    assert machine.ridge == 5
    assert machine.attainable(1) == 20 and machine.attainable(50) == 100
    assert Work(10, 4).intensity == 2.5


def test_the_panel_says_which_limit_holds(lm):
    def flat(work):
        return [(work.intensity, 1.0)]

    points = Points(lm, flat(roofline.decode_work(lm, 1)), flat(roofline.prefill_work(lm, 16)))
    panel = roofline.panel(Machine(100, 20), {"small": points, "same": points})
    panel.controls["rows"].value = 1
    panel.controls["tokens"].value = 512
    assert "ridge at 5.0" in panel.text
    decode, prefill = panel.text.split("; ")[1:]
    assert "memory allows" in decode and "arithmetic allows" in prefill


def test_the_machine_and_a_model_are_measured(lm):
    machine = roofline.measure_machine(size=64, megabytes=1)
    assert machine.gflops > 0 and machine.gbytes > 0
    points = roofline.measure(lm)
    assert len(points.decode) == len(points.prefill) == 3
    assert all(speed > 0 for _, speed in points.decode + points.prefill)


def test_the_points_are_those_of_the_curves_that_were_measured_last(lm):
    """Not measured twice: 10^9 operations a second are the step's operations by the curve's ms."""
    former = roofline.measure(lm)
    decode, prefill = phases.measure(lm, "anew", steps=2)
    points = roofline.measure(lm)
    assert points != former and roofline.measure(lm) == points
    for n, (_, speed) in zip(roofline.DECODE, points.decode, strict=True):
        assert speed == roofline.decode_work(lm, n).flops / decode.at(n) / 1e6
    for n, (_, speed) in zip(roofline.PREFILL, points.prefill, strict=True):
        assert speed == roofline.prefill_work(lm, n).flops / prefill.at(n) / 1e6
