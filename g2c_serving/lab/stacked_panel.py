"""Approximations that stack up, on the page: the eight choices as a table, and switches for them.

What is measured, and how, stands in stacked.py. A mean comes with what resampled texts make of it
(resampled.py), and is compared with FP4 alone text by text: where that difference may as well be
nothing, the page says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, toggle
from g2c_serving.lab.plots import BLACK, GREY, source_note, unmarked
from g2c_serving.lab.replay_errors import MODEL
from g2c_serving.lab.resampled import SHARE, Mean
from g2c_serving.lab.stacked import FOUR_ALONE, TEXTS, Choice, Distance, measured, named
from g2c_serving.lab.table import Table

SAME = "not distinguishable from FP4 alone"
LOWEST = 1e-11  # of the panel's axis


def table(texts: int = TEXTS) -> Table:
    """The eight choices on so many texts, as a table of a page."""
    found = measured(texts)
    choices = sorted(found, key=lambda choice: (sum(choice), choice[::-1]))
    rows = [
        (
            named(choice),
            _per_mille(found[choice].mean("tv"), ".2g"),
            _against(choice, found),
            f"{found[choice].kl.mean():.1e}",
            found[choice].mean("loss").said("+z.4f"),
            f"{found[choice].changed.mean():.1%}",
        )
        for choice in choices
    ]
    ends = f"({SHARE:.0%})"
    head = ("approximation", f"of 1,000 draws differ {ends}", f"against FP4 alone {ends}",
            "KL (nats)", f"loss (nats, {SHARE:.0%})", "other first choice")  # fmt: skip
    return Table(head, rows)


def _per_mille(one: Mean, form: str) -> str:
    return Mean(1e3 * one.value, 1e3 * one.low, 1e3 * one.high).said(form)


def _against(choice: Choice, found: Any) -> str:
    """How many more of 1,000 draws differ than with FP4 alone, or that nobody can tell."""
    if choice == FOUR_ALONE:
        return ""
    more = found[choice].mean("tv", less=found[FOUR_ALONE])
    return SAME if more.is_zero else _per_mille(more, "+.2g")


# ---- the panel ----


def panel() -> Panel:
    """Three switches; the total variation at every place, largest first."""
    controls = {
        "replay": toggle("Replay of one window", True),
        "guard": toggle("Guard of 5e-5", True),
        "four": toggle("KV cache in FP4", True),
    }
    return Panel(_draw, _update, controls, size=(8, 2.9))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    count = measured()[FOUR_ALONE].tv.size
    axes.set(xlim=(0, count), ylim=(LOWEST, 1), yscale="log", xlabel=f"{count:,} places, worst "
             "first", ylabel="total variation\nfrom the exact run")  # fmt: skip
    axes.xaxis.set_major_formatter("{x:,g}")
    for k, choice in enumerate(((True, False, False), (False, True, False), FOUR_ALONE)):
        look = {**unmarked(k), "linewidth": 1.4}
        axes.plot(measured()[choice].worst_first, **look, label=f"{named(choice)} alone")
    (chosen,) = axes.plot([], [], color=BLACK, linewidth=2.6, linestyle="-", label="chosen")
    axes.axhline(1e-2, color=GREY, linewidth=0.8)
    axes.text(0.99 * count, 1.3e-2, "1 draw in 100", color=GREY, fontsize=9, ha="right")
    axes.legend(loc="lower left", fontsize=9, ncols=2)
    source_note(axes, "Measured here", f"{MODEL}, float64, {TEXTS} texts")
    return {"chosen": chosen}


def _update(art: dict[str, Any], replay: bool, guard: bool, four: bool) -> str:
    choice = replay, guard, four
    found = measured()[choice]
    places = found.worst_first
    art["chosen"].set_data(np.arange(len(places)), np.maximum(places, LOWEST))
    if not any(choice):
        return f"Nothing is approximated: at all {len(places):,} places the distance is 0."
    return (
        f"{named(choice)}: a draw differs from the exact run's with a chance of "
        f"{found.mean('tv').said('.2g')} a token, at the worst place {places[0]:.2g}"
        f"{_compared(choice, found)}; KL {found.kl.mean():.1e} nats; another token is the most "
        f"likely at {found.changed.mean():.1%} of {len(places):,} places; loss "
        f"{found.mean('loss').said('+.4f')} nats. (Brackets: {SHARE:.0%} of resampled texts.)"
    )


def _compared(choice: Choice, found: Distance) -> str:
    if choice == FOUR_ALONE:
        return ""
    more = found.mean("tv", less=measured()[FOUR_ALONE])
    return f", {SAME}" if more.is_zero else f", {more.said('+.2g')} against FP4 alone"
