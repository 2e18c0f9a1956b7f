"""Words for acceptance: an engine's statistics by name, and two readings of "75 %".

Brief, section 4 and "Reading the numbers": name the acceptance metric. The decode chart's tau,
1 + n * a, takes a as the share of drafts that are accepted; if a is the chance that a draft stands
given the one before it, a pass gives 1 + a + a^2 + ... + a^n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.history import EngineStats
from g2c_serving.lab import charts
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, source_note, unmarked
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

SHARES = np.linspace(0, 1, 101)


def statistics(by_run: dict[str, EngineStats]) -> Table:
    """The engine's counts, and what is made of them, for runs by name."""
    counts = {
        "passes": "requests with drafts, over all steps",
        "drafted": "drafts drawn",
        "verified": "drafts with a row in the target's pass",
        "accepted": "drafts that stand",
    }
    made = {
        "acceptance_rate": ("accepted / verified, the Brief's 66 and 90 %", "{:.1%}"),
        "accepted_per_drafted": ("accepted / drafted, the parent course's", "{:.1%}"),
        "accepted_length": ("accepted / passes, the Brief's 3.30 and 3.21", "{:.2f}"),
        "tokens_per_pass": ("kept / passes: one more, but at a request's end", "{:.2f}"),
    }
    rows = [
        (name, what, *(f"{getattr(stats, name):,}" for stats in by_run.values()))
        for name, what in counts.items()
    ]
    rows += [
        (name, what, *(form.format(getattr(stats, name)) for stats in by_run.values()))
        for name, (what, form) in made.items()
    ]
    return Table(("name", "what it counts", *by_run), rows, words=2)


def as_a_share(a: Any, drafts: int) -> Any:
    """Tokens of a pass if a is the share of drafts that are accepted."""
    return 1 + drafts * a


def as_a_chain(a: Any, drafts: int) -> Any:
    """Tokens of a pass if each draft stands with a, given that the ones before it do."""
    return sum(a**i for i in range(drafts + 1))


def panel() -> Panel:
    """Tokens per pass over a, in both readings."""
    percent = round(100 * value("tau.a"))
    controls = {
        "percent": slider("Acceptance a (%)", 0, 100, percent),
        "drafts": slider("Drafts", 1, 8, charts.CHART_DRAFTS),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {"axes": axes}
    for k, (name, label) in enumerate(
        (("share", "a is a share: 1 + n a"), ("chain", "a is a chance: 1 + a + a² + ..."))
    ):
        (art[name],) = axes.plot([], [], label=label, **unmarked(k))
        look: dict[str, Any] = {"color": BLACK, "marker": "os"[k], "linestyle": "none"}
        (art[f"{name} now"],) = axes.plot([], [], fillstyle="none", mew=2, markersize=10, **look)
    axes.set(xlim=(0, 101), xlabel="acceptance a (%)", ylabel="tokens per pass")
    axes.legend(loc="upper left")
    source_note(axes, "Derived")
    return art


def _update(art: dict[str, Any], percent: int, drafts: int) -> str:
    a, now = percent / 100, {}
    for name, reading in (("share", as_a_share), ("chain", as_a_chain)):
        art[name].set_data(100 * SHARES, reading(SHARES, drafts))
        now[name] = float(reading(a, drafts))
        art[f"{name} now"].set_data([percent], [now[name]])
    art["axes"].set_ylim(0.9, 1.05 * (1 + drafts))
    less = 1 - now["chain"] / now["share"]
    return (
        f"{many(drafts, 'draft')}, {percent}%: if a is the share of drafts that stand, "
        f"a pass gives {now['share']:.2f} tokens; if it is each draft's chance given the one "
        f"before, {now['chain']:.2f}, which is {less:.0%} less."
    )
