"""Timelines: the rectangles of a run that is small enough to count by hand."""

from __future__ import annotations

import fakes

from g2c_serving.lab import lanes, plots, workload
from g2c_serving.lab.workload import Arrival


def run(*requests, static=False, **config):
    made = [Arrival(time, tuple(range(1, 1 + prompt)), answer) for time, prompt, answer in requests]
    return workload.run(fakes.engine(**config), made, static=static)


def test_waits_prefill_decode():
    """One seat: the second request waits from 1 until the first leaves after step 3."""
    spans = lanes.spans_of(run((0, 2, 3), (1, 2, 2), max_num_seqs=1))
    assert spans == {
        lanes.PREFILL: [(0, 0, 1), (1, 3, 4)],
        lanes.DECODE: [(0, 1, 3), (1, 4, 5)],
        lanes.WAITS: [(1, 1, 3)],
    }


def test_a_prompt_in_chunks_is_one_rectangle():
    spans = lanes.spans_of(run((0, 10, 1), max_num_batched_tokens=4))
    assert spans == {lanes.PREFILL: [(0, 0, 3)]}


def test_what_was_computed_before_a_preemption_is_computed_again():
    """Four blocks of 4. Both prompts take two. A needs a third after its first token, so B gives
    its two up, and begins again when A has left."""
    found = run((0, 8, 3), (0, 8, 2), num_blocks=4)
    assert [record.preempted for record in found.steps] == [[], [1], [], []][: len(found.steps)]
    spans = lanes.spans_of(found)
    assert spans[lanes.PREFILL] == [(0, 0, 1), (1, 0, 1)]
    assert spans[lanes.DECODE] == [(0, 1, 3)]
    assert spans[lanes.WAITS] == [(1, 1, 3)]
    assert spans[lanes.AGAIN] == [(1, 3, 4)]


def test_empty_seats_last_from_a_request_s_end_to_that_of_its_batch():
    found = run((0, 1, 4), (0, 1, 1), (0, 1, 2), static=True, max_num_seqs=2)
    assert lanes.empty_seats(found) == [(1, 1, 4)]


def test_the_lanes_draw_what_they_are_shown():
    figure = plots.new_figure()
    drawn = lanes.Lanes(figure.subplots(), (lanes.WAITS, lanes.DECODE), 2)
    drawn.show({lanes.DECODE: [(0, 1.0, 3.0), (1, 2.0, 4.0)]})
    box = drawn.artists[lanes.DECODE].get_path().get_extents()
    assert (box.x0, box.x1) == (1, 4)
    assert (box.y0, box.y1) == (-0.38, 1.38)
    assert len(drawn.artists[lanes.WAITS].get_path().vertices) == 0
