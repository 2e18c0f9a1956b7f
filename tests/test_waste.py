"""Reserved rows against blocks: the Brief's example, and counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.lab import waste
from g2c_serving.lab.waste import Mix


def test_the_brief_s_example():
    text = repr(waste.example())
    assert "2,048        1,748   15%" in text  # 300 / 2,048
    assert "3 blocks of 128" in text and "384           84   78%" in text  # 300 / 384


def test_waste_by_hand():
    """1, 8, 9 and 16 tokens in blocks of 8: 8, 8, 16 and 16 slots; reserved rows have 32."""
    mix = Mix(np.array([1, 8, 9, 16]), 8, 32)
    assert mix.slots.tolist() == [8, 8, 16, 16]
    assert mix.waste_in_blocks == (7 + 0 + 7 + 0) / 4
    assert mix.waste_reserved == (31 + 24 + 23 + 16) / 4
    assert mix.used_of_blocks == 34 / 48 and mix.used_of_reserved == 34 / 128


@pytest.mark.parametrize("block_size", waste.BLOCKS)
def test_the_waste_in_blocks_is_under_one_block_whatever_is_reserved(block_size):
    for reserved in waste.RESERVED:
        mix = Mix(waste.lengths(300, reserved), block_size, reserved)
        assert (mix.slots - mix.tokens).max() < block_size


def test_lengths_lie_around_the_median_and_within_the_limit():
    found = waste.lengths(300, 2048)
    assert len(found) == 200 and list(found) == sorted(found)
    assert 240 < np.median(found) < 360
    assert waste.lengths(2000, 512).max() == 512 and found.min() >= 1


@pytest.mark.parametrize("median, reserved", [(300, 2048), (2000, 512), (50, 8192), (2000, 8192)])
def test_the_panel_states_the_median_of_what_it_shows_and_how_many_are_cut(median, reserved):
    panel = waste.panel()
    panel.controls["median"].value, panel.controls["reserved"].value = median, reserved
    shown, free = waste.lengths(median, reserved), waste.lengths(median, 10**9)
    assert f"(median {np.median(shown):,.0f}, " in panel.text
    cut = sum(n > reserved for n in free.tolist())
    assert f", {cut or 'none'} cut off at max_seq_len)" in panel.text
    assert median != 2000 or "(median 2,000" not in panel.text


def test_without_a_cut_max_seq_len_changes_nothing_in_blocks():
    """What the page says of the right picture: true as long as no request is cut off."""
    whole = [Mix(waste.lengths(300, n), 128, n).waste_in_blocks for n in (4096, 8192)]
    assert whole[0] == whole[1] and waste.lengths(300, 10**9).max() <= 4096
    assert Mix(waste.lengths(300, 512), 128, 512).waste_in_blocks != whole[0]


def test_the_panel_says_both():
    panel = waste.panel()
    assert "Rows of 2,048 slots" in panel.text and "never more than 127" in panel.text
    panel.controls["block_size"].value = 1
    assert "100% used and waste 0, always 0" in panel.text
