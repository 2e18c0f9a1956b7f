"""The benchmark's result: ratios beside their bars, how things grow; as text or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from g2c_serving.lab.contestants import TOKENS_A_STEP, Result, share_equal
from g2c_serving.lab.table import Table

MEETS, SHORT, TOO_SMALL = "meets", "falls short", "too small to judge"


@dataclass(frozen=True)
class Sizes:
    """How much one run of the benchmark does."""

    requests: int = 64
    prompt: int = 64
    new: int = 64
    repetitions: int = 3
    repetitions_big: int = 2  # with the inflated weights
    loop_requests: int = 8  # of the same prompts, for what serves one at a time: a rate
    loop_requests_big: int = 2
    megabytes: float = 150
    growth: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    growth_new: int = 16
    contexts: tuple[int, ...] = (32, 128, 256, 448)
    context_requests: int = 8
    floors: tuple[int, ...] = (1, 8, 64, 128)

    def fitted(self, context: int) -> Sizes:
        """The same, with texts that fit into a context of so many tokens."""
        prompt, new = fitting(self.prompt, self.new, context)
        growth_new = min(self.growth_new, context - prompt)
        contexts = tuple(dict.fromkeys(min(n, context - growth_new) for n in self.contexts))
        return replace(self, prompt=prompt, new=new, growth_new=growth_new, contexts=contexts)


def fitting(prompt: int, new: int, context: int) -> tuple[int, int]:
    """A prompt of half the context at most, and new tokens that fit behind it."""
    prompt = min(prompt, context // 2)
    return prompt, min(new, context - prompt)


@dataclass(frozen=True)
class Line:
    """One ratio beside its bar. `at_most` turns the comparison round; a bar of None only shows, and
    so does a measurement that is too small to be judged."""

    name: str
    bar: float | None
    measured: float | None
    note: str
    at_most: bool = False
    is_judged: bool = True

    @property
    def verdict(self) -> str:
        if self.bar is None or self.measured is None:
            return "shown" if self.bar is None else "not measured"
        if not self.is_judged:
            return TOO_SMALL
        low, high = sorted((self.bar, self.measured))
        return MEETS if (low if self.at_most else high) == self.measured else SHORT


@dataclass
class Report:
    machine: str
    versions: dict[str, str]
    model: str
    sizes: Sizes
    lines: list[Line] = field(default_factory=list)
    by_requests: list[dict[str, float]] = field(default_factory=list)
    by_requests_inflated: list[dict[str, float]] = field(default_factory=list)
    by_context: list[dict[str, float]] = field(default_factory=list)
    by_floor: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> str:
        return as_json(self)


def as_json(report: Any) -> str:
    """A report, a dataclass with `lines`, for machines; each line has its verdict."""
    lines = [asdict(line) | {"verdict": line.verdict} for line in report.lines]
    return json.dumps(asdict(report) | {"lines": lines}, indent=1)


def table(report: Report) -> str:
    """The report as text."""
    s = report.sizes
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    return "\n".join(
        [
            f"{s.requests} requests of {s.prompt} + {s.new} tokens, greedy, float32, one thread.",
            f"A step of ours and of transformers' continuous batching: {TOKENS_A_STEP:,} tokens.",
            "Rates are (prompt + new) tokens per CPU-second; each is the best of "
            f"{s.repetitions} rounds in turn ({s.repetitions_big} with inflated weights).",
            f"Measured here: {report.machine}; {versions}; {report.seconds:.0f} s",
            "",
            str(ratio_rows(report.lines)),
            "",
            f"How it grows, with {s.growth_new} new tokens a request (fewer rounds, so rougher):",
            str(grid(report.by_requests)),
            "",
            str(grid(report.by_context)),
            "",
            f"Decode steps with the weights inflated to {s.megabytes:g} MB:",
            str(grid(report.by_requests_inflated)),
            "",
            "A decode step and its floor, in CPU ms; then the step by operator:",
            str(grid(report.by_floor)),
        ]
    )


def ratio_rows(lines: Iterable[Line]) -> Table:
    """The ratios, a line each."""
    head = "ratio", "bar", "measured", "verdict", "from"
    rows = [
        (line.name, _bar(line), _number(line.measured), line.verdict, line.note) for line in lines
    ]
    return Table(head, rows, words=len(head))


def ratio(name: str, bar: float | None, mine: Result, other: Result) -> Line:
    """The rates of two contestants as a line: ours to the other's, with the tokens that agree."""
    assert mine.ids is not None and other.ids is not None
    note = f"{mine.rate:,.0f} / {other.rate:,.0f} tokens per CPU-second"
    if mine.requests != other.requests:
        note += f", the latter on {other.requests} of the requests"
    note += f"; {share_equal(mine.ids, other.ids):.1%} of tokens equal"
    return Line(name, bar, mine.rate / other.rate, note)


def _bar(line: Line) -> str:
    if line.bar is None:
        return ""
    return f"at {'most' if line.at_most else 'least'} {_number(line.bar)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def grid(rows: list[dict[str, float]]) -> Table:
    """A cell is empty where a row has no such number."""
    head = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(head, [[_number(row.get(name)) for name in head] for row in rows], len(head))


def progress(what: str) -> None:
    """A line beside the results, so that redirected results stay clean."""
    print(f"bench: {what}", file=sys.stderr, flush=True)
