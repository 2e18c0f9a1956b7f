"""The Brief's numbers, as they stand in data/figures.csv, one row each.

A `computed` row can be worked out, and the package does so (figures.py). A `shown` row was read
off a chart, counted or reported, and is only quoted, with its label.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from g2c_serving.paths import DATA

LABELS = {
    "Reported": "DeepSeek says so, in the README or the Q&A. Nobody else has measured it yet.",
    "Derived": "Arithmetic on disclosed values, or read directly in the released code.",
    "G2C interpretation": "The course's reading of why, where the source does not say.",
    "Not disclosed": "The release does not say.",
    "Measured here": "Timed on the machine named beside it. Yours will differ.",
    "Simulated": "Comes out of a model whose assumptions stand beside it.",
}


@dataclass(frozen=True)
class Row:
    """One number of the Brief: its section ("0" is the opening), label, value, unit, tolerance."""

    id: str
    section: str
    label: str
    what: str
    value: float
    unit: str
    how: str
    tolerance: float
    kind: str  # "computed" or "shown"


@cache
def rows() -> dict[str, Row]:
    """All rows by id, in the Brief's order."""
    with (DATA / "figures.csv").open(encoding="utf-8", newline="") as file:
        found = [read_row(cells) for cells in csv.DictReader(file)]
    return {row.id: row for row in found}


def read_row(cells: dict[str, str]) -> Row:
    words = {name: cells[name] for name in ("id", "section", "label", "what", "unit", "how")}
    tolerance = float(cells["tolerance"])
    return Row(**words, value=float(cells["value"]), tolerance=tolerance, kind=cells["kind"])


def value(id: str) -> float:
    """The Brief's own value of one row. Raises KeyError that names the id."""
    if id not in rows():
        raise KeyError(f"data/figures.csv has no row {id!r}")
    return rows()[id].value
