"""What notebook 07 says of its panels, at their start and where it sends the reader."""

from __future__ import annotations

import re

import pytest
from notebook_session import read

from g2c_serving.cluster.storage_reads import ReadTimes
from g2c_serving.lab import (
    combine_panel,
    decode_spread,
    expert_loads,
    expert_panels,
    outlier_panel,
    pools_panel,
    prefill_tiers,
    prefix_routing,
    ship_panel,
    storage_panels,
    wide_ep_panel,
)
from g2c_serving.paths import NOTEBOOKS


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "07_infrastructure.ipynb").cells}


def says(panel, **values) -> str:
    """The panel's sentence with these controls moved from the start."""
    for name, value in values.items():
        panel.controls[name].value = value
    assert not panel.error
    return panel.text


def numbers(pattern: str, text: str) -> list[str]:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return list(found.groups())


def test_one_popular_expert(cells):
    words = cells["loads-words"]
    carries = r"GPUs carries ([\d.]+) times"
    for expected, values in (
        ("1.67", {}),
        ("1.000", {"copies": 1}),
        ("2.11", {"how": expert_loads.UNPLANNED}),
    ):
        (found,) = numbers(carries, says(expert_loads.panel(), **values))
        assert f"{float(found):.{len(expected) - 2}f}" == expected
        assert expected in words


def test_copies(cells):
    words = cells["copies-words"]
    assert "four copies are enough" in words and "it takes 128" in words
    start = says(expert_panels.copies_panel())
    assert "exactly, the reported 1.090 takes 4 copies" in start
    assert start.endswith("the reported 1.090 takes 128 copies.")
    still = says(expert_panels.copies_panel(), drift=0.0)
    assert "1.041 with 128; the reported 1.090 takes 4 copies" in still and "1.041" in words
    assert "is not reached" in says(expert_panels.copies_panel(), drift=0.0, tokens=8)
    assert "it is 1.05 without copies" in says(expert_panels.copies_panel(), skew=0.0)


def test_drift(cells):
    start = says(expert_panels.drift_panel())
    pattern = r"anew ([\d.]+), for (\d+) of 320 .* with 8 swaps ([\d.]+), for (\d+) "
    anew, many, near, few = numbers(pattern, start)
    assert f"Placed anew it is {anew}, and {many} of 320" in cells["drift-words"]
    assert f"it is {near}, and {few} do" in cells["drift-words"]
    later = numbers(pattern, says(expert_panels.drift_panel(), drift=0.25, every=1))
    assert float(later[0]) < 1.09 and float(later[2]) < 1.09


def test_orders(cells):
    start = says(combine_panel.panel())
    assert "8 of 96 tokens have other bits" in start and "6.6 vectors" in start
    assert "22 tokens use" in start and "22 tokens use" in cells["combine-words"]
    rules = list(combine_panel.RULES)
    arriving = says(combine_panel.panel(), rule=rules[0], moved=0)
    assert "96 of 96 tokens have other bits" in arriving
    fixed = says(combine_panel.panel(), rule=rules[2])
    assert "torch.equal says True" in fixed and "8.0 vectors" in fixed


def test_wide(cells):
    start = says(wide_ep_panel.panel())
    assert "reads 8.1 GB" in start and "on 2 it would be 73.3 GB" in start
    assert (
        "On two GPUs a step reads 73 GB on each of them, on 64 it reads 8." in cells["wide-words"]
    )
    assert "each reads 7.1 GB" in says(wide_ep_panel.panel(), gpus=128)


def test_decode_requests(cells):
    shares = {row[0]: row[3:] for row in decode_spread.efficiency_table().rows}
    assert [shares[rule][0][:2] for rule in ("by count", "by cached tokens")] == ["94", "95"]
    assert max(shares, key=lambda rule: float(shares[rule][0][:-1])) == "by both"


def test_tiers():
    """This draw: shortest prompts seven times as fast in tiers as at random."""
    means, _, _ = prefill_tiers.first_tokens(1.2, 0.8, 8)
    assert 7 < means["at random"][0] / means["four tiers"][0] < 8


def test_prefix(cells):
    own, sticky, shared = prefix_routing.outcomes(8, 0.6, 8)
    words = cells["prefix-words"]
    assert f"{own.computed:.0%} of all tokens".replace("%", " %") in words
    assert f"{sticky.busiest:.2f} times the average" in words
    assert f"{shared.computed:.0%} are computed".replace("%", " %") in words
    assert f"in {shared.first_token:.2f} s instead of {sticky.first_token:.2f}" in words


def test_two_pools(cells):
    words = cells["pools-words"]
    gap, first = "481 ms", r"first tokens within ([\d.]+ m?s) and ([\d.]+ m?s)"
    assert numbers(first, says(pools_panel.pools_panel(), chunk=256))[0] == gap and gap in words
    assert numbers(first, says(pools_panel.pools_panel(), prefill=1))[1] == "3.3 s"


def test_shipping(cells):
    assert "5 GB/s 10.49 s" in says(ship_panel.ship_panel())
    way = ship_panel.way(ship_panel.SEVEN, 100_000, 10)
    assert way.shown_ms == pytest.approx(way.transfer_ms / 32)
    flash = ship_panel.way(ship_panel.FLASH, 100_000, 5)
    said = f"{flash.num_bytes / 1e6:.0f} MB, which are on their way for {flash.transfer_ms:.0f} ms"
    assert said in cells["ship-words"]


def test_reads(cells):
    words = cells["reads-words"]
    times = ReadTimes(1.0, 1.0, 0.01, 20.0)
    late = r"([\d.]+) for 1 in 100; the first ten of eleven: .*?([\d.]+) for 1 in 100"
    ten, eleven = numbers(late, says(storage_panels.reads_panel()))
    assert f"{float(ten):.0f} ms for 1 in 100" in words and f"not waited for: {eleven}." in words
    assert 1 - times.back_by(float(eleven)) > 0.01, "a single read is no better"
    ten, eleven = numbers(late, says(storage_panels.reads_panel(), factor=100))
    assert f"goes to {float(ten):.0f} ms, the orange to {eleven}" in words


def test_busy_disks():
    assert "Issuing 11 is best" in says(storage_panels.load_panel(), load=75)
    assert "Issuing 10 is best" in says(storage_panels.load_panel(), load=76)


def test_outlier():
    start, large = says(outlier_panel.panel()), says(outlier_panel.panel(), size=20)
    assert "neighbours are off by 10%" in start
    assert "scale 5," in large and "14 of them are 0, those of the other block 10%" in large
    other = says(outlier_panel.panel(), size=20, format="MXFP4")
    assert "scale 4," in other and "no other block" in other
    back = outlier_panel.rounded(outlier_panel.numbers(20), outlier_panel.FORMATS["MXFP4"])
    assert back[outlier_panel.PLACE] == 24
