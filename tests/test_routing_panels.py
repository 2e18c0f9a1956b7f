"""The panels about routing: what they show at known settings, and what notebook 07 says of them."""

from __future__ import annotations

import numpy as np
import pytest
from notebook_session import read
from panels import each_control_moves

from g2c_serving.cluster import routing
from g2c_serving.cluster.prefill_pool import PrefillPool, Prompt
from g2c_serving.lab import (
    decode_spread,
    prefill_tiers,
    prefill_work,
    prefix_grid,
    prefix_routing,
    simulated,
)
from g2c_serving.paths import NOTEBOOKS


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "07_infrastructure.ipynb").cells}


@pytest.mark.parametrize("panel", [decode_spread.panel, prefill_tiers.panel, prefix_routing.panel])
def test_every_control_moves_the_sentence_and_the_picture(panel):
    each_control_moves(panel)


def test_the_legend_keeps_clear_of_the_longest_waits():
    shown = prefill_tiers.panel()
    for name, value in (("spread", 1.4), ("load", 90), ("machines", 4)):
        shown.controls[name].value = value
    shown.figure.canvas.draw()
    left = shown.figure.axes[0]
    below = left.get_legend().get_window_extent().y0
    for mean in left.lines[: len(prefill_tiers.RULES)]:
        points = mean.get_transform().transform(mean.get_xydata())
        assert len(points) == prefill_tiers.TIERS and points[:, 1].max() < below


def test_margins():
    """1, 2, 3, 6: a mean of 3, a deviation of sqrt(14 / 3), two errors of sqrt(14 / 12)."""
    seeds = np.array([1.0, 2, 3, 6])
    assert simulated.margin(seeds) == pytest.approx(2 * np.sqrt(14 / 12))
    assert simulated.plus_minus(seeds) == "3.00 \u00b1 2.16"
    assert simulated.plus_minus(seeds, "+.0f", 10) == "+30 \u00b1 22"


# ---- prefill, tiers ----


def test_work_by_hand():
    """1,000 tokens: 20 ms and 0.1; then 500 more, of which 7 blocks of 128 are found: 604."""
    prompts = [Prompt(0, 1, 1000), Prompt(5, 1, 1500)]
    later = 604 * (0.02 + 896 * 2e-7 + 604 * 1e-7)
    assert prefill_work.alone_ms(prompts) == pytest.approx([20.1, later])
    assert prefill_tiers.work_of(np.array([1000])).tolist() == [20_100]


@pytest.mark.parametrize("rule", ["round robin", "four tiers", "least work queued"])
def test_the_panel_s_waits_are_the_pool_s(rule):
    """One seed on the virtual clock, its first thousand prompts left out."""
    seed, drawn, edges = 7, prefill_tiers.draws(), prefill_tiers.edges_before(1.2)
    lengths = prefill_tiers.lengths_of(drawn.lengths, 1.2)
    gap_us = prefill_tiers.work_of(lengths).mean() / (8 * 0.8)
    times = np.cumsum(drawn.gaps[seed] * gap_us).round().astype(int).tolist()
    pairs = enumerate(zip(times, lengths[seed].tolist(), strict=True))
    prompts = [Prompt(time, k, length) for k, (time, length) in pairs]
    routers = {"round robin": routing.round_robin(), "four tiers": routing.in_tiers(edges)}
    router = routers.get(rule, routing.least_work)
    served = PrefillPool(8, router, prefill_work.COST.cost).serve(prompts)[1000:]
    found = prefill_tiers.first_tokens(1.2, 0.8, 8).first_token[rule][:, seed]
    for tier in range(prefill_tiers.TIERS):
        low, high = ([0, *edges][tier], [*edges, 10**6][tier])
        s = [float(one.first_token) / 1e6 for one in served if low < one.prompt.length <= high]
        assert found[tier] == pytest.approx(np.mean(s), rel=1e-9)


def test_edges_come_from_other_prompts_and_share_the_work():
    """A quarter of the work each, as nearly as 100,000 prompts of such lengths tell."""
    lengths = prefill_tiers.lengths_of(prefill_tiers.draws().lengths, 1.2)
    tiers = np.searchsorted(prefill_tiers.edges_before(1.2), lengths)
    shares = np.bincount(tiers.ravel(), weights=prefill_tiers.work_of(lengths).ravel())
    shares /= shares.sum()
    assert shares == pytest.approx(0.25, abs=0.02) and shares.max() - shares.min() > 1e-3


def test_efficiency_of_a_batch_on_the_clock():
    """Turns, the first seed's 64 prompts a machine, all at time 0: the last to end decides."""
    lengths = prefill_tiers.lengths_of(prefill_tiers.draws().lengths, 1.2)[0, : 64 * 8]
    prompts = [Prompt(0, k, length) for k, length in enumerate(lengths.tolist())]
    served = PrefillPool(8, routing.round_robin(), prefill_work.COST.cost).serve(prompts)
    work, last = sum(one.work for one in served), max(one.end for one in served)
    found = prefill_tiers.first_tokens(1.2, 0.8, 8).efficiency["round robin"][0]
    assert found == pytest.approx(work / 8 / last, rel=1e-9)
    less = prefill_tiers.first_tokens(1.2, 0.5, 8).efficiency["round robin"][0]
    assert found == less


def test_a_larger_batch_is_more_even():
    """Eight times as many prompts at once: every rule runs nearer to perfect balance."""
    lengths = prefill_tiers.lengths_of(prefill_tiers.draws().lengths, 1.2)[:, : 8 * 64 * 8]
    work = prefill_tiers.work_of(lengths)
    tiers = np.searchsorted(prefill_tiers.edges_before(1.2), lengths)
    few = prefill_tiers.first_tokens(1.2, 0.8, 8).efficiency
    for rule in prefill_tiers.RULES:
        ends = prefill_tiers.starts(rule, 0 * work, work, tiers, 8) + work
        assert (work.sum(1) / 8 / ends.max(1)).mean() > few[rule].mean() + 0.05


def test_what_the_page_says_of_tiers(cells):
    """Seed by seed on the same prompts, at the start and under more load."""
    found = prefill_tiers.first_tokens(1.2, 0.8, 8)
    first, at_once = found.first_token, found.efficiency

    def apart(a: str, b: str, tier: int) -> float:
        """Of the means' difference, in standard errors."""
        more = first[a][tier] - first[b][tier]
        return 2 * more.mean() / simulated.margin(more)

    assert 9 < first["at random"][0].mean() / first["four tiers"][0].mean() < 16
    assert "about a tenth" in cells["tiers-words"]
    assert apart("four tiers", "at random", -1) > 2
    assert apart("four tiers", "least work queued", -1) > 5
    assert (first["least work queued"][-1] < first["at random"][-1]).all()
    assert abs(first["least work queued"][0].mean() - first["four tiers"][0].mean()) < 0.1
    assert apart("least work queued", "four tiers", 0) > 2
    ends = [at_once[rule].mean() for rule in prefill_tiers.RULES]
    assert ends == sorted(ends) and ends[1] < 0.78 < ends[2] < 0.86 < ends[3]
    shown = prefill_tiers.panel()
    assert "s later in tiers than at random" in shown.text
    assert "after 1.86 \u00b1 0.25 s at random, 1.48 \u00b1 0.15 in turn, 0.15 " in shown.text
    assert (
        "balance: 71 \u00b1 3% at random, 73 \u00b1 4 in turn, 82 \u00b1 4 in tiers" in shown.text
    )
    shown.controls["load"].value = 90
    assert "s later in tiers than at random" in shown.text
    shown.controls["spread"].value = 0.2
    assert "s earlier in tiers than at random" in shown.text


def test_where_all_prompts_are_alike_tiers_gain_nothing():
    found = prefill_tiers.first_tokens(0.2, 0.8, 8).first_token
    assert found["four tiers"].mean() > found["round robin"].mean()


# ---- prefill, prefixes ----


@pytest.mark.parametrize("setting", [(8, 20, 2), (4, 60, 1)], ids=["two turns", "one turn"])
def test_the_file_of_prefix_runs(setting):
    for seed in (0, 5):
        again = prefix_grid.measure(*setting, seed)
        kept = [
            [getattr(one, name)[seed] for name in ("computed", "load", "first_token", "busiest")]
            for one in prefix_grid.find(*setting)
        ]
        assert again == pytest.approx(np.array(kept), rel=1e-5)


@pytest.mark.parametrize("turns", [2, 4, 8, 16])
def test_what_whole_sessions_compute_if_all_is_found(turns):
    """A turn adds m = 2,000 * exp(0.7^2 / 2) tokens on average, and half a block of the one before
    is computed again. So a session computes turns * m + (turns - 1) * 64 tokens, of m * (1 + ... +
    turns). (The first, short sessions would compute more of theirs.)"""
    m = 2000 * np.exp(0.7**2 / 2)
    expected = (turns * m + (turns - 1) * 63.5) / (m * turns * (turns + 1) / 2)
    shared = prefix_grid.find(8, 20, turns)[2]
    assert shared.computed.mean() == pytest.approx(expected, rel=0.02)
    assert shared.load.mean() == pytest.approx(0.2, rel=0.03)


def test_work_that_is_elsewhere_is_done_again_and_one_turn_has_none():
    own, sticky, shared = prefix_grid.find(8, 20, 2)
    assert (own.computed > sticky.computed).all()
    assert sticky.computed.mean() == pytest.approx(shared.computed.mean(), rel=0.02)
    one = prefix_grid.find(8, 60, 1)
    assert all((setup.computed == 1).all() for setup in one)
    assert one[0].first_token.tolist() == one[2].first_token.tolist()


def test_no_steady_state_is_said():
    assert prefix_grid.Outcome(0, np.array([0.97, 0.99]), 0, 0).is_steady is False  # margin 0.02
    assert prefix_grid.Outcome(0, np.array([0.97, 0.98]), 0, 0).is_steady is True
    own, sticky, shared = prefix_grid.find(8, 60, 8)
    assert own.load.min() > 1 and not own.is_steady and sticky.is_steady and shared.is_steady
    shown = prefix_routing.panel()
    assert "no steady state" not in shown.text and "a load of 20 \u00b1 0%: 0." in shown.text
    assert [text.get_text() for text in shown.artists["words"]] == [""] * 3
    shown.controls["load"].value = 60
    assert f"a load of {100 * own.load.mean():.0f} \u00b1 " in shown.text
    assert shown.text.count("no steady state") == 1
    words = [text.get_text() for text in shown.artists["words"]]
    assert words == ["no steady\nstate", "", ""]


def test_what_the_page_says_of_prefixes(cells):
    words = cells["prefix-words"]
    own, sticky, shared = prefix_grid.find(8, 20, 8)
    assert "three quarters" in words and own.computed.mean() == pytest.approx(0.76, abs=0.02)
    assert "three times the work" in words
    assert own.load.mean() / shared.load.mean() == pytest.approx(3.3, abs=0.3)
    assert "less than a quarter" in words and 0.2 < shared.computed.mean() < 0.25
    assert (own.first_token > 2.5 * sticky.first_token).all()
    assert all(not prefix_grid.find(8, load, 8)[0].is_steady for load in (45, 60, 75, 90))
    for load in (20, 30, 45, 60, 75):
        _, sticky, shared = prefix_grid.find(8, load, 8)
        assert (sticky.first_token > shared.first_token).all() and sticky.is_steady
    assert sticky.first_token.mean() > 2 * shared.first_token.mean()
    _, sticky, shared = prefix_grid.find(8, 90, 8)
    assert shared.is_steady and not sticky.is_steady
