"""Checks of a user's values: an error names the field, the value and the range."""

from __future__ import annotations

import math
from numbers import Integral, Real


def as_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int from `low` to `high`; numpy's integers count. ValueError for all else."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if low <= number and (high is None or number <= high):
            return number
    limits = f"{low} or more" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name}={value!r:.500} must be an integer, {limits}")


def as_number(name: str, value: object) -> float:
    """`value` as a finite float; numpy's numbers count. ValueError for all else."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an int beyond the floats
        pass
    raise ValueError(f"{name}={value!r:.500} must be a finite number")


def check_bool(name: str, value: object) -> None:
    """ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r:.500} must be True or False")
