"""Grade one answer: numbers with or without a unit, words, lists of numbers, functions.

A wrong answer is told how it is wrong, with a folded hint; the right value is never shown at the
first miss, and after the third it can be unfolded. This file knows no exercise: those are in
exercises.py, each with the function that computes its right value from the package.
"""

from __future__ import annotations

import html
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MISSES_BEFORE_SOLUTION = 3

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


@dataclass(frozen=True)
class Exercise:
    """name, what is asked, `right()` computing the value, hint, unit, and how close is right.

    A value is right within `rel` of it or within `abs_`, whichever is wider. For an exercise
    whose answer is a function, `cases` holds argument tuples, and right() returns the reference.
    """

    name: str
    question: str
    right: Callable[[], Any]
    hint: str
    unit: str = ""
    rel: float = 0.02
    abs_: float = 0.0
    why: str = ""
    cases: Sequence[tuple] = ()


@dataclass(frozen=True)
class Verdict:
    """The result as a notebook shows it. `right` is None where nothing was answered yet."""

    right: bool | None
    text: str
    hint: str = ""
    solution: str = ""

    def __bool__(self) -> bool:
        return self.right is True

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        mark = {True: "&#10003; ", False: "&#10007; ", None: ""}[self.right]
        parts = [f'<p role="status" style="margin:0">{mark}{html.escape(self.text)}</p>']
        for title, text in (("Hint", self.hint), ("Solution", self.solution)):
            if text:
                body = html.escape(text)
                parts.append(f"<details><summary>{title}</summary><p>{body}</p></details>")
        return "".join(parts)


def grade(exercise: Exercise, answer: Any, misses: int = 0) -> Verdict:
    """Compare an answer with the right value; `misses` are the wrong ones before it."""
    if answer is None or answer is Ellipsis:
        return Verdict(None, "Put your answer in place of ... and run the cell again.")
    try:
        problem = find_problem(exercise, answer)
    except Unreadable as error:
        return Verdict(None, str(error), exercise.hint)
    if problem is None:
        return Verdict(True, f"Right. {exercise.why}".strip())
    solution = ""
    if misses + 1 >= MISSES_BEFORE_SOLUTION and not exercise.cases:
        solution = f"{show(exercise.right())} {exercise.unit}. {exercise.why}".strip()
    return Verdict(False, f"Not yet: {problem}", exercise.hint, solution)


def find_problem(exercise: Exercise, answer: Any) -> str | None:
    """None where the answer is right, else how it is wrong. Raises Unreadable."""
    right = exercise.right()
    if exercise.cases:
        return function_problem(exercise, answer, right)
    return value_problem(exercise, answer, right)


def value_problem(exercise: Exercise, answer: Any, right: Any) -> str | None:
    if isinstance(right, str):
        return word_problem(answer, right)
    if isinstance(right, list | tuple):
        return list_problem(exercise, answer, right)
    return number_problem(exercise, read_number(answer, exercise.unit), float(right))


def number_problem(exercise: Exercise, got: float, right: float) -> str | None:
    if is_close(exercise, got, right):
        return None
    for factor in (1e3, 1e-3, 1e6, 1e-6, 100.0, 0.01):
        if is_close(exercise, got * factor, right):
            return f"{got:,.9g} has the right digits. Look at the unit."
    side = "small" if got < right else "large"
    far = "" if right and 0.5 < got / right < 2 else "much "
    return f"{got:,.9g} is {far}too {side}."


def is_close(exercise: Exercise, got: float, right: float) -> bool:
    return abs(got - right) <= max(exercise.rel * abs(right), exercise.abs_) * (1 + 1e-9)


def word_problem(answer: Any, right: str) -> str | None:
    if not isinstance(answer, str):
        raise Unreadable(
            f'Answer with a word in quotes, such as "wait"; this is {reprlib.repr(answer)}.'
        )
    return None if normal(answer) == normal(right) else f"it is not {answer.strip()!r}."


def list_problem(exercise: Exercise, answer: Any, right: Sequence[float]) -> str | None:
    if isinstance(answer, str) or not hasattr(answer, "__iter__"):
        raise Unreadable(
            f"Answer with a list of numbers, such as [1, 2]; this is {reprlib.repr(answer)}."
        )
    got = [read_number(item, exercise.unit) for item in answer]
    if len(got) != len(right):
        side = "few" if len(got) < len(right) else "many"
        return f"your list has {len(got)} numbers; that is too {side}."
    if got != list(right) and sorted(got) == sorted(right):
        return "the numbers are right; their order is not."
    for place, (one, other) in enumerate(zip(got, right, strict=True)):
        if problem := number_problem(exercise, one, float(other)):
            return f"number {place + 1} of the list: {problem}"
    return None


def function_problem(exercise: Exercise, answer: Any, reference: Callable) -> str | None:
    if not callable(answer):
        raise Unreadable(
            f"Answer with the function itself, without calling it; this is {reprlib.repr(answer)}."
        )
    for case in exercise.cases:
        shown = f"f({', '.join(map(repr, case))})"
        try:
            got = answer(*case)
        except Exception as error:  # the learner's own code: say what it raised, and where
            return f"{shown} raises {type(error).__name__}: {error}."
        if got is None or got is Ellipsis:
            raise Unreadable(
                f"{shown} returns {got!r}: finish the function and run the cell again."
            )
        if problem := value_problem(exercise, got, reference(*case)):
            return f"{shown}: {problem}"
    return None


# ---- reading what people write --------------------------------------------------------------


def read_number(answer: Any, unit: str) -> float:
    """A finite number in `unit`, from 13.2, "13.2 ms", "0.0132 s", "15,744 tok/s" or an array.

    Raises Unreadable where there is no number, more than one, or another kind of unit.
    """
    if isinstance(answer, bool):
        raise Unreadable("Answer with a number, not True or False.")
    if isinstance(answer, str):
        return read_text(answer, unit)
    try:
        value = float(answer)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Unreadable(
            f"Answer with one number{in_unit(unit)}; this is {reprlib.repr(answer)}."
        ) from None
    if not math.isfinite(value):
        raise Unreadable(f"{value} is no finite number. Is something divided by zero?")
    return value


def read_text(answer: str, unit: str) -> float:
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
    scale, base = UNITS.get(written, (0.0, ""))
    wanted_scale, wanted = UNITS.get(normal_unit(unit), (1.0, normal_unit(unit)))
    if base != wanted:
        raise Unreadable(f"Answer{in_unit(unit)}; this is in {match[2]!r}.")
    return value * scale / wanted_scale


def in_unit(unit: str) -> str:
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
    if isinstance(value, str):
        return value
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
