"""Preemption under small pools: what is computed again, counted by hand; the same tokens."""

from __future__ import annotations

import fakes
import pytest
from small_models import random_lm

from g2c_serving.lab import preemption, workload
from g2c_serving.lab.workload import Arrival


def test_tokens_computed_again_counted_by_hand():
    """Four blocks of 4 and two prompts of 8. A grows, B gives its two blocks up after its first
    token, with 8 tokens in the cache, and later computes 9: eight of them again."""
    made = [Arrival(0, tuple(range(8)), 3), Arrival(0, tuple(range(9, 17)), 2)]
    run = workload.run(fakes.engine(num_blocks=4), made)
    assert preemption.computed_again(run) == 8


def test_nothing_is_computed_again_where_there_is_room():
    run = workload.run(fakes.engine(), [Arrival(0, (1,) * 8, 3), Arrival(0, (2,) * 8, 2)])
    assert preemption.computed_again(run) == 0


@pytest.fixture(scope="module")
def panel():
    return preemption.panel(random_lm(vocab_size=266, context=512))


def test_the_text_is_the_same_under_every_pool_and_only_the_largest_preempts_nobody(panel):
    for pool in preemption.POOLS:
        panel.controls["pool"].value = pool
        assert "are the same as with 32 blocks" in panel.text
        assert ("0 preemptions, 0 tokens computed again" in panel.text) == (pool == 32)


def test_the_pool_is_never_overdrawn(panel):
    for pool in preemption.POOLS:
        panel.controls["pool"].value = pool
        used = panel.artists["used"].get_ydata()
        assert 0 < max(used) <= pool and used[-1] == 0
