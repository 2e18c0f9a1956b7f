"""A conversation with its cache, the cache on disk, and what block operations cost."""

from __future__ import annotations

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import block_costs, conversation, restart
from g2c_serving.lab.hit_calculator import TINY
from g2c_serving.schedule.block_manager import BlockManager


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=1024, context=512, layers=1)


@pytest.fixture(scope="module")
def tiny():
    return g.load("tiny")


# ---- the conversation ----


@pytest.fixture(scope="module")
def turns(tiny):
    return conversation.talk(g.Engine(tiny, conversation.config(caching=True)))


def test_every_turn_begins_with_the_turn_before(turns):
    assert turns[0].cached == 0
    for before, turn in zip(turns, turns[1:], strict=False):
        assert turn.ids[: len(before.ids)] == before.ids


def test_every_turn_reuses_what_the_hit_rule_says(turns):
    """All of the turn before is cached, its answer included, except the last answered token, which
    was drawn and never computed."""
    for before, turn in zip(turns, turns[1:], strict=False):
        added = turn.ids[len(before.ids) :]
        answered = added.index(262)  # <|end|>, the token that ended the answer
        known = len(before.ids) + answered
        assert turn.cached == TINY.hit(len(turn.ids), cached=known).reused
        assert turn.computed < 60


def test_the_conversation_needs_its_context(turns):
    answers = {turn.question: turn.answer for turn in turns}
    assert "Mia" in answers["What is my name?"] and "Hugo" in answers["Where does Hugo live?"]


def test_the_table_of_the_turns(turns):
    first, second = conversation.table(turns).rows[:2]
    assert first[0].startswith("Hello! My name is Mia. / ") and first[2] == "0"
    assert int(second[2]) + int(second[3]) == int(second[1]) == len(turns[1].ids)


def test_the_picture_of_the_turns(tiny, turns):
    said = conversation.picture(tiny, turns[:2]).text
    assert said.startswith(f"Turn 2 has {len(turns[1].ids)} tokens: {turns[1].cached} come from")


# ---- the cache on disk ----


def test_another_process_leaves_what_this_one_finds(tiny, tmp_path):
    first = restart.in_another_process(tmp_path / "kv")
    assert " new engine: 0 of 449 tokens came from disk" in first
    assert " new engine: 448 of 449 tokens came from disk" in restart.visit(tiny, tmp_path / "kv")


def test_the_lines_and_the_table_are_about_one_prompt(tiny):
    head, ids = restart.two_engines(tiny).head[0], restart.prompt(tiny)
    assert head.startswith(f"{len(ids)} tokens") and len(ids) == 448 + 1


def test_a_process_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(restart, "PROGRAM", "raise SystemExit('no such thing')")
    with pytest.raises(RuntimeError, match="no such thing"):
        restart.in_another_process(tmp_path)


def test_a_second_engine_computes_one_token(lm):
    one, two = restart.two_engines(lm).rows
    assert one[1:] == ("0 of 28 blocks", "0", "449")
    assert two[1:] == ("28 of 28 blocks", "448", "1")


@pytest.mark.parametrize(
    "computed, loaded, want",
    [([1, 2, 4], [2, 2.5, 3], 64), ([3, 4, 5], [1, 2, 3], 16), ([1, 2, 3], [2, 3, 4], 0),
     ([3, 1, 5], [2, 2, 2], 64)],
)  # fmt: skip
def test_the_crossing(computed, loaded, want):
    """From there on loading is always the faster one: an earlier dip does not count."""
    assert restart.crossing((16, 32, 64), computed, loaded) == want


def test_the_picture_of_loading(lm):
    said = restart.picture(lm, (16, 32)).text
    assert "16 tokens take" in said and "32 take" in said


# ---- block operations ----


def test_the_pools_are_as_described():
    half, cached = block_costs.half_full(100), block_costs.all_cached(100)
    half.check(), cached.check()
    assert half.num_used == 50 and len(cached.cached_blocks) == 100 and not cached.free_blocks


def test_evicting_leaves_the_pool_as_full_of_names_as_before():
    manager = block_costs.all_cached(100)
    for _ in range(5):
        manager.allocate(-1, 512)
        block_costs._give_back(manager, -1)
        manager.check()
        assert len(manager.cached_blocks) == 100


def test_nothing_that_is_timed_looks_at_the_whole_pool():
    """Counted, not timed: each operation touches as many list items in a large pool as in a small
    one. A list that counts its reads and writes stands in for the counts and the free list."""
    assert _touched(100) == _touched(10_000)


class Counting(list):
    touched = 0

    def __getitem__(self, key):
        Counting.touched += 1
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        Counting.touched += 1
        super().__setitem__(key, value)

    def __iter__(self):
        Counting.touched += len(self)
        return super().__iter__()

    def pop(self, *key):
        Counting.touched += 1 + (len(self) if key else 0)
        return super().pop(*key)

    def append(self, value):
        Counting.touched += 1
        super().append(value)


def _touched(num_blocks: int) -> int:
    manager = BlockManager(num_blocks, 16)
    manager.ref_counts, manager.free_blocks = (
        Counting(manager.ref_counts),
        Counting(manager.free_blocks),
    )
    Counting.touched = 0
    manager.allocate(0, 512)
    manager.allocate(0, 513, 512)
    manager.fork(0, 1, 513)
    manager.allocate(1, 514, 513)
    manager.free(0), manager.free(1)
    return Counting.touched


def test_the_picture_names_every_operation():
    said = block_costs.picture((100, 200), repeats=3).text
    assert all(f"{name} " in said for name in block_costs.OPERATIONS)
