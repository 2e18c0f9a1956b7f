"""The ablation as a table, a chart and words; and a panel of switches that serves the day anew.

The words go as far as the figures: a difference counts where it is larger than the largest between
equal runs, and than CHANCE. Measured here.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import ablation
from g2c_serving.lab.ablation import AGAIN, ALL_OFF, ALL_ON, NAMES, OFF, PAID, Scale, Switches
from g2c_serving.lab.day import KINDS, Visit
from g2c_serving.lab.day_result import Day, Target
from g2c_serving.lab.panel import Panel, choice, toggle
from g2c_serving.lab.plots import BLACK, GREY, Blocks, line, source_note, unmarked
from g2c_serving.lab.table import Table

CURVES = {"running": "running", "waiting": "waiting", "blocks": "blocks / 10"}  # of a Mark
EQUAL = (ALL_ON, *AGAIN)
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
CHANCE = 0.05  # a smaller difference is not spoken of
HOURS_SHOWN, MOST_SHOWN = 48, 10  # where the axes end, if the day does not go beyond


class Metric(NamedTuple):
    """What a bar shows: of a day and a target, how it is written, and which is better."""

    of: Callable[[Day, Target], float]
    written: str
    better: str = "less"


METRICS = {
    "tokens a busy second": Metric(lambda day, _: day.per_busy_s, "{:,.0f}", "more"),
    "goodput: tokens a second on target": Metric(
        lambda day, goal: day.goodput(goal), "{:,.0f}", "more"
    ),
    "visits on target (%)": Metric(lambda day, goal: 100 * day.share_met(goal), "{:.0f}", "more"),
    "first token, p50 (ms)": Metric(lambda day, _: day.first_token(50), "{:,.0f}"),
    "first token, p99 (ms)": Metric(lambda day, _: day.first_token(99), "{:,.0f}"),
    "between tokens, p50 (ms)": Metric(lambda day, _: day.gap(50), "{:.1f}"),
    "between tokens, p99 (ms)": Metric(lambda day, _: day.gap(99), "{:.1f}"),
    "blocks in use, most": Metric(lambda day, _: day.peak_blocks, "{:,.0f}"),
    "tokens computed again": Metric(lambda day, _: day.rebuilt, "{:,.0f}"),
}


def table(days: Mapping[str, Day], target: Target) -> Table:
    """All figures of all settings."""
    rows = [
        (name, *(metric.written.format(metric.of(day, target)) for metric in METRICS.values()))
        for name, day in days.items()
    ]
    return Table(("", *METRICS), rows)


def say(words: str) -> None:
    """Print a long sentence in lines that fit a page."""
    print(textwrap.fill(words, 88))


def findings(days: Mapping[str, Day]) -> str:
    """What a busy second brings without each mechanism, as far as it is no chance."""
    base, chance = ablation.usual(days), max(CHANCE, ablation.spread(days))
    change = {n: d.per_busy_s / base - 1 for n, d in days.items() if n.startswith("without ")}
    parts = [
        _list(
            "A busy second brings fewer tokens", {n: c for n, c in change.items() if c < -chance}
        ),
        _list("It brings more", {n: c for n, c in change.items() if c > chance}),
        _list("No more than chance", {n: c for n, c in change.items() if abs(c) <= chance}),
    ]
    return (
        f"{' '.join(part for part in parts if part)} (Chance is taken as {chance:.0%}: so much "
        f"three equal runs differ by, {CHANCE:.0%} at least.)"
    )


def _list(lead: str, changes: Mapping[str, float]) -> str:
    if not changes:
        return ""
    return f"{lead} {', '.join(f'{name} ({c:+.0%})' for name, c in changes.items())}."


def overlap_words(ratios: Sequence[float]) -> str:
    """What the rounds of `ablation.overlap` say, and whether they agree."""
    low, high = min(ratios), max(ratios)
    said = (
        f"By the wall clock, an overlapped engine writes {low:.2f} to {high:.2f} times as many "
        f"tokens in a busy second, in {len(ratios)} rounds: "
    )
    if low > 1 + CHANCE:
        return said + "more in each."
    if high < 1 - CHANCE:
        return said + "fewer in each."
    return said + "the rounds do not agree on a gain."


def panel(days: Mapping[str, Day], target: Target) -> Panel:
    """A bar for each setting; choose what it shows."""
    controls = {"metric": choice("Show", tuple(METRICS))}
    return Panel(
        lambda figure: _draw(figure, days),
        lambda art, metric: _update(art, days, target, metric),
        controls,
    )


def _draw(figure: Figure, days: Mapping[str, Day]) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(ylim=(len(days) - 0.4, -0.6))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_yticks(range(len(days)), list(days), fontsize=9)
    axes.grid(axis="y", visible=False)
    source_note(axes, "Measured here")
    art: dict[str, Any] = {"axes": axes, "bars": Blocks(axes, 0), "marks": Blocks(axes, 1)}
    art["base"] = axes.axvline(0, color=BLACK, linewidth=1, linestyle=":")
    art["values"] = [
        axes.text(0, y, "", va="center", fontsize=9, bbox=WHITE) for y in range(len(days))
    ]
    return art


def _update(art: dict[str, Any], days: Mapping[str, Day], target: Target, metric: str) -> str:
    value, written, better = METRICS[metric]
    values = {name: value(day, target) for name, day in days.items()}
    most = max(max(values.values()), 1e-9)
    for blocks, chosen in (("bars", False), ("marks", True)):
        ys = [y for y, name in enumerate(days) if (name in EQUAL) is chosen]
        widths = [list(values.values())[y] for y in ys]
        art[blocks].set_boxes(0, [y - 0.35 for y in ys], widths, 0.7)
    for text, found in zip(art["values"], values.values(), strict=True):
        text.set_text(f" {written.format(found)}")
        text.set_x(found)
    art["base"].set_xdata([sum(values[name] for name in EQUAL) / len(EQUAL)] * 2)
    art["axes"].set(xlim=(0, 1.14 * most), xlabel=f"{metric}: {better} is better")
    names = (*EQUAL, ALL_OFF, PAID)
    said = ", ".join(f"{name} {written.format(values[name])}" for name in names)
    others = {n: v for n, v in values.items() if n not in names}
    low, high = min(others, key=others.__getitem__), max(others, key=others.__getitem__)
    return (
        f"{metric[0].upper()}{metric[1:]}: {said}. With one thing changed it goes from "
        f"{written.format(others[low])} ({low}) to {written.format(others[high])} ({high})."
    )


# ---- switches ----


def switches(
    lm: LanguageModel, drafter: LanguageModel | None, visits: Sequence[Visit], scale: Scale
) -> Panel:
    """A switch for each mechanism, all of them off; the button serves the day."""
    controls: dict[str, Any] = {}
    for name, label in NAMES.items():
        if name == "speculation":
            if drafter is not None:
                modes = (OFF, ablation.FIXED, ablation.BUDGETED)
                controls[name] = choice(label.capitalize(), modes)
        else:
            controls[name] = toggle(label.capitalize(), False)

    def update(art: dict[str, Any], **on: Any) -> Generator[str, None, str]:
        chosen = replace(Switches(speculation=OFF), **on)
        yield f"{len(visits)} visits are being served: some seconds ..."
        day = ablation.serve(lm, drafter, visits, chosen, scale)
        return _show_day(art, day, chosen, scale)

    return Panel(lambda figure: _draw_day(figure, scale), update, controls, run="Serve the day")


def _draw_day(figure: Figure, scale: Scale) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {"left": left, "right": right}
    for k, (name, label) in enumerate(CURVES.items()):
        look = {**unmarked(k), "drawstyle": "steps-post"}
        (art[name],) = left.plot([], [], label=label, **look)
    left.set(xlabel="hour", title="in the engine")
    left.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    left.legend(loc="upper left", fontsize=8, ncols=3, columnspacing=1)
    for axes in (left, right):
        axes.axvline(24, color=GREY, linewidth=1)
    for k, kind in enumerate(KINDS):
        look = {**line(k), "linestyle": "none"}
        (art[kind],) = right.plot([], [], label=kind, **look)
    goal = scale.target().first_token
    right.axhline(goal, color=GREY, linewidth=1, linestyle="--", label="target")
    right.set(yscale="log", ylim=(goal / 50, goal * 400))  # the legend's room is above 50
    right.set(xlabel="hour of the arrival", title="ms to the first token")
    right.legend(loc="upper left", fontsize=8, ncols=3, columnspacing=1)
    source_note(right, "Measured here")
    return art


def _show_day(art: dict[str, Any], day: Day, on: Switches, scale: Scale) -> str:
    hour = scale.hour_ms()
    times = [mark.time / hour for mark in day.marks]
    curves = {name: [getattr(mark, name) for mark in day.marks] for name in CURVES}
    curves["blocks"] = [blocks / 10 for blocks in curves["blocks"]]
    for name, values in curves.items():
        art[name].set_data(times, values)
    art["left"].set_ylim(0, max(MOST_SHOWN, 1.3 * max(map(max, curves.values()))))
    last = max(HOURS_SHOWN, 24 * math.ceil(max(times) / 24))
    for axes in (art["left"], art["right"]):
        axes.set(xlim=(0, last), xticks=range(0, last + 1, 6 * math.ceil(last / HOURS_SHOWN)))
    for kind in KINDS:
        seen = [one for one in day.served if one.visit.kind == kind]
        firsts = [max(one.first_token, 1e-3) for one in seen]
        art[kind].set_data([one.arrived / hour for one in seen], firsts)
    target = scale.target()
    share, goodput = day.share_met(target), day.goodput(target)
    drafts = f" Of {day.verified:,} checked drafts {day.accepted:,} stood." if day.verified else ""
    clock = " By the wall clock, since two threads work." if on.overlap else ""
    vain = " Without pages the prefix cache can find nothing." * (on.prefix_cache > on.paging)
    return (
        f"{day.num_tokens:,} tokens, {day.per_busy_s:,.0f} a busy second; {share:.0%} of "
        f"{len(day.served)} visits on target, goodput {goodput:,.0f} a second. "
        f"First token after {day.first_token(50):,.0f} ms (p99 {day.first_token(99):,.0f}), then "
        f"text every {day.gap(50):.1f} ms (p99 {day.gap(99):.1f}). At most {day.peak_blocks} "
        f"blocks in use, {day.rebuilt:,} tokens computed again, {day.preemptions} preemptions."
        f"{drafts}{vain}{clock}"
    )
