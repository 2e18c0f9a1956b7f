"""Approximations that stack up: the guard by hand, replay as measured elsewhere, all three."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import g2c_serving as g
from g2c_serving.lab import replay_errors
from g2c_serving.lab.stacked import distance, measured, named, panel, table, with_guard
from g2c_serving.sample.speculation import GUARD


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
    exact = torch.tensor([[0.5, 0.25, 0.25], [0.6, 0.2, 0.2]]).double()
    other = torch.tensor([[0.25, 0.5, 0.25], [0.6, 0.2, 0.2]]).double()
    found = distance(exact, other, torch.tensor([1, 0]))
    assert found.kl == pytest.approx(0.25 * math.log(2) / 2)
    assert found.changed == 0.5 and found.tv.tolist() == [0.25, 0]
    assert found.loss == pytest.approx(-math.log(2) / 2)  # it gives the true token more


def test_replay_alone_is_what_the_replay_s_own_measurement_says():
    """At one window of 32 tokens, on the same texts."""
    there = replay_errors.measure_replay(g.load("tiny-window"), lengths=(32,))
    alone = measured()[True, False, False]
    assert alone.kl == pytest.approx(there.kl[0], rel=1e-6)
    assert alone.changed == there.flipped[0]


def test_what_the_three_do():
    found = measured()
    assert set(found) == set(itertools.product((False, True), repeat=3))
    assert found[False, False, False].tv.max() == 0
    guard = found[False, True, False]
    assert 0 < guard.tv.max() <= GUARD and guard.changed == 0  # it moves 5e-5 at most
    four = found[False, False, True]
    assert four.mean_tv > 100 * guard.mean_tv
    all_three = found[True, True, True]
    parts = [found[c].mean_tv for c in ((True, False, False), (False, True, False))]
    assert all_three.mean_tv <= sum(parts) + four.mean_tv  # distances never add up to more
    assert abs(all_three.mean_tv - found[True, False, True].mean_tv) <= GUARD


def test_the_panel_and_the_table():
    shown, seen = panel(), set()
    for choice in measured():
        for name, on in zip(("replay", "guard", "four"), choice, strict=True):
            shown.controls[name].value = on
        assert shown.text.startswith("Nothing is" if not any(choice) else named(choice) + ":")
        seen.add((shown.text, shown.png))
    assert len(seen) == 8 and shown.error is None
    assert [row[0] for row in table().rows][:4] == ["none", "replay", "guard", "FP4 cache"]
    assert table().rows[-1][0] == "replay + guard + FP4 cache"
