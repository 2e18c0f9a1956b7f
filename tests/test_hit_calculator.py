"""The hit rule as a calculator: the Brief's cases and byte counts, and what the panel says."""

from __future__ import annotations

import pytest
from panels import each_control_moves

from g2c_serving.lab import hit_calculator
from g2c_serving.lab.hit_calculator import FLASH, TINY, WINDOW_BYTES, global_bytes
from g2c_serving.lab.plots import new_figure


def test_the_brief_s_three_cases():
    cases = list(FLASH.cases(10_000).values())
    assert [(c.reused, c.replayed, c.new, c.computed) for c in cases] == [
        (9856, 0, 144, 144),
        (9728, 128, 272, 400),
        (0, 0, 10_000, 10_000),
    ]
    assert FLASH.never_cached == 134 and FLASH.cap(10_000) == 9866
    assert "9,728       128     272       400" in repr(hit_calculator.cases())


def test_tiny_always_computes_a_token():
    assert TINY.cap(448) == 447
    assert (TINY.hit(448).reused, TINY.hit(448).computed) == (432, 16)  # 27 of its 28 blocks
    assert TINY.hit(449).reused == 448 and TINY.hit(449).computed == 1
    assert TINY.cases(448)["window state gone"] == TINY.hit(448)  # there is none to lose


def test_the_brief_s_bytes():
    assert WINDOW_BYTES == 1_415_040
    assert global_bytes(100_000) == 89_000_000
    assert "89.0 MB   1,415,040 B   62.9" in repr(hit_calculator.bytes_table())


def test_the_panel_says_the_brief_s_numbers():
    panel = hit_calculator.panel()
    assert "the cap is 9,866, 77 full blocks of 128" in panel.text
    assert "is held: 9,856 reused, 144 computed" in panel.text
    panel.controls["held"].value = False
    assert "is gone: 9,728 reused, 128 of it replayed, 400 computed" in panel.text


@pytest.mark.parametrize("rule, length", [(FLASH, 10_000), (TINY, 448)])
def test_every_control_moves_the_words_and_the_picture(rule, length):
    each_control_moves(lambda: hit_calculator.panel(rule, length))


def test_a_request_shorter_than_the_window_reuses_nothing():
    panel = hit_calculator.panel(length=100)
    assert "the cap is 0, 0 full blocks" in panel.text and "100 computed, 100.0%" in panel.text


@pytest.mark.parametrize(
    "length, words, cap_at, room",
    [
        (1, "1 token, which never comes from the cache (window 128, slack 6): the cap is 0", 1, 10),
        (100, "100 tokens, none of which comes from the cache (window", 100, 100),
        (134, "134 tokens, none of which comes from the cache (window", 134, 1_000),
        (135, "135 tokens, of which the last 134 never come from the cache", 134, 1_000),
        (10_000, "10,000 tokens, of which the last 134 never come from", 134, 20_000),
    ],
)
def test_a_request_has_no_more_uncached_tokens_than_tokens(length, words, cap_at, room):
    """The line of the cap stands `length - cap` tokens before the end."""
    figure, rule = new_figure(), FLASH
    art = hit_calculator._draw(figure)
    text = hit_calculator._update(art, length, rule.block_size, rule.window, rule.slack, True)
    assert text.startswith(words)
    assert list(art["cap"].get_xdata()) == [cap_at] * 2 and cap_at == length - rule.cap(length)
    left, right = art["top"].get_xlim()
    assert left == 0 and room <= right < 1.1 * room and right < 11 * length


def test_without_a_window_there_is_no_state():
    panel = hit_calculator.panel(TINY, 17)
    assert "17 tokens, of which the last never comes from the cache" in panel.text
    assert "1 full block of 16. There is no window state to hold: 16 reused" in panel.text
    panel.controls["held"].value = False
    assert "There is no window state to lose: 16 reused" in panel.text
    assert "The window state is" not in panel.text
