"""Reads what people write: numbers with or without a unit, words. Writes numbers as they do."""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any, SupportsFloat

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
    """A finite number in `unit`, from 13.2, "13.2 ms", "0.0132 s", "15,744 tok/s", "2/3 ms", [12].

    Raises Unreadable where there is no number, more than one, or another kind of unit.
    """
    try:
        value = one_of(answer)
        if isinstance(value, bool):
            raise Unreadable("Answer with a number, not True or False.")
        if isinstance(value, str):
            return finite(read_text(value, unit))
        if not isinstance(value, SupportsFloat):  # bytes, which float() would read
            raise TypeError
        return finite(float(value))
    except Unreadable:
        raise
    except Exception:  # whatever an object of theirs raises when it is asked for its number
        raise no_number(answer, unit) from None


def no_number(answer: Any, unit: str) -> Unreadable:
    return Unreadable(f"Answer with one number{in_unit(unit)}; this is {brief(answer)}.")


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise Unreadable(f"{value} is no finite number. Is something divided by zero?")
    return value


def one_of(answer: Any) -> Any:
    """The entry of a list, a tuple or an array that has one; anything else as it is."""
    if isinstance(answer, list | tuple) and len(answer) == 1:
        answer = answer[0]
    return answer.item() if getattr(answer, "shape", None) in ((), (1,)) else answer


NUMBER = r"([-+]?[\d,_]*\.?\d+(?:[eE][-+]?\d+)?)"


def read_text(answer: str, unit: str) -> float:
    """A number or a fraction of two, and what stands behind it as the unit."""
    match = re.match(rf"\s*(?:about|~|=)?\s*{NUMBER}(?:\s*/\s*{NUMBER})?", answer)
    if not match:
        raise no_number(answer, unit)
    above, below = read_digits(match[1]), read_digits(match[2] or "1")
    if below == 0:
        raise Unreadable(f"{match[0].strip()} is divided by zero.")
    scale, wanted = scales(answer[match.end() :].strip(), unit)
    return above / below * scale / wanted


def read_digits(written: str) -> float:
    digits = written.replace("_", "")
    if "," in digits and not re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\..*)?", digits):
        raise Unreadable(f"Write {digits.replace(',', '.')} with a point, or without the comma.")
    return float(digits.replace(",", ""))


def scales(text: str, unit: str) -> tuple[float, float]:
    """Of the unit that is written, and of `unit`, in their base. Unreadable for another kind."""
    written = normal_unit(text)
    if not written or written == normal_unit(unit):
        return 1.0, 1.0
    scale, base = UNITS.get(written, (0.0, "unknown"))
    wanted_scale, wanted = UNITS.get(normal_unit(unit), (1.0, normal_unit(unit)))
    if base != wanted:
        how = " with how many times" if wanted == "x" else in_unit(unit) or " without a unit"
        raise Unreadable(f"Answer{how}; this is in {brief(text)}.")
    return scale, wanted_scale


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


def brief(value: Any) -> str:
    """Its repr, shortened; its type where it has none, as an int of 5,000 digits has not."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
