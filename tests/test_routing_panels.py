"""The panels about routing: every control moves them, and what they say at known settings."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.cluster.prefill_pool import Prompt, single_prompts
from g2c_serving.lab import charts, decode_spread, prefill_tiers, prefill_work, prefix_routing

PANELS = (decode_spread.panel, prefill_tiers.panel, prefix_routing.panel)


@pytest.mark.parametrize("panel", PANELS)
def test_every_control_moves_the_sentence_and_the_picture(panel):
    shown = panel()
    for control in shown.controls.values():
        before = control.value
        for end in control.ends if control.ends[0] != control.value else control.ends[::-1]:
            text, png, draws = shown.text, shown.png, shown.draws
            control.value = end
            assert shown.error is None and shown.draws == draws + 1
            assert shown.text != text and shown.png != png
        control.value = before


# ---- decode ----


def test_step_times_go_through_the_chart():
    cost = decode_spread.step_cost()
    for requests in (8, 256):
        ms = cost.decode_cost(requests, requests * 131 * 1024)
        assert ms == pytest.approx(charts.decode_point(requests).step_ms)


def test_the_rules_in_order():
    found = {rule: decode_spread.run(rule, 1.0, 65536, 60) for rule in decode_spread.RULES}
    rates = {rule: run.efficiency() for rule, run in found.items()}
    assert rates["at random"] < rates["round robin"] < rates["by count"] < rates["by both"] < 1
    assert (found["by count"].requests == 60).all()


def test_contexts_that_are_alike_are_balanced_by_count():
    assert decode_spread.run("by count", 0.0, 65536, 60).efficiency() > 0.999
    shown = decode_spread.panel()
    shown.controls["rule"].value, shown.controls["spread"].value = "by count", 0.0
    assert "1.00 times the average in requests and 1.0" in shown.text


def test_the_table_has_a_row_a_rule():
    table = decode_spread.efficiency_table()
    assert [row[0] for row in table.rows] == list(decode_spread.RULES)


# ---- prefill ----


def test_work_by_hand():
    """1,000 tokens: 20 ms and 0.1; then 500 more, of which 7 blocks of 128 are found: 604."""
    prompts = [Prompt(0, 1, 1000), Prompt(5, 1, 1500)]
    later = 604 * (0.02 + 896 * 2e-7 + 604 * 1e-7)
    assert prefill_work.alone_ms(prompts) == pytest.approx([20.1, later])


def test_the_load_is_as_asked():
    def make(gap_us):
        return single_prompts(4000, gap_us, 4000, 1.0)

    prompts = prefill_work.pressed(make, machines=8, load=0.5)
    work = prefill_work.alone_ms(prompts).sum() * 1000
    assert work / (8 * prompts[-1].time) == pytest.approx(0.5, rel=0.05)


def test_short_prompts_gain_most_from_tiers():
    means, edges, _ = prefill_tiers.first_tokens(1.2, 0.8, 8)
    assert edges == sorted(edges) and len(edges) == prefill_tiers.TIERS - 1 == 3
    gains = means["at random"] / means["four tiers"]
    assert gains[0] > 4 and gains[0] == gains.max()


def test_where_all_prompts_are_alike_tiers_gain_nothing():
    means, _, _ = prefill_tiers.first_tokens(0.2, 0.8, 8)
    assert means["four tiers"].mean() > means["round robin"].mean()


def test_a_prefix_found_first_does_the_least_and_is_there_first():
    own, sticky, shared = prefix_routing.outcomes(8, 0.6, 8)
    assert shared.computed <= sticky.computed < own.computed
    assert shared.first_token < sticky.first_token < own.first_token
    assert shared.busiest < sticky.busiest


def test_one_turn_has_no_prefix():
    assert len(set(prefix_routing.outcomes(8, 0.6, 1))) == 1
    assert prefix_routing.outcomes(8, 0.6, 1)[0].computed == 1
    assert np.isfinite(prefix_routing.outcomes(8, 0.6, 32)[0].first_token)
