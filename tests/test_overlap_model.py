"""The plain and the overlapped loop: spans by hand, exact savings, what must hold of any run."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.lab.overlap_model import (
    Step,
    Timeline,
    alike,
    least,
    overlapped,
    plain,
    run,
    saving,
    steps,
    totals,
    uneven,
)


def spans(timeline: Timeline) -> list[tuple[str, float, float]]:
    both = timeline.cpu.spans + timeline.device.spans
    return sorted(((s.label, s.start, s.end) for s in both), key=lambda s: (s[1], s[2]))


def test_the_plain_loop_by_hand():
    """4 to schedule, 10 on the device, 2 to process."""
    timeline = run(plain, [Step(10, 4, 2)] * 2)
    assert spans(timeline) == [
        ("schedule 0", 0, 4), ("run 0", 4, 14), ("process 0", 14, 16),
        ("schedule 1", 16, 20), ("run 1", 20, 30), ("process 1", 30, 32),
    ]  # fmt: skip
    assert timeline.total == 32 and timeline.device_waits == 12 / 32
    assert [(g.start, g.end) for g in timeline.device.gaps()] == [(0, 4), (14, 20)]


def test_the_overlapped_loop_by_hand():
    """The same steps: while the device runs 1, the CPU processes 0 and schedules 2."""
    timeline = run(overlapped, [Step(10, 4, 2)] * 3)
    assert spans(timeline) == [
        ("schedule 0", 0, 4), ("schedule 1", 4, 8), ("run 0", 4, 14),
        ("process 0", 14, 16), ("run 1", 14, 24), ("schedule 2", 16, 20),
        ("process 1", 24, 26), ("run 2", 24, 34), ("process 2", 34, 36),
    ]  # fmt: skip
    assert timeline.total == 36 == 4 + 3 * 10 + 2
    assert not timeline.device.gaps(start=4)


def test_a_processor_that_is_slower_than_the_device_by_hand():
    """Then the device waits for launches: 3 to schedule, 4 on the device, 3 to process."""
    timeline = run(overlapped, [Step(4, 3, 3)] * 3)
    assert spans(timeline) == [
        ("schedule 0", 0, 3), ("schedule 1", 3, 6), ("run 0", 3, 7), ("process 0", 7, 10),
        ("run 1", 7, 11), ("schedule 2", 10, 13), ("process 1", 13, 16), ("run 2", 13, 17),
        ("process 2", 17, 20),
    ]  # fmt: skip
    assert [(g.start, g.end) for g in timeline.device.gaps(start=3)] == [(11, 13)]


def test_the_brief_s_step_reaches_nearly_all_of_the_ideal_saving():
    """17 ms with 0.8 of it in CPU work: only the first schedule and the last process show."""
    found = saving(alike(100, 17, 13.6))
    assert found.plain == 100 * Fraction("30.6")
    assert found.overlapped == 100 * 17 + Fraction("13.6")
    assert found.least == 1700
    assert found.of_ideal == Fraction(99, 100) >= 0.97
    assert found.saved == pytest.approx(1 - 1713.6 / 3060)


@pytest.mark.parametrize("count", [1, 2, 10, 34])
def test_all_but_one_step_s_work_is_hidden(count):
    """Whatever the share, as long as the CPU needs less than the device: 1 - 1 / N."""
    for share in (0.1, 0.8, 1):
        assert saving(alike(count, 17, 17 * share)).of_ideal == 1 - Fraction(1, count)


def test_with_more_work_than_the_device_the_processor_decides():
    """Each schedule and each process (12 ms) outlasts a step (10): the processor never rests. Where
    a step takes 20, it waits for the first and the last: 12 + 20 + 48 * 24 + 20 + 12."""
    timeline = run(overlapped, alike(50, 10, 24))
    assert timeline.total == 50 * 24 and not timeline.cpu.gaps()
    found = saving(alike(50, 10, 24))
    assert (found.least, found.plain, found.of_ideal) == (1200, 1700, 1)
    assert found.overlapped == found.least
    found = saving(alike(50, 20, 24))
    assert (found.least, found.overlapped, found.plain) == (1200, 1216, 2200)


def test_nothing_to_hide_and_nothing_to_save():
    for none in (alike(20, 17, 0), alike(20, 0, 13.6), alike(20, 0, 0)):
        found = saving(none)
        assert found.plain == found.overlapped == found.least
        assert found.of_ideal == 1 and found.saved == 0
    assert run(plain, alike(3, 0, 0)).device_waits == 0


def test_overlapping_saves_half_at_most_and_that_where_both_need_the_same():
    saved = {cpu: saving(alike(500, 20, cpu)).saved for cpu in (5, 10, 20, 40, 80)}
    ideal = {cpu: min(cpu, 20) / (cpu + 20) for cpu in saved}
    assert saved == pytest.approx(ideal, abs=0.002)
    assert max(saved, key=saved.__getitem__) == 20 and saved[20] < 0.5


def test_uneven_work_costs_some_of_the_saving():
    """Mean and spread are as asked for. A loop one step deep cannot lend one step's time to
    another, so it stays away from the least."""
    cpu = uneven(4000, 13.6, 0.5)
    assert cpu.mean() == pytest.approx(13.6, rel=0.02)
    assert cpu.std() / cpu.mean() == pytest.approx(0.5, rel=0.05)
    assert (uneven(5, 13.6, 0) == 13.6).all() and (uneven(5, 0, 0.5) == 0).all()
    found = saving(steps([17] * 100, cpu[:100]))
    assert 0.7 < found.of_ideal < 0.97


def test_bad_input():
    with pytest.raises(ValueError, match="2 device times with 1 cpu times: give one of each"):
        steps([1, 2], [1])
    with pytest.raises(ValueError, match="0 device times"):
        steps([], [])
    with pytest.raises(ValueError, match="device=-1 must be 0 ms or more"):
        alike(3, -1, 1)
    with pytest.raises(ValueError, match="cpu=nan must be a finite number"):
        alike(3, 1, float("nan"))
    with pytest.raises(ValueError, match="count=0"):
        alike(0, 1, 1)


eighths = st.integers(0, 80).map(lambda n: Fraction(n, 8))  # exact in floats too
some_steps = st.lists(st.builds(Step, eighths, eighths, eighths), min_size=1, max_size=12)


@given(some_steps)
def test_order_in_both_loops(todo):
    for loop in (plain, overlapped):
        timeline = run(loop, todo)
        at = {s.label: s for s in timeline.cpu.spans + timeline.device.spans}
        assert len(at) == 3 * len(todo)
        for lane in (timeline.cpu, timeline.device):  # one job at a time
            for before, after in zip(lane.spans, lane.spans[1:], strict=False):
                assert before.end <= after.start
        ran = [s.label for s in timeline.device.spans]
        assert ran == [f"run {n}" for n in range(len(todo))]  # in order of launch
        for n in range(len(todo)):  # nothing before its cause
            assert at[f"schedule {n}"].end <= at[f"run {n}"].start
            assert at[f"run {n}"].end <= at[f"process {n}"].start
            if n > 1:  # one step deep: N is scheduled when N - 2 has been processed
                assert at[f"process {n - 2}"].end <= at[f"schedule {n}"].start


@given(some_steps)
def test_overlapping_is_never_slower_and_never_beats_the_least(todo):
    found = saving(todo)
    assert found.least <= found.overlapped <= found.plain
    assert found.plain == sum(step.device + step.schedule + step.process for step in todo)
    assert 0 <= found.of_ideal <= 1 and 0 <= found.saved <= 0.5


@given(st.lists(st.tuples(eighths, eighths), min_size=1, max_size=12))
def test_many_settings_at_once_come_to_the_same(times):
    device, cpu = (np.array(column, float) for column in zip(*times, strict=True))
    both = totals(device, np.stack([cpu, 2 * cpu]))
    for k, factor in enumerate((1, 2)):
        todo = steps(device, cpu * factor)
        assert [ms[k] for ms in both] == [run(loop, todo).total for loop in (plain, overlapped)]
    assert least(steps(device, cpu)) == max(device.sum(), cpu.sum())
