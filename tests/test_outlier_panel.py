"""The outlier's panel: what it says at known settings."""

from __future__ import annotations

import torch

from g2c_serving.lab.outlier_panel import PLACE, SIZES, numbers, panel


def test_the_outlier_ruins_16_in_one_format_and_32_in_the_other():
    """At 1.5 x 200 = 300: NVFP4's scale is 48 (E4M3 of 50), MXFP4's 2^(8 - 2) = 64; all neighbours
    are below half of the smallest step."""
    shown = panel()
    shown.controls["size"].value = 200
    assert (
        "the outlier is 300 and its block's scale 48, so the smallest step there is 24"
        in shown.text
    )
    assert "Its 15 neighbours are off by 100% of their size and 15 of them are 0" in shown.text
    shown.controls["format"].value = "MXFP4"
    assert "scale 64, so the smallest step there is 32. Its 31 neighbours" in shown.text
    assert "31 of them are 0; there is no other block" in shown.text


def test_every_size_moves_the_picture_and_the_neighbours_get_worse():
    shown, seen = panel(), set()
    for format in ("NVFP4-like", "MXFP4"):
        shown.controls["format"].value = format
        for size in SIZES:
            shown.controls["size"].value = size
            seen.add((shown.text, shown.png))
    assert len(seen) == 2 * len(SIZES) and shown.error is None


def test_only_the_outlier_changes():
    small, large = numbers(1), numbers(50)
    assert (small != large).nonzero().flatten().tolist() == [PLACE]
    assert large[PLACE] == 75 and torch.isfinite(large).all()
