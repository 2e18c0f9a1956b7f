"""The hit rule against the Brief's own numbers, and against a rule written out token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.schedule.hit_rule import Hit, hit


def test_the_briefs_agent_with_10_000_tokens():
    """Brief, section 2: cap 9,866, 77 blocks; 144, about 400, or all 10,000 tokens computed."""
    held = hit(10_000, 128, window=128, slack=6)
    assert held == Hit(reused=9_856, replayed=0, new=144) and held.computed == 144
    evicted = hit(10_000, 128, window=128, slack=6, state_held=False)
    assert evicted == Hit(reused=9_728, replayed=128, new=272) and evicted.computed == 400
    assert hit(10_000, 128, window=128, slack=6, cached=0).computed == 10_000


@pytest.mark.parametrize("length, reused", [(1, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_without_a_window_one_token_is_always_computed(length, reused):
    assert hit(length, 16) == Hit(reused, 0, length - reused)


def test_what_is_not_in_the_cache_is_not_reused():
    assert hit(100, 16, cached=47).reused == 32


def test_a_replay_that_would_begin_at_the_first_token_is_no_hit():
    assert hit(300, 128, window=128, slack=6, state_held=False) == Hit(0, 0, 300)
    assert hit(400, 128, window=128, slack=6, state_held=False) == Hit(0, 0, 400)
    assert hit(520, 128, window=128, slack=6, state_held=False) == Hit(256, 128, 264)


@given(
    length=st.integers(1, 400),
    block_size=st.integers(1, 40),
    window=st.integers(0, 80),
    slack=st.integers(1, 8),
    cached=st.integers(0, 400),
    held=st.booleans(),
)
def test_against_the_rule_in_words(length, block_size, window, slack, cached, held):
    found = hit(length, block_size, window, slack, cached=cached, state_held=held)
    ends = [
        n for n in range(0, length + 1, block_size) if n <= min(cached, length - window - slack)
    ]
    longest = max(ends, default=0)
    if not held and window and longest:
        longest = longest - block_size if longest - block_size > window else 0
    assert found.reused == longest
    assert found.reused + found.new == length and found.new >= 1
    assert found.replayed == (window if not held and longest else 0)


@pytest.mark.parametrize(
    "options, field",
    [
        ({"length": 0}, "length"),
        ({"block_size": 0}, "block_size"),
        ({"window": -1}, "window"),
        ({"slack": 1.5}, "slack"),
        ({"cached": -1}, "cached"),
        ({"window": 0, "slack": 0}, "slack"),
    ],
)
def test_bad_numbers_are_named(options, field):
    with pytest.raises(ValueError, match=field):
        hit(**{"length": 10, "block_size": 4, **options})
