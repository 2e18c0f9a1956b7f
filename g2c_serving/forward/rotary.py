"""Rotary positions: a query and a key are turned by their places, so that their product depends on
the distance alone.

A head's numbers are taken in pairs (i, i + d / 2), and at position p pair i is turned by the angle
p * base^(-2i / d): fast for the first pairs, slowly for the last. Keys are cached turned. Models
that were taught a longer context after the fact slow some pairs down, as `scaling` says:

    linear  all pairs by `factor`
    llama3  the slow pairs by `factor`, the fast ones not at all, a ramp between them (Llama 3.1)
    yarn    the same with other bounds, and longer queries and keys (YaRN, arXiv:2309.00071)

Angles are float32 as in the code that these models were trained with. Not in the Brief, whose model
is compared with the parent course's. Left out: heads that are turned in part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from g2c_serving.checks import as_int, as_number, check_bool

SCALINGS = ("default", "linear", "llama3", "yarn")
ROWS = 1024  # of the table, made at once
Rows = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, (T, d) each


@dataclass(frozen=True)
class Rotary:
    """How fast pairs turn. ValueError names the field and the range.

    base                  the slowest pair takes about 2 pi * base tokens for a turn
    scaling, factor       one of SCALINGS, and by how much
    original_max_seq_len  llama3, yarn: the context limit before it was made longer
    low_freq_factor, high_freq_factor   llama3: pairs that turn fewer than `low` times in that
                          context are slowed down, those that turn more than `high` times are not
    beta_slow, beta_fast  the same for yarn
    attention_factor      yarn: what queries and keys are multiplied by; None: 0.1 ln(factor) + 1
    truncate              yarn: the bounds are moved out to whole pairs
    """

    base: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    original_max_seq_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"Rotary.scaling={self.scaling!r} must be one of {list(SCALINGS)}")
        for field in fields(self):
            if isinstance(field.default, float):
                self._as_float(field.name)
        if self.attention_factor is not None:
            self._as_float("attention_factor")
        if self.base <= 1:
            raise ValueError(f"Rotary.base={self.base} must be above 1")
        if self.factor < 1:
            raise ValueError(f"Rotary.factor={self.factor} must be 1 or more")
        as_int("original_max_seq_len", self.original_max_seq_len, int(self._has_bounds), 2**31 - 1)
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            slow, fast = getattr(self, low), getattr(self, high)
            if not 0 < slow < fast:
                raise ValueError(f"Rotary.{low}={slow} must be above 0 and below {high}={fast}")
        check_bool("Rotary.truncate", self.truncate)

    def _as_float(self, name: str) -> None:
        object.__setattr__(self, name, as_number(f"Rotary.{name}", getattr(self, name)))

    @property
    def _has_bounds(self) -> bool:
        return self.scaling in ("llama3", "yarn")

    @property
    def length_factor(self) -> float:
        """What queries and keys are multiplied by, each."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1

    def frequencies(self, head_dim: int) -> torch.Tensor:
        """Radians a token of each pair, (d / 2,) float32."""
        plain = 1 / self.base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if not self._has_bounds:
            return plain / self.factor if self.scaling == "linear" else plain
        kept = self._ramp_llama3(plain) if self.scaling == "llama3" else self._ramp_yarn(head_dim)
        return plain * kept + plain / self.factor * (1 - kept)

    def _ramp_llama3(self, plain: torch.Tensor) -> torch.Tensor:
        """How much of its speed each pair keeps, 0 to 1, by its turns in the original context."""
        turns = self.original_max_seq_len * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        return ((turns - low) / (high - low)).clamp(0, 1)

    def _ramp_yarn(self, head_dim: int) -> torch.Tensor:
        """The same, along the pairs' numbers."""
        first, last = (self._pair_of(turns, head_dim) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        last += 0.001 * (first == last)
        pairs = torch.arange(head_dim // 2, dtype=torch.float32)
        return 1 - ((pairs - first) / (last - first)).clamp(0, 1)

    def _pair_of(self, turns: float, head_dim: int) -> float:
        """The number of the pair that turns so often in the original context, a fraction."""
        radians = 2 * math.pi * turns / self.original_max_seq_len  # a token
        return -head_dim * math.log(radians) / (2 * math.log(self.base))


class RotaryTable:
    """Cosines and sines by position, (T, d) each, of as many positions as were asked for so far, up
    to the context limit: a model may be able to read a million tokens that nobody ever gives it.
    """

    def __init__(
        self, rotary: Rotary, head_dim: int, max_seq_len: int, device: str = "cpu"
    ) -> None:
        self._speeds = rotary.frequencies(head_dim).to(device)  # (d / 2,)
        self._length_factor, self._most = rotary.length_factor, max_seq_len
        nothing = torch.empty(0, head_dim, device=device)
        self._rows = self._grown((nothing, nothing), min(ROWS, max_seq_len))

    def at(self, positions: torch.Tensor, dtype: torch.dtype, end: int) -> Turn:
        """What turns rows at positions (N,), all before `end`. float32 at least: a turned row is
        rounded once."""
        rows = self._rows
        if len(rows[0]) < end:  # twice as many at least, so that it rarely grows
            self._rows = rows = self._grown(rows, min(max(end, 2 * len(rows[0])), self._most))
        dtype = torch.promote_types(dtype, torch.float32)
        cos, sin = (part[positions, None].to(dtype) for part in rows)
        return Turn(cos, sin)

    def _grown(self, rows: Rows, count: int) -> Rows:
        """`rows` with more after them, up to `count`; a piece at a time, to hold little beside."""
        starts = range(len(rows[0]), count, ROWS)
        pieces = [rows, *(self._piece(start, min(start + ROWS, count)) for start in starts)]
        cos, sin = zip(*pieces, strict=True)
        return torch.cat(cos), torch.cat(sin)

    def _piece(self, start: int, stop: int) -> Rows:
        places = torch.arange(start, stop, dtype=torch.float32, device=self._speeds.device)
        angles = places[:, None] * self._speeds  # (stop - start, d / 2)
        # By way of float64: there a place at the end of a vector gets the same bits as any other.
        cos, sin = angles.double().cos().float(), angles.double().sin().float()
        scaled = self._length_factor
        return torch.cat((cos, cos), 1).mul_(scaled), torch.cat((-sin, sin), 1).mul_(scaled)


@dataclass(frozen=True)
class Turn:
    """Turns N rows, each by its own position. `cos`, `sin` (N, 1, d)."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (N, H, d) turned. A product and a sum at a time, so that each is rounded by itself,
        whatever the company."""
        swapped = x.roll(x.shape[-1] // 2, -1)  # (second half, first half)
        return (x * self.cos + swapped * self.sin).to(x.dtype)
