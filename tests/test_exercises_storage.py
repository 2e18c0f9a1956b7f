"""Notebook 07's exercises on storage and low precision, against values worked out by hand."""

from __future__ import annotations

import pytest

from g2c_serving.lab.exercises import EXERCISES, check


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("07.shards", [120, 300], [120, 200]),
        ("07.ten_of_eleven", lambda p: p**11 + 11 * p**10 * (1 - p), lambda p: p**10),
        ("07.busy_disks", 75.63, 90.9),  # 0.909 / 1.2021
        ("07.mxfp4", [24, 6, -2, 0], [24, 6, -3, 1]),  # 5.5, 1.625, -0.625, 0.225 of a scale of 4
        ("07.four_bits", 1152, 1024),
    ],
)
def test_right_and_wrong_answers(name, right, wrong):
    assert check(name, right)
    missed = check(name, wrong)
    assert missed.right is False and missed.hint


def test_typical_slips_are_named():
    slips = EXERCISES["07.ten_of_eleven"].slips
    assert "eleventh read changes nothing" in check("07.ten_of_eleven", slips[0][0]).text
