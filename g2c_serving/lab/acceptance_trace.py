"""Your own acceptance trace, and what it says of the two readings of "75 %".

Brief, "Reading the numbers". tau = 1 + n * a is right where a is the share of drafts that stand: it
is how the share is counted. 1 + a + a^2 + ... belongs to another number, the chance of a draft
whose predecessors all stand. One run of the engine has both, so each can be put into either
formula, beside the tokens that were really written. Measured here; it shows which number goes with
which formula, not which of them DeepInfer's 75 % is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.checks import as_int
from g2c_serving.history import StepRecord
from g2c_serving.lab.acceptance import as_a_chain, as_a_share
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREY, line, source_note
from g2c_serving.lab.table import Table

LOWEST = 40  # % at the left end of the picture
MOST = 8  # drafts


@dataclass(frozen=True)
class Trace:
    """`stood[i]`: in so many passes the first i drafts all stood, for i of 0 to n; (n + 1,)."""

    stood: tuple[int, ...]

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
    def tokens(self) -> float:
        """Tokens of a pass: the drafts that stand, and the one that follows them (those beyond a
        request's end included, which `EngineStats.tokens_per_pass` leaves out)."""
        return 1 + sum(self.stood[1:]) / self.stood[0]

    def first(self, drafts: int) -> Trace:
        """As if only the first so many had been drafted: their fate hangs on no later one."""
        drafts = as_int("drafts", drafts, 1)
        if drafts > self.drafts:
            raise ValueError(f"drafts={drafts}: the trace has {self.drafts}; give that or fewer")
        return Trace(self.stood[: drafts + 1])


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
    return Trace(tuple(int((stood >= i).sum()) for i in range(drafts + 1)))


def table(traces: dict[str, Trace]) -> Table:
    """Each number in each formula, against what was written, for traces by name."""
    rows = []
    for name, one in traces.items():
        for number, a in (("share", one.share), ("chance", one.chance)):
            cells = [
                f"{found:.2f} ({100 * (found / one.tokens - 1):+.1f}%)" for found in _both(one, a)
            ]
            rows.append((name, f"the {number}, {a:.1%}", *cells, f"{one.tokens:.2f}"))
    head = ("run", "a", "1 + n a", "1 + a + a² + ...", "tokens of a pass, counted")
    return Table(head, rows)


def _both(one: Trace, a: float) -> tuple[float, float]:
    return as_a_share(a, one.drafts), float(as_a_chain(a, one.drafts))


def panel(traces: dict[str, Trace]) -> Panel:
    """Both formulas over a, and the run's two numbers: each meets the counted tokens on its own
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
        return _update(art, traces[run].first(drafts))

    return Panel(lambda figure: _draw(figure, drafts), update, controls)


def _draw(figure: Figure, drafts: int) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {}
    for k, (name, label) in enumerate((("share", "1 + n a"), ("chance", "1 + a + a² + ..."))):
        look = {**line(k), "marker": ""}
        (art[name],) = axes.plot([], [], label=label, **look)
        (art[f"at {name}"],) = axes.plot([], [], color=look["color"], linestyle=":")
        mark: dict[str, Any] = {"color": look["color"], "marker": "os"[k], "linestyle": "none"}
        (art[f"{name} now"],) = axes.plot(
            [],
            [],
            label=f"your drafts' {name}",
            fillstyle="none",
            mew=2,
            markersize=11,
            **mark,
        )
    (art["counted"],) = axes.plot([], [], color=BLACK, linestyle="-", label="counted")
    look = {"color": GREY, "linewidth": 1, "linestyle": "-"}
    (art["whole"],) = axes.plot([], [], label="if all stood", **look)
    axes.set(xlim=(LOWEST, 100.5), xlabel="a (%)", ylim=(1, 1.2 + drafts), ylabel="tokens a pass")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    source_note(axes, "Measured here")
    return art


def _update(art: dict[str, Any], one: Trace) -> str:
    a = np.linspace(LOWEST / 100, 1, 121)
    art["share"].set_data(100 * a, as_a_share(a, one.drafts))
    art["chance"].set_data(100 * a, as_a_chain(a, one.drafts))
    art["counted"].set_data([LOWEST, 100], [one.tokens] * 2)
    art["whole"].set_data([LOWEST, 100], [1 + one.drafts] * 2)
    found = {}
    for name, number, formula in (
        ("share", one.share, as_a_share),
        ("chance", one.chance, as_a_chain),
    ):
        found[name] = float(formula(number, one.drafts))
        art[f"{name} now"].set_data([100 * number], [found[name]])
        art[f"at {name}"].set_data([100 * number] * 2, [1, found[name]])
    wrong = float(as_a_chain(one.share, one.drafts))
    s = "s" * (one.drafts > 1)
    return (
        f"{one.drafts} draft{s}, {one.stood[0]:,} passes: {one.tokens:.2f} tokens a pass, counted. "
        f"{one.share:.1%} of the drafts stand, and 1 + n a makes {found['share']:.2f} of that. "
        f"Given the ones before, each stands with {one.chance:.1%}, and 1 + a + a² + ... makes "
        f"{found['chance']:.2f}. The share in the wrong formula: {wrong:.2f}, "
        f"{1 - wrong / one.tokens:.0%} less than was written."
    )


def of_requests(history: Iterable[StepRecord], request_ids: Sequence[int]) -> Trace:
    """The trace of some requests alone. ValueError as for `trace`."""
    wanted = set(request_ids)
    kept = [one for record in history for one in record.drafts if one.request_id in wanted]
    return trace([StepRecord(0.0, drafts=kept)])
