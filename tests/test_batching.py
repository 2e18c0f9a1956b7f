"""Static against continuous batching: the panel's numbers, and the race with a model."""

from __future__ import annotations

import re

import fakes
import pytest

from g2c_serving.lab import batching


@pytest.fixture(scope="module")
def panel():
    return batching.panel(fakes.FakeLM())


def numbers(text: str) -> list[float]:
    """Seats; steps and first token of the static run; those of the continuous one; tokens, gap."""
    return [float(n) for n in re.findall(r"\d+\.?\d*", text)]


def test_with_one_seat_both_take_a_step_for_every_token(panel):
    panel.controls["seats"].value, panel.controls["gap"].value = 1, 0
    seats, static, first, continuous, first_too, tokens, gap = numbers(panel.text)
    assert tokens == sum(a.answer for a in batching.requests(0, 40))
    assert (seats, static, continuous, gap) == (1, tokens, tokens, 0)
    assert first == first_too


def test_with_a_seat_for_each_the_longest_answer_sets_the_end(panel):
    panel.controls["seats"].value, panel.controls["gap"].value = 10, 0
    longest = max(a.answer for a in batching.requests(0, 40))
    assert numbers(panel.text)[:5] == [10, longest, 1, longest, 1]


@pytest.mark.parametrize("seats", [2, 4, 7])
@pytest.mark.parametrize("gap", [0, 1, 4])
def test_continuous_batching_is_never_later(seats, gap):
    static, continuous = batching.both(fakes.FakeLM(), seats, gap, 40)
    assert continuous.duration <= static.duration
    assert continuous.first_token <= static.first_token


def test_the_time_axis_holds_the_whole_run(panel):
    for name, control in panel.controls.items():
        for end in control.ends:
            control.value = end
            ends = [r.spans[-1][1] for r in batching.both(fakes.FakeLM(), **panel.values())]
            assert panel.artists["axes"].get_xlim()[1] >= max(ends), name


def test_the_race_is_a_table_of_measured_times():
    table = batching.race(fakes.FakeLM(), longest=6)
    assert "Measured here" in table.head[0]
    assert [cell.split()[1] for row in table.rows for cell in row[1:]] == (
        ["ms"] * 4 + ["tokens/s"] * 2 + ["ms"] * 2
    )
