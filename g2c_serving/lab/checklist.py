"""What to ask of any throughput chart, with DeepInfer's answers, and a blank for a chart of yours.

Brief, "Reading the numbers": every number comes with an assumption, mostly printed in a subtitle.
Where the release gives no answer it is Not disclosed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from g2c_serving.lab.published import LABELS, value
from g2c_serving.lab.speed_chart import Point
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

TO_FILL = "..."


@dataclass(frozen=True)
class Question:
    """One question, why it matters, and DeepInfer's answer with its label."""

    id: str
    asks: str
    because: str
    deepinfer: str
    label: str

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ValueError(f"label {self.label!r} must be one of {list(LABELS)}")


_LOAD = f"{value('prod.load'):.0f}"
QUESTIONS = (
    Question("unit", "What was counted on the y-axis, and what multiplied?",
             "a product moves with its assumed factor",
             "decode: steps per second were measured, tau = 1 + 3 × 0.75 multiplied", "Derived"),
    Question("acceptance", "Is the acceptance a share of drafts, or a chance given those before?",
             "at 75 % of three drafts the readings are 16 % apart",
             "the chart's subtitle does not say", "Not disclosed"),
    Question("configuration", "Is it the configuration that serves users?",
             "a benchmark may switch off what costs, or what helps",
             "no: fixed-length verification; production budgets it", "Derived"),
    Question("source", "Measured, or computed from other measurements?",
             "an estimate has its model's assumptions in it",
             "the budgeted table is computed from benchmark data of 64 GPUs", "Reported"),
    Question("repeats", "How often was it measured, and how far apart?",
             "one timing may be off by more than the gain that it is to show",
             "not said", "Not disclosed"),
    Question("point", "Which point of the trade-off, and what does a user see there?",
             "throughput without a latency beside it can be had for any price",
             f"three points are readable, 8 to 256 requests per GPU; the table is at about {_LOAD}",
             "Derived"),
    Question("context", "How long are prompts and answers?",
             "attention and the cache's bytes grow with the context",
             f"{value('bench.context'):.0f}K tokens in both charts; production's mix is not given",
             "Reported"),
    Question("tokens", "Which tokens count: read, found in a cache, written?",
             "one found in a cache costs next to nothing",
             "155 trillion a day, of which kinds is not said", "Not disclosed"),
    Question("per", "Per what: user, GPU, machine, cluster?",
             "a total without its divisor compares with nothing",
             "charts per GPU and user; the day's total per cluster, of unknown size", "Reported"),
    Question("hardware", "On how many of which devices, in which number format?",
             "4-bit weights and caches are a part of the speed",
             "64 SM100 GPUs for decode, 4 for prefill; cache and experts in FP4", "Reported"),
    Question("baseline", "Against what, and was that tuned as well?",
             "a gain is a quotient, and half of it is the other engine",
             "+5.4 % is over its own fixed five; no other engine beside it", "Reported"),
    Question("who", "Who measured, and who can repeat it?",
             "whoever sells it chose the point that is shown",
             "DeepSeek alone; to repeat it needs the same hardware", "Reported"),
    Question("money", "Is a money figure cost, price or revenue?",
             "revenue rises with the price, at the same work",
             "US$38 per GPU-hour is revenue, at off-peak prices", "Reported"),
)  # fmt: skip


def table() -> Table:
    """The checklist, with what can be said of DeepInfer."""
    rows = [(q.asks, q.because, q.deepinfer, q.label) for q in QUESTIONS]
    return Table(("ask", "because", "DeepInfer", "label"), rows, words=4)


def blank(points: Sequence[Point], answers: Mapping[str, str] | None = None) -> Table:
    """The checklist for a chart of yours: what its points say, your answers by a question's id,
    and ... where there is none. ValueError for an id that is no question's."""
    if not isinstance(answers or {}, Mapping):
        raise ValueError(
            f'answers is a {type(answers).__name__}: give a dict by id, such as {{"who": "I did"}}'
        )
    answers = {id: str(words) for id, words in (answers or {}).items()}
    ids = [q.id for q in QUESTIONS]
    for id in answers:
        if id not in ids:
            raise ValueError(f"answers has {id!r}, which is no question: there are {ids}")
    known = _from(points) | answers
    rows = [(q.id, q.asks, known.get(q.id, TO_FILL)) for q in QUESTIONS]
    return Table(("id", "ask", "your chart"), rows, words=3)


def _from(points: Sequence[Point]) -> dict[str, str]:
    """What the points of a chart say themselves."""
    if not points:
        raise ValueError("points is empty: read a CSV with one point or more")
    taus = sorted({p.tau for p in points if p.tau is not None})
    loads = sorted(p.requests for p in points)
    found = {
        "unit": _unit(sum(not p.is_assumed for p in points), len(points), taus),
        "configuration": f"verification {_words(p.verification for p in points)}",
        "source": _words(p.source for p in points),
        "point": f"{many(len(points), 'point')}, {_span(loads[0], loads[-1])}",
    }
    return found if taus else found | {"acceptance": "none is assumed"}


def _unit(counted: int, points: int, taus: Sequence[float]) -> str:
    product = f"steps times tau {', '.join(f'{t:.2f}' for t in taus)}"
    if counted and taus:
        return f"{counted} of {points} points counted; the others are {product}"
    return product if taus else "tokens, counted"


def _span(low: int, high: int) -> str:
    return many(high, "request") if low == high else f"{low:,} to {high:,} requests"


def _words(words: Iterable[str]) -> str:
    return " and ".join(sorted(set(words)))


def kinds() -> Table:
    """The Brief's speeds side by side: what was measured, estimated, assumed; in production?"""
    rows = [
        ("decode chart, tokens/s", "steps measured, tokens assumed", "fixed three", "no"),
        ("prefill chart, tokens/s", "not said", "no drafts", "no"),
        ("production table, fixed five", "estimated from benchmarks", "fixed five", "no"),
        ("production table, budgeted", "estimated from benchmarks", "budgeted", "as configured"),
        ("tokens a day", "reported, of unknown kinds", "as it runs", "yes"),
        ("revenue per GPU-hour", "a business number", "as it runs", "yes, off-peak"),
    ]
    return Table(("number", "how it came about", "verification", "in production"), rows, words=4)
