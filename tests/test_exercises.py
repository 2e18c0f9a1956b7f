"""Exercises: what is right however it is written, and what a wrong answer is told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from g2c_serving.lab import exercises
from g2c_serving.lab.exercises import EXERCISES, check, exercise
from g2c_serving.lab.grading import Exercise, Unreadable, grade, read_number

STEP = Exercise("t.step", "How long is a step?", lambda: 13.2, hint="Invert.", unit="ms")
LIST = Exercise("t.chunks", "Which chunks?", lambda: [256, 256, 44], "Slice.", "tokens", rel=0)
WORD = Exercise("t.word", "Which phase?", lambda: "schedule", hint="The first box.")
FUNCTION = Exercise(
    "t.f", "Write it.", lambda: lambda q, c: q * c, hint="Multiply.", cases=[(2, 3), (4, 5)]
)


def plain_planner(confidences, step_ms):
    """Notebook 04's exercise as a learner may solve it."""
    pool = []
    for request, row in enumerate(confidences):
        survival = 1.0
        for confidence in row:
            survival *= confidence
            pool.append((survival, request))
    pool.sort(key=lambda draft: -draft[0])
    tokens = rows = len(confidences)
    best, taken = tokens / step_ms[rows], 0
    for count, (survival, _) in enumerate(pool, start=1):
        tokens += survival
        if tokens / step_ms[rows + count] > best:
            best, taken = tokens / step_ms[rows + count], count
    drafts = [0] * len(confidences)
    for _, request in pool[:taken]:
        drafts[request] += 1
    return drafts


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


# ---- the exercises that notebooks ask, against values worked out by hand ----


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("00.blocks", 8, 7),
        ("01.step_time", 13.21, 10.0),  # 1000 * 3.25 / 246
        ("01.one_more_request", 0.0574, 0.206),  # (13.21 - 10.00) / 56
        ("01.largest_chunk", 69, 70),  # 0.0001 * 69^2 + 0.08 * 69 = 5.996; of 70 tokens 6.09
        ("01.long_prompt", 25, 24),  # 200,000 / (8,192 - 64) = 24.6
        ("02.blocks_for", lambda n, size: math.ceil(n / size), lambda n, size: n // size),
        ("02.fork_copies", 44, 300),
        ("02.samples", 34, 96),  # 2 shared and 32 tails
        ("02.returning", 464, 336),  # 128 + 50,000 - 388 * 128
        ("02.whole_blocks", 16, 1),
        ("02.context_bytes", 28.115, 26.7),  # 30,000 * 890 + 20 * 134 * 528 bytes
        ("03.seat", 40, 5),  # 4 * 8 + 8
        ("03.counter", lambda position, use: 3 * position + use, lambda p, u: p + u),
        ("03.bias", 1.5, 1.0),  # 3 words against 2
        ("03.top_p", [0, 1, 3], [0, 3]),  # 0.5 + 0.3 + 0.1
        ("03.near_tie", "26.9 %", 50.0),  # 1 / (1 + e)
        ("03.reason", "logits", "draws"),
        ("04.survival", 0.324, 0.9),  # 0.9 * 0.8 * 0.5 * 0.9
        ("04.best_budget", 6, 4),  # 3.44 / 10 against (2 + 0.8 + 0.64 + 0.6 + 0.512) / 13
        ("04.accept", "0.6667", 0.5),  # 1/4 + 1/4 + 1/6
        ("04.expected_tokens", (1 - 0.75**6) / 0.25, 4.75),
        ("04.why_calibration", 100 * (1 - 3.676 / 13 / 0.31), 0.0),  # 3.1 in 10 ms
        ("04.planner", plain_planner, lambda confidences, step_ms: [len(r) for r in confidences]),
    ],
)
def test_registered_exercises(name, right, wrong):
    assert check(name, right)
    assert check(name, wrong).right is False


def test_every_exercise_accepts_its_own_right_value_and_has_its_words():
    for name, asked in EXERCISES.items():
        assert check(name, asked.right()), name
        assert asked.question and asked.hint, name


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'01.step_tim'.*did you mean '01.step_time'"):
        check("01.step_tim", 3)


def test_a_name_can_be_registered_only_once():
    with pytest.raises(ValueError, match="registered twice"):
        exercise("01.step_time", "?", hint="-")(lambda: 1)


# ---- however it is written ----


@pytest.mark.parametrize(
    "answer",
    [13.2, "13.2", "13.2 ms", "13.2ms", "about 13.2 ms", "0.0132 s", "13,200 us", "1.32e1 ms",
     np.float32(13.2), np.array(13.2), "13.2 Milliseconds", [13.2], (13.2,), np.array([13.2])],
)  # fmt: skip
def test_right_in_any_writing(answer):
    assert grade(STEP, answer).right is True


def test_units_of_the_exercise_are_read_in_singular_and_plural():
    assert read_number("8 blocks", "blocks") == read_number("8 block", "blocks") == 8
    assert read_number("15,744 tokens per second", "tok/s") == 15744
    assert read_number("1.5 GB", "MB") == 1500 and read_number("2 KiB", "B") == 2048
    assert read_number("-1_000", "") == -1000


@pytest.mark.parametrize(
    "answer, words",
    [
        ("fast", "one number in ms"),
        ("", "one number in ms"),
        ("13.2 tok/s", "in 'tok/s'"),
        ("13,2 ms", "13.2 with a point"),
        (True, "not True or False"),
        ([1, 2], "one number in ms"),
        (float("nan"), "no finite number"),
        (float("inf"), "divided by zero"),
        (1j, "one number"),
    ],
)
def test_what_is_no_number_is_said_and_is_no_miss(answer, words):
    verdict = grade(STEP, answer)
    assert verdict.right is None and words in verdict.text
    with pytest.raises(Unreadable):
        read_number(answer, "ms")


@pytest.mark.parametrize("blank", [..., None])
def test_a_blank_answer_asks_for_one(blank):
    verdict = grade(STEP, blank)
    assert verdict.right is None and "in place of ..." in verdict.text


# ---- what a wrong answer is told ----


@pytest.mark.parametrize(
    "answer, words", [(10, "too small"), (20, "too large"), (90, "much too large")]
)
def test_a_wrong_number_is_told_the_side(answer, words):
    assert words in grade(STEP, answer).text


def test_a_slip_of_the_unit_or_the_sign_is_told_so():
    assert "Look at the unit" in grade(STEP, 0.0132).text
    assert "Look at the sign" in grade(STEP, -13.2).text
    assert "as a fraction of 1" in check("04.survival", 32.4).text
    assert check("04.survival", "32.4 %").text == "Answer without a unit; this is in '%'."


@pytest.mark.parametrize(
    "name, rounded, too_far",
    [("04.survival", 0.32, 0.31), ("04.accept", 0.67, 0.66), ("04.expected_tokens", 3.3, 3.25)],
)
def test_two_digits_will_do(name, rounded, too_far):
    assert check(name, rounded) and not check(name, too_far)


@pytest.mark.parametrize("asked", [STEP, LIST, WORD, FUNCTION])
def test_the_first_two_misses_do_not_show_the_right_value(asked):
    wrong = {"t.step": 1.0, "t.chunks": [300], "t.word": "sample", "t.f": lambda q, c: q + c}
    for misses in (0, 1):
        verdict = grade(asked, wrong[asked.name], misses)
        page = verdict._repr_html_()
        assert verdict.right is False
        for secret in ("13.2", "256", "schedule"):
            assert secret not in page
        assert f"<summary>Hint</summary><p>{asked.hint}</p>" in page and "Solution" not in page


def test_after_three_misses_the_solution_can_be_unfolded_and_right_starts_anew():
    pages = [check("00.blocks", 7)._repr_html_() for _ in range(3)]
    assert ["Solution" in page for page in pages] == [False, False, True]
    assert "<details><summary>Solution</summary><p>8 blocks." in pages[2]
    assert check("00.blocks", 8)
    assert "Solution" not in check("00.blocks", 7)._repr_html_()


def test_a_verdict_reads_the_same_without_html_and_escapes_what_was_typed():
    assert repr(grade(STEP, 10)) == "Not yet: 10 is too small."
    assert "<b>" not in grade(WORD, "<b>")._repr_html_()


# ---- words, lists, functions ----


def test_words_in_any_case():
    assert grade(WORD, " Schedule. ")
    assert grade(WORD, 3).right is None


def test_lists():
    assert grade(LIST, [256, 256, 44]) and grade(LIST, (256, "256 tokens", 44))
    assert grade(LIST, np.array([256, 256, 44]))
    assert "too few" in grade(LIST, [256]).text
    assert "number 3 of the list" in grade(LIST, [256, 256, 43]).text
    assert grade(LIST, 256).right is None


def test_functions():
    assert grade(FUNCTION, lambda q, c: q * c)
    assert "f(2, 3): 5 is too small" in grade(FUNCTION, lambda q, c: q + c).text
    assert "raises ZeroDivisionError" in grade(FUNCTION, lambda q, c: q / 0).text
    assert "finish the function" in grade(FUNCTION, lambda q, c: ...).text
    assert "without calling it" in grade(FUNCTION, 6).text


def test_a_count_that_is_not_whole_is_told_so():
    assert "2.34375 is no whole number of blocks" in check("02.blocks_for", lambda t, b: t / b).text
    assert "69.04 is no whole number of tokens" in check("01.largest_chunk", 69.04).text
    assert "whole" not in check("01.step_time", 15.5).text


def test_a_function_may_return_a_list_and_is_called_by_its_name():
    def planner(confidences, step_ms):
        return [3, 3]

    assert "f([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]]," in check("04.planner", lambda c, ms: [3, 3]).text
    assert "planner([[0.9, 0.9, 0.9], [0.5" in check("04.planner", planner).text
    assert "number 2 of the list" in check("04.planner", lambda c, ms: [3, 3]).text
    assert "too few" in check("04.planner", lambda c, ms: [3]).text
    assert check("04.planner", lambda c, ms: 4).right is None
    assert check("04.planner", lambda c, ms: np.array(plain_planner(c, ms)))


def test_right_numbers_in_another_order_are_told_so():
    assert "order" in check("03.top_p", [3, 0, 1]).text


@pytest.mark.parametrize("answer", [10**400, [[1] * 10_000] * 100])
def test_an_answer_beyond_all_numbers_is_unreadable(answer):
    verdict = check("02.samples", answer)
    assert verdict.right is None and len(verdict.text) < 300
