"""Where texts part: the same requests, greedy, with keys and values in float32 and in four bits.

A distribution that moves by a little changes no token at most places. In a text one change is
enough: from there on both go their own way. Real engines in batch-invariant mode, so that nothing
but the rounding differs. Beside it, how fast four bits are made and read here.
Brief, "The parts that are pure infrastructure" and "Where informed readers will push back".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.low_precision import FORMATS, Format, decode, encode
from g2c_serving.lab.held_out import held_out_prompts
from g2c_serving.lab.shared_draws import first_difference
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

REQUESTS, TOKENS = 16, 48


@dataclass(frozen=True)
class Parted:
    """Of one cache format: for each text the first token that differs (None: none does)."""

    kv_cache_dtype: str
    first: tuple[int | None, ...]

    @property
    def count(self) -> int:
        return sum(place is not None for place in self.first)

    def __str__(self) -> str:
        places = sorted(place for place in self.first if place is not None)
        where = f", the first of them at token {places[0] + 1}" if places else ""
        return (
            f"{self.kv_cache_dtype}: {self.count} of {len(self.first)} texts of up to {TOKENS} "
            f"tokens part from float32's{where}."
        )


def parted(lm: LanguageModel, *formats: str) -> list[Parted]:
    """The same greedy requests with a cache in each of `formats`, against the unrounded one."""
    exact = _texts(lm, "auto")
    return [Parted(name, tuple(map(_where, exact, _texts(lm, name)))) for name in formats]


def _where(one: list[int], other: list[int]) -> int | None:
    return None if one == other else first_difference(one, other)


def _texts(lm: LanguageModel, kv_cache_dtype: str) -> list[list[int]]:
    config = EngineConfig(batch_invariant=True, kv_cache_dtype=kv_cache_dtype)
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    outs = Engine(lm, config).generate(held_out_prompts(lm, REQUESTS), params)
    return [list(out.token_ids) for out in outs]


# ---- speed ----


def speeds(values: int = 1 << 20, tries: int = 5) -> dict[str, tuple[float, float]]:
    """Millions of numbers a second, encoded and decoded, by format: the best of `tries`, so
    that what else the machine does counts little."""
    return {format.name: _speed(format, values, tries) for format in FORMATS.values()}


def _speed(format: Format, values: int, tries: int) -> tuple[float, float]:
    some = torch.randn(values // 64, 64)
    packed = encode(some, format)
    calls: tuple[Callable[[], object], ...] = (
        partial(encode, some, format),
        partial(decode, packed),
    )
    best = [min(_seconds(call) for _ in range(tries)) for call in calls]
    return some.numel() / best[0] / 1e6, some.numel() / best[1] / 1e6


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)


def speed_table() -> Table:
    """`speeds` as a table of a page."""
    rows = [(name, f"{e:,.0f}", f"{d:,.0f}") for name, (e, d) in speeds().items()]
    return Table(("million numbers a second", "encoded", "decoded"), rows)
