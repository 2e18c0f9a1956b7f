"""What notebook 07 says of its panels holds in draws that they do not show."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.cluster.disaggregation import Load, one_pool, two_pools
from g2c_serving.cluster.experts import place, popularity, step_load
from g2c_serving.cluster.reassignment import reassigning
from g2c_serving.lab.expert_grid import COPIES
from g2c_serving.lab.pools_grid import COSTS


def steps_of(load: np.ndarray) -> np.ndarray:
    """Eight steps of 256 tokens a GPU, (8, experts)."""
    return np.array([step_load(load, 64 * 256 * 8, seed) for seed in range(100, 108)])


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_copies(seed):
    """A few for a known load, and in its steps, where many share out the chance as well; dozens
    or hundreds an interval later."""
    before, now = popularity(256, 0.8, 2, 0.005, seed)
    placed = {copies: place(before, 64, copies) for copies in COPIES}
    for balance in (
        {c: p.balance(before) for c, p in placed.items()},
        {c: p.balance(steps_of(before)).mean() for c, p in placed.items()},
    ):
        assert min(c for c in COPIES if balance[c] <= 1.09) <= 16
    assert balance[1024] < 1.03 < balance[16]
    later = [c for c in COPIES if placed[c].balance(steps_of(now)).mean() <= 1.09]
    assert 32 <= min(later) <= 512


def test_a_few_swaps():
    loads = popularity(256, 0.8, 33, 0.01, seed=101)
    once, anew, near = (
        reassigning(loads, 64, 64, every, swaps=swaps).balances[1:].mean()
        for every, swaps in ((33, None), (2, None), (2, 8))
    )
    assert 1.09 < anew < near < anew + 0.05 < once


def test_two_pools():
    """Alike to the first token with four and four; better with seven for prefill."""
    load = Load(30, 1_500, 4_000, 50, seed=101)
    one, four, seven = (
        one_pool(load, 8, COSTS, 2_048),
        *(two_pools(load, n, 8 - n, COSTS) for n in (4, 7)),
    )
    late = [np.percentile(run.first_token[200:], 99) for run in (one, four, seven)]
    assert 0.5 < late[1] / late[0] < 1.5 and late[2] < 0.8 * late[0]
    assert np.percentile(one.between, 95) > 4 * np.percentile(four.between, 95)
