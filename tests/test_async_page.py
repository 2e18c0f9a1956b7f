"""What notebook 06 shows beside the models of overlap_model.py and stale_budget.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from g2c_serving.history import Row, StepRecord
from g2c_serving.lab import overlap_gap, stale_toy, two_lanes
from g2c_serving.lab.overlap_gap import Own, gap_panel, own_step
from g2c_serving.lab.real_lanes import Lanes, overlapped_lanes, plain_lanes

# ---- lanes from a history ----


def record(start: float, schedule: float, forward: float, sample: float, kind="decode"):
    return StepRecord(start, schedule, forward, 0.0, sample, 1.0, rows=[Row(0, 0, kind, 1, 5)])


def spans(lanes: Lanes) -> list[tuple[str, str, float, float]]:
    return [(s.lane, s.label, float(s.start), float(s.end)) for s in (*lanes.cpu, *lanes.device)]


def test_the_lanes_of_a_plain_loop():
    """Worked out by hand: 3 to schedule, 10 and 1 on the device; the next begins 20 ms later, so
    6 are left for processing and for the caller."""
    found = plain_lanes([record(100, 3, 10, 1), record(120, 4, 9, 2), record(141, 3, 10, 1)])
    assert spans(found) == [
        ("CPU", "schedule 0", 0, 3),
        ("CPU", "process 0", 14, 20),
        ("CPU", "schedule 1", 20, 24),
        ("CPU", "process 1", 35, 41),
        ("device", "run 0", 3, 14),
        ("device", "run 1", 24, 35),
    ]
    assert (found.device_ms, found.cpu_ms, found.end) == (11, 9.5, 41)
    assert found.device_waits == pytest.approx(10 / 32)
    idle = [(gap.lane, gap.start, gap.end) for gap in found.gaps(35)]
    assert idle == [
        ("CPU", 3, 14), ("CPU", 24, 35), ("device", 0, 3), ("device", 14, 24),
    ]  # fmt: skip


# ---- lanes from events ----


@dataclass
class Event:
    lane: str
    phase: str
    step: int
    start_ms: float
    end_ms: float


def pipeline(steps: int, first: int = 0, at: float = 50.0) -> Iterator[Event]:
    """The stated order, with round numbers: 1 to schedule, 1 to launch, 10 on the device (8 and 2),
    3 to process; 4 of the caller follow."""
    free, ended = at, []
    for n in range(first, first + steps):
        yield Event("CPU", "schedule", n, free, free + 1)
        yield Event("CPU", "launch", n, free + 1, free + 2)
        start = max([free + 2, *ended[-1:]])
        yield Event("device", "forward", n, start, start + 8)
        yield Event("device", "sample", n, start + 8, start + 10)
        ended.append(start + 10)
        if len(ended) > 1:
            came = max(ended[-2], free + 2)
            yield Event("CPU", "wait", n - 1, free + 2, came)
            yield Event("CPU", "process", n - 1, came, came + 3)
            free = came + 7
        else:
            free += 2


def test_the_lanes_of_an_overlapped_loop():
    """By hand, from 0: launched at 2 and 4, device 2-12, 12-22, 22-32. Processing of 0 begins at 12
    and lasts, with the caller, until 2 is scheduled at 19."""
    found = overlapped_lanes(pipeline(3, first=7))
    assert spans(found) == [
        ("CPU", "schedule 0", 0, 2),
        ("CPU", "schedule 1", 2, 4),
        ("CPU", "process 0", 12, 19),
        ("CPU", "schedule 2", 19, 21),
        ("CPU", "process 1", 22, 25),
        ("device", "run 0", 2, 12),
        ("device", "run 1", 12, 22),
        ("device", "run 2", 22, 32),
    ]
    assert found.device_ms == 10 and found.device_waits == 0


def test_what_began_before_is_cut_off_at_the_first_scheduling():
    events = list(pipeline(6))
    late = [e for e in events if e.step >= 3 or (e.step, e.lane) == (2, "device")]
    found = overlapped_lanes([e for e in late if e.phase != "process" or e.step > 2])
    first = spans(Lanes([], found.device))[0]
    assert first[1] == "run -1" and first[2] == 0 < first[3]
    assert two_lanes.step_name(-1) == "N\u22122"


def test_a_step_in_two_parts_shows_what_lies_between_them():
    wait = [
        Event("CPU", "schedule", 0, 0, 1),
        Event("CPU", "launch", 0, 1, 2),
        Event("device", "forward", 0, 2, 10),
        Event("device", "wait", 0, 10, 15),
        Event("device", "sample", 0, 15, 16),
    ]
    parts = overlapped_lanes(wait, whole=False)
    assert [(s.start, s.end) for s in parts.device] == [(2, 10), (15, 16)]
    assert [(g.start, g.end) for g in parts.gaps(16) if g.lane == "device"] == [(0, 2), (10, 15)]
    whole = overlapped_lanes(wait)
    assert [(s.start, s.end) for s in whole.device] == [(2, 16)]


def test_no_steps_no_lanes():
    with pytest.raises(ValueError, match="no step begins"):
        overlapped_lanes([])


# ---- the learner's own step ----


def test_one_s_own_step_is_the_usual_one_that_decodes():
    history = [record(0, 9, 90, 9, "prefill")]
    history += [record(0, schedule, 10, 2) for schedule in (0.5, 1.0, 7.0)]
    assert own_step(history) == Own(12, 2.0)  # 1 to process
    with pytest.raises(ValueError, match="run the engine on"):
        own_step(history[:1])


def test_a_slow_machine_has_its_star_too():
    panel = gap_panel(Own(90.0, 2.0))
    left, right = panel.figure.axes
    assert left.get_ylim()[1] > 92 and right.get_xlim()[1] > 90
    assert gap_panel(Own(9.0, 2.0)).figure.axes[1].get_xlim()[1] == overlap_gap.MOST_STEP


# ---- the toy, with confidences that have changed ----


def test_the_toy_s_two_cases_by_hand():
    """0.5 + 0.9 + 0.81 + 0.729 and two ordinary rows are 4.939 in 13 ms, whoever is the sure one;
    A's three at 0.5 and one of B's give 2 + 0.875 + 0.9. Both sure: all six in 16 ms are 6.878, one
    each in 10 ms are 3.8."""
    changed, sure = stale_toy.CASES
    rows = [(w.drafts, round(w.tokens, 3), w.ms) for w in stale_toy.ways(changed)]
    assert rows == [((1, 3), 4.939, 13), ((1, 3), 4.939, 13), ((3, 1), 3.775, 13)]
    rows = [(w.drafts, round(w.tokens, 3), w.ms) for w in stale_toy.ways(sure)]
    assert rows == [((3, 3), 6.878, 16), ((1, 1), 3.8, 10), ((1, 1), 3.8, 10)]
    table = stale_toy.table()
    assert len(table.rows) == 6 and [row[0] for row in table.rows].count("") == 4
