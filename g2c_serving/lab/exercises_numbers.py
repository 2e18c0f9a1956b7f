"""The exercises of notebook 08, each with the function that computes its right value."""

from __future__ import annotations

from collections.abc import Callable

from g2c_serving.lab.acceptance_trace import Trace
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.implied_steps import implied_ms
from g2c_serving.lab.published import rows, value
from g2c_serving.lab.speed_chart import BUDGETED, CHANCE, FIXED, MEASURED, OFF, Point

CHART = Point("a chart", 32, 400.0, 5, 0.6, FIXED, MEASURED)


@exercise(
    "08.step_time",
    "A chart shows 400 tokens a second per user. Its subtitle says: 5 drafts, acceptance 60 %, and "
    "its tau is 1 + n * a. How many ms did an engine step take?",
    hint="First tau. Then steps a second: what was measured before it was multiplied.",
    unit="ms",
    rel=0.005,
    why="tau is 1 + 5 * 0.6 = 4, so 100 steps a second were measured. The 4 was not.",
)
def _step_time() -> float:
    return 1000 / (CHART.steps_per_s or 1)


@exercise(
    "08.other_reading",
    "The same chart. In truth the 60 % are each draft's chance, given the ones before it. How many "
    "tokens a second does a user get?",
    hint="The steps stay: 100 a second. 1 + 0.6 + 0.36 + ... with five drafts.",
    unit="tokens/s",
    rel=0.005,
    why="2.38 tokens a step, so 238 and not 400: with more drafts the readings part further.",
)
def _other_reading() -> float:
    return CHART.read_with(0.6, CHANCE)


@exercise(
    "08.implied_step",
    "The budgeted column: 14,466 tokens a second per GPU, about 60 requests, accepted length 3.21. "
    "If that length does not count the ordinary token, how many ms does a step take?",
    hint="How many tokens does a step write, all requests together?",
    unit="ms",
    rel=0.006,
    why="60 * 4.21 tokens at 14,466 a second. If 3.21 counts the ordinary token, it is 13.3 ms.",
)
def _implied_step() -> float:
    return implied_ms(value("prod.load"), "budget", True)


STOOD = Trace((100, 80, 70, 50))


@exercise(
    "08.two_numbers",
    "100 passes with three drafts each: in 20 no draft stood, in 10 one, in 20 two, in 50 all "
    "three. Give [the share of the drafts that stand, the chance of a draft whose predecessors all "
    "stand], as fractions of 1.",
    hint="How many first drafts stand, how many second, how many third? The chance divides by "
    "those that had their turn.",
    rel=0.006,
    why="80 + 70 + 50 = 200 stand, of 300; of the 100 + 80 + 70 whose turn came, that is 0.8. A "
    "pass gives 1 + 3 * 0.667 = 3 tokens; 1 + 0.8 + 0.64 + 0.512 comes near, 2.95.",
)
def _two_numbers() -> list[float]:
    return [STOOD.share, STOOD.chance]


def _shown(measured: float, drafts: int, acceptance: float, verification: str) -> float:
    try:
        tau = Point("", 1, measured, drafts, acceptance, verification).tau
    except ValueError:  # refused
        return measured
    return measured * (tau or 1)


@exercise(
    "08.refuse",
    "Write shown(measured, drafts, acceptance, verification), the y-value of a plotting script, in "
    "tokens a second. Of a 'fixed' run it gets the measured steps a second, and multiplies by tau, "
    "1 + n * a. A 'budgeted' or 'off' run comes with its tokens counted, whatever drafts and "
    "acceptance were given on the command line. Do not raise: give the counted tokens back as they "
    "are.",
    hint="Which runs reflect real acceptance already?",
    rel=1e-9,
    cases=[
        (76.0, 3, 0.75, FIXED),
        (40.0, 5, 0.66, FIXED),
        (240.0, 5, 0.9, BUDGETED),
        (76.0, 0, 0.0, OFF),
        (55.0, 3, 0.75, OFF),
        (90.0, 0, 0.75, BUDGETED),
    ],
    why="A budgeted run verifies now more, now fewer: its tokens are counted, not assumed.",
)
def _refuse() -> Callable[[float, int, float, str], float]:
    return _shown


NEEDS = (
    ("fleet.tokens",),
    ("fleet.tokens", "fleet.gpus"),
    ("decode.user_speed.64", "tau.nextn", "tau.a"),
    ("prod.accepted.fixed", "prod.verified.fixed"),
    ("fleet.revenue", "fleet.cost"),
    ("fleet.revenue", "fleet.tokens", "fleet.gpus"),
)  # rows of figures.csv, there or not


@exercise(
    "08.derivable",
    "Which of these can be worked out from what DeepSeek published? Six times True or False: "
    "[tokens a second of the cluster, on a day's average; tokens a second per GPU of that cluster; "
    "the step time behind the decode chart's point at 64 requests; the share of verified drafts "
    "that are accepted, fixed five, if 3.30 are drafts alone; profit per GPU-hour; revenue per "
    "token].",
    hint="Write down what each is divided by. Is it published?",
    why="The number of GPUs and the cost of an hour are not. Revenue per token would need both "
    "totals of the same hours and the same GPUs.",
)
def _derivable() -> list[bool]:
    return [all(row in rows() for row in needed) for needed in NEEDS]
