"""Does the reported accepted length of 3.30 count the ordinary token? Two answers that both fit.

Brief, section 4 and "Reading the numbers". Suppose that every draft stands with one chance, given
the ones before it. If 3.30 are drafts alone, of five, that chance is 0.865; of three drafts 75.3 %
would then stand, as the decode chart assumes if its 75 % is a share (tau 3.25). If 3.30 counts the
ordinary token, the chance is 0.752, as the chart assumes if its 75 % is a chance (tokens 2.73).
Either pair fits to two digits, so the published numbers do not choose. Derived, from that one
supposition of ours, and Not disclosed which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.checks import as_int
from g2c_serving.lab import charts
from g2c_serving.lab.acceptance import as_a_chain, as_a_share
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table

BOTH = (False, True)  # whether the reported length counts the ordinary token
DRAFTS = 5  # of the production table
NEAR = 0.02  # tokens: what two printed digits and a slider of 0.5 % leave open
MOST = 6  # drafts in the picture


def tau(reading: str) -> float:
    """Tokens a step of the decode chart, with its 75 % read as a "share" or as a "chance"."""
    formulas = {"share": as_a_share, "chance": as_a_chain}
    if reading not in formulas:
        raise ValueError(f"reading {reading!r} must be share or chance")
    return float(formulas[reading](value("tau.a"), round(value("tau.nextn"))))


def tau_gap() -> float:
    """How much lower, in %, the reading as a chance is."""
    return 100 * (1 - tau("chance") / tau("share"))


def chance_behind(stand: float, drafts: int) -> float:
    """The one chance with which each of `drafts` stands, given the ones before it, so that `stand`
    of them do on average. ValueError for fewer than 0 or more than there are."""
    drafts = as_int("drafts", drafts, 1)
    if not 0 <= stand <= drafts:
        raise ValueError(f"stand={stand}: of {drafts} drafts between 0 and {drafts} can stand")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if as_a_chain(middle, drafts) - 1 < stand else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class World:
    """What follows if the reported length counts the ordinary token, or not.

    chance   of each draft, given the ones before it
    stand    drafts of five that stand on average
    tokens   of a step with five drafts
    tokens3  of a step with three
    """

    chance: float
    stand: float
    tokens: float
    tokens3: float

    @property
    def share(self) -> float:
        """Of five drafts."""
        return self.stand / DRAFTS

    @property
    def share3(self) -> float:
        """Of three drafts."""
        return (self.tokens3 - 1) / charts.CHART_DRAFTS


def world(counts_ordinary: bool) -> World:
    """The world in which the reported 3.30 counts the ordinary token, or does not."""
    stand = value("prod.accepted.fixed") - counts_ordinary
    chance = chance_behind(stand, DRAFTS)
    return World(chance, stand, 1 + stand, float(as_a_chain(chance, charts.CHART_DRAFTS)))


def table() -> Table:
    """The two worlds side by side, with what the decode chart says beside either."""
    worlds = [world(counts) for counts in BOTH]
    a, length = value("tau.a"), value("prod.accepted.fixed")
    rows = [
        ("drafts of five that stand", *(f"{w.stand:.2f}" for w in worlds)),
        ("share of the five", *(f"{w.share:.0%}" for w in worlds)),
        (f"share of the budget's {value('prod.verified.budget'):.2f}", *map(_budget_share, BOTH)),
        ("tokens a step, five drafts", *(f"{w.tokens:.2f}" for w in worlds)),
        ("chance of each, given the ones before", *(f"{w.chance:.1%}" for w in worlds)),
        ("share of three drafts", *(f"{w.share3:.1%}" for w in worlds)),
        ("tokens a step, three drafts", *(f"{w.tokens3:.2f}" for w in worlds)),
        (f"the chart's {a:.0%} is then", "the share of three", "the chance"),
        ("the chart's tau should be", f"{tau('share'):.2f}, as it is", f"{tau('chance'):.2f}"),
    ]
    head = (f"if {length:.2f} counts", "drafts alone", "the ordinary token too")
    return Table(head, rows)


def _budget_share(counts_ordinary: bool) -> str:
    stand = value("prod.accepted.budget") - counts_ordinary
    return f"{stand / value('prod.verified.budget'):.0%}"


def panel() -> Panel:
    """One chance for every draft: at which does the curve go through two marks of a kind?"""
    controls = {"percent": slider("Each draft stands with (%)", 60.0, 95.0, 80.0, 0.5)}
    return Panel(_draw, _update, controls)


def _marks() -> dict[str, tuple[tuple[int, float], tuple[int, float]]]:
    """(drafts, tokens a step) of the decode chart and of the production table, for each kind."""
    length, n = value("prod.accepted.fixed"), charts.CHART_DRAFTS
    return {
        "share": ((n, tau("share")), (DRAFTS, 1 + length)),
        "chance": ((n, tau("chance")), (DRAFTS, length)),
    }


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {}
    (art["curve"],) = axes.plot([], [], label="all drafts alike", **line(0))
    kinds = {
        "share": ("o", "75% is a share; 3.30 are drafts alone"),
        "chance": ("s", "75% is a chance; 3.30 counts the ordinary token"),
    }
    for kind, points in _marks().items():
        marker, label = kinds[kind]
        look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "fillstyle": "none", "mew": 2}
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=12, label=label, **look)
    for drafts, name in ((charts.CHART_DRAFTS, "decode chart"), (DRAFTS, "production table")):
        axes.text(drafts, 1.1, name, ha="center", fontsize=9)
    axes.set(xlim=(0, MOST + 0.2), xlabel="drafts a step", ylim=(0.9, 6), ylabel="tokens a step")
    axes.legend(loc="upper left", fontsize=9)
    source_note(axes, "Derived", "if every draft has the same chance")
    return art


def _update(art: dict[str, Any], percent: float) -> str:
    drafts = range(MOST + 1)
    tokens = np.array([float(as_a_chain(percent / 100, n)) for n in drafts])
    art["curve"].set_data(drafts, tokens)
    hits = {kind: _hits(tokens, points) for kind, points in _marks().items()}
    said = {
        "share": "both circles: the chart's 75% as a share, and 3.30 without the ordinary token",
        "chance": "both squares: the chart's 75% as a chance, and 3.30 with the ordinary token",
    }
    through = [words for kind, words in said.items() if hits[kind]]
    return (
        f"If each draft stands with {percent:g}%, given the ones before it, 3 drafts make "
        f"{tokens[3]:.2f} tokens a step and 5 make {tokens[5]:.2f}. That goes through "
        f"{through[0] if through else 'no two marks of a kind'}."
    )


def _hits(tokens: np.ndarray, points: tuple[tuple[int, float], ...]) -> bool:
    return all(abs(tokens[n] - y) < NEAR for n, y in points)
