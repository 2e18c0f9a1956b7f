"""Texts that part, and speeds that are measured."""

from __future__ import annotations

import g2c_serving as g
from g2c_serving.lab.four_bits_texts import Parted, parted, speed_table, speeds


def test_an_unrounded_cache_parts_from_nothing_and_four_bits_do():
    same, four = parted(g.load("tiny"), "auto", "nvfp4")
    assert same.count == 0 and "0 of 16 texts" in str(same)
    assert 0 < four.count < 16
    said = Parted("mxfp4", (None, 30, 4))
    assert str(said) == (
        "mxfp4: 2 of 3 texts of up to 48 tokens part from float32's, the first of them at token 5."
    )


def test_speeds_have_a_row_for_each_format():
    found = speeds(1 << 14, 1)
    assert list(found) == ["NVFP4-like", "MXFP4"]
    assert all(speed > 0 for pair in found.values() for speed in pair)
    assert len(speed_table().rows) == 2
