"""The exercises of notebook 05: right ways to write them pass, and wrong ones are told why."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch

import g2c_serving as g
from g2c_serving.lab import exercises, grading
from g2c_serving.lab import slips_tokens as slips
from g2c_serving.lab.eleventh import tiny
from g2c_serving.lab.exercises import EXERCISES, check
from g2c_serving.lab.grading import Exercise, grade
from g2c_serving.process.prompt import Reserved
from g2c_serving.process.streaming import OutputParser

PAGE = [name for name, asked in EXERCISES.items() if name.startswith("05.") and asked.slips]


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


# ---- right answers, as a learner writes them ----


def encode(parts):
    ids = []
    for part in parts:
        if isinstance(part, Reserved):
            ids.append(tiny().reserved[part.name])
        else:
            ids.extend(tiny().encode(part))
    return ids


def hold_back(data):
    for n in (3, 2, 1):
        try:
            data[-n:].decode("utf-8") if n <= len(data) else None
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return n
    return 0


def mask(pieces, sentences, text):
    return [bool(p) and any(s.startswith(text + p) for s in sentences) for p in pieces]


def inside_after(prompt, generated, trigger):
    for n in range(len(trigger), len(generated) + 1):
        if generated[n - len(trigger) : n] == trigger:
            return n
    return -1


def shown(text, stops):
    for end in range(len(text) + 1):
        ended = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ended:
            return end - max(ended)
    for n in range(max(map(len, stops), default=1) - 1, 0, -1):
        if n <= len(text) and any(stop.startswith(text[-n:]) for stop in stops):
            return len(text) - n
    return len(text)


RIGHT = {"05.inert": encode, "05.hold_back": hold_back, "05.mask": mask,
         "05.trigger": inside_after, "05.stop": shown}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_passes(name):
    verdict = check(name, RIGHT[name])
    assert verdict, verdict.text


def test_all_of_the_page_are_tried_here():
    assert PAGE == list(RIGHT)


# ---- wrong ones ----


@pytest.mark.parametrize(
    "name, wrong, words",
    [(name, wrong, words) for name in PAGE for wrong, words in EXERCISES[name].slips],
    ids=lambda value: getattr(value, "__name__", "") or None,
)
def test_a_typical_mistake_is_told_which(name, wrong, words):
    verdict = check(name, wrong)
    assert verdict.right is False and verdict.text.endswith(words), verdict.text
    assert (
        f"{wrong.__name__}(" in verdict.text and len(verdict.text) < 500
    )  # with the case that shows it


def test_every_slip_of_the_module_is_in_use():
    functions = {
        name
        for name, value in vars(slips).items()
        if inspect.isfunction(value) and value.__module__ == slips.__name__ and name[0] != "_"
    } - {"tokenizer"}
    used = {wrong.__name__ for name in PAGE for wrong, _ in EXERCISES[name].slips}
    assert functions == used and all(len(EXERCISES[name].slips) >= 3 for name in PAGE)


@pytest.mark.parametrize("name", PAGE)
def test_another_mistake_is_told_the_case_and_no_slip(name):
    answers = {"05.inert": [1, 2], "05.mask": [True] * 14}
    verdict = check(name, lambda *args: answers.get(name, 77))
    assert verdict.right is False
    assert not any(words in verdict.text for _, words in EXERCISES[name].slips)


@pytest.mark.parametrize("name", PAGE)
def test_a_stub_asks_for_the_function(name):
    assert check(name, lambda *args: None).right is None
    assert check(name, ...).right is None


def test_the_cases_are_fresh_for_each_answer():
    """An answer that eats its arguments spoils no later one."""

    def eats(prompt, generated, trigger):
        found = inside_after(prompt, generated, trigger)
        generated.clear()
        return found

    assert check("05.trigger", eats) and check("05.trigger", eats)


# ---- the references against the parser and against each other, on other numbers ----


def test_the_references_agree_with_right_answers_on_other_cases():
    rng = random.Random(7)
    for _ in range(300):
        data = bytes(rng.choices((0xE2, 0x9D, 0xA4, 0xF0, 0x9F, 0xC3, 97, 0xFF), k=6))
        assert EXERCISES["05.hold_back"].right()(data) == hold_back(data)
        text = "".join(rng.choices("ab", k=6))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(2)]
        assert EXERCISES["05.stop"].right()(text, stops) == shown(text, stops)
        parser = OutputParser(tiny(), stops)
        for byte in text.encode():
            if parser.feed(byte):
                break
        assert len(parser.text()) == shown(text, stops)


# ---- grading of masks ----

MASK = Exercise("t.mask", "?", lambda: [True, False, False], "-")


@pytest.mark.parametrize(
    "answer, right, words",
    [
        ([True, False, False], True, "Right"),
        ([True, True, False], False, "entry 2 of the list should not be True"),
        ([True, False], False, "2 entries; that is too few"),
        ([1, 0, 0], True, "Right"),
        (torch.tensor([True, False, False]), True, "Right"),
        (np.array([True, False, True]), False, "entry 3 of the list should not be True"),
        ([1, 2, 0], None, "True and False; this is 2"),
        (["True", "", ""], None, "True and False; this is 'True'"),
        ("TFF", None, "Answer with a list of True and False"),
        (True, None, "Answer with a list of True and False, such as [True, False]; this is True"),
    ],
)
def test_masks_are_graded(answer, right, words):
    verdict = grade(MASK, answer)
    assert verdict.right is right and words in verdict.text


def test_the_solution_of_a_mask_is_one_that_could_be_typed():
    assert grade(MASK, [False, False, False], misses=2).solution == "[True, False, False]."


def test_a_slip_that_raises_is_no_slip():
    def broken(x):
        raise KeyError(x)

    asked = Exercise("t", "?", lambda: abs, "-", cases=[(-1,)], slips=[(broken, "never")])
    assert "never" not in grade(asked, lambda x: x).text
    assert grading.slip(asked, lambda x: x) == ""


def test_a_nested_list_is_told_as_such():
    def nested(parts):
        return [tokenizer_of(part) for part in parts]

    def tokenizer_of(part):
        tokenizer = g.load("tiny").tokenizer
        return tokenizer.encode(part) if isinstance(part, str) else [tokenizer.reserved[part.name]]

    verdict = check("05.inert", nested)
    assert not verdict and "flat list" in str(verdict)
    assert "entry 1 of the list is a list" in str(verdict)
