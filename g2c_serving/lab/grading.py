"""Grade one answer: numbers with or without a unit, words, lists of numbers or of True and False,
functions. How numbers are read is in answers.py.

A wrong answer is told how it is wrong, with a folded hint; the right value is never shown at the
first miss, and after the third it can be unfolded. This file knows no exercise: those are in
exercises.py, each with the function that computes its right value from the package.
"""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from g2c_serving.lab.answers import Unreadable, brief, in_unit, normal, read_number, show
from g2c_serving.lab.attempts import SPARE, entries, first, is_list, within
from g2c_serving.lab.museum_limits import LimitReached

MISSES_BEFORE_SOLUTION = 3


@dataclass(frozen=True)
class Exercise:
    """name, what is asked, `right()` computing the value, hint, unit, and how close is right.

    A value is right within `rel` of it or within `abs_`, whichever is wider. For an exercise
    whose answer is a function, `cases` holds argument tuples, and right() returns the reference;
    `slips` are typical wrong functions, each with the words for whoever wrote one that agrees.
    Where only a try can tell, `judge` makes it: (is it right, what happened); right() is then an
    example.
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
    slips: Sequence[tuple[Callable, str]] = ()
    judge: Callable[[Any], tuple[bool, str]] | None = None


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
                kind = "pre" if "\n" in text else "p"  # code, or words
                inside = f"<{kind}>{body}</{kind}>"
                parts.append(f"<details><summary>{title}</summary>{inside}</details>")
        return "".join(parts)


def grade(exercise: Exercise, answer: Any, misses: int = 0) -> Verdict:
    """Compare an answer with the right value; `misses` are the wrong ones before it."""
    if answer is None or answer is Ellipsis:
        return Verdict(None, "Put your answer in place of ... and run the cell again.")
    try:
        is_right, words = judged(exercise, answer)
    except Unreadable as error:
        return Verdict(None, str(error), exercise.hint)
    if is_right:
        return Verdict(True, f"Right. {words}".strip())
    solution = ""
    if misses + 1 >= MISSES_BEFORE_SOLUTION and not exercise.cases:
        value = f"{solved(exercise)} {exercise.unit}".strip()
        solution = f"{value}. {exercise.why}".strip()
    return Verdict(False, f"Not yet: {words}", exercise.hint, solution)


def judged(exercise: Exercise, answer: Any) -> tuple[bool, str]:
    """Is it right, and the words for it. Raises Unreadable."""
    if exercise.judge is not None:
        return exercise.judge(answer)
    problem = find_problem(exercise, answer)
    return problem is None, exercise.why if problem is None else problem


def solved(exercise: Exercise) -> str:
    right = exercise.right()
    return ascii(right) if exercise.judge is not None else show(right)


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
            fraction = factor == 0.01 and not exercise.unit and abs(right) <= 1
            look = "Answer as a fraction of 1." if fraction else "Look at the unit."
            return f"{got:,.9g} has the right digits. {look}"
    if is_close(exercise, -got, right) and right != -1:  # which may stand for "none"
        return f"{got:,.9g} has the right digits. Look at the sign."
    if exercise.unit and exercise.rel == 0 and right.is_integer() and not got.is_integer():
        return f"{got:,.9g} is no whole number{in_unit(exercise.unit).replace(' in', ' of')}."
    side = "small" if got < right else "large"
    far = "" if right and 0.5 < got / right < 2 else "much "
    return f"{got:,.9g} is {far}too {side}."


def is_close(exercise: Exercise, got: float, right: float) -> bool:
    return abs(got - right) <= max(exercise.rel * abs(right), exercise.abs_) * (1 + 1e-9)


def word_problem(answer: Any, right: str) -> str | None:
    if not isinstance(answer, str):
        raise Unreadable(f'Answer with a word in quotes, such as "wait"; this is {brief(answer)}.')
    return None if normal(answer) == normal(right) else f"it is not {answer.strip()!r}."


def list_problem(exercise: Exercise, answer: Any, right: Sequence[float]) -> str | None:
    is_mask = bool(right) and all(isinstance(item, bool) for item in right)
    if not is_list(answer):
        what = "True and False, such as [True, False]" if is_mask else "numbers, such as [1, 2]"
        raise Unreadable(f"Answer with a list of {what}; this is {brief(answer)}.")
    given = entries(answer, len(right))
    if is_mask:
        return mask_problem([truth(item) for item in given], right)
    for i, item in enumerate(given):
        if isinstance(item, list | tuple):
            shown = brief(item)
            return f"entry {i + 1} of the list is a list, {shown}: give one flat list of numbers."
    return numbers_problem(exercise, [read_number(item, exercise.unit) for item in given], right)


def numbers_problem(exercise: Exercise, got: Sequence[float], right: Sequence[float]) -> str | None:
    if len(got) != len(right):
        return length_problem(got, right, "number" + "s" * (len(got) != 1))
    if got != list(right) and sorted(got) == sorted(right):
        return "the numbers are right; their order is not."
    for place, (one, other) in enumerate(zip(got, right, strict=True)):
        if problem := number_problem(exercise, one, float(other)):
            return f"number {place + 1} of the list: {problem}"
    return None


def length_problem(got: Sequence, right: Sequence, what: str) -> str:
    """The words for a list that is too short or too long, of which not all may have been read."""
    side = "few" if len(got) < len(right) else "many"
    least = "at least " if len(got) == len(right) + SPARE else ""
    return f"your list has {least}{len(got)} {what}; that is too {side}."


def truth(item: Any) -> bool:
    """True or False, also as numpy, torch, 0 and 1 write them. Raises Unreadable."""
    try:
        value = item.item() if getattr(item, "shape", None) == () else item
    except Exception:  # a tensor without values
        value = None
    if not isinstance(value, int) or value not in (0, 1):
        raise Unreadable(f"Fill the list with True and False; this is {brief(item)}.")
    return bool(value)


def mask_problem(got: Sequence[bool], right: Sequence[Any]) -> str | None:
    if len(got) != len(right):
        return length_problem(got, right, "entries")
    wrong = [i for i, (one, other) in enumerate(zip(got, right, strict=True)) if one != other]
    if not wrong:
        return None
    return f"entry {wrong[0] + 1} of the list should not be {got[wrong[0]]}."


def function_problem(exercise: Exercise, answer: Any, reference: Callable) -> str | None:
    if not callable(answer):
        raise Unreadable(
            f"Answer with the function itself, without calling it; this is {brief(answer)}."
        )
    called = getattr(answer, "__name__", "f").replace("<lambda>", "f")
    for case in exercise.cases:
        shown = f"{called}({', '.join(map(repr, case))})"
        wanted = reference(*case)
        try:
            got = _called(answer, case, wanted)
        except LimitReached as reason:
            return f"{shown} does not end: {reason}."
        except (Exception, SystemExit) as error:  # the learner's code: say what it raised, where
            return f"{shown} raises {type(error).__name__}: {error}."
        if got is None or got is Ellipsis:
            given = "..." if got is Ellipsis else "None"
            raise Unreadable(
                f"{shown} returns {given}: finish the function and run the cell again."
            )
        if problem := value_problem(exercise, got, wanted):
            return f"{shown}: {problem} {slip(exercise, answer)}".strip()
    return None


def _called(answer: Callable, case: tuple, wanted: Any) -> Any:
    """What the function gives, within bounds, and read there where a list is wanted."""

    def call() -> Any:
        got = answer(*copy.deepcopy(case))
        if isinstance(wanted, list | tuple) and is_list(got) and not isinstance(got, list | tuple):
            return first(got, len(wanted) + SPARE)
        return got

    return within(call)


def slip(exercise: Exercise, answer: Callable) -> str:
    """The words for the typical mistake that gives what `answer` gives in every case, or ""."""
    for mistake, words in exercise.slips:
        try:
            wanted = [(case, mistake(*case)) for case in exercise.cases]
            if not any(
                value_problem(exercise, _called(answer, case, value), value)
                for case, value in wanted
            ):
                return words
        except (Exception, SystemExit):  # it raises in some case, or gives no readable value
            continue
    return ""
