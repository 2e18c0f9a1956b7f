"""The panels of prefill and decode apart, and of failover: what they say and do at their ends."""

from __future__ import annotations

import dataclasses

import pytest
from panels import each_control_moves

import g2c_serving as g
from g2c_serving.lab import pools_panel, ship_panel
from g2c_serving.lab.failover_panel import DIE, REQUESTS, failover_panel
from g2c_serving.lab.handover_tables import PROMPTS, TOKENS, price, two_engines
from g2c_serving.lab.ship_panel import FLASH, SEVEN, num_bytes, way


@pytest.mark.parametrize("panel", [ship_panel.ship_panel, pools_panel.pools_panel])
def test_every_control_moves_the_sentence_and_the_picture(panel):
    each_control_moves(panel)


def test_bytes_of_a_context():
    """The Brief's 89 MB of 100,000 tokens, with 1.35 MiB of window state; Module 16's 1.07 GB of
    2,048 tokens."""
    assert num_bytes(FLASH, 100_000) == 89_000_000 + 1_415_040
    assert num_bytes(SEVEN, 2_048) == pytest.approx(1.07e9, rel=0.01)


def test_what_shows_of_a_way_by_hand():
    """100,000 tokens: 7.5 s of prefill; 52.43 GB over 50 GB/s take 1.05 s, a 32nd of which shows;
    over 5 GB/s 10.5 s, all but 31 of 32 layers' prefill of which shows."""
    late, early = way(SEVEN, 100_000, 50, False), way(SEVEN, 100_000, 50)
    assert late.prefill_ms == 7500 and late.shown_ms == late.transfer_ms == 1048.576
    assert early.shown_ms == pytest.approx(1048.576 / 32)
    panel = ship_panel.ship_panel()
    panel.controls["gb_per_s"].value = 50
    assert "33 ms of it show" in panel.text and "97% is hidden" in panel.text
    assert 10_485.76 - 7500 * 31 / 32 == pytest.approx(3220, abs=1)
    assert "3.22 s of it show" in ship_panel.ship_picture().text


def test_one_pool_or_two_at_the_start():
    """Chunks of 2,048 add 41 ms to a step of 10 where somebody decodes."""
    panel = pools_panel.pools_panel()
    assert "within 51 ms of the one before in one pool (chunks of 2,048)" in panel.text
    assert "(4 of 8) are busy 50% of the time" in panel.text
    assert panel.artists["time between tokens (ms)"][0].get_xdata()[-1] == pytest.approx(51, abs=1)


def test_failover_on_the_shipped_model():
    panel = failover_panel(g.load("tiny"))
    both = f"{REQUESTS} of {REQUESTS} answers, 300 tokens, are equal"
    assert both in panel.text and "forwards 3 requests" in panel.text
    assert "0 tokens are computed again" in panel.text
    panel.controls["how"].value = DIE
    assert "press Run" in panel.caption.value
    panel.run()
    assert panel.error is None and both in panel.text
    assert "4 requests, goes on elsewhere from the tokens alone" in panel.text


def test_two_engines_on_the_shipped_model():
    """Each prompt in the one, all but the first token of each answer in the other."""
    lm = g.load("tiny")
    apart = two_engines(lm)
    prompts = sum(len(lm.tokenizer.encode(text)) for text in PROMPTS)
    assert apart.equal and apart.shipped_tokens == prompts
    assert apart.shipped_bytes == prompts * 2 * 4 * 256 * 4  # keys and values, layers, width, f32
    counts = {row[0]: row[1:3] for row in apart.table.rows}
    rows = str(3 * (TOKENS - 1))
    assert counts == {
        "one engine": (str(prompts), rows),
        "prefill": (str(prompts), "0"),
        "decode": ("0", rows),
    }
    sent = f"tokens of cache were shipped, {prompts * 8.192:.0f} kB."
    verdict = f"{sent} All tokens are equal to those of one engine."
    assert repr(apart) == f"{apart.table!r}\n{prompts} {verdict}"
    page = apart._repr_markdown_()
    assert page == f"{apart.table._repr_markdown_()}\n\n{prompts} {verdict}"
    assert "Tokens differ from those" in repr(dataclasses.replace(apart, equal=False))


def test_the_price_of_a_move():
    table = price(g.load("tiny"), repeats=1)
    assert [row[0] for row in table.rows] == ["64 tokens", "256 tokens", "480 tokens"]
    assert [float(row[1]) for row in table.rows] == [0.5, 2.1, 3.9]
    assert all(float(cell) > 0 for row in table.rows for cell in row[2:])
