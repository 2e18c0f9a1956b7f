"""The cost model against brute force, and the fit against coefficients that made the data."""

import itertools
import random

import numpy as np
import pytest

from g2c_serving.history import Row, StepRecord
from g2c_serving.schedule.cost_model import CostModel, StepShape

MODEL = CostModel(
    base=0.5, per_row=0.1, per_context=1e-3, per_token=0.05, per_pair=1e-4, per_square=2e-4
)


def test_cost_by_hand():
    """q=10 on c=100: 10*0.05 + 10*100*1e-4 + 100*2e-4 = 0.5 + 0.1 + 0.02."""
    assert MODEL.cost(10, 100) == pytest.approx(0.62)
    shape = StepShape(((10, 100),), decode_rows=3, decode_context=300)
    assert MODEL.predict(shape) == pytest.approx(0.5 + 0.3 + 0.3 + 0.62)


@pytest.mark.parametrize("seed", range(5))
def test_largest_chunk_against_brute_force(seed):
    rnd = random.Random(seed)
    for _ in range(200):
        per_token, per_pair, per_square = (
            rnd.choice((0, 10 ** rnd.uniform(-6, 0))) for _ in range(3)
        )
        model = CostModel(0, 0, 0, per_token, per_pair, per_square)
        c, budget = rnd.randrange(3000), 10 ** rnd.uniform(-3, 2)
        if model.cost(5000, c) <= budget:
            assert model.largest_chunk(c, budget) >= 5000
            continue
        brute = next(q for q in itertools.count() if model.cost(q + 1, c) > budget)
        assert model.largest_chunk(c, budget) == brute


def test_a_decode_row_reads_its_own_token_too():
    """A row on 99 cached tokens reads 100."""
    record = StepRecord(0.0, rows=[Row(0, 0, "decode", 1, 99), Row(1, 0, "prefill", 5, 7)])
    assert record.shape == StepShape(((5, 7),), decode_rows=1, decode_context=100)


def test_a_budget_that_is_spent_gives_no_chunk():
    assert MODEL.largest_chunk(0, 0) == 0
    assert MODEL.largest_chunk(0, -3) == 0
    assert MODEL.largest_chunk(10**9, 1) == 0


def random_shapes(count: int, seed: int = 0) -> list[StepShape]:
    rnd = random.Random(seed)
    return [
        StepShape(
            tuple((rnd.randrange(1, 256), rnd.randrange(400)) for _ in range(rnd.randrange(3))),
            rnd.randrange(64),
            rnd.randrange(5000),
        )
        for _ in range(count)
    ]


def test_fit_finds_the_coefficients_that_made_the_data():
    shapes = random_shapes(200)
    fitted = CostModel.fit(shapes, [MODEL.predict(s) for s in shapes])
    for name in ("base", "per_row", "per_context", "per_token", "per_pair", "per_square"):
        assert getattr(fitted, name) == pytest.approx(getattr(MODEL, name), rel=1e-6), name


def test_fit_is_never_negative():
    """Times that fall with the prefix would fit best with a negative coefficient."""
    rng = np.random.default_rng(0)
    shapes = random_shapes(200)
    times = [5 + 0.05 * s.features()[3] * (1 - 1e-4 * s.features()[4] / 100) for s in shapes]
    fitted = CostModel.fit(shapes, np.abs(times) + rng.uniform(0.1, 0.2, len(times)))
    assert min(vars(fitted).values()) >= 0


@pytest.mark.parametrize("times", [[1.0] * 5, [1.0] * 9 + [0.0], [1.0] * 9 + [float("nan")]])
def test_fit_refuses_what_it_cannot_use(times):
    with pytest.raises(ValueError, match="6 or more|positive"):
        CostModel.fit(random_shapes(len(times)), times)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "fast"])
def test_coefficients_that_no_cost_can_have(bad):
    with pytest.raises(ValueError, match="per_pair"):
        CostModel(1, 1, 1, 1, per_pair=bad, per_square=1)


@pytest.mark.parametrize("budget", [1e-164, 1e308])
def test_extreme_budgets(budget):
    """No overflow, no underflow, no long search: 1e-170 a token in 1e-164 is a million tokens."""
    assert CostModel(0, 0, 0, 1e-170, 0, 0).largest_chunk(0, 1e-164) == pytest.approx(10**6, abs=1)
    assert CostModel(0, 0, 0, 1, 0, 1).largest_chunk(0, budget) in (0, 2**31)
