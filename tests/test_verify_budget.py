"""The planner: the Brief's toy table, brute force over every choice, and what callers get wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from g2c_serving.sample.verify_budget import Plan, plan, split

TOY = [[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]]


def toy_ms(rows: int) -> float:
    """10 ms for up to 4 rows, 13 for up to 6, 16 for up to 8."""
    return 10.0 if rows <= 4 else 13.0 if rows <= 6 else 16.0


# ---- the Brief, section 4: the toy table and what follows from it ----


def test_the_toy_table():
    table = [
        (2, None, None, 2.00, 10, 0.200),
        (3, 0, 1, 2.90, 10, 0.290),
        (4, 0, 2, 3.71, 10, 0.371),
        (5, 0, 3, 4.44, 13, 0.342),
        (6, 1, 1, 4.94, 13, 0.380),
        (7, 1, 2, 5.19, 16, 0.324),
        (8, 1, 3, 5.31, 16, 0.332),
    ]
    found = plan(TOY, toy_ms).table
    for ours, (rows, request, draft, expected, ms, rate) in zip(found, table, strict=True):
        assert (ours.rows, ours.request, ours.draft, ours.step_ms) == (rows, request, draft, ms)
        assert ours.expected_tokens == pytest.approx(expected, abs=0.005)
        assert ours.tokens_per_ms == pytest.approx(rate, abs=0.001)
    survivals = [c.survival for c in found]
    assert survivals == pytest.approx([1, 0.9, 0.81, 0.729, 0.5, 0.25, 0.125])


def test_the_toy_plan():
    best = plan(TOY, toy_ms)
    assert (best.rows, best.drafts.tolist()) == (6, [3, 1])
    assert best.expected_tokens == pytest.approx(4.939)
    assert best.tokens_per_ms == pytest.approx(0.380, abs=0.0005)
    all_eight = best.table[-1].tokens_per_ms
    assert 100 * (1 - all_eight / best.tokens_per_ms) == pytest.approx(13, abs=0.5)
    assert best.expected_tokens < best.table[-1].expected_tokens  # fewer a step, more per ms


# ---- against every choice there is ----


def brute_force(confidences: list[list[float]], step_ms: np.ndarray, most: int) -> tuple:
    """The best rate over all ways to verify some first drafts of each request, and the fewest rows
    that reach it."""
    best = (0.0, 0)
    for drafts in itertools.product(*(range(len(row) + 1) for row in confidences)):
        rows = len(confidences) + sum(drafts)
        if rows > most:
            continue
        expected = sum(
            1 + sum(np.prod(row[: i + 1]) for i in range(n))
            for row, n in zip(confidences, drafts, strict=True)
        )
        rate = expected / step_ms[rows]
        if rate > best[0] * (1 + 1e-12) or (rate > best[0] * (1 - 1e-12) and rows < best[1]):
            best = (rate, rows)
    return best


def random_case(rng: np.random.Generator) -> tuple[list[list[float]], np.ndarray, int | None]:
    """Up to 4 requests of up to 4 drafts; coarse confidences, so that many survivals are equal;
    curves that rise, in steps, or anyhow; often a limit on the rows."""
    confidences = [
        rng.choice([0, 0.25, 0.5, 0.75, 1.0] if rng.random() < 0.5 else rng.random(9), n).tolist()
        for n in rng.integers(0, 5, rng.integers(1, 5))
    ]
    most = len(confidences) + sum(map(len, confidences))
    shapes = [
        5 + rng.random() * np.arange(most + 1),
        10 + 3.0 * (np.arange(most + 1) // rng.integers(1, 5)),
        1 + 9 * rng.random(most + 1),
    ]
    limit = int(rng.integers(len(confidences), most + 2)) if rng.random() < 0.4 else None
    return confidences, shapes[rng.integers(3)], limit


def test_a_thousand_random_cases_equal_brute_force():
    rng = np.random.default_rng(4)
    for _ in range(1000):
        confidences, step_ms, limit = random_case(rng)
        found = plan(confidences, step_ms, limit)
        rate, rows = brute_force(confidences, step_ms, limit or len(step_ms) - 1)
        assert found.tokens_per_ms == pytest.approx(rate, rel=1e-12)
        assert found.rows == rows == len(confidences) + found.drafts.sum()
        assert (found.drafts <= [len(row) for row in confidences]).all()
        expected = sum(
            1 + np.cumprod(row)[:n].sum() for row, n in zip(confidences, found.drafts, strict=True)
        )
        assert found.expected_tokens == pytest.approx(expected)


def test_split_has_no_better_choice_at_its_total():
    rng = np.random.default_rng(5)
    for _ in range(300):
        confidences, _, _ = random_case(rng)
        count = sum(map(len, confidences))
        total = int(rng.integers(0, count + 3))
        drafts = split(total, confidences)
        assert drafts.sum() == min(total, count)
        flat = np.ones(len(confidences) + total + 1)
        rate, _ = brute_force(confidences, flat, len(confidences) + total)
        got = sum(1 + np.cumprod(c)[:n].sum() for c, n in zip(confidences, drafts, strict=True))
        assert got == pytest.approx(rate)


# ---- ties ----


def test_of_equal_survivals_the_earlier_draft_comes_first_then_the_earlier_request():
    table = plan([[0.5, 1.0], [0.5, 1.0], [0.25]], lambda rows: 1.0).table
    order = [(c.request, c.draft) for c in table[1:]]
    assert order == [(0, 1), (1, 1), (0, 2), (1, 2), (2, 1)]
    assert split(3, [[0.5, 1.0], [0.5, 1.0], [0.25]]).tolist() == [2, 1, 0]


def test_of_equal_rates_the_one_with_fewer_rows():
    found = plan([[1.0, 1.0]], lambda rows: 2.0 * rows)  # always half a token per ms
    assert found.rows == 1 and found.drafts.tolist() == [0]


# ---- what may be handed in ----


def same(one: Plan, other: Plan) -> bool:
    return (one.drafts == other.drafts).all() and one.table == other.table


@pytest.mark.parametrize(
    "rows",
    [
        np.array(TOY),
        np.array(TOY, dtype=object),
        torch.tensor(TOY, dtype=torch.float64),
        tuple(map(tuple, TOY)),
        [np.array(row) for row in TOY],
        (row for row in TOY),
    ],
)
def test_arrays_tensors_and_sequences(rows):
    found = plan(rows, toy_ms)
    assert same(found, plan(TOY, toy_ms))
    assert found.drafts.dtype == np.int64


def test_requests_without_drafts():
    found = plan([[], [0.9], []], [0, 0, 0, 5, 6])
    assert found.rows == 4 and found.drafts.tolist() == [0, 1, 0]
    assert plan(np.empty((3, 0)), [1, 1, 1, 5]).drafts.tolist() == [0, 0, 0]
    assert split(7, [[], []]).tolist() == [0, 0]


def test_a_function_is_called_once_for_each_number_of_rows():
    asked = []
    plan(TOY, lambda rows: asked.append(rows) or toy_ms(rows), max_rows=7)
    assert asked == [2, 3, 4, 5, 6, 7]


def test_an_array_is_indexed_by_the_number_of_rows():
    curve = [0.0, 0.0] + [toy_ms(rows) for rows in range(2, 20)]  # what is not asked may be 0
    assert same(plan(TOY, curve), plan(TOY, toy_ms))


def test_what_is_handed_in_stays_as_it_is():
    confidences, curve = np.array(TOY), np.arange(20.0) + 5
    before = confidences.copy(), curve.copy()
    plan(confidences, curve).table  # noqa: B018
    split(3, confidences)
    assert (confidences == before[0]).all() and (curve == before[1]).all()


@pytest.mark.parametrize(
    "confidences, words",
    [
        ([[0.5, 1.2]], "1.2: a confidence is a probability"),
        ([[-0.1]], "-0.1"),
        ([[float("nan")]], "nan"),
        ([["0.5"]], "'0.5'.*number"),
        ([[None]], "None"),
        ([[True]], "True"),
        ([[[0.5]]], "one number for each draft"),
        ([0.5, 0.5], "one a request"),
        (np.array([0.5, 0.5]), "one a request"),
        (0.5, "one a request"),
        ("high", "one a request"),
        ([], "at least one"),
        ([[0.5, [0.5]]], "rows of numbers"),
        (np.empty((0, 5)), "at least one"),
    ],
)
def test_confidences_that_are_none(confidences, words):
    with pytest.raises(ValueError, match=words):
        plan(confidences, toy_ms)
    with pytest.raises(ValueError, match=words):
        split(1, confidences)


@pytest.mark.parametrize(
    "step_time, words",
    [
        ([], "fewer than 8 rows"),
        ([10.0] * 8, "fewer than 8 rows.*max_rows"),
        ([10.0] * 5 + [0.0] * 9, "5 rows is 0.0 ms"),
        ([10.0] * 6 + [float("nan")] * 9, "6 rows is nan"),
        ([10.0] * 6 + [float("inf")] * 9, "6 rows is inf"),
        (lambda rows: 4.0 - rows, "4 rows is 0.0 ms"),
        (lambda rows: "slow", "gives ms"),
        (lambda rows: None, "gives ms"),
        (lambda rows: 1 / 0, "gives ms.*ZeroDivisionError"),
        (lambda rows, more: 1.0, "takes a number of rows.*TypeError"),
        (["1"] * 300, "gives ms"),
        ([1 + 1j] * 300, "gives ms"),
        ([10**400] * 300, "gives ms"),
        ([1.0, [2.0]], "gives ms"),
        (None, "array of ms by rows"),
        (13.0, "array of ms by rows"),
    ],
)
def test_step_times_that_are_none(step_time, words):
    with pytest.raises(ValueError, match=words):
        plan(TOY, step_time)


def test_totals_that_are_none():
    with pytest.raises(ValueError, match="total_drafts=-1"):
        split(-1, TOY)
    with pytest.raises(ValueError, match="max_rows=1.*2 or more"):
        plan(TOY, toy_ms, max_rows=1)
    assert plan(TOY, toy_ms, max_rows=2).drafts.tolist() == [0, 0]
