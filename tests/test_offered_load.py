"""The load that is offered to a pool: by hand, and against what the simulation makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from g2c_serving.cluster.disaggregation import Link, Load, one_pool, two_pools
from g2c_serving.cluster.offered_load import decode_load, one_pool_load, prefill_load
from g2c_serving.schedule.cost_model import CostModel

COSTS = CostModel(10.0, 0.5, 0.0, 0.02, 0.0, 0.0)  # 10 ms a step, 0.5 a row, 0.02 a prompt token
NOW = Link(gb_per_s=1e9)  # a link that takes no time


def test_an_offered_load_by_hand():
    """1,000 tokens are a step of 30 ms, or two of 20; three rows of 0.5 follow, which read 1,001,
    1,002 and 1,003 tokens."""
    load = Load(20, 1, 1000, 4)
    assert prefill_load(load, 2, COSTS) == pytest.approx(20 * 0.030 / 2)
    assert decode_load(load, 2, COSTS) == pytest.approx(20 * 0.0015 / 2)
    assert one_pool_load(load, 2, COSTS, 500) == pytest.approx(20 * (0.040 + 0.0015) / 2)
    looks = CostModel(10.0, 0.5, 0.01, 0.02, 1e-4, 2e-5)
    assert prefill_load(load, 1, looks) == pytest.approx(20 * (0.030 + 0.020))
    assert decode_load(load, 1, looks) == pytest.approx(20 * (0.0015 + 0.03006))
    chunks = 0.040 + 0.025 + 0.005 + 0.005
    assert one_pool_load(load, 1, looks, 500) == pytest.approx(20 * (chunks + 0.0015 + 0.03006))


def test_above_a_load_of_1_waits_grow_as_long_as_requests_come():
    """The last request has its first token when all the work is done: the load times the seconds in
    which as many requests come."""
    waits = []
    for count in (300, 600):
        load = Load(45, count, 1000, 10, seed=4)
        last = load.arrivals()[-1] / 1e6
        asked = one_pool_load(load, 1, COSTS, 500), prefill_load(load, 1, COSTS)
        runs = one_pool(load, 1, COSTS, 500), two_pools(load, 1, 1, COSTS)
        for share, run in zip(asked, runs, strict=True):
            late = run.first_token[-1] / 1000
            assert share > 1.3 and late == pytest.approx(share * count / 45 - last, abs=0.2)
            waits.append(late)
    assert waits[2] > 1.7 * waits[0] and waits[3] > 1.7 * waits[1]


def test_a_decode_step_grows_as_its_load_says():
    """Little's law: n rows are there where each step of base + n * row brings n tokens a machine;
    so a step takes base / (1 - load)."""
    load = Load(30, 1500, 100, 40, seed=5)
    asked = decode_load(load, 1, COSTS)
    run = two_pools(load, 4, 1, COSTS, NOW)
    assert 0.5 < asked < 0.7 and np.mean(run.between) == pytest.approx(10 / (1 - asked), rel=0.08)
