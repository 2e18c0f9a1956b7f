"""The virtual clock: exact times, ties in order of asking, lanes that do one job at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.virtual_clock import Lane, Span, VirtualClock, exact


def test_time_and_ties():
    clock, seen = VirtualClock(), []
    clock.at(3, lambda: seen.append(("c", clock.now)))
    clock.at(1, lambda: seen.append(("a", clock.now)))
    clock.after(3, lambda: seen.append(("d", clock.now)))
    clock.at(1, lambda: clock.after(0, lambda: seen.append(("b", clock.now))))
    clock.run()
    assert seen == [("a", 1), ("b", 1), ("c", 3), ("d", 3)] and clock.now == 3


def test_a_tenth_and_two_tenths_are_three_tenths():
    assert 0.1 + 0.2 != 0.3
    clock, seen = VirtualClock(), []
    clock.at(0.3, lambda: seen.append("asked first"))
    clock.after(0.1, lambda: clock.after(0.2, lambda: seen.append("asked later")))
    clock.run()
    assert seen == ["asked first", "asked later"] and clock.now == Fraction(3, 10)


def test_whole_numbers_stay_ints_and_the_rest_is_exact():
    for value in (17, np.int64(17), 17.0, Fraction(34, 2)):
        assert exact("x", value) == 17 and type(exact("x", value)) is int
    assert exact("x", 13.6) == Fraction(68, 5) == exact("x", np.float64(13.6))
    assert exact("x", Fraction(1, 3)) * 3 == 1
    clock = VirtualClock()
    lane = Lane(clock, "CPU")
    for _ in range(1000):
        lane.submit(0.1)
    clock.run()
    assert clock.now == lane.busy == 100 and not lane.gaps()


def test_the_loop_in_the_docstring():
    clock = VirtualClock()
    cpu, device = Lane(clock, "CPU"), Lane(clock, "device")

    def loop():
        for n in range(3):
            yield cpu.submit(4, label=f"schedule {n}")
            yield device.submit(17, label=f"step {n}")
            yield cpu.submit(6, label=f"process {n}")

    clock.start(loop())
    clock.run()
    assert clock.now == 3 * (4 + 17 + 6)
    assert device.spans == [
        Span("device", "step 0", 4, 21),
        Span("device", "step 1", 31, 48),
        Span("device", "step 2", 58, 75),
    ]
    assert [(gap.start, gap.end) for gap in device.gaps()] == [(0, 4), (21, 31), (48, 58)]
    assert [(g.start, g.end) for g in device.gaps(10, 81)] == [(21, 31), (48, 58), (75, 81)]
    assert [(g.start, g.end) for g in device.gaps(24, 50)] == [(24, 31), (48, 50)]
    assert [gap.duration for gap in cpu.gaps()] == [17, 17, 17] and cpu.busy == 30


def test_a_job_waits_for_those_before_it():
    clock, seen = VirtualClock(), []
    lane = Lane(clock, "device")
    lane.submit(5, lambda: seen.append(("a", clock.now)), "a")
    clock.at(2, lambda: lane.submit(3, lambda: seen.append(("b", clock.now)), "b"))
    clock.at(20, lambda: lane.submit(1, lambda: seen.append(("c", clock.now)), "c"))
    clock.run()
    assert seen == [("a", 5), ("b", 8), ("c", 21)]
    spans = [(s.label, s.start, s.end) for s in lane.spans]
    assert spans == [("a", 0, 5), ("b", 5, 8), ("c", 20, 21)]


def test_waiting_for_a_job_that_is_done_takes_no_time():
    clock, seen = VirtualClock(), []
    lane = Lane(clock, "CPU")

    def process():
        job = lane.submit(1)
        yield 5
        assert job.done
        yield job
        seen.append(clock.now)

    clock.start(process())
    clock.run()
    assert seen == [5]


def test_two_processes_share_a_lane():
    clock, seen = VirtualClock(), []
    lane = Lane(clock, "CPU")

    def process(name):
        for _ in range(2):
            yield lane.submit(2)
            seen.append((name, clock.now))

    clock.start(process("a"))
    clock.start(process("b"))
    clock.run()
    assert seen == [("a", 2), ("b", 4), ("a", 6), ("b", 8)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", None, True])
def test_no_number(bad):
    clock = VirtualClock()
    lane = Lane(clock, "CPU")
    for name, call in (
        ("time", lambda: clock.at(bad, print)),
        ("delay", lambda: clock.after(bad, print)),
        ("duration", lambda: lane.submit(bad)),
    ):
        with pytest.raises(ValueError, match=f"{name}={bad!r} must be a finite number"):
            call()
    assert not lane.spans


def test_time_does_not_run_backwards():
    clock = VirtualClock()
    lane = Lane(clock, "CPU")
    clock.at(5, print)
    clock.run()
    with pytest.raises(ValueError, match="time=4.5 lies before now=5 ms"):
        clock.at(4.5, print)
    with pytest.raises(ValueError, match="delay=-1 must be 0 ms or more"):
        clock.after(-1, print)
    with pytest.raises(ValueError, match="duration=-0.1 must be 0 ms or more"):
        lane.submit(-0.1)


def test_what_is_no_action_and_no_process():
    clock = VirtualClock()
    with pytest.raises(ValueError, match="action=3 must be a function"):
        clock.at(1, 3)

    def process():
        yield None

    with pytest.raises(ValueError, match="call the function that yields"):
        clock.start(process)
    clock.start(process())
    with pytest.raises(ValueError, match="a process yields.*=None"):
        clock.run()


def test_the_clock_runs_once_and_goes_on_after_an_error():
    clock, seen = VirtualClock(), []
    clock.at(1, clock.run)
    clock.at(2, lambda: seen.append(clock.now))
    with pytest.raises(RuntimeError, match="the clock is running"):
        clock.run()
    clock.run()
    assert seen == [2]


times = st.one_of(
    st.integers(0, 50),
    st.floats(0, 50, allow_nan=False),
    st.fractions(0, 50, max_denominator=12),
)


@given(st.lists(times, max_size=30))
def test_events_come_in_order_of_time_then_of_asking(due):
    clock, seen = VirtualClock(), []
    for i, time in enumerate(due):
        clock.at(time, lambda i=i: seen.append((clock.now, i)))
    clock.run()
    wanted = sorted((exact("time", time), i) for i, time in enumerate(due))
    assert seen == wanted


@given(st.lists(st.tuples(times, times), max_size=30))
def test_a_lane_never_does_two_jobs_nor_rests_with_one_waiting(jobs):
    """Against the rule itself: a job starts at the later of its own coming and the end before."""
    clock = VirtualClock()
    lane = Lane(clock, "CPU")
    for i, (arrives, duration) in enumerate(jobs):
        clock.at(arrives, lambda d=duration, i=i: lane.submit(d, label=str(i)))
    clock.run()
    order = sorted(range(len(jobs)), key=lambda i: exact("time", jobs[i][0]))
    assert [int(s.label) for s in lane.spans] == order
    ends = 0
    for span in lane.spans:
        arrives, duration = (exact("x", x) for x in jobs[int(span.label)])
        assert span.start == max(arrives, ends) and span.duration == duration
        ends = span.end
    idle = sum(gap.duration for gap in lane.gaps())
    assert idle + lane.busy == lane.free_at == ends
