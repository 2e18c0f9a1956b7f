"""What is left of a drafter's confidences after some steps, on histories of known drift."""

from __future__ import annotations

import math

import numpy as np
import pytest

from g2c_serving.history import Drafted, StepRecord
from g2c_serving.lab.confidence_memory import Memory, memory, table


def history(confidences: np.ndarray) -> list[StepRecord]:
    """Of confidences (steps, requests, n)."""
    steps = []
    for step in confidences:
        drafts = [
            Drafted(i, 0, 0, (1,) * len(row), tuple(row.tolist()), 0, 0, 1, 1)
            for i, row in enumerate(step)
        ]
        steps.append(StepRecord(0.0, drafts=drafts))
    return steps


def drifting(keeps: float, steps: int = 120, requests: int = 40, n: int = 3) -> np.ndarray:
    """Log odds that keep `keeps` of themselves from step to step."""
    rng = np.random.default_rng(5)
    z = [rng.standard_normal((requests, n))]
    for _ in range(steps - 1):
        z.append(keeps * z[-1] + math.sqrt(1 - keeps**2) * rng.standard_normal((requests, n)))
    return 1 / (1 + np.exp(-np.stack(z)))


@pytest.mark.parametrize("keeps", [0.0, 0.5, 0.9])
def test_the_drift_is_found_again(keeps):
    for found in memory(history(drifting(keeps))):
        assert found.of_drafts == pytest.approx(keeps**found.lag, abs=0.05)
        assert found.of_requests == pytest.approx(keeps**found.lag, abs=0.1)
        assert found.pairs == 40 * (120 - found.lag)


def test_what_never_changes_and_what_alternates():
    """By hand: a confidence that swings between two values is its own opposite one step later."""
    swing = np.array([0.2, 0.8] * 6)[:, None, None]
    one, two = memory(history(swing), (1, 2))
    assert (one.of_drafts, two.of_drafts) == (pytest.approx(-1), pytest.approx(1))
    assert memory(history(np.full((9, 2, 2), 0.7)), (1,))[0].of_drafts == 0


def test_steps_with_fewer_drafts_are_left_out():
    steps = history(drifting(0.5))
    short = history(np.full((1, 40, 1), 0.5))
    assert memory(steps + short) == memory(steps)


def test_too_little_to_say():
    with pytest.raises(ValueError, match="lag=1: the history has fewer than 3 pairs"):
        memory([])
    with pytest.raises(ValueError, match="lag=4"):
        memory(history(drifting(0.5, steps=4, requests=2)), (1, 4))


def test_the_table():
    lines = repr(table([Memory(1, 1234, 0.146, 0.612)])).splitlines()
    assert lines[0].split("  ")[0] == "steps ago" and lines[1].split() == [
        "1",
        "1,234",
        "0.15",
        "0.61",
    ]
