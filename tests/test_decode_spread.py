"""Decode requests over GPUs: the file of runs, the panel, and what notebook 07 says of them."""

from __future__ import annotations

from itertools import product

import pytest
from notebook_session import read

from g2c_serving.lab import charts, decode_grid, decode_spread
from g2c_serving.paths import NOTEBOOKS


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "07_infrastructure.ipynb").cells}


def test_step_times_go_through_the_chart():
    cost = decode_grid.step_cost()
    for requests in (8, 256):
        ms = cost.decode_cost(requests, requests * 131 * 1024)
        assert ms == pytest.approx(charts.decode_point(requests).step_ms)


@pytest.mark.parametrize(
    "setting", [("round robin", 1.0, 131072, 8), ("by both", 1.5, 8192, 8)], ids=["turn", "both"]
)
def test_the_file_of_decode_runs(setting):
    """Simulated again, and without the first thousand steps."""
    again, kept = decode_grid.measure(*setting), decode_grid.find(*setting)
    for name in ("slowest", "requests", "cached", "last_requests", "last_cached"):
        assert getattr(again, name) == pytest.approx(getattr(kept, name), rel=1e-5)
    run = decode_grid.simulate(*setting, seed=3)
    assert len(run.requests) == 200 and max(run.ended) == 1201  # the one after the last step
    assert 1000 == 5 * 650 / 3.25


def test_turns_are_less_even_after_a_while_than_at_the_start():
    """What a run of one mean answer would show: the turns that filled the pool."""
    kept = decode_grid.find("round robin", 1.0, 131072, 60)
    rule = decode_grid.RULES["round robin"](0)
    traffic = decode_grid.Traffic(context=131072, spread=1.0)
    new = decode_grid.DecodePool(32, 60, rule, decode_grid.step_cost(), traffic).run(20)
    assert new.requests.max(1).mean() / 60 < 1.05 < 1.1 < kept.requests.min()


def test_the_rules_in_order():
    found = {rule: decode_grid.find(rule, 1.0, 65536, 60) for rule in decode_grid.RULES}
    rates = {rule: one.efficiency().mean() for rule, one in found.items()}
    assert rates["at random"] < rates["round robin"] < rates["by count"] < rates["by both"] < 1
    assert (found["by count"].requests == 1).all() and (found["by count"].last_requests == 60).all()


def test_contexts_that_are_alike_are_balanced_by_count():
    assert decode_grid.find("by count", 0.0, 65536, 60).efficiency().min() > 0.999
    shown = decode_spread.panel()
    shown.controls["rule"].value, shown.controls["spread"].value = "by count", 0.0
    assert "1.00 \u00b1 0.00 times the average in requests and 1.0" in shown.text


def test_efficiency_is_that_of_the_runs():
    run = decode_grid.simulate("by both", 1.0, 32768, 8, 0)
    kept = decode_grid.find("by both", 1.0, 32768, 8)
    for experts, share in ((1.0, 0.5), (1.09, 0.5), (1.3, 1.0)):
        expected = run.efficiency(experts, share)
        assert kept.efficiency(experts, share)[0] == pytest.approx(expected, rel=1e-5)


def test_the_bars_are_the_gpus_of_the_last_step():
    shown, cost = decode_spread.panel(), decode_grid.step_cost()
    kept = decode_grid.find("at random", 1.0, 131072, 60)
    ms = cost.base + cost.per_row * kept.last_requests + cost.per_context * kept.last_cached
    assert shown.artists["slowest"].get_data()[1][0] == pytest.approx(ms.max())
    assert shown.artists["perfect"].get_data()[1][0] == pytest.approx(ms.mean())


def test_what_the_page_says_of_decode(cells):
    """Each sentence that compares, against all eight seeds."""
    table = decode_spread.efficiency_table()
    assert [row[0] for row in table.rows] == list(decode_grid.RULES)
    at = {rule: decode_grid.find(rule, 1.0, 131072, 60) for rule in decode_grid.RULES}
    both, blind = at["by both"], at["at random"]
    for rule in list(at)[:-1]:
        assert (both.efficiency() > at[rule].efficiency()).all()
    assert at["by cached tokens"].requests.min() > 1.25 > 1.01 > at["by count"].requests.max()
    assert at["by count"].cached.min() > 1.25 > 1.2 > at["by cached tokens"].cached.max()
    assert "stays above 85 %" in cells["spread-words"]
    for setting in product(decode_grid.SPREADS, decode_grid.CONTEXTS, decode_grid.PER_GPU):
        assert decode_grid.find("by both", *setting).efficiency(1.09, 1).mean() > 0.85
    assert 0.78 < blind.efficiency(1.09, 1).mean() < 0.84
