"""The exercises of notebook 07: right values worked out by hand, and what slips are told."""

from __future__ import annotations

import pytest

from g2c_serving.lab import exercises
from g2c_serving.lab.exercises import EXERCISES, check


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


def copies(load, extra):
    """As a learner may solve it."""
    counts = [1] * len(load)
    for _ in range(extra):
        a_copy = [w / n for w, n in zip(load, counts, strict=True)]
        counts[a_copy.index(max(a_copy))] += 1
    return counts


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("07.balance", 7 / 6, 1.0),  # 60 + 10 against 60
        ("07.copies", copies, lambda load, extra: [1 + extra] + [1] * (len(load) - 1)),
        ("07.wide", "8 GB", 2.09),  # 128 / 64 + 6
        ("07.orders", [False, False, True], [False, True, True]),
        ("07.in_step", "73.7 %", 66.7),  # 14 / 19
        ("07.prefix", (50_000 - 382 * 128 + 7 * 50_000) / 8, 50_000),
        ("07.hidden", 4200 / 20 / 40, 210),
        ("07.parcel", [True, True, True] + 4 * [False], [True] * 4 + 3 * [False]),
        ("07.grace", 14_760, 246),
    ],
)
def test_right_and_wrong(name, right, wrong):
    assert check(name, right)
    assert check(name, wrong).right is False


def test_the_copies_by_hand():
    right = EXERCISES["07.copies"].right()
    assert right([60, 30, 20, 10], 1) == [2, 1, 1, 1]
    assert right([60, 30, 20, 10], 2) == [3, 1, 1, 1]  # of 30, 30, 20, 10 the first
    assert right([90, 50, 10], 3) == [3, 2, 1]  # 30, 25, 10
    assert right([8, 8, 8], 2) == [2, 2, 1]


def test_a_slip_is_told_so():
    def all_to_one(load, extra):
        return [1 + extra * (w == max(load)) for w in load]

    assert check("07.copies", all_to_one).right is False
    verdict = check("07.copies", lambda load, extra: [1 + extra] + [1] * (len(load) - 1))
    assert "halves an expert's load" in verdict.text


def greedy(rank):
    """One copy after the other to where `rank` of tokens and copies is largest."""

    def copies(load, extra):
        counts = [1] * len(load)
        for _ in range(extra):
            ranks = [rank(tokens, n) for tokens, n in zip(load, counts, strict=True)]
            counts[ranks.index(max(ranks))] += 1
        return counts

    return copies


def test_two_rules_that_are_nearly_the_right_one():
    """100 and 30 with three copies: 100, 50, 33.3 and then 25 of each, not 50, 25 and 12.5. Of 60
    and 40 with two the second goes to the 40, although 60 / 3 is no less than 40 / 2."""
    assert check("07.copies", greedy(lambda tokens, n: tokens / n)).right
    halved = check("07.copies", greedy(lambda tokens, n: tokens / 2 ** (n - 1)))
    after = check("07.copies", greedy(lambda tokens, n: tokens / (n + 1)))
    assert not halved.right and "a third of the expert's tokens" in halved.text
    assert not after.right and "busiest now" in after.text


def test_a_prefix_of_whole_blocks():
    assert not check("07.prefix", (1_000 + 7 * 50_000) / 8).right  # without the blocks
