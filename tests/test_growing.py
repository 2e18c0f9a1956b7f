"""Caches that grow by concatenation or in pages: bytes by hand; and holes in an arena."""

from __future__ import annotations

import pytest
import torch
from small_models import random_lm

from g2c_serving.lab import fragments, growing
from g2c_serving.lab.fragments import Arena, Pages, simulate
from g2c_serving.lab.plots import new_figure

# ---- growing ----


@pytest.fixture(scope="module")
def lm():
    """2 layers of width 32 in 4 bytes: 512 bytes of keys and values a token."""
    return random_lm(context=320)


def test_concatenation_writes_everything_to_add_one_token(lm):
    found = growing.concatenate(lm.config, [3, 10], steps=2)
    assert found.written == ((4 + 11) * 512, (5 + 12) * 512)
    assert found.live == (5 + 12) * 512
    assert found.peak == (4 + 11 + 5 + 12) * 512  # the last old caches and the new ones


def test_pages_write_the_new_token_and_hold_less_than_a_block_too_much(lm):
    found = growing.append(lm.config, [3, 10], steps=2)
    assert found.written == (2 * 512, 2 * 512)
    assert found.live == (5 + 12) * 512
    assert found.peak == 2 * 16 * 512  # a block each
    assert growing.append(lm.config, [15, 10], steps=2).peak == 3 * 16 * 512


def test_a_grown_cache_is_the_old_one_and_the_new_token():
    cache = [(torch.arange(6.0).view(1, 3, 2), torch.zeros(1, 3, 2))]
    new = torch.full((1, 1, 1, 1, 2), 9.0)
    ((keys, values),) = growing.grown([cache], new, new)[0]
    assert keys.tolist() == [[[0, 1], [2, 3], [4, 5], [9, 9]]]
    assert values.shape == (1, 4, 2) and values[0, 3].tolist() == [9, 9]


def test_the_picture_says_what_both_cost(lm):
    said = growing.compare(lm, users=3, steps=3).text
    assert said.startswith("3 users with") and "times the live bytes" in said


# ---- fragments ----


def test_first_fit_by_hand():
    """10 slots: a of 4, b of 3, c of 3; when a and c have left, 7 slots are free and 5 fit not."""
    arena = Arena(10)
    assert arena.place(0, 4) and arena.place(1, 3) and arena.place(2, 3)
    arena.remove(0), arena.remove(2)
    assert arena.holes() == [(0, 4), (7, 3)]
    assert not arena.place(3, 5)
    assert arena.place(4, 2) and arena.held[4] == (0, 2)
    assert arena.holes() == [(2, 2), (7, 3)]


def test_blocks_fit_wherever_they_are_free():
    pages = Pages(8, block=2)
    assert pages.place(0, 3) and pages.place(1, 4)
    pages.remove(0)
    assert pages.place(2, 4)  # of the blocks that are free, whichever they are
    assert not pages.place(3, 1)
    assert sum(held for *_, held in pages.pieces()) == 8


@pytest.mark.parametrize("store", [Arena, Pages])
@pytest.mark.parametrize("longest", [128, 1024])
def test_nobody_overlaps_and_nobody_who_waits_would_fit(store, longest):
    kept = store()
    for now in simulate(kept, longest, steps=60):
        spans = sorted((start, start + held) for _, start, _, held in now.pieces)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
        assert spans[0][0] >= 0 and spans[-1][1] <= fragments.SLOTS
        assert len(now.waiting) == fragments.QUEUE
        if store is Arena:
            assert max((n for _, n in now.holes), default=0) < min(now.waiting)
        else:
            assert sum(n for _, n in now.holes) < min(now.waiting)


def test_long_requests_leave_holes_that_blocks_do_not():
    whole, cut = (simulate(store(), 1024)[20:] for store in (Arena, Pages))
    used = [sum(now.used for now in moments) / len(moments) for moments in (whole, cut)]
    assert used[1] > 1.05 * used[0]


def test_the_panel():
    panel = fragments.panel()
    assert panel.text.startswith("Step 120, requests up to 1,024 tokens. In one piece: ")
    panel.controls["longest"].value = 128
    assert "up to 128 tokens" in panel.text and panel.error is None


@pytest.mark.parametrize("longest", [128, 512, 2048])
def test_free_blocks_are_left_only_where_all_of_them_are_too_few(longest):
    """What the page says of the lower picture; in one piece, free slots that would be enough."""
    whole, cut = simulate(Arena(), longest), simulate(Pages(), longest)
    enough = {}
    for name, moments in (("whole", whole), ("cut", cut)):
        enough[name] = [sum(n for _, n in now.holes) >= min(now.waiting) for now in moments]
    assert any(enough["whole"]) and not any(enough["cut"])
    assert longest != 2048 or any(now.holes for now in cut)


def test_the_lower_picture_says_how_many_blocks_are_free():
    figure = new_figure()
    art = fragments._draw(figure)
    whole, cut = simulate(Arena(), 2048), simulate(Pages(), 2048)
    fragments._update(art, whole, cut, 200, 2048)
    free = fragments.SLOTS // 16 - len(cut[-1].pieces)
    said = art["in blocks of 16 title"].get_text()
    assert free > 0 and said.startswith(f"{free} blocks free, {16 * free} slots in all; ")
    assert said.endswith(f" needs {min(cut[-1].waiting)}")
    assert art["in one piece title"].get_text().startswith("1 hole, 17 slots")
