"""Reads what people write: numbers with or without a unit, words. Writes numbers as they do."""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any

# What one unit is in its base unit, and which base that is. "%" is kept as it is written.
UNITS: dict[str, tuple[float, str]] = {
    "s": (1.0, "s"), "ms": (1e-3, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "min": (60.0, "s"),
    "b": (1.0, "B"), "byte": (1.0, "B"), "kb": (1e3, "B"), "mb": (1e6, "B"), "gb": (1e9, "B"),
    "kib": (2.0**10, "B"), "mib": (2.0**20, "B"), "gib": (2.0**30, "B"),
    "%": (1.0, "%"), "percent": (1.0, "%"), "x": (1.0, "x"), "time": (1.0, "x"),
    "tok/s": (1.0, "tok/s"), "tokens/s": (1.0, "tok/s"), "tok/ms": (1e3, "tok/s"),
}  # fmt: skip


class Unreadable(ValueError):
    """The answer is not of the kind that the exercise asks for. It counts as no attempt."""


def read_number(answer: Any, unit: str) -> float:
    """A finite number in `unit`, from 13.2, "13.2 ms", "0.0132 s", "15,744 tok/s", "2/3", an array.

    Raises Unreadable where there is no number, more than one, or another kind of unit.
    """
    if isinstance(answer, bool):
        raise Unreadable("Answer with a number, not True or False.")
    if isinstance(answer, str):
        return read_text(answer, unit)
    try:
        value = float(one_of(answer))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Unreadable(
            f"Answer with one number{in_unit(unit)}; this is {reprlib.repr(answer)}."
        ) from None
    if not math.isfinite(value):
        raise Unreadable(f"{value} is no finite number. Is something divided by zero?")
    return value


def one_of(answer: Any) -> Any:
    """The entry of a list, a tuple or an array that has one; anything else as it is."""
    if isinstance(answer, list | tuple) and len(answer) == 1:
        return answer[0]
    return answer.item() if getattr(answer, "shape", None) == (1,) else answer


def read_text(answer: str, unit: str) -> float:
    if parts := re.fullmatch(r"\s*([-+]?\d{1,18})\s*/\s*([1-9]\d{,17})\s*", answer):
        return int(parts[1]) / int(parts[2])  # a fraction, as one writes it on paper
    pattern = r"\s*(?:about|~|=)?\s*([-+]?[\d,_]*\.?\d+(?:[eE][-+]?\d+)?)\s*(.*?)\s*"
    match = re.fullmatch(pattern, answer)
    if not match:
        raise Unreadable(f"Answer with one number{in_unit(unit)}; this is {reprlib.repr(answer)}.")
    digits = match[1].replace("_", "")
    if "," in digits and not re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\..*)?", digits):
        raise Unreadable(f"Write {digits.replace(',', '.')} with a point, or without the comma.")
    value = float(digits.replace(",", ""))
    written = normal_unit(match[2])
    if not written or written == normal_unit(unit):
        return value
    scale, base = UNITS.get(written, (0.0, "unknown"))
    wanted_scale, wanted = UNITS.get(normal_unit(unit), (1.0, normal_unit(unit)))
    if base != wanted:
        how = " with how many times" if wanted == "x" else in_unit(unit) or " without a unit"
        raise Unreadable(f"Answer{how}; this is in {match[2]!r}.")
    return value * scale / wanted_scale


def in_unit(unit: str) -> str:
    if normal_unit(unit) == "x":
        return ", such as 2 or '2x'"
    return f" in {unit}" if unit else ""


def normal_unit(unit: str) -> str:
    """'Tokens', 'token' and 'tokens' are one; so are 'tok/s' and 'tokens per second'."""
    text = normal(unit).replace(" per second", "/s").replace("milliseconds", "ms")
    text = text.replace("seconds", "s").replace("second", "s").replace("tokens/", "tok/")
    return text if text in UNITS or len(text) < 3 else text.removesuffix("s")


def normal(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().strip(".").lower())


def show(value: Any) -> str:
    """A number as one would write it: 15744 as 15,744 and 13.2113 as 13.2."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, str | bool):
        return str(value)
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
