"""Exercises: whatever is answered, the grader ends and answers in words."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch

from g2c_serving.lab import attempts, exercises
from g2c_serving.lab.answers import Unreadable, read_number
from g2c_serving.lab.exercises import EXERCISES, check
from g2c_serving.lab.grading import Exercise, grade

NUMBER = Exercise("t.number", "?", lambda: 12.0, "-", unit="ms")
LIST = Exercise("t.list", "?", lambda: [1, 2, 3], "-")
MASK = Exercise("t.mask", "?", lambda: [True, False], "-")
FUNCTION = Exercise("t.f", "?", lambda: lambda a: [a, a], "-", cases=[(1,), (2,)])
JUDGED = [name for name, asked in EXERCISES.items() if asked.judge and callable(asked.right())]


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


# ---- it ends ----


def endless(*args):
    while True:
        pass


def test_a_function_that_never_ends_or_leaves_python_is_told_so(monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_S", 0.2)
    assert "endless(300, 128) does not end" in check("02.blocks_for", endless).text
    assert "raises SystemExit" in check("02.blocks_for", lambda tokens, size: sys.exit()).text


@pytest.mark.parametrize("name", ["05.eleventh", *JUDGED])
def test_a_judged_function_is_ended_and_its_exit_is_told(name, monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_S", 0.2)
    verdict = check(name, endless)
    assert verdict.right is None and "does not end: it was still running after 0.2 s" in str(
        verdict
    )
    verdict = check(name, lambda *args: sys.exit(3))
    assert verdict.right is None and "raises SystemExit: 3" in str(verdict)


def test_the_judged_functions_are_those_of_the_last_notebook():
    assert JUDGED == ["09.draw", "09.prompt"]


def test_a_prompt_of_parts_without_end_is_read_only_so_far(monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_S", 2.0)
    verdict = check("09.prompt", lambda messages: itertools.repeat("fox"))
    assert verdict.right is False and "it should be" in str(verdict)


@pytest.mark.parametrize(
    "asked, answer, words",
    [
        (LIST, itertools.count, "at least 1003 numbers; that is too many"),
        (LIST, lambda: range(10**12), "at least 1003 numbers; that is too many"),
        (LIST, lambda: [1] * 5000, "at least 1003 numbers; that is too many"),
        (MASK, lambda: itertools.repeat(True), "at least 1002 entries; that is too many"),
        (FUNCTION, lambda: lambda a: itertools.count(), "f(1): your list has at least 1002"),
        (FUNCTION, lambda: lambda a: range(10**12), "f(1): your list has at least 1002"),
    ],
)
def test_a_list_without_end_is_read_only_so_far(asked, answer, words, monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_S", 2.0)
    verdict = grade(asked, answer())
    assert verdict.right is False and words in verdict.text


def stuck():
    yield from iter(endless, None)


def test_a_list_that_gives_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_S", 0.2)
    assert "Your list does not end" in grade(LIST, stuck()).text
    assert "f(1) does not end" in grade(FUNCTION, lambda a: stuck()).text


def test_a_generator_is_a_list_and_what_it_raises_is_told():
    assert grade(LIST, (i for i in (1, 2, 3)))
    assert grade(FUNCTION, lambda a: (a for _ in range(2)))
    assert "f(1) raises ZeroDivisionError" in grade(FUNCTION, lambda a: (a / 0 for _ in "ab")).text
    assert "Your list raises ZeroDivisionError" in grade(LIST, (1 / 0 for _ in "ab")).text


# ---- it answers in words ----

META = torch.ones(1, device="meta")


@pytest.mark.parametrize(
    "asked, answer, right, words",
    [
        (LIST, np.array(3), None, "Answer with a list of numbers"),
        (LIST, torch.tensor(3.0), None, "Answer with a list of numbers"),
        (MASK, np.array(True), None, "Answer with a list of True and False"),
        (FUNCTION, lambda a: np.array(a), None, "Answer with a list of numbers"),
        (LIST, b"123", None, "Answer with a list of numbers"),
        (LIST, [[None]], False, "entry 1 of the list is a list, [None]"),
        (LIST, [[[1] * 9000] * 9], False, "entry 1 of the list is a list"),
        (MASK, META, None, "Fill the list with True and False"),
        (NUMBER, META, None, "Answer with one number in ms"),
        (NUMBER, "1" * 5000 + "\nx", None, "this is in 'x'"),
        (NUMBER, [[None]], None, "this is [[None]]"),
    ],
)
def test_odd_answers_get_words(asked, answer, right, words):
    verdict = grade(asked, answer)
    assert verdict.right is right and words in verdict.text and len(verdict.text) < 300


def test_an_int_too_long_to_be_printed_gets_words():
    assert grade(NUMBER, 10**5000).text == "Answer with one number in ms; this is <int>."


@pytest.mark.parametrize(
    "message",
    [{}, {"role": []}, {"role": "user", "content": 3}, {"role": "user"}, {1: 2},
     {"role": "assistant", "tool_calls": 3}, {"role": "assistant", "tool_calls": [3]},
     {"role": "assistant", "tool_calls": [{"name": "a", "arguments": {"b": {1, 2}}}]},
     {"role": "assistant", "tool_calls": [{"name": "a", "arguments": {"b": float("nan")}}]},
     {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}],
)  # fmt: skip
def test_odd_messages_get_words(message):
    verdict = check("05.eleventh", [message])
    assert not verdict and verdict.text


# ---- what is a number ----


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("2/3 ms", "ms", 2 / 3),
        ("200/3 %", "%", 200 / 3),
        ("2/3x", "x", 2 / 3),
        ("22.5/18", "", 1.25),
        ("1,000/3", "B", 1000 / 3),
        (" about -3 / 2 s", "ms", -1500),
        ("2/3", "ms", 2 / 3),
        ("1e3/4 tok/s", "tok/s", 250),
        ("15,744 tok/s", "tok/s", 15744),
        (["12 ms"], "ms", 12),
        (np.array(["12"]), "ms", 12),
    ],
)
def test_a_fraction_may_stand_where_a_number_may(text, unit, value):
    assert read_number(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text, words",
    [
        ("2/0", "divided by zero"),
        ("2/3 ms", "without a unit; this is in 'ms'"),
        ("12 parsecs", "without a unit"),
        ("2/3/4", "without a unit"),
    ],
)
def test_what_is_neither_a_fraction_nor_in_a_known_unit_is_no_number(text, words):
    with pytest.raises(Unreadable, match=words):
        read_number(text, "")


@pytest.mark.parametrize("text", ["1e999", "-1e999 ms", "1e999/1e999", "1e308/1e-308"])
def test_a_number_that_is_not_finite_is_none_in_a_text_either(text):
    with pytest.raises(Unreadable, match="no finite number"):
        read_number(text, "ms")


@pytest.mark.parametrize("answer", [[True], np.bool_(True), np.array([True]), torch.tensor(True)])
def test_true_is_no_number_however_it_is_wrapped(answer):
    with pytest.raises(Unreadable, match="not True or False"):
        read_number(answer, "ms")


@pytest.mark.parametrize("answer", [b"12", bytearray(b"12"), [b"12"]])
def test_bytes_are_no_number(answer):
    with pytest.raises(Unreadable, match="one number in ms"):
        read_number(answer, "ms")
