"""Switches, the ablation's words and pictures, the load sweep: on small models and made-up days."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields, replace

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import ablation, ablation_panel, day, load_sweep
from g2c_serving.lab.ablation import (
    AGAIN,
    ALL_OFF,
    ALL_ON,
    BUDGETED,
    FIXED,
    NOTHING,
    OFF,
    PAID,
    Scale,
    Switches,
)
from g2c_serving.lab.day import CHAT, LONG, Visit
from g2c_serving.lab.day_result import Day, Mark, Served, Stream, Target
from g2c_serving.lab.load_sweep import Sweep
from g2c_serving.lab.plots import new_figure
from g2c_serving.schedule.cost_model import CostModel

COST = CostModel(1.0, 0.1, 0.0, 0.01, 0.0, 0.0)
SCALE = Scale(240.0, Target(10.0, 2.0), COST, 5.0)


@pytest.fixture(scope="module")
def small():
    return random_lm(vocab_size=266, context=128)


@pytest.fixture(scope="module")
def visits(small):
    return day.made_up(small, share=0.1)


def made_day(tokens: int, busy: float, first_token: float = 1.0) -> Day:
    """One visit of so many tokens, a ms apart."""
    times = [first_token + k for k in range(tokens)]
    served = Served(Visit(LONG, "n", 0, (1,), tokens, 0), 0.0, [1], [Stream(times, [0] * tokens)])
    return Day([served], [], times[-1], busy, 5, 1, tokens, 0, 0, 0, 0, 3, 7)


# ---- switches ----


def test_each_switch_changes_the_engine_and_all_off_is_the_plainest(small):
    drafter = random_lm(vocab_size=266, context=128, layers=1, seed=1)
    all_on = ablation.config(small, drafter, Switches(), SCALE)
    assert all_on.enable_prefix_caching and all_on.batch_invariant
    assert all_on.kv_cache_dtype == "nvfp4" and all_on.speculation.mode == BUDGETED
    assert all_on.step_time_budget_ms == 5.0 and all_on.cost_model is COST
    for field in fields(Switches):
        if field.name not in ("continuous", "overlap"):  # those are the replay's, and the class's
            off = replace(Switches(), **{field.name: getattr(NOTHING, field.name)})
            assert ablation.config(small, drafter, off, SCALE) != all_on, field.name
    none = ablation.config(small, drafter, NOTHING, SCALE)
    assert none == g.EngineConfig(num_blocks=32, block_size=16, max_num_batched_tokens=512,
                                  max_num_seqs=4)  # fmt: skip


def test_without_pages_everybody_reserves_a_whole_context(small):
    reserved = ablation.config(small, None, replace(Switches(), paging=False), SCALE)
    tokens = reserved.num_blocks * reserved.block_size
    assert reserved.max_num_seqs == tokens // small.config.max_seq_len
    assert not reserved.enable_prefix_caching


def test_a_drafter_that_is_not_there_drafts_nothing(small):
    assert ablation.config(small, None, Switches(speculation=FIXED), SCALE).speculation is None
    names = [name for name, _ in ablation.settings(False)]
    assert not any("speculation" in name for name in names)
    assert all(on.speculation == OFF for _, on in ablation.settings(False))


def test_the_settings_turn_off_one_thing_each():
    found = dict(ablation.settings(True))
    assert list(found)[0] == ALL_ON and found[ALL_ON] == Switches()
    assert all(found[name] == Switches() for name in AGAIN) and list(found)[-1] == AGAIN[-1]
    assert found[ALL_OFF] == NOTHING
    for name, on in found.items():
        changed = [f.name for f in fields(on) if getattr(on, f.name) != getattr(Switches(), f.name)]
        if name.startswith("without "):
            assert [f"without {ablation.NAMES[one]}" for one in changed] == [name]
    assert found["speculation fixed"] == Switches(speculation=FIXED)


# ---- on a real engine ----


def test_the_scale_is_that_of_this_model_here(small, visits):
    scale = ablation.calibrate(small, visits)
    assert scale.rush_ms > 0 and scale.alone.first_token > 0 and scale.budget_ms > 0
    assert scale.hour_ms(0.5) == pytest.approx(2 * scale.hour_ms(1.0))
    assert scale.hour_ms(1.0) == pytest.approx(scale.rush_ms / 24)
    assert scale.target(3).per_token == pytest.approx(3 * scale.alone.per_token)


def test_every_setting_serves_the_whole_day(small, visits, capsys):
    drafter = random_lm(vocab_size=266, context=128, layers=1, seed=1)
    days = ablation.measure(small, drafter, visits, SCALE)
    lines = capsys.readouterr().out.split("\r")
    assert lines[1] == "0 of 12 days served ..." and lines[-1].strip() == "12 of 12 days served."
    assert list(days) == [*(name for name, _ in ablation.settings(True)), PAID]
    fixed = sum((v.n + (v.fork_at is not None)) * v.answer - (v.fork_at or 0) for v in visits
                if not v.calls)  # fmt: skip
    for name, found in days.items():
        written = sum(s.num_tokens for s in found.served if not s.visit.calls)
        assert written >= fixed, name
        assert found.busy <= found.duration
    assert days["without speculation"].verified == 0 < days["speculation fixed"].verified
    assert days["without prefix cache"].cached_tokens == days["without pages"].cached_tokens == 0
    assert days["without prefix cache"].rebuilt > days[ALL_ON].rebuilt
    assert days["without pages"].peak_blocks <= 32


def test_overlap_is_measured_against_the_same_engine(small, visits):
    ratios = ablation.overlap(small, visits, SCALE)
    assert len(ratios) == ablation.ROUNDS and all(0.02 < ratio < 50 for ratio in ratios)


def test_the_ratio_is_that_of_the_overlapped_engine_to_the_plain_one(small, visits, monkeypatch):
    def serve(lm, drafter, visits, on, scale, clock):
        assert clock == "wall" and drafter is None
        assert {visit.kind for visit in visits} == {CHAT}
        return made_day(100, 500.0 if on.overlap else 1000.0)

    monkeypatch.setattr(ablation, "serve", serve)
    assert ablation.overlap(small, visits, SCALE) == [2.0] * ablation.ROUNDS


@pytest.mark.parametrize(
    "ratios, words",
    [
        ([1.1, 1.3, 1.2], "1.10 to 1.30 times as many tokens in a busy second, in 3 rounds: more"),
        ([0.8, 0.9, 0.94], "0.80 to 0.94 .* fewer in each"),
        ([0.8, 1.2, 1.3], "do not agree on a gain"),
        ([1.02, 1.03], "do not agree on a gain"),
    ],
)
def test_of_overlap_only_what_all_rounds_show_is_said(ratios, words):
    assert re.search(words, ablation_panel.overlap_words(ratios))


# ---- words and pictures ----


def days(**busy: float) -> dict[str, Day]:
    """100 tokens in so many busy ms, by setting; the others as all on."""
    made = {name: made_day(100, 1000.0) for name, _ in ablation.settings(True)}
    made[PAID] = made_day(100, 1000.0)
    return made | {name.replace("_", " "): made_day(100, ms) for name, ms in busy.items()}


def test_what_paid_is_what_was_missed():
    found = days(without_pages=2000.0, without_speculation=1100.0)
    assert ablation.what_paid(found) == replace(NOTHING, paging=True, speculation=BUDGETED)
    assert ablation.what_paid(days()) == NOTHING


def test_the_words_go_as_far_as_two_equal_runs_allow():
    found = days(without_pages=2000.0, without_four_bit_cache=900.0)
    found["without four-bit cache"] = found.pop("without four bit cache")
    said = ablation_panel.findings(found)
    assert "fewer tokens without pages (-50%)." in said
    assert "It brings more without four-bit cache (+11%)." in said
    assert "No more than chance without continuous batching (+0%)" in said
    assert "Chance is taken as 5%" in said
    found[AGAIN[0]] = made_day(100, 1000 / 1.2)  # equal runs differ by a fifth
    said = ablation_panel.findings(found)
    assert "without four-bit cache (+4%)" in said.split("No more than chance")[1]
    assert "Chance is taken as 20%" in said


def test_the_chart_shows_every_figure_and_the_table_has_them_all():
    found, target = days(without_pages=2000.0), Target(1.0, 1.0)
    panel = ablation_panel.panel(found, target)
    assert panel.text.startswith(
        "Tokens a busy second: all on 100, all on, again 100, all on, once"
    )
    assert "from 50 (without pages) to 100" in panel.text
    seen = {panel.png}
    for metric in list(ablation_panel.METRICS)[1:]:
        panel.controls["metric"].value = metric
        assert panel.error is None and panel.text.lower().startswith(metric)
        seen.add(panel.png)
    assert len(seen) == len(ablation_panel.METRICS)
    rows = ablation_panel.table(found, target).rows
    assert [row[0] for row in rows] == list(found) and rows[0][1:] == (
        "100", "1,000", "100", "1", "1", "1.0", "1.0", "3", "7",
    )  # fmt: skip


def test_the_chart_says_which_way_is_better():
    panel = ablation_panel.panel(days(), Target(1.0, 1.0))
    assert panel.artists["axes"].get_xlabel() == "tokens a busy second: more is better"
    panel.controls["metric"].value = "first token, p99 (ms)"
    assert panel.artists["axes"].get_xlabel() == "first token, p99 (ms): less is better"
    more = [name for name, metric in ablation_panel.METRICS.items() if metric.better == "more"]
    assert more == [
        "tokens a busy second", "goodput: tokens a second on target", "visits on target (%)",
    ]  # fmt: skip


def test_the_chart_s_bars_are_the_figures_and_all_on_is_marked():
    """100 tokens in 1000, 800 and 500 ms: 100, 125 and 200 a second, 141.7 in the mean."""
    found = days(without_pages=2000.0)
    found[AGAIN[0]], found[AGAIN[1]] = made_day(100, 800.0), made_day(100, 500.0)
    art = ablation_panel.panel(found, Target(1.0, 1.0)).artists
    shown = {}
    for kind in ("bars", "marks"):
        for corners in art[kind].get_path().vertices.reshape(-1, 5, 2):
            name = list(found)[round(float(corners[:, 1].mean()))]
            shown[name] = (kind, corners[:, 0].max())
    assert list(art["base"].get_xdata()) == pytest.approx([425 / 3] * 2)
    for name, text in zip(found, art["values"], strict=True):
        rate = found[name].per_busy_s
        assert shown[name] == ("marks" if name in (ALL_ON, *AGAIN) else "bars", rate)
        assert text.get_text().strip() == f"{rate:.0f}" and text.get_position()[0] == rate


def test_the_day_s_picture_shows_who_came_when_and_how_things_stood():
    art, hour = ablation_panel._draw_day(new_figure(), SCALE), SCALE.hour_ms()
    found = made_day(3, 10.0, first_token=7.0)
    late = Visit(CHAT, "n", 0, (1,), 3, 0)
    found.served.append(Served(late, 5 * hour, [1], [Stream([5 * hour + 60], [0] * 3)]))
    found.marks += [Mark(1.0, 1, 2, 30), Mark(2 * hour, 3, 4, 50)]
    said = ablation_panel._show_day(art, found, NOTHING, SCALE)
    # 6 tokens in 10 busy ms; the first visit's 3 in the 9 ms of the day, the other is 10 ms late
    assert "6 tokens, 600 a busy second; 50% of 2 visits on target, goodput 333 a second." in said
    assert "At most 3 blocks in use, 7 tokens computed again, 0 preemptions." in said
    for name, values in (("waiting", [1, 3]), ("running", [2, 4]), ("blocks", [3, 5])):
        assert list(art[name].get_xdata()) == pytest.approx([1 / hour, 2])
        assert list(art[name].get_ydata()) == values
    assert (list(art[LONG].get_xdata()), list(art[LONG].get_ydata())) == ([0], [7])
    assert list(art[CHAT].get_xdata()) == pytest.approx([5])
    assert list(art[CHAT].get_ydata()) == pytest.approx([60])


def test_long_words_are_printed_in_lines(capsys):
    ablation_panel.say("word " * 100)
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) > 5 and max(map(len, lines)) <= 88 and " ".join(lines).split() == ["word"] * 100
    )


def test_days_are_drawn_on_the_same_axes_until_one_is_too_long(small, visits):
    """So that the dots of two presses can be compared; a longer one ends with a day."""
    panel = ablation_panel.switches(small, None, visits, SCALE)
    art, hour = panel.artists, SCALE.hour_ms()
    for hours, end, ticks in ((3, 48, 6), (47, 48, 6), (49, 72, 12), (190, 192, 24)):
        served = made_day(3, 10.0)
        served.marks.append(Mark(hours * hour, 1, 2, 30))
        ablation_panel._show_day(art, served, Switches(), SCALE)
        for axes in (art["left"], art["right"]):
            assert axes.get_xlim() == (0, end) and list(axes.get_xticks()) == [
                *range(0, end + 1, ticks)
            ]
        assert art["left"].get_ylim() == (0, 10)
    served.marks.append(Mark(hours * hour, 30, 2, 30))
    ablation_panel._show_day(art, served, Switches(), SCALE)
    assert art["left"].get_ylim() == (0, 39)


def test_a_switch_that_does_nothing_is_told():
    def said(**on):
        return ablation_panel._show_day(art, served, replace(NOTHING, **on), SCALE)

    figure = new_figure()
    art, served = ablation_panel._draw_day(figure, SCALE), made_day(3, 10.0)
    served.marks.append(Mark(1.0, 1, 2, 30))
    vain = "Without pages the prefix cache can find nothing."
    assert vain in said(prefix_cache=True)
    assert not any(vain in said(**on) for on in ({}, {"paging": True}))
    assert vain not in said(prefix_cache=True, paging=True)


def test_the_switches_serve_another_day(small, visits):
    drafter = random_lm(vocab_size=266, context=128, layers=1, seed=1)
    panel = ablation_panel.switches(small, drafter, visits, SCALE)
    assert "drafts" not in panel.text and "preemptions" in panel.text
    panel.controls["speculation"].value = FIXED
    panel.run()
    assert panel.error is None and "checked drafts" in panel.text
    panel.controls["overlap"].value = True
    panel.run()
    assert panel.error is None and panel.text.endswith("since two threads work.")
    assert "speculation" not in ablation_panel.switches(small, None, visits, SCALE).controls


# ---- load ----


def test_the_hours_of_a_calm_day_counted_by_hand(small, monkeypatch):
    """An hour takes 40 ms; alone, a first token takes 10 and each further one 2. Whoever follows
    comes after the answer before, that of five tokens, 18 ms, and thinks for an hour."""
    assert SCALE.hour_ms(load_sweep.CALM) == 40
    first = Visit(CHAT, "n", 3.0, (1, 2), 5, 0)
    then, other = Visit(CHAT, "n", 1.0, (9,), 1, 0, follows=0), Visit(LONG, "n", 2.0, (7,), 1, 0)
    visits, prompts = [first, then, other], [[1, 2], [1, 2, 5, 5, 9], [7]]
    served = tuple(Served(v, 0.0, p) for v, p in zip(visits, prompts, strict=True))
    trace = load_sweep.calm_day(small, visits, replace(SCALE, served=served))
    assert [visit.time for visit in trace] == pytest.approx([3, 3 + 18 / 40 + 1, 2])
    assert [list(visit.asks) for visit in trace] == prompts
    assert all(visit.follows is None for visit in trace)
    others = [replace(first, seed=1), then, other]
    anew = load_sweep.calm_day(small, others, replace(SCALE, served=served))
    assert anew[0].seed == 1 and [v.time for v in anew] == [v.time for v in trace]
    assert len(anew[1].asks) == 2 + 5 + 1  # what was asked, and what this model answers


def test_the_knee_is_the_last_load_before_too_many_are_late():
    def share(on_target: int) -> Day:
        base = made_day(1, 1.0)
        late = made_day(1, 1.0, first_token=1e6).served
        return replace(base, served=base.served * on_target + late * (20 - on_target))

    loads = dict(zip((0.5, 1.0, 2.0, 4.0), map(share, (20, 18, 17, 19)), strict=True))
    found = Sweep(SCALE, {"one": loads, "late": {0.5: share(10), 1.0: share(20)}})
    assert found.knee("one", 5) == 1.0  # 18 of 20 are nine in ten, 17 are not
    assert found.knee("late", 5) is None
    assert found.knee("one", 1e6) == 4.0


def test_a_point_of_the_sweep_is_the_less_disturbed_of_two_runs(small, monkeypatch, capsys):
    """A stall makes every second run slower, or every first."""
    visit = Visit(CHAT, "n", 3.0, (1, 2), 5, 0)
    scale = replace(SCALE, served=(Served(visit, 0.0, [1, 2]),))
    for busy in ([10.0, 30.0], [30.0, 10.0]):
        runs = itertools.cycle(busy)
        monkeypatch.setattr(load_sweep, "serve", lambda *a, runs=runs, **k: made_day(3, next(runs)))
        found = load_sweep.sweep(small, [visit], scale, loads=(1.0, 2.0))
        assert [one.busy for days in found.days.values() for one in days.values()] == [10.0] * 4
    assert "4 of 4 points measured." in capsys.readouterr().out


def test_the_sweep_s_picture_and_words_are_its_figures():
    """20 visits a load: all on target at 1, 18 at 2, 10 at 4; those who are late, by 1000 s."""

    def share(on_target: int) -> Day:
        base = made_day(3, 1.0)
        late = made_day(3, 1.0, first_token=1e6).served
        return replace(base, served=base.served * on_target + late * (20 - on_target), duration=500)

    one = dict(zip((1.0, 2.0, 4.0), map(share, (20, 18, 10)), strict=True))
    found = Sweep(SCALE, {"one": one, "late": {1.0: share(1), 2.0: share(1), 4.0: share(1)}})
    panel = load_sweep.panel(found)
    art = panel.artists
    lines = [mark for axes, mark in art.items() if not isinstance(axes, str)]
    assert list(art["throughput"].get_ydata()) == [120, 120, 120]  # 60 tokens in half a second
    assert list(art["goodput"].get_ydata()) == pytest.approx([120, 108, 60])
    assert list(art["p50"].get_ydata())[:2] == [1, 1] and art["p99"].get_ydata()[1] == 1e6
    assert list(art["target"].get_ydata()) == [50, 50]
    assert all(mark.get_visible() and list(mark.get_xdata()) == [2, 2] for mark in lines)
    assert "the knee is at load 2; at 4 only 50% of the visits" in panel.text
    panel.controls["engine"].value = "late"
    assert not any(mark.get_visible() for mark in lines)
    assert "already at load 1 only 5% of the visits" in panel.text
    good = {1.0: share(20), 2.0: share(19)}
    easy = load_sweep.panel(Sweep(SCALE, {"one": good, "other": good}))
    assert "at every load at least 90% of the visits" in easy.text
    bottom, top = panel.figure.axes[1].get_ylim()
    assert bottom < 1 and top > 1e6


def test_a_sweep_on_a_real_engine_and_its_panel(small, visits):
    scale = ablation.calibrate(small, visits)
    found = load_sweep.sweep(small, visits, scale, loads=(0.2, 5.0))
    assert list(found.days) == list(load_sweep.ENGINES)
    slow, fast = found.days[next(iter(found.days))].values()
    assert fast.num_tokens == slow.num_tokens and fast.duration < slow.duration
    assert all(one.visit.follows is None for one in slow.served)
    panel = load_sweep.panel(found)
    for name, control in panel.controls.items():
        for end in control.ends:
            if end != control.value:
                png, text, start = panel.png, panel.text, control.value
                control.value = end
                assert panel.error is None and (panel.png, panel.text) != (png, text), name
                control.value = start
    assert "throughput goes from" in panel.text
