"""What notebook 06 shows beside the models of overlap_model.py and stale_budget.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from small_models import random_lm

import g2c_serving as g
from g2c_serving.history import Row, StepRecord
from g2c_serving.lab import (
    grammar_wait,
    guard_price,
    late_token,
    overlap_gap,
    overlap_race,
    placeholder,
    race_panel,
    stale_toy,
    streams_seen,
    switch_intervals,
    two_lanes,
)
from g2c_serving.lab.late_token import ABORT, FULL, PLANNED, STOP
from g2c_serving.lab.overlap_gap import Own, gap_panel, own_step
from g2c_serving.lab.overlap_race import ALL_CORES, OVERLAPPED, PLAIN, Race
from g2c_serving.lab.real_lanes import Lanes, overlapped_lanes, plain_lanes
from g2c_serving.lab.switch_intervals import AtInterval
from g2c_serving.launches import PENDING


@pytest.fixture(scope="module")
def tiny() -> g.LanguageModel:
    return g.load("tiny")


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
        Event("device", "wait", 0, 11, 15),
        Event("device", "sample", 0, 10, 16),
    ]
    parts = overlapped_lanes(wait, whole=False)
    assert [(s.start, s.end) for s in parts.device] == [(2, 10), (10, 11), (15, 16)]
    assert [(g.start, g.end) for g in parts.gaps(16) if g.lane == "device"] == [(0, 2), (11, 15)]
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


# ---- the race ----


def test_a_race_leaves_everything_as_it_was(monkeypatch):
    """On a tiny model: both loops have taken their steps, and the settings are back."""
    monkeypatch.setattr(overlap_race, "LONGEST_S", 60)  # all steps, on a busy machine too
    lm = random_lm(context=512)
    before = sys.getswitchinterval(), torch.get_num_threads()
    found = overlap_race.race(lm, share=0.5, turns=1)
    assert (sys.getswitchinterval(), torch.get_num_threads()) == before
    assert list(found.step_ms) == [PLAIN, OVERLAPPED, ALL_CORES] and found.cores >= 1
    plain, overlapped = found.lanes[PLAIN], found.lanes[OVERLAPPED]
    assert len(plain.device) == overlap_race.STEPS
    assert [span.label for span in overlapped.device][-1] == f"run {overlap_race.STEPS - 1}"
    for lanes in (plain, overlapped):
        for lane in (lanes.cpu, lanes.device):  # each does one thing at a time
            assert all(a.end <= b.start for a, b in zip(lane, lane[1:], strict=False))


def test_in_the_overlapped_lanes_a_step_is_launched_before_the_one_before_is_processed():
    with overlap_race.contestants(random_lm(context=512), 0.2, rival=False) as (_, one):
        one.turn()
    lanes = one.lanes[-1]
    began = {span.label: span.start for span in lanes.cpu}
    ended = {span.label: span.end for span in (*lanes.cpu, *lanes.device)}
    for n in range(1, overlap_race.STEPS - 1):
        assert ended[f"schedule {n + 1}"] <= began[f"process {n}"]
        assert ended[f"run {n}"] <= began[f"process {n}"]


def test_all_numbers_of_a_race_are_of_the_same_turn():
    """Of three turns the middle one is 20 ms a step; of two, the shorter."""
    with overlap_race.contestants(random_lm(context=512), 0.2, rival=False) as (one, _):
        one.turns, one.lanes = [30.0, 12.0, 20.0], ["a", "b", "c"]
        assert (one.step_ms, one.shown) == (20.0, "c")
    assert overlap_race.middle([5.0, 3.0]) == 1


def test_a_measured_step_is_its_device_and_its_cpu():
    """The plain loop's two lanes fill its time, whichever turn is shown."""
    found = overlap_race.race(random_lm(context=512), share=0.5, turns=2)
    assert found.device_ms + found.cpu_ms == pytest.approx(found.step_ms[PLAIN], rel=0.1)


def test_intervals_are_measured_in_both_orders():
    found = switch_intervals.measure(random_lm(context=512), 0.2, (5.0, 0.05, 0.05), turns=2)
    assert [one.interval_ms for one in found] == [None, 5.0, 0.05, 0.05]
    assert all(0 < one.device_ms for one in found)


def raced(plain=30.0, overlapped=20.0, device=17.0, cpu=13.0, cores=2) -> Race:
    step_ms = {PLAIN: plain, OVERLAPPED: overlapped, ALL_CORES: 24.0}
    return Race(step_ms, device, cpu, {}, cores)


def test_a_race_in_words():
    """30 ms at first, 17 at best, so 10 of 13 saved are 77 %."""
    assert raced().of_ideal == pytest.approx(10 / 13)
    words = race_panel.said(raced(), 0.8)
    assert "one after the other 30.0 ms a step (17.0 on the device, 13.0 on the CPU)" in words
    assert "overlapped 20.0, 77% of the ideal saving (ideal: 17.0)" in words
    assert words.endswith("with the forward pass on all 2 cores: 24.0 ms.")
    assert "0% of the ideal" in race_panel.said(raced(overlapped=33.0), 0.8)
    disturbed = Race(raced().step_ms, 17.0, 13.0, {}, 2, had_core=0.5)
    assert "the plain loop had a core 50% of the time" in race_panel.said(disturbed, 0.8)
    assert "busy" not in words
    alone = Race(raced().step_ms, 17.0, 13.0, {}, 2, 0.97, for_two=1.3)
    assert "busy: two threads at once got 1.3 cores. Measure" in race_panel.said(alone, 0.8)
    assert 0 < overlap_race.cores_for_two() <= 2.1
    little = race_panel.said(raced(plain=17.5, cpu=0.5), 0.0)
    assert "the ideal saving is 2.9%, too little to tell from chance" in little
    assert "one core, so there is nothing to overlap" in race_panel.said(raced(cores=1), 0.8)


def test_the_switch_intervals_in_words(monkeypatch):
    found = [AtInterval(None, 30, 17, 0.0), AtInterval(5.0, 29, 28.9, 0.08)]
    found += [AtInterval(0.005, 21, 20.4, 0.69), AtInterval(0.005, 31, 20.6, -0.08)]
    assert switch_intervals.table(found).rows == [
        ("one after the other", "30.0 ms", "17.0 ms", ""),
        ("5 ms", "29.0 ms", "28.9 ms", "8%"),
        ("0.005 ms", "21.0 ms", "20.4 ms", "69%"),
        ("0.005 ms, once more", "31.0 ms", "20.6 ms", "none"),
    ]
    monkeypatch.setattr(switch_intervals, "cores", lambda: 2)
    words = switch_intervals.findings(found)
    assert "takes 1.70 times" in words and "8% of the ideal saving" in words
    assert "it is 1.20 times, and 69%." in words
    monkeypatch.setattr(switch_intervals, "cores", lambda: 1)
    assert "nothing to overlap" in switch_intervals.findings(found)


# ---- one step late ----


@pytest.mark.parametrize("way, last, late", [(STOP, 7, [8]), (FULL, 7, []), (ABORT, 6, [7])])
def test_what_is_late(tiny, way, last, late):
    """The second request's eighth token, of step 7, is its last. Step 8 is planned before that is
    there; but how many tokens there are is known. The abort comes one step sooner."""
    found = late_token.walk(tiny, way)
    rows = [step for step, rows in enumerate(found.rows) if late_token.SECOND in rows]
    assert found.ended == last and rows == [*range(last + 1), *late]
    assert (1, last + 1) not in found.tokens
    cells = [found.cell(1, last + 1, planned) for planned in range(last, last + 5)]
    kinds = [cell and cell[0] for cell in cells]
    assert kinds == ([None, PLANNED, *[late_token.THROWN] * 3] if late else [None] * 5)
    assert found.cell(0, 8, 9) == (late_token.RUNS, "?")
    assert found.cell(0, 8, 10)[0] == late_token.KNOWN and found.cell(0, 8, 7) is None


def test_the_walk_is_the_text_that_the_plain_engine_writes(tiny):
    found = late_token.walk(tiny, STOP)
    (output,) = g.Engine(tiny).generate(
        [late_token.PROMPTS[1]], g.SamplingParams(40, seed=0, stop=(".",), ignore_eos=True)
    )
    text = "".join(found.tokens[1, step] for step in range(8))
    assert text == (output.text + ".").replace(" ", "\u00b7")


def test_the_panel_of_what_is_late(tiny):
    panel = late_token.panel(tiny)
    assert "its row is in vain" in panel.text
    panel.controls["planned"].value = 9
    assert "B's row on the device is thrown away" in panel.text
    panel.controls["planned"].value = 12
    assert "One row of B was thrown away" in panel.text
    panel.controls["way"].value = FULL
    assert "thrown away" not in panel.text and panel.error is None
    assert panel.text.endswith("That B ends was known from the count, so it has no row.")
    panel.controls["planned"].value = 7
    assert "from the count" not in panel.text


def test_the_embedding_gets_the_tokens_themselves(tiny):
    laid_out, embedded, wrote = placeholder.watch(tiny)
    prompt = tiny.tokenizer.encode(placeholder.PROMPT)
    assert embedded == [prompt, *([token] for token in wrote[:-1])]
    assert laid_out == [prompt, *[[PENDING]] * (len(wrote) - 1)]
    assert placeholder.table(tiny).rows[1][1] == "?"


def test_under_a_grammar_a_step_is_sampled_when_the_one_before_is_processed(tiny):
    """It is stamped as processed a moment after the masks are there, so what counts is the time
    that the processing is made to take before that."""
    run = grammar_wait.measure(tiny)[True]
    processed = {s.label: s.start + run.sleep_ms for s in run.lanes.cpu}
    for n in range(1, 4):
        sampled = [s.end for s in run.lanes.device if s.label == f"run {n}"][-1]
        assert sampled > processed[f"process {n - 1}"]


def test_the_shortest_stretch_is_drawn():
    """10 ms a step, in another stretch 25: that one was disturbed."""
    runs = [grammar_wait.Run(Lanes([], []), 8.0, ms, 6.0, 0.0) for ms in (25.0, 10.0, 10.5)]
    best = grammar_wait.shortest(runs)
    assert (best.step_ms, best.longest) == (10.0, 2.5)
    assert "took 2.5 times as long as the one that is drawn" in grammar_wait.busy(best.longest)
    assert grammar_wait.busy(grammar_wait.shortest(runs[1:]).longest) == ""


# ---- the price of the guard ----


def test_the_guard_s_price_is_told_against_an_engine_without(tiny):
    found = guard_price.measure(tiny, batch=2, groups=1)
    assert [p.name for p in found] == [
        guard_price.OFF,
        guard_price.AGAIN,
        guard_price.ON,
        guard_price.ALL,
    ]
    assert found[0].against_first == 1 and all(p.step_ms > 0 for p in found)


def test_a_look_at_one_step_in_eight_counts():
    """Seven steps of 10 ms and one of 18 are 11 a step, though the median step is as long."""
    times = {"off": [10.0] * 24, "on": [10.0, 10.0, 18.0, 10.0, 10.0, 10.0, 10.0, 10.0] * 3}
    off, on = guard_price.prices(times, 64)
    assert (on.step_ms, on.against_first) == (11, pytest.approx(1.1))
    rows = guard_price.table([off, on]).rows
    assert rows == [("off", "64", "10.00 ms", ""), ("on", "64", "11.00 ms", "+10.0%")]


# ---- streams ----


@dataclass
class Output:
    text: str
    token_ids: list[int]
    finish_reason: str | None


def test_what_users_have_seen():
    """Bo was left with two tokens; Cy has seen the last output alone, and it has all."""
    one, two, all_of_it = (Output("x" * n, [7] * n, None) for n in (1, 2, 60))
    all_of_it.finish_reason = "length"
    table = streams_seen.table({"Ann": [one, two, all_of_it], "Bo": [one, two], "Cy": [all_of_it]})
    assert [row[:4] for row in table.rows] == [
        ("Ann", "3", "60", "length"),
        ("Bo", "2", "2", "left before the end"),
        ("Cy", "1", "60", "length"),
    ]
    assert len(table.rows[0][4]) < 50 and "\u2026" in table.rows[0][4]


def test_blocks_come_back_when_a_user_goes_away():
    records = [StepRecord(0.0, num_free_blocks=free) for free in (97, 97, 97, 98, 98, 98, 98, 100)]
    picture = streams_seen.draw(records, 100, 3, "Bo")
    assert picture.text == (
        "8 steps. Bo goes away after 3: 3 blocks were in use, 4 steps later 2 are; at the end 0."
    )
