"""The grid of blocks: what a moment says, against the engine's own books, and the panel's words."""

from __future__ import annotations

from collections import Counter

import pytest
from small_models import random_lm

from g2c_serving.lab import block_grid, block_record
from g2c_serving.lab.block_record import BLOCK, POOL, Moment
from g2c_serving.lab.plots import new_figure


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266, context=512)


@pytest.fixture(scope="module")
def moments(lm):
    return block_record.record(lm)


def test_a_moment_by_hand():
    """A has 11 tokens in blocks 4 and 2, B 17 in blocks 4, 0 and 7, of which A's first is one."""
    now = Moment({"A": [4, 2], "B": [4, 0, 7]}, {"A": 11, "B": 17}, [5], [2], 0, [])
    assert now.users == {4: "AB", 2: "A", 0: "B", 7: "B"}
    assert now.filled == {4: 8, 2: 3, 0: 8, 7: 1}


def test_a_block_is_used_or_kept_or_free_and_never_written_by_two(moments):
    for now in moments:
        assert not set(now.users) & set(now.cached)
        assert set(now.users) | set(now.cached) <= set(range(POOL))
        counts = Counter(block for table in now.tables.values() for block in table)
        for block in now.copied:
            assert counts[block] == 1
        for letter, table in now.tables.items():
            assert len(table) == -(-now.tokens[letter] // BLOCK) or now.tokens[letter] % BLOCK == 0


def test_the_run_shows_all_that_the_page_speaks_of(moments):
    events = [event for now in moments for event in now.events]
    for words in ("C to E come", "is forked from B", "were cached", "ends", "given away"):
        assert any(words in event for event in events), words
    assert max(len(now.users) for now in moments) > 20
    assert any(len(who) == 3 for now in moments for who in now.users.values())
    assert any(now.cached for now in moments) and any(now.copied for now in moments)
    assert moments[-1].tables == {}


def test_three_samples_share_the_full_blocks_and_two_copy_the_tail(moments):
    come = next(k for k, now in enumerate(moments) if "C to E" in " ".join(now.events))
    after = moments[come + 1]
    full = after.tokens["C"] // BLOCK
    shared = [after.tables[letter][:full] for letter in "CDE"]
    assert shared[0] == shared[1] == shared[2]
    tails = {after.tables[letter][full] for letter in "CDE"}
    assert len(tails) == 3 and len(after.copied) == 2


def test_a_second_turn_finds_the_first_one_s_blocks(moments):
    k = next(k for k, now in enumerate(moments) if any("G comes" in event for event in now.events))
    before, after = moments[k - 1], moments[k]
    reused = [
        block for block in after.tables["G"] if block in before.cached or block in before.users
    ]
    assert len(reused) >= 3 and reused == after.tables["G"][: len(reused)]
    assert f"{len(reused) * BLOCK} tokens of it were cached" in after.events


def test_the_words_beside_the_tables_count_as_the_sentence_does(lm, moments):
    """Right values: the engine's books; in use, kept and free are all blocks there are."""
    figure = new_figure()
    art = block_grid._draw(figure)
    for step, now in enumerate(moments, 1):
        sentence = block_grid._update(art, now, step)
        use, kept = len(now.users), len(now.cached)
        free = POOL - use - kept
        assert art["state"].get_text() == (
            f"{now.num_waiting} waiting; blocks: {use} in use, {kept} kept, {free} free"
        )
        assert f"in use: {use}, of which" in sentence
        assert f"{kept} kept for later, {free} free." in sentence


def test_the_panel_draws_every_step(lm, moments):
    panel = block_grid.panel(lm)
    assert panel.controls["step"].ends == (1, len(moments))
    for step in (1, 7, len(moments)):
        panel.controls["step"].value = step
        assert panel.error is None and panel.text.startswith(f"Step {step}, requests: ")
