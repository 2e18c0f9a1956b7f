"""A throughput chart as a table: what was measured, and what it was multiplied by.

Brief, "Reading the numbers". The points of DeepInfer's decode chart, or of any chart of yours, from
a CSV file with a line a point:

    run                  the curve's name
    requests             at once, per GPU or machine
    tokens_per_s         of one user, as the chart shows it
    assumed_drafts       n and a of tau = 1 + n * a, by which measured steps were multiplied;
    assumed_acceptance   both empty where tokens were counted
    verification         off, fixed or budgeted
    source               measured or estimated

tau is refused on budgeted runs, as DeepInfer's plotting code does: those reflect real acceptance
already. (Derived, from the Brief; we have not seen its `plot_pareto.py`.)
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g2c_serving.lab import charts
from g2c_serving.lab.acceptance import as_a_chain, as_a_share

COLUMNS = (
    "run", "requests", "tokens_per_s", "assumed_drafts", "assumed_acceptance", "verification",
    "source",
)  # fmt: skip
OFF, FIXED, BUDGETED = "off", "fixed", "budgeted"
MEASURED, ESTIMATED = "measured", "estimated"
SHARE, CHANCE = "a share: 1 + n a", "a chance: 1 + a + a² + ..."
READINGS: dict[str, Callable[[float, int], float]] = {SHARE: as_a_share, CHANCE: as_a_chain}
MOST_DRAFTS = 64


@dataclass(frozen=True)
class Point:
    """One point of a chart, as it is printed. ValueError for what no chart can mean."""

    run: str
    requests: int
    tokens_per_s: float
    assumed_drafts: int | None = None
    assumed_acceptance: float | None = None
    verification: str = OFF
    source: str = MEASURED

    def __post_init__(self) -> None:
        _check_words("verification", self.verification, (OFF, FIXED, BUDGETED))
        _check_words("source", self.source, (MEASURED, ESTIMATED))
        if self.requests < 1:
            raise ValueError(f"requests={self.requests} must be 1 or more")
        if not 0 < self.tokens_per_s < math.inf:
            raise ValueError(f"tokens_per_s={self.tokens_per_s} must be a number above 0")
        _check_assumption(self)

    @property
    def is_assumed(self) -> bool:
        """Steps times tau; else tokens were counted."""
        return self.assumed_drafts is not None

    @property
    def tau(self) -> float | None:
        """Tokens per step that the chart assumes, None where it counts them."""
        if self.assumed_drafts is None or self.assumed_acceptance is None:
            return None
        return as_a_share(self.assumed_acceptance, self.assumed_drafts)

    @property
    def steps_per_s(self) -> float | None:
        """What was measured behind an assumed point, None where it cannot be told."""
        return None if self.tau is None else self.tokens_per_s / self.tau

    def read_with(self, acceptance: float, reading: str = SHARE) -> float:
        """tokens_per_s with another acceptance, 0 to 1, in one of READINGS. A point with counted
        tokens stays as it is. (Other drafts would make other steps, which nobody measured.)"""
        if reading not in READINGS:
            raise ValueError(f"reading {reading!r} must be one of {list(READINGS)}")
        if not 0 <= acceptance <= 1:
            raise ValueError(f"acceptance={acceptance} must lie between 0 and 1")
        if self.steps_per_s is None or self.assumed_drafts is None:
            return self.tokens_per_s
        return self.steps_per_s * float(READINGS[reading](acceptance, self.assumed_drafts))


def _check_words(field: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{field}={value!r} must be {', '.join(words[:-1])} or {words[-1]}")


def _check_assumption(point: Point) -> None:
    drafts, a = point.assumed_drafts, point.assumed_acceptance
    if (drafts is None) != (a is None):
        missing = "assumed_drafts" if drafts is None else "assumed_acceptance"
        raise ValueError(f"{missing} is empty: tau needs both; leave both empty if tokens counted")
    if drafts is None or a is None:
        return
    if not 0 <= drafts <= MOST_DRAFTS:
        raise ValueError(f"assumed_drafts={drafts} must be 0 to {MOST_DRAFTS}")
    if not 0 <= a <= 1:
        raise ValueError(f"assumed_acceptance={a} must be a fraction, 0 to 1 (75% is 0.75)")
    if point.verification == BUDGETED:
        raise ValueError(
            f"verification={BUDGETED} with tau {as_a_share(a, drafts):g}: a budgeted run reflects "
            "real acceptance already; leave assumed_drafts and assumed_acceptance empty"
        )
    if point.verification == OFF and drafts:
        raise ValueError(f"assumed_drafts={drafts} with verification={OFF}: write {FIXED}")


# ---- the file ----


def read(csv_text_or_path: str | Path) -> list[Point]:
    """The points of a CSV: its text, or a Path to it. ValueError names line, field and remedy."""
    text = csv_text_or_path
    text = (_file(text) if isinstance(text, Path) else text).lstrip("\ufeff").strip()
    _check_head(text.split("\n")[0])
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    names = [name.strip().lower() for name in next(reader, [])]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ValueError(f"no column {missing[0]}: the first line must be {','.join(COLUMNS)}")
    points = [
        _point(reader.line_num, names, cells) for cells in reader if any(map(str.strip, cells))
    ]
    if not points:
        raise ValueError("the CSV has no points: add a line for each below the names")
    return points


def _file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8: save it as CSV UTF-8") from None


def _check_head(line: str) -> None:
    if line.lower().endswith(".csv"):
        raise ValueError(f"is {line!r} a file's name? Give Path({line!r})")
    if line and "," not in line:
        raise ValueError(
            "the first line has no comma: separate with commas, and write decimals with a point"
        )


def _point(line: int, names: list[str], cells: list[str]) -> Point:
    cells = [cell.strip() for cell in cells]
    if any(cells[len(names) :]):
        raise ValueError(
            f"line {line} has {len(cells)} cells, the first line {len(names)} names: write 0.8, "
            "not 0,8, and 1252, not 1,252"
        )
    words = dict(zip(names, cells + [""] * len(names), strict=False))
    try:
        if not words["run"]:
            raise ValueError("run is empty: name the curve")
        return Point(
            words["run"],
            _number("requests", words["requests"], int),
            _number("tokens_per_s", words["tokens_per_s"], float),
            _number("assumed_drafts", words["assumed_drafts"], int, optional=True),
            _number("assumed_acceptance", words["assumed_acceptance"], float, optional=True),
            words["verification"].lower(),
            words["source"].lower(),
        )
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from None


def _number(field: str, text: str, kind: type, optional: bool = False) -> Any:
    if optional and not text:
        return None
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number, such as 246 or 0.75"
        raise ValueError(f"{field}={text!r} must be {what}{_instead(text)}") from None


def _instead(text: str) -> str:
    """What to write for a number in another spelling, "" where none is known."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        return f": write {text.replace(',', '')}"
    if re.fullmatch(r"\d+,\d+", text):
        return f": write {text.replace(',', '.')}"
    if re.fullmatch(r"\d+(\.\d+)? ?%", text):
        return f": write {float(text.rstrip(' %')) / 100:g}"
    return ""


def decode_chart() -> list[Point]:
    """DeepInfer's decode chart, at the three points that the Brief reads off (Derived)."""
    return [
        Point("DeepInfer decode", p.requests, p.user_speed, charts.CHART_DRAFTS,
              charts.CHART_ACCEPTANCE, FIXED, MEASURED)
        for p in charts.decode_points()
    ]  # fmt: skip
