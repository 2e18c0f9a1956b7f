"""The Brief's toy once more, with confidences that have changed: one step, planned in three ways.

Brief, sections 4 and 6. By the confidences of the last step A was sure of its drafts and B was not.
In the first case they have changed places since; in the second both were unsure, and now are sure.
The total is right in the first, and wrong in the second; the split by old confidences is wrong in
the first. The numbers are invented, to teach; lab/stale_budget.py has many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from g2c_serving.lab.stale_budget import expected_tokens, one_step
from g2c_serving.lab.table import Table
from g2c_serving.lab.toy_budget import CONFIDENCES, NAMES, step_ms
from g2c_serving.sample.verify_budget import plan, split

SURE, UNSURE = CONFIDENCES
CASES = {
    "A and B have changed places": ((SURE, UNSURE), (UNSURE, SURE)),
    "both have become sure": ((UNSURE, UNSURE), (SURE, SURE)),
}
FRESH, FRESH_SPLIT, OLD_SPLIT = "all of it fresh", "old total, fresh split", "old total, old split"
STEP_MS = np.array([np.nan, *(step_ms(rows) for rows in range(1, 9))])  # by rows


@dataclass(frozen=True)
class Way:
    """One way to plan a step: drafts of A and of B, and what the step brings."""

    case: str
    name: str
    drafts: tuple[int, ...]
    tokens: float  # expected
    ms: float

    @property
    def tokens_per_ms(self) -> float:
        return self.tokens / self.ms


def ways(case: str) -> list[Way]:
    """All three, for one of CASES."""
    old, fresh = (np.array(confidences) for confidences in CASES[case])
    best, former, stale = plan(fresh, STEP_MS), plan(old, STEP_MS), one_step(old, fresh, STEP_MS)
    found = {
        FRESH: (best.drafts, expected_tokens(best.drafts, fresh), STEP_MS[best.rows]),
        FRESH_SPLIT: (split(stale.total, fresh), stale.fresh_split, stale.ms),
        OLD_SPLIT: (former.drafts, stale.old_split, stale.ms),
    }
    return [
        Way(case, name, tuple(map(int, drafts)), tokens, float(ms))
        for name, (drafts, tokens, ms) in found.items()
    ]


def table() -> Table:
    head = ["since the last step", "planned", *(f"drafts of {name}" for name in NAMES)]
    head += ["expected tokens", "step (ms)", "tokens per ms"]
    return Table(head, list(_rows([way for case in CASES for way in ways(case)])))


def _rows(found: Sequence[Way]) -> Iterator[tuple[str, ...]]:
    for way in found:
        case = way.case if way.name == FRESH else ""
        numbers = f"{way.tokens:.2f}", f"{way.ms:g}", f"{way.tokens_per_ms:.3f}"
        yield (case, way.name, *map(str, way.drafts), *numbers)
