"""`python -m g2c_serving figures`: every number of the Brief beside ours, with a verdict.

A computed row is reproduced by the function registered for it below, through the package, and must
come within the row's tolerance. A shown row is quoted with its label and never counted. A computed
row without a function says `not yet` and counts as missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from g2c_serving.lab import accepted_length, charts, hit_calculator, memory, reservation, toy_budget
from g2c_serving.lab.hit_calculator import EXAMPLE, FLASH
from g2c_serving.lab.published import Row, rows, value
from g2c_serving.request import SamplingParams
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import MIN_TEMPERATURE

# Row id -> the function that gives our value. Each section of the Brief adds its rows here.
REPRODUCED: dict[str, Callable[[], float]] = {
    "decode.gain.8_to_64": partial(charts.throughput_gain, 8, 64),
    "decode.slower.8_to_64": partial(charts.step_slowdown, 8, 64),
    "prefill.latency_ratio": charts.prefill_latency_ratio,
}
for _n in charts.DECODE_REQUESTS:
    REPRODUCED[f"decode.step_ms.{_n}"] = partial(charts.step_ms_at, _n)
    REPRODUCED[f"decode.throughput.{_n}"] = partial(charts.throughput_at, _n)

# Section 2. 300 tokens in blocks of 128, or in a reserved row; an agent back with 10,000 tokens.
_use = partial(reservation.use, 300, 128)
_held, _gone, _none = FLASH.cases(EXAMPLE).values()
REPRODUCED |= {
    "kv.reserve_7b": lambda: memory.SHAPES["7B of Module 16, float16"].reserved_bytes / 1e9,
    "paging.reserved_use": lambda: 100 * _use().of_reserved,
    "paging.blocks": lambda: _use().blocks,
    "paging.slots": lambda: _use().slots,
    "paging.block_use": lambda: 100 * _use().of_blocks,
    "hit.slack": lambda: FLASH.never_cached,
    "hit.cap": lambda: FLASH.cap(EXAMPLE),
    "hit.blocks": lambda: _held.reused // FLASH.block_size,
    "hit.tokens": lambda: _held.reused,
    "hit.compute": lambda: _held.computed,
    "hit.evicted_tokens": lambda: _gone.reused,
    "hit.evicted_new": lambda: _gone.new,
    "hit.evicted_replay": lambda: _gone.replayed,
    "hit.evicted_compute": lambda: _gone.computed,
    "hit.none_compute": lambda: _none.computed,
    "window.bytes": lambda: hit_calculator.WINDOW_BYTES,
    "window.mib": lambda: hit_calculator.WINDOW_BYTES / 2**20,
    "global.bytes": lambda: hit_calculator.global_bytes(100_000) / 1e6,
}

# Section 3. The largest seed that a request takes; the stream of a draw; two sums of three floats.
REPRODUCED |= {
    "rng.seed_bits": lambda: (SamplingParams(seed=2**64 - 1).seed or 0).bit_length(),
    "rng.stream": lambda: int(rng.counters(np.array([7]), rng.ACCEPT)[0, 0]),
    "sampler.min_temperature": lambda: MIN_TEMPERATURE,
    "float.assoc": lambda: (0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3),
}

# Section 4. The guard; the toy of two requests with three drafts each; the production table.
REPRODUCED |= {
    "spec.guard": lambda: toy_budget.RESIDUAL_GUARD,
    "toy.best_rows": lambda: toy_budget.best().rows,
    "toy.fixed_loss": toy_budget.fixed_loss,
    "prod.gain": toy_budget.gain,
    "prod.accept_rate.fixed": partial(toy_budget.accept_rate, "fixed"),
    "prod.accept_rate.budget": partial(toy_budget.accept_rate, "budget"),
}
for _name in toy_budget.NAMES:
    REPRODUCED[f"toy.best.{_name}"] = partial(toy_budget.best_drafts, _name)
    for _n in (1, 2, 3):
        REPRODUCED[f"toy.survival.{_name}.{_n}"] = partial(toy_budget.survival, _name, _n)
for _n in range(2, 9):
    REPRODUCED[f"toy.expected.{_n}"] = partial(toy_budget.expected_tokens, _n)
    REPRODUCED[f"toy.rate.{_n}"] = partial(toy_budget.tokens_per_ms, _n)

# "Reading the numbers", and the one sum of the infrastructure's.
REPRODUCED |= {
    "lb.moe_percent": lambda: 100 * (value("lb.moe") - 1),
    "tau.chart": partial(accepted_length.tau, "share"),
    "tau.survival": partial(accepted_length.tau, "chance"),
    "tau.gap": accepted_length.tau_gap,
}

OK, OFF, NOT_YET, SHOWN = "ok", "OFF", "not yet", "shown"


@dataclass(frozen=True)
class Line:
    """One row of the Brief, our value of it (None where there is none) and the verdict."""

    row: Row
    ours: float | None
    verdict: str


def judge(row: Row, function: Callable[[], float] | None) -> Line:
    """Compare one row with our value. The tolerance is absolute, in the row's unit."""
    if row.kind == "shown":
        return Line(row, None, SHOWN)
    if function is None:
        return Line(row, None, NOT_YET)
    ours = float(function())
    close = abs(ours - row.value) <= row.tolerance + 1e-12 * abs(row.value)
    return Line(row, ours, OK if close else OFF)


def lines(prefix: str = "", section: str | None = None) -> list[Line]:
    """Judge the rows whose id starts with `prefix`, of one section of the Brief or of all."""
    chosen = [row for row in rows().values() if row.id.startswith(prefix)]
    if section is not None:
        chosen = [row for row in chosen if row.section == section]
    return [judge(row, REPRODUCED.get(row.id)) for row in chosen]


def table(found: list[Line]) -> str:
    """The lines as text: id, label, the Brief's value, ours, verdict."""
    head = ("id", "label", "Brief", "ours", "unit", "verdict")
    cells = [head, *(_cells(line) for line in found)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    return "\n".join(_aligned(row, widths) for row in cells)


def summary(found: list[Line]) -> str:
    count = {verdict: 0 for verdict in (OK, OFF, NOT_YET, SHOWN)}
    for line in found:
        count[line.verdict] += 1
    computed = len(found) - count[SHOWN]
    return (
        f"{count[OK]} of {computed} computed rows reproduced, {count[OFF]} off, "
        f"{count[NOT_YET]} not yet; {count[SHOWN]} rows are shown only."
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table; 0 only when no computed row is missing or off."""
    parser = argparse.ArgumentParser("python -m g2c_serving figures", description=__doc__)
    parser.add_argument("prefix", nargs="?", default="", help="only ids that start with this")
    parser.add_argument("--section", help="only one section of the Brief: 0 to 6, infra, numbers")
    choice = parser.parse_args(argv)
    found = lines(choice.prefix, choice.section)
    if not found:
        parser.error(f"no row has prefix {choice.prefix!r} and section {choice.section!r}")
    print(table(found), summary(found), sep="\n\n")
    return int(any(line.verdict in (OFF, NOT_YET) for line in found))


def _cells(line: Line) -> tuple[str, ...]:
    row, ours = line.row, "" if line.ours is None else number(line.ours)
    return row.id, row.label, number(row.value), ours, row.unit, line.verdict


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Numbers (columns 2 and 3) to the right, the rest to the left."""
    parts = [
        cell.rjust(width) if k in (2, 3) else cell.ljust(width)
        for k, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()


def number(value: float) -> str:
    """15744 as 15,744; 13.2113 as 13.211; 0.99995000125 in full."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.1f}"
    return f"{value:.11g}" if abs(1 - value) < 1e-3 else f"{value:.5g}"
