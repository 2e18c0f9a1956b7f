"""Approximations that stack up: the guard by hand, replay as measured elsewhere, all three."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from notebook_session import read

import g2c_serving as g
from g2c_serving.lab import replay_errors, stacked
from g2c_serving.lab.pushback import CLAIMS
from g2c_serving.lab.stacked import FOUR_ALONE, distance, measured, named, with_guard
from g2c_serving.lab.stacked_panel import SAME, panel, table
from g2c_serving.paths import NOTEBOOKS
from g2c_serving.sample.speculation import GUARD

REPLAY_ALONE, BOTH = (True, False, False), (True, False, True)


@pytest.fixture(scope="module")
def cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "07_infrastructure.ipynb").cells}


def test_the_guard_by_hand():
    """p (1/2, 1/2), q (3/4, 1/4), guard ln 2: (1/2, 1/4) stand, and of the 1/4 that is left the
    residual (1/2 - 3/8, 1/2 - 1/8) gives a quarter to the first: 1/2 + 1/16."""
    p, q = torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0.75, 0.25]]).double()
    assert with_guard(p, q, math.log(2)).tolist() == [
        [pytest.approx(0.5625), pytest.approx(0.4375)]
    ]
    assert torch.allclose(with_guard(p, q, 0), p)
    assert torch.equal(with_guard(p, p, 0), p)  # nothing is rejected, nothing left to draw from


def test_the_guard_against_drawing_it():
    """A million drafts, accepted or drawn again as the rule says, with a guard that shows."""
    rng, guard = np.random.default_rng(0), 0.5
    p, q = rng.dirichlet(np.ones(5), 2)
    drafts = rng.choice(5, 1_000_000, p=q)
    stands = rng.random(len(drafts)) < np.minimum(1, p / q)[drafts]
    left = np.maximum(p - q * math.exp(-guard), 0)
    again = rng.choice(5, len(drafts), p=left / left.sum())
    drawn = np.bincount(np.where(stands, drafts, again), minlength=5) / len(drafts)
    right = with_guard(torch.tensor(p), torch.tensor(q), guard)
    assert right.numpy() == pytest.approx(drawn, abs=0.002)


def test_distances_by_hand():
    exact = torch.tensor([[[0.5, 0.25, 0.25]], [[0.6, 0.2, 0.2]]]).double()  # two texts of a place
    other = torch.tensor([[[0.25, 0.5, 0.25]], [[0.6, 0.2, 0.2]]]).double()
    found = distance(exact, other, torch.tensor([[1], [0]]))
    assert found.kl[:, 0] == pytest.approx([0.25 * math.log(2), 0])
    assert found.changed.tolist() == [[1], [0]] and found.tv.tolist() == [[0.25], [0]]
    assert found.loss[:, 0] == pytest.approx([-math.log(2), 0])  # it gives the true token more
    assert found.worst_first.tolist() == [0.25, 0]
    assert found.mean("tv").value == 0.125 and found.mean("tv", less=found).value == 0


def test_replay_alone_is_what_the_replay_s_own_measurement_says():
    """At one window of 32 tokens, on the first eight texts."""
    there = replay_errors.measure_replay(
        g.load("tiny-window"), (32,), 8, stacked.HIT, stacked.FOLLOWING
    )
    alone = measured()[REPLAY_ALONE]
    assert alone.kl[:8].mean() == pytest.approx(there.kl[0], rel=1e-6)
    assert alone.changed[:8].mean() == there.flipped[0]


def test_what_the_three_do():
    found = measured()
    assert set(found) == set(itertools.product((False, True), repeat=3))
    assert found[False, False, False].tv.max() == 0
    guard = found[False, True, False]
    assert guard.tv.shape == (32, 32) and 0 < guard.tv.max() <= GUARD
    for choice, one in found.items():
        if choice[1]:  # the guard moves 5e-5 at most, whatever it is added to
            without = found[choice[0], False, choice[2]]
            assert np.abs(one.tv - without.tv).max() <= GUARD


def test_what_the_pages_say_of_the_three(cells):
    """Notebooks 07 and 08: the guard is the smallest by far, FP4 more than replay, both together
    more than FP4 alone and less than their sum. Nothing of the loss. 256 texts, in a minute, say
    the same of all but the loss, which FP4 may raise a little."""
    found = measured()
    replay, four, both = (found[choice] for choice in (REPLAY_ALONE, FOUR_ALONE, BOTH))
    assert 100 * found[False, True, False].mean("tv").high < replay.mean("tv").low
    assert four.mean("tv", less=replay).low > 0
    assert both.mean("tv", less=four).low > 0 and both.mean("tv", less=replay).low > 0
    assert stacked.mean((replay.tv + four.tv - both.tv).mean(1)).low > 0
    for one in (replay, four, both, found[True, True, True]):
        assert one.mean("loss").is_zero and np.median(one.tv) < 1e-4
    guarded = found[False, True, True]
    assert guarded.mean("tv", less=four).value == pytest.approx(5e-7, rel=0.1)
    words = cells["stacked-words"]
    assert "a draw in 600, FP4 one in 300" in words and "half a draw in a million" in words
    assert [round(0.01 / one.mean("tv").value) for one in (replay, four)] == [6, 3]
    worst = found[True, True, True].worst_first[0]
    assert f"with all three, it is {worst:.0%}".replace("%", " %") in words
    (claim,) = (claim for claim in CLAIMS if claim.name == "approximations")
    said = [one.text for one in claim.evidence if one.where == "notebook 07"]
    assert any("more than with either alone" in text for text in said)
    assert any("less than the two add up to" in text for text in said)


def test_a_row_that_cannot_be_told_from_fp4_alone_says_so(monkeypatch):
    """The same as FP4, but for a little noise of no direction."""
    rng = np.random.default_rng(0)
    found = dict(measured())
    noise = 1e-4 * rng.normal(size=(32, 1))
    found[BOTH] = stacked.Distance(
        found[FOUR_ALONE].tv + noise - noise.mean(), *list(vars(found[FOUR_ALONE]).values())[1:]
    )
    monkeypatch.setattr("g2c_serving.lab.stacked_panel.measured", lambda texts=32: found)
    against = {row[0]: row[2] for row in table().rows}
    assert against["replay + FP4 cache"] == SAME == "not distinguishable from FP4 alone"
    assert against["FP4 cache"] == "" and against["replay"].startswith("-1.8 (-")
    shown = panel()
    shown.controls["guard"].value = False
    assert f", {SAME};" in shown.text


def test_the_panel_and_the_table():
    shown, seen = panel(), set()
    for choice in measured():
        for name, on in zip(("replay", "guard", "four"), choice, strict=True):
            shown.controls[name].value = on
        assert shown.text.startswith("Nothing is" if not any(choice) else named(choice) + ":")
        seen.add((shown.text, shown.png))
    assert len(seen) == 8 and shown.error is None
    rows = {row[0]: row for row in table().rows}
    assert list(rows)[:4] == ["none", "replay", "guard", "FP4 cache"]
    assert list(rows)[-1] == "replay + guard + FP4 cache"
    replay = measured()[REPLAY_ALONE].mean("tv")
    said = f"{1e3 * replay.value:.2g} ({1e3 * replay.low:.2g} to {1e3 * replay.high:.2g})"
    assert rows["replay"][1] == said and "(+0.34 to +2.1)" in rows["replay + FP4 cache"][2]
