"""The two lanes and the panels of overlapping: what they draw, say, and do at their ends."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.lab import overlap_gap, overlap_panels, plots
from g2c_serving.lab.overlap_gap import Own, gap_panel, most_saved, per_step, saved
from g2c_serving.lab.overlap_model import PROCESS, RUN, SCHEDULE, alike, overlapped, run, saving
from g2c_serving.lab.two_lanes import WAITS, TwoLanes, step_name


def test_names_of_steps():
    assert [step_name(n) for n in range(4)] == ["N\u22121", "N", "N+1", "N+2"]


def lanes_of(step_ms: float, cpu_ms: float, end: float) -> TwoLanes:
    axes = plots.new_figure().subplots()
    lanes, timeline = TwoLanes(axes, 0, end), run(overlapped, alike(20, step_ms, cpu_ms))
    gaps = timeline.cpu.gaps(0, end) + timeline.device.gaps(0, end)
    lanes.show(timeline.cpu.spans, timeline.device.spans, gaps)
    return lanes


def bars(lanes: TwoLanes, kind: str) -> list[tuple[float, float, float]]:
    """(left, right, middle) of the rectangles of a kind."""
    corners = lanes.blocks[kind].get_path().vertices.reshape(-1, 5, 2)
    return [(b[0, 0], b[1, 0], round((b[0, 1] + b[2, 1]) / 2, 6)) for b in corners]


def test_the_bars_are_the_spans():
    """10 on the device, 3 to schedule, 3 to process, up to 24 ms; the CPU above, at 0."""
    lanes = lanes_of(10, 6, 24)
    assert bars(lanes, SCHEDULE) == [(0, 3, 0), (3, 6, 0), (16, 19, 0)]
    assert bars(lanes, PROCESS) == [(13, 16, 0), (23, 26, 0)]
    assert bars(lanes, RUN) == [(3, 13, 1), (13, 23, 1), (23, 33, 1)]
    assert bars(lanes, WAITS) == [(6, 13, 0), (19, 23, 0), (0, 3, 1)]
    names = [text.get_text() for text in lanes.names if text.get_visible()]
    assert names == ["N\u22121", "N", "N\u22121", "N+1", "N", "N\u22121", "N", "N+1"]


def test_where_a_name_has_no_room_it_is_turned_or_left_out():
    wide, narrow, none = (lanes_of(10, cpu_ms, 120) for cpu_ms in (16, 8, 2))
    for lanes, rotations in ((wide, {0}), (narrow, {0, 90}), (none, {0})):
        found = {text.get_rotation() for text in lanes.names if text.get_visible()}
        assert found == rotations
    in_cpu = [t for t in none.names if t.get_visible() and t.get_position()[1] == 0]
    assert not in_cpu


def test_the_panel_says_what_it_shows():
    said = overlap_panels.lanes_panel().text
    assert "17.1 ms a step instead of 30.6, 99% of the ideal saving" in said
    assert "waits 1% of the time instead of 44%" in said
    assert said.startswith("Simulated, 100 steps of 17 ms with 13.6 ms")


@pytest.mark.parametrize("panel", [overlap_panels.lanes_panel, gap_panel])
def test_every_control_moves_the_sentence_and_the_picture(panel):
    each_control_moves(panel)


def test_the_switch_shows_the_other_loop():
    panel = overlap_panels.lanes_panel()
    panel.controls["overlap"].value = False
    assert "One after the other they take 30.6 ms a step" in panel.text
    assert "the device waits 44% of the time; overlapped they would take 17.1" in panel.text
    panel.controls["overlap"].value = True
    panel.controls["share"].value = 0.0
    assert "nothing to hide: 17 ms a step" in panel.text


def test_the_saving_over_a_run_is_the_clock_s():
    found = saving(alike(overlap_gap.COUNT, 17, 13.6))
    one, other = per_step(17, 13.6, 0)
    assert one * overlap_gap.COUNT == pytest.approx(float(found.plain))
    assert other * overlap_gap.COUNT == pytest.approx(float(found.overlapped))
    assert saved(17, 13.6, 0) == pytest.approx(100 * found.saved)
    assert most_saved(17, 13.6) == pytest.approx(100 * 13.6 / 30.6)


def test_nothing_saves_more_than_the_less_of_the_two():
    step, cpu = np.meshgrid(np.linspace(0.5, 40, 12), np.linspace(0, 45, 12))
    for spread in (0, 0.5, 1.5):
        assert (saved(step, cpu, spread) <= most_saved(step, cpu) + 1e-9).all()
    uneven_too = (
        saved(step, cpu, 1.0) <= saved(step, cpu, 0) + 0.5
    )  # but for the first and the last
    assert uneven_too.all()
    assert most_saved(20, 20) == 50


def test_the_learner_s_own_step_is_marked():
    panel, without = gap_panel(Own(8, 2)), gap_panel()
    assert "Yours (8 ms, 2 ms of CPU work): 20.0% at most." in panel.text
    assert "Yours" not in without.text and panel.png != without.png
    assert "saves 44.2% of the time, of 44.4% at most" in without.text
