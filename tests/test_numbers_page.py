"""What notebook 08 says in its words, worked out again."""

from __future__ import annotations

import re

import pytest
from notebook_session import read

from g2c_serving.lab import (
    accepted_length,
    checklist,
    implied_steps,
    production_load,
    speed_chart,
    tokens_a_day,
)
from g2c_serving.lab.speed_chart import CHANCE
from g2c_serving.paths import NOTEBOOKS


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "08_reading_the_numbers.ipynb").cells}


def test_the_chart_with_other_acceptances(cells):
    point = speed_chart.decode_chart()[1]
    words = cells["chart-words"]
    assert f"{point.steps_per_s:.1f} steps a second" in words
    assert f"would print {point.read_with(1.0):.0f}, with 50 % it would print" in words
    assert f"would print {point.read_with(0.5):.0f}. And" in words
    assert f"{1 - point.read_with(0.75, CHANCE) / 246:.0%}".replace("%", " %") in words


def test_the_two_worlds(cells):
    alone, both = (accepted_length.world(counts) for counts in accepted_length.BOTH)
    for number in (alone.chance, alone.share3, both.chance):
        assert f"{100 * number:.1f} %" in cells["length-words"].replace("\n", " ")
    words = cells["implied-words"]
    for ordinary in implied_steps.BOTH:
        assert f"{implied_steps.implied_ms(60, 'fixed', ordinary):.1f} ms" in words
        assert f"{implied_steps.fits_at('fixed', ordinary):.0f}" in words
    shares = (2.30 / 5, 2.21 / 3.58)
    assert "would be {:.0f} % and {:.0f} %".format(*(100 * share for share in shares)) in words


def test_as_many_questions_as_the_words_say(cells):
    questions = checklist.QUESTIONS
    assert len(questions) == 13
    assert sum(one.label == "Not disclosed" for one in questions) == 3
    assert cells["ask"].count("Thirteen questions") == 1
    assert "Ten of the thirteen have an answer; three are *not disclosed*" in cells["ask-words"]
    assert "Of the thirteen questions the points answer four" in cells["own-words"]
    answered = [row for row in checklist.blank(speed_chart.decode_chart()).rows if row[2] != "..."]
    assert len(answered) == 4


def test_the_names_on_the_tables_are_those_in_the_words(cells):
    names = [row[0] for row in production_load.production_table().rows]
    assert "ms a step that this implies (Derived)" in names
    assert "*ms a step that this implies*" in cells["kinds-words"]
    assert "ms a step by the decode chart (Simulated)" in names  # between the chart's points


def test_both_ends_of_the_guesses(cells):
    few, many = tokens_a_day.GUESSES[0], tokens_a_day.GUESSES[-1]
    least, most = tokens_a_day.SHARES[0], tokens_a_day.SHARES[-1]
    low, high = tokens_a_day.per_gpu(many, least), tokens_a_day.per_gpu(few, most)
    assert (
        f"from {low:.0f} tokens a second and GPU to {high / 1e6:.1f} million" in cells["day-words"]
    )


def test_the_invented_chart_s_headline(cells):
    """Two times as fast as printed; and where nothing is left of it."""
    found = re.search(r'"""\n(.*?)"""', cells["blank"], re.DOTALL)
    points = {(p.run, p.requests): p for p in speed_chart.read(found.group(1))}
    one, eight = points["with drafts", 1], points["with drafts", 8]
    words = cells["blank-words"]
    assert f"it is {one.read_with(0.8, CHANCE):.0f} against 118" in words
    assert "below 39 % as a share, or below 66 % as a chance" in words
    plain = points["without drafts", 8].tokens_per_s
    assert eight.read_with(0.38) < plain < eight.read_with(0.39)
    assert eight.read_with(0.65, CHANCE) < plain < eight.read_with(0.66, CHANCE)
