"""The Brief's toy table of budgeted verification, and its production table, section 4.

The toy: two requests share a step. A's drafter is confident (0.9 a draft), B's is not (0.5). A step
takes 10 ms for up to 4 rows, 13 ms for up to 6, 16 ms for up to 8. The numbers are invented, to
teach; what follows from them is worked out by the engine's own planner.
"""

from __future__ import annotations

import math

from g2c_serving.lab.published import value
from g2c_serving.sample.speculation import GUARD
from g2c_serving.sample.verify_budget import Candidate, Plan, plan

CONFIDENCES = ((0.9, 0.9, 0.9), (0.5, 0.5, 0.5))  # of A's and B's three drafts
NAMES = ("A", "B")
STEPS = ((4, 10.0), (6, 13.0), (8, 16.0))  # up to so many rows: ms

# The draft probability in the residual is shrunk by this factor, "to keep reject sampling from
# coming up empty".
RESIDUAL_GUARD = math.exp(-GUARD)


def step_ms(rows: int) -> float:
    """ms of a step of 1 to 8 rows. ValueError for more: the Brief gives no time for them."""
    for most, ms in STEPS:
        if rows <= most:
            return ms
    raise ValueError(f"rows={rows}: the toy has times for up to {STEPS[-1][0]} rows")


def best() -> Plan:
    """What the planner makes of the toy."""
    return plan(CONFIDENCES, step_ms)


def at(rows: int) -> Candidate:
    """The toy's line of 2 to 8 rows."""
    return next(line for line in best().table if line.rows == rows)


def expected_tokens(rows: int) -> float:
    return at(rows).expected_tokens


def tokens_per_ms(rows: int) -> float:
    return at(rows).tokens_per_ms


def best_drafts(name: str) -> int:
    """How many drafts of "A" or "B" the planner verifies."""
    return int(best().drafts[NAMES.index(name)])


def survival(name: str, draft: int) -> float:
    """The chance that draft 1, 2 or 3 of "A" or "B" survives."""
    wanted = NAMES.index(name), draft
    found = best().table
    return next(line.survival for line in found if (line.request, line.draft) == wanted)


def fixed_loss() -> float:
    """How much less, in %, verifying all drafts gives per ms than the best total."""
    found = best()
    return 100 * (1 - found.table[-1].tokens_per_ms / found.tokens_per_ms)


# ---- production, at about 60 requests a GPU (Reported; the throughput is estimated) ----


def gain() -> float:
    """How much more throughput, in %, the budget gives than fixed verification of five."""
    return 100 * (value("prod.throughput.budget") / value("prod.throughput.fixed") - 1)


def accept_rate(mode: str) -> float:
    """The share of verified drafts that are accepted, in %, under "fixed" or "budget"."""
    return 100 * value(f"prod.accepted.{mode}") / value(f"prod.verified.{mode}")
