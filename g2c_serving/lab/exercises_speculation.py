"""The exercises of notebook 04, each with the function that computes its right value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from g2c_serving.lab import exact_budget, toy_budget
from g2c_serving.lab.exercises import exercise
from g2c_serving.sample.verify_budget import plan, rank


@exercise(
    "04.survival",
    "A request's drafts have confidences 0.9, 0.8, 0.5 and 0.9. How likely is it that the fourth "
    "one counts?",
    hint="It counts only if all four are accepted. Each confidence is given the ones before.",
    rel=0.013,  # 0.32 will do
    why="0.9 * 0.8 * 0.5 * 0.9: the confident fourth draft is worth less than a third.",
)
def _survival() -> float:
    return float(rank([[0.9, 0.8, 0.5, 0.9]]).survival[-1])


@exercise(
    "04.best_budget",
    "Two requests share a step. A's three drafts have confidence 0.8 each, B's two 0.6 each. A "
    "step takes 10 ms for up to 4 rows, 13 ms for up to 6, 16 ms for up to 8. How many rows, the "
    "ordinary ones included, give the most tokens per ms?",
    hint="Sort the five survivals and add them to the 2 tokens that are sure, one by one. Divide "
    "each sum by the time of its rows.",
    unit="rows",
    rel=0,
    why="4 rows give 2 + 0.8 + 0.64 = 3.44 tokens, 0.344 per ms. 6 rows give 4.55, which is 0.350.",
)
def _best_budget() -> int:
    return plan([[0.8] * 3, [0.6] * 2], toy_budget.step_ms).rows


@exercise(
    "04.accept",
    "Over three tokens the target has p = 1/2, 1/3, 1/6 and the drafter q = 1/4, 1/4, 1/2. How "
    "likely is a draft accepted, before it is known which token it is?",
    hint="Token t is drafted with probability q, and accepted with min(1, p / q).",
    rel=0.006,  # 0.67 will do
    why="The sum of min(p, q): 1/4 + 1/4 + 1/6 = 2/3. A calibrated confidence head says that.",
)
def _accept() -> float:
    p, q = exact_budget.chances(3, 2, 1), exact_budget.chances(1, 1, 2)
    return float(sum(q[t] * exact_budget.accept_chance(p, q, t) for t in range(3)))


@exercise(
    "04.expected_tokens",
    "Of 3 drafts at 75 % the decode chart makes 1 + 3 * 0.75 = 3.25 tokens a step; if 75 % is what "
    "each draft survives with, given the one before, it is 2.73. Production drafts 5. How many "
    "tokens a step does the second reading give there, at 75 %?",
    hint="1 + 0.75 + 0.75 * 0.75 + ...: one ordinary token, and five survivals.",
    unit="tokens",
    rel=0.004,  # 3.3 will do
    why="3.29, and not 1 + 5 * 0.75 = 4.75: the more drafts, the further the readings part.",
)
def _expected_tokens() -> float:
    return plan([[0.75] * 5], lambda rows: 1.0).expected_tokens  # extra rows are free: all five


@exercise(
    "04.why_calibration",
    "The Brief's toy again: A's head says 0.9 for each of its three drafts, B's 0.5, so the "
    "planner verifies 6 rows. But A's head is overconfident: each of its drafts survives with 0.6, "
    "given the ones before. Of the tokens per ms that an honest head would get, how many percent "
    "are lost?",
    hint="Tokens that really come: 2 + 0.6 + 0.36 + 0.216 + 0.5 in 13 ms. Then plan anew with 0.6.",
    unit="%",
    rel=0.03,
    why="0.283 per ms in place of 0.310. With 0.6 the planner stops at 4 rows, one draft each.",
)
def _why_calibration() -> float:
    honest = plan([[0.6] * 3, [0.5] * 3], toy_budget.step_ms)
    misled = toy_budget.best()
    survival = np.cumprod([[0.6] * 3, [0.5] * 3], axis=1)
    real = 2 + sum(row[:n].sum() for row, n in zip(survival, misled.drafts, strict=True))
    return 100 * (1 - real / toy_budget.step_ms(misled.rows) / honest.tokens_per_ms)


def _planner_cases() -> list[tuple[list[list[float]], list[float]]]:
    """The toy, and 40 random batches of up to 5 requests, on curves that rise, in stairs or not."""
    rng = np.random.default_rng(4)
    toy = [list(row) for row in toy_budget.CONFIDENCES]
    cases = [(toy, [10.0] * 5 + [13.0] * 2 + [16.0] * 2)]
    for k in range(40):
        drafts = rng.integers(0, 6, rng.integers(1, 6))
        rows = np.arange(len(drafts) + drafts.sum() + 1)
        step_ms = 4 + 0.4 * rows if k % 2 else 8 + 3.0 * ((rows + 3) // 4)
        confidences = [rng.uniform(0.2, 1, n).round(3).tolist() for n in drafts]
        cases.append((confidences, step_ms.round(3).tolist()))
    return cases


def _walk(
    confidences: list[list[float]], step_ms: list[float], worth: Callable, patient: bool = True
) -> list[int]:
    """A planner that takes the drafts by `worth` of their request's confidences; not `patient`, it
    stops at the first row that does not pay."""
    pool = [(each, request) for request, row in enumerate(confidences) for each in worth(row)]
    drafts, tokens = [0] * len(confidences), float(len(confidences))
    best, rate = drafts, tokens / step_ms[len(drafts)]
    for each, request in sorted(pool, key=lambda draft: -draft[0]):
        tokens += each
        drafts = [n + (k == request) for k, n in enumerate(drafts)]
        if (now := tokens / step_ms[len(drafts) + sum(drafts)]) > rate:
            best, rate = drafts, now
        elif not patient:
            break
    return best


PLANNER_SLIPS: tuple[tuple[Callable, str], ...] = (
    (
        lambda confidences, step_ms: _walk(confidences, step_ms, list),
        "You take each confidence for itself. A draft counts only if all before it do: multiply.",
    ),
    (
        lambda confidences, step_ms: _walk(confidences, step_ms, np.cumprod, patient=False),
        "You stop at the first row that does not pay. A later one may pay again: try all totals.",
    ),
    (
        lambda confidences, step_ms: [n + 1 for n in _walk(confidences, step_ms, np.cumprod)],
        "Return the drafts alone, without the ordinary row that each request has anyway.",
    ),
)


@exercise(
    "04.planner",
    "Write planner(confidences, step_ms), the Brief's four steps in plain Python: confidences is a "
    "list of requests, each a list of its drafts' confidences (it may be empty); step_ms[k] is the "
    "time of k rows. Every request has one row anyway, for its ordinary token. Return the list of "
    "how many drafts to verify of each request, so that the expected tokens per ms are most; of "
    "equals, with fewer rows.",
    hint="Make a list of (survival, request) over all drafts, the likeliest first. Walk down it, "
    "keep count of the tokens, and remember how far you had come when tokens per ms was highest.",
    cases=_planner_cases(),
    slips=PLANNER_SLIPS,
    rel=0,
    why="That is the engine's planner; it does the same on arrays.",
)
def _planner() -> Callable[[list[list[float]], list[float]], list[int]]:
    return lambda confidences, step_ms: plan(confidences, step_ms).drafts.tolist()
