"""The panels of the storage code: what they say at known settings, and at their ends."""

from __future__ import annotations

import re

import numpy as np
import pytest

import g2c_serving as g
from g2c_serving.lab import storage_panels
from g2c_serving.lab.storage_panels import cache_block, load_panel, reads_panel, shards_panel


@pytest.fixture(scope="module")
def lm():
    return g.load("tiny")


def test_the_block_is_real(lm):
    """16 tokens of keys and values: 2 x 4 layers x 256 float32, none of them all zero."""
    block = np.frombuffer(cache_block(lm), np.float32).reshape(16, 2, 4, 256)
    assert (np.abs(block).max(-1) > 0).all()


def test_two_lost_shards_come_back(lm):
    panel = shards_panel(lm)
    assert "A block of 131,072 bytes lies in 12 shards of 13,108, 1.2 times" in panel.text
    assert "Without shard 3 and shard 7" in panel.text and "bit for bit the same" in panel.text
    panel.controls["first"].value = 11
    assert "Without shard 7 and parity 1" in panel.text
    panel.controls["second"].value = 11
    assert "Without parity 1," in panel.text and "bit for bit the same" in panel.text


def test_ten_of_eleven_says_the_order_statistics():
    """Without slow reads: 1 ms and the median of exponential order statistics by hand."""
    panel = reads_panel()
    panel.controls["slow"].value = 0.0
    middle = 1 - np.log(1 - 0.5**0.1)
    late = 1 - np.log(1 - 0.99**0.1)
    assert f"ten of ten: {middle:.1f} ms in the middle, {late:.1f} for 1 in 100" in panel.text


def test_the_eleventh_read_helps_idle_disks_and_hurts_busy_ones():
    """H(11) - 1 = 2.02 against H(10) = 2.93 over 1 - load; even at 75.6 %."""
    panel = load_panel()
    panel.controls["load"].value = 0
    assert "all ten of ten 2.93; ten of eleven 2.02; ten of twelve 1.60" in panel.text
    best = []
    for load in (0, 60, 72, 80):
        panel.controls["load"].value = load
        best.append(int(re.search(r"Issuing (\d+) is best", panel.text)[1]))
    assert best == [12, 12, 11, 10]
    panel.controls["load"].value = 95
    assert "ten of eleven no end of waiting" in panel.text


@pytest.mark.parametrize("make", ["shards_panel", "reads_panel", "load_panel"])
def test_every_control_moves_sentence_and_picture(make, lm):
    panel = getattr(storage_panels, make)(*([lm] if make == "shards_panel" else []))
    for control in panel.controls.values():
        start = control.value
        for end in control.ends:
            before = panel.draws, panel.text, panel.png
            if end == control.value:
                continue
            control.value = end
            assert panel.draws == before[0] + 1
            assert panel.text != before[1] and panel.png != before[2]
        control.value = start
    assert panel.error is None
