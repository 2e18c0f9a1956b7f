"""The panels of prefill and decode apart, and of failover: what they say and do at their ends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from panels import each_control_moves

import g2c_serving as g
from g2c_serving.cluster.disaggregation import one_pool, two_pools
from g2c_serving.lab import pools_grid, pools_panel, ship_panel
from g2c_serving.lab.failover_panel import DIE, EVENT, REQUESTS, STOP, failover_panel, play
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
    assert "3.22 s of it show" in ship_panel.ship_panel().text


def test_what_the_words_send_the_reader_to():
    """Over 5 GB/s the 7B model's cache takes longer than its prompt; over 10 GB/s a layer shows; of
    V4.1-Flash's hardly anything does, even sent at the end."""
    slow, fast = way(SEVEN, 100_000, 5), way(SEVEN, 100_000, 10)
    assert slow.transfer_ms > slow.prefill_ms and slow.shown_ms > 1000
    assert fast.shown_ms == pytest.approx(fast.transfer_ms / ship_panel.LAYERS)
    flash = way(FLASH, 100_000, 5, False)
    assert flash.shown_ms < 20 and flash.prefill_ms > 5000


# ---- one pool or two ----


def test_the_kept_waits_are_those_of_the_simulation():
    for kept, now in (
        (pools_grid.find_one(10, 500, 8_192), pools_grid.measure_one(10, 500, 8_192)),
        (pools_grid.find_two(60, 4_000, 7), pools_grid.measure_two(60, 4_000, 7)),
        (pools_grid.find_two(30, 4_000, 1), pools_grid.measure_two(30, 4_000, 1)),
    ):
        for name in vars(now):
            assert getattr(kept, name) == pytest.approx(getattr(now, name), rel=1e-6, nan_ok=True)


def test_the_first_requests_are_left_out():
    """They find empty machines; the others are all there."""
    load = pools_grid.load_of(60, 4_000)
    run = two_pools(load, 7, 1, pools_grid.COSTS)
    late = np.percentile(run.first_token[200:], 99)
    assert len(run.first_token) == 2_200
    assert pools_grid.find_two(60, 4_000, 7).first_99[0] == pytest.approx(late, rel=1e-6)


def test_one_pool_or_two_at_the_start():
    """Chunks of 2,048 add 41 ms to a step of 10 where somebody decodes; of four prefill machines,
    91 ms a prompt and 30 prompts a second ask 68 %."""
    panel = pools_panel.pools_panel()
    assert "chunks of 2,048; offered load 0.38" in panel.text
    assert "of the later ones within 51 ms of the one before. Two pools" in panel.text
    assert "4 of 8 prefill, offered load 0.68, the others decode, 0.02" in panel.text
    one, two = pools_grid.find_one(30, 4_000, 2_048), pools_grid.find_two(30, 4_000, 4)
    assert 0.5 < two.first_99.mean() / one.first_99.mean() < 1.5  # alike
    late = pools_grid.LONGER[one.between > 40]
    assert late[0] > 5 and two.between.max() < 20  # one token in twenty and more; none


def test_small_chunks_wait_less_between_tokens_and_load_the_pool_more():
    small, large = (pools_grid.find_one(30, 4_000, chunk) for chunk in (256, 2_048))
    assert small.between_99.max() < 0.4 * large.between_99.min()
    assert small.first_99.min() > 2 * large.first_99.max()
    loads = [pools_grid.one_load(30, 4_000, chunk) for chunk in (256, 2_048)]
    assert 2 * loads[1] < loads[0] < 1


def test_without_a_steady_state_there_is_no_curve():
    """One prefill machine of eight: the longer they come, the longer they wait."""
    panel = pools_panel.pools_panel()
    panel.controls["prefill"].value = 1
    assert "offered load 2.73, the others decode, 0.01): no steady state" in panel.text
    assert np.isnan(panel.artists["time to first token (ms)"][1].get_xdata()).all()
    assert panel.artists["unsteady"].get_text() == "two pools: no steady state"
    panel.controls["prefill"].value = 4
    assert panel.artists["unsteady"].get_text() == ""
    panel.controls["rate"].value = 60
    assert "offered load 1.37" in panel.text and "no steady state" in panel.text
    assert panel.text.index("Two pools") < panel.text.index("no steady state")  # one pool copes


def test_the_right_split_is_better_in_both_respects():
    one, two = pools_grid.find_one(30, 4_000, 2_048), pools_grid.find_two(30, 4_000, 7)
    assert two.first_99.max() < one.first_99.min() and two.between_99.max() < one.between_99.min()


def test_a_setting_below_1_has_settled():
    """Twice as many requests wait about as long, in one pool and in two."""
    load = pools_grid.Load(30, 4_200, 4_000, 50, seed=9)
    for run in (one_pool(load, 8, pools_grid.COSTS), two_pools(load, 4, 4, pools_grid.COSTS)):
        halves = run.first_token[200:2_200].mean(), run.first_token[2_200:].mean()
        assert halves[0] == pytest.approx(halves[1], rel=0.1)


# ---- engines that go ----


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


@pytest.mark.parametrize(
    "how, grace, last", [(STOP, 8, EVENT + 8), (STOP, 0, EVENT), (DIE, 0, EVENT)]
)
def test_a_token_is_of_the_engine_that_drew_it(how, grace, last):
    """A draws none after it has gone: a request that is forwarded has its next one from another.
    It ran four; forwarded at step 16 without a wait, one has 17 tokens by the step's end."""
    *_, story = play(g.load("tiny"), how, grace, 4)
    by_a = [k for served in story.served for k, name in enumerate(served) if name == "A"]
    assert max(by_a) == last - 1 and by_a.count(0) == 4
    drawn = [sum(name is not None for name in served) for served in story.served]
    assert drawn == [len(story.tokens[i]) for i in range(REQUESTS)]


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
