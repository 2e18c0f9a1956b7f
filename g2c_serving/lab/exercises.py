"""The exercises of the notebooks, and `check`, which a learner calls with an answer.

    step_time = ...
    check("01.step_time", step_time)

Each exercise is registered with the function that computes its right value through the package, so
that no answer is written down here. A wrong answer is told how it is wrong; see grading.py.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from g2c_serving.lab.grading import Exercise, Verdict, grade
from g2c_serving.lab.words import known

EXERCISES: dict[str, Exercise] = {}
_misses: Counter[str] = Counter()


def exercise(
    name: str, question: str, *, hint: str, **how: Any
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the decorated function as the one that computes the right value of `name`.

    `how`: unit, rel, abs_, why, cases, as in grading.Exercise. Raises ValueError for a name twice.
    """

    def register(right: Callable[[], Any]) -> Callable[[], Any]:
        if name in EXERCISES:
            raise ValueError(f"name {name!r}: this exercise is registered twice")
        EXERCISES[name] = Exercise(name, question, right, hint, **how)
        return right

    return register


def check(name: str, answer: Any) -> Verdict:
    """Say whether the answer is right. End a cell with it. Raises ValueError for no such name."""
    verdict = grade(known(name, EXERCISES, "exercise"), answer, _misses[name])
    if verdict.right is not None:
        _misses[name] = 0 if verdict.right else _misses[name] + 1
    return verdict


# each registers the exercises of its notebooks
_PAGES = (
    "batching", "paging", "sampling", "speculation", "tokens", "async", "infrastructure", "storage",
    "numbers", "whole",
)  # fmt: skip
for _page in _PAGES:
    importlib.import_module(f"g2c_serving.lab.exercises_{_page}")
