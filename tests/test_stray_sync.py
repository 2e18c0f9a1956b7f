"""Waits of a loop, counted: the loop of the course, and a function with a hidden one."""

from __future__ import annotations

import inspect

import pytest
import torch
from small_models import random_lm

from g2c_serving.lab import exercises
from g2c_serving.lab.exercises import check
from g2c_serving.lab.one_user import argmax
from g2c_serving.lab.stray_sync import (
    HIDDEN,
    CountSyncs,
    Numbered,
    count_waits,
    course_pick,
    course_waits,
    device_pick,
    waiting_lines,
)


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


def line_in(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def rows(waits):
    return {(row[1], row[2], row[3]) for row in waits.table().rows}


def test_the_courses_loop_waits_once_a_token_in_cpu():
    waits = course_waits(random_lm(context=256), 20)
    assert waits.tokens == 20 and waits.per_token == 1
    # what .item() reads is on the host by then
    assert rows(waits) == {(".cpu()", "1", "1"), (".item()", "1", "0")}
    lines = {sync.what: sync.line for sync in waits.asked}
    assert lines == {
        ".cpu()": line_in(course_pick, "logits.cpu()"),
        ".item()": line_in(course_pick, "token.item()"),
    }
    text = repr(waits.table())
    assert f"g2c_serving/lab/stray_sync.py:{lines['.cpu()']}  logits = logits.cpu()" in text


@pytest.mark.parametrize("pick", [device_pick, argmax])
def test_without_cpu_it_is_item_that_waits(pick):
    waits = course_waits(random_lm(context=256), 7, pick)
    assert rows(waits) == {(".item()", "1", "1")}


def test_what_is_on_the_host_is_followed():
    logits = torch.arange(6.0)

    def work():
        copy = logits.cpu()  # waits
        low, high = (copy / 2).chunk(2)
        assert low.sum().item() and bool(high.any()) and copy[copy > 1].tolist()
        mixed = low + logits[:3]
        mixed.tolist()  # waits
        back = copy.to(logits.device)
        back.tolist()  # waits
        logits.to("cpu")[0].item()  # waits, once
        return 1

    waits = count_waits(work)
    first = work.__code__.co_firstlineno
    assert sorted(sync.line - first for sync in waits.waited.elements()) == [1, 5, 7, 8]
    assert waits.asked.total() == 4 + 3 + 1 + 1  # of which 3 reads of the copy, a mask and an item


def test_a_counter_is_a_guard_that_lets_through():
    with CountSyncs() as counter:
        assert torch.arange(3).sum().item() == 3
        torch.cpu.synchronize()
    assert [sync.what for sync in counter.waits.waited.elements()] == [".item()", "synchronize()"]


def test_the_hidden_line():
    logits = torch.linspace(0, 1, 3 * 64).view(3, 64)
    recent = torch.tensor([[1, 2]] * 3)
    (line,) = waiting_lines(HIDDEN, logits, recent, 0.8)
    assert HIDDEN.splitlines()[line - 1].strip() == "drawn = tokens[~sure]"
    assert f"\n {line}      drawn = tokens[~sure]\n" in repr(Numbered(HIDDEN))
    assert repr(Numbered(HIDDEN)) in Numbered(HIDDEN)._repr_markdown_()
    mended = HIDDEN.replace("tokens[~sure]", "~sure").replace("len(drawn)", "drawn.sum()")
    assert waiting_lines(mended, logits, recent, 0.8) == []


# ---- the exercises, against values worked out by hand ----


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("06.ideal", "1.25x", 22.5 / 4.5),  # (18 + 4.5) / 18
        ("06.find_sync", 17, 18),
        (
            "06.late",
            [True, False, True, False, False, True],
            [True, True, True, False, False, True],
        ),
    ],
)
def test_exercises(name, right, wrong):
    assert check(name, right)
    assert check(name, wrong).right is False


@pytest.mark.parametrize(
    "line, words",
    [
        (3, "line 3 does not wait: it reads a shape"),
        (9, "line 9 does not wait: it reads a shape and a type"),
        (10, "under an `if` that is false"),
        ("line 18", "line 18 does not wait: it reads a shape, which is known by then"),
        (12, "line 12 does not wait: what it makes stays on the device"),
        (17.5, "the lines 1 to 19"),
        (20, "the lines 1 to 19"),
    ],
)
def test_a_line_that_does_not_wait_is_told_why(line, words):
    verdict = check("06.find_sync", line)
    assert verdict.right is False and words in verdict.text


def test_a_line_is_a_number():
    assert check("06.find_sync", "line 17").right
    assert check("06.find_sync", "tokens[~sure]").right is None


@pytest.mark.parametrize("answer", ["fast", [1, 2]])
def test_how_many_times_is_a_number(answer):
    assert "Answer with one number, such as 2 or '2x'" in check("06.ideal", answer).text
    assert "Answer with how many times" in check("06.ideal", "2 ms").text


def test_how_long_instead_of_how_many_is_told_in_the_hint():
    verdict = check("06.ideal", 0.8)
    assert verdict.right is False and "how many more are there a second" in verdict.hint
