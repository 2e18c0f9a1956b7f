"""Your own acceptance trace, and what it says of the two readings of "75 %".

Brief, "Reading the numbers". tau = 1 + n * a is right where a is the share of drafts that stand: it
is how the share is counted. 1 + a + a^2 + ... belongs to another number, the chance of a draft
whose predecessors all stand. One run of the engine has both, so each can be put into either
formula, beside the tokens of a pass; and beside those the tokens that were kept, which are fewer,
as a request's last pass writes past its end. Measured here; it shows which number goes with which
formula, not which of them DeepInfer's 75 % is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.checks import as_int
from g2c_serving.history import StepRecord
from g2c_serving.lab.acceptance import as_a_chain, as_a_share
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREY, source_note, unmarked
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

LOWEST = 40  # % at the left end of the picture
MOST = 8  # drafts


@dataclass(frozen=True)
class Trace:
    """`stood[i]`: in so many passes the first i drafts all stood, for i of 0 to n; (n + 1,).
    `kept`: tokens that the requests got of these passes, where that was counted."""

    stood: tuple[int, ...]
    kept: int | None = None

    @property
    def drafts(self) -> int:
        return len(self.stood) - 1

    @property
    def share(self) -> float:
        """Of all drafts that were checked, the share that stand."""
        return sum(self.stood[1:]) / (self.drafts * self.stood[0])

    @property
    def chance(self) -> float:
        """Of the drafts whose predecessors all stand, the share that stand."""
        return sum(self.stood[1:]) / max(sum(self.stood[:-1]), 1)

    @property
    def chances(self) -> list[float]:
        """`chance`, of the first draft alone, of the second alone, and so on."""
        turns = zip(self.stood, self.stood[1:], strict=False)
        return [stood / max(turn, 1) for turn, stood in turns]

    @property
    def tokens(self) -> float:
        """Tokens of a pass: the drafts that stand, and the one that follows them, a request's end
        not cut. So it is 1 + n * share, whatever the run."""
        return 1 + sum(self.stood[1:]) / self.stood[0]

    @property
    def got(self) -> float | None:
        """Tokens of a pass that a request kept: `EngineStats.tokens_per_pass`."""
        return None if self.kept is None else self.kept / self.stood[0]

    def first(self, drafts: int) -> Trace:
        """As if only the first so many had been drafted: their fate hangs on no later one."""
        drafts = as_int("drafts", drafts, 1)
        if drafts > self.drafts:
            raise ValueError(f"drafts={drafts}: the trace has {self.drafts}; give that or fewer")
        return self if drafts == self.drafts else Trace(self.stood[: drafts + 1])


def trace(history: Iterable[StepRecord]) -> Trace:
    """The trace of an engine's history, or of some of its steps.

    ValueError where nothing was drafted, or where passes checked different numbers of drafts: tau
    is for fixed verification, and a budgeted run's tokens are counted.
    """
    found = [one for record in history for one in record.drafts]
    if not found:
        raise ValueError('history has no drafts: run an engine with Speculation("fixed")')
    drafts, least = (f(one.verified for one in found) for f in (max, min))
    if least < drafts or not drafts:
        raise ValueError(
            f"history: {least} to {drafts} drafts were verified a pass; tau needs a fixed number. "
            'Take Speculation("fixed"), or count the tokens of a budgeted run as they are'
        )
    stood = np.array([one.accepted for one in found])
    counts = tuple(int((stood >= i).sum()) for i in range(drafts + 1))
    return Trace(counts, sum(one.kept for one in found))


def table(traces: dict[str, Trace]) -> Table:
    """Each number in each formula, against the tokens of a pass, and what was kept of those, for
    traces by name."""
    rows = []
    for name, one in traces.items():
        for number, a in (("share", one.share), ("chance", one.chance)):
            cells = [
                f"{found:.2f} ({100 * (found / one.tokens - 1):+.1f}%)" for found in _both(one, a)
            ]
            kept = (
                ""
                if one.got is None
                else f"{one.got:.2f} ({100 * (one.got / one.tokens - 1):+.1f}%)"
            )
            rows.append((name, f"the {number}, {a:.1%}", *cells, f"{one.tokens:.2f}", kept))
    head = ("run", "a", "1 + n a", "1 + a + a² + ...", "tokens of a pass, end not cut", "kept")
    return Table(head, rows)


def _both(one: Trace, a: float) -> tuple[float, float]:
    return as_a_share(a, one.drafts), float(as_a_chain(a, one.drafts))


def panel(traces: dict[str, Trace]) -> Panel:
    """Both formulas over a, and the run's two numbers: each meets the tokens of a pass on its own
    curve. ValueError for no trace, or one of more than 8 drafts."""
    if not traces:
        raise ValueError("traces is empty: give one or more by name")
    drafts = min(one.drafts for one in traces.values())
    if max(one.drafts for one in traces.values()) > MOST:
        raise ValueError(f"traces: the picture has room for {MOST} drafts; use first({MOST})")
    controls = {}
    if len(traces) > 1:
        controls["run"] = choice("Run", tuple(traces))
    if drafts > 1:
        controls["drafts"] = slider("Drafts a pass", 1, drafts, min(3, drafts))
    only = next(iter(traces))

    def update(art: dict[str, Any], run: str = only, drafts: int = 1) -> str:
        return _update(art, traces[run].first(drafts), traces[run].drafts)

    return Panel(lambda figure: _draw(figure, drafts), update, controls)


def _draw(figure: Figure, drafts: int) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {}
    for k, (name, label) in enumerate((("share", "1 + n a"), ("chance", "1 + a + a² + ..."))):
        look = unmarked(k)
        (art[name],) = axes.plot([], [], label=label, **look)
        (art[f"at {name}"],) = axes.plot([], [], color=look["color"], linestyle=":")
        mark: dict[str, Any] = {"color": look["color"], "marker": "os"[k], "linestyle": "none"}
        (art[f"{name} now"],) = axes.plot(
            [], [], label=f"your drafts' {name}", fillstyle="none", mew=2, markersize=11, **mark
        )
    (art["tokens"],) = axes.plot([], [], color=BLACK, linestyle="-", label="of a pass")
    (art["kept"],) = axes.plot([], [], color=BLACK, linestyle="--", linewidth=1.5, label="kept")
    look = {"color": GREY, "linewidth": 1, "linestyle": "-"}
    (art["whole"],) = axes.plot([], [], label="if all stood", **look)
    axes.set(xlim=(LOWEST, 103), xlabel="a (%)", ylim=(1, 1.3 + drafts), ylabel="tokens a pass")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    source_note(axes, "Measured here")
    return art


def _update(art: dict[str, Any], one: Trace, drafted: int) -> str:
    a = np.linspace(LOWEST / 100, 1, 121)
    art["share"].set_data(100 * a, as_a_share(a, one.drafts))
    art["chance"].set_data(100 * a, as_a_chain(a, one.drafts))
    art["tokens"].set_data([LOWEST, 100], [one.tokens] * 2)
    art["kept"].set_data([LOWEST, 100], [float("nan") if one.got is None else one.got] * 2)
    art["whole"].set_data([LOWEST, 100], [1 + one.drafts] * 2)
    found = {}
    for name, number, formula in (
        ("share", one.share, as_a_share),
        ("chance", one.chance, as_a_chain),
    ):
        found[name] = float(formula(number, one.drafts))
        art[f"{name} now"].set_data([100 * number], [found[name]])
        art[f"at {name}"].set_data([100 * number] * 2, [1, found[name]])
    return f"{_counted(one, drafted)} {_compared(one, found)}"


def _counted(one: Trace, drafted: int) -> str:
    """The tokens of a pass, and what is known of them."""
    if one.drafts < drafted:
        taken = f"first {one.drafts}" if one.drafts > 1 else "first"
        return (
            f"Of the {drafted} drafts only the {taken} taken: {one.tokens:.2f} tokens a pass, had "
            "no more been drafted."
        )
    head = f"{many(one.drafts, 'draft')}, {one.stood[0]:,} passes: "
    if one.got is None:
        return f"{head}{one.tokens:.2f} tokens a pass."
    return (
        f"{head}{one.tokens:.2f} tokens a pass, of which {one.got:.2f} were kept: a request's last "
        "pass writes past its end."
    )


def _compared(one: Trace, found: dict[str, float]) -> str:
    """What each number makes in its own formula, and the share in the wrong one."""
    head = f"{one.share:.1%} of the drafts stand, and 1 + n a makes {found['share']:.2f} of that. "
    if one.drafts == 1:
        return f"{head}With a single draft share and chance are one, and so are the formulas."
    each = ", ".join(f"{100 * chance:.1f}" for chance in one.chances)
    wrong = float(as_a_chain(one.share, one.drafts))
    return (
        f"{head}Given the ones before, they stand with {each}%, together {one.chance:.1%}, and "
        f"1 + a + a² + ... makes {found['chance']:.2f}. The share in the wrong formula: "
        f"{wrong:.2f}, {1 - wrong / one.tokens:.0%} less than the pass has."
    )
