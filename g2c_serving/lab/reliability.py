"""The reliability diagram: what a head says of its drafts, against how often it comes true.

Brief, section 4. The evidence comes from an engine's history. The head can be made to lie, and
mended by a remedy that is fitted on the first half of the evidence and judged on the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from g2c_serving.history import Drafted
from g2c_serving.lab.calibration import (
    LogOddsLine,
    Pairs,
    Reliability,
    fit_isotonic,
    fit_temperature,
    reliability,
    single,
    survival,
)
from g2c_serving.lab.panel import Panel, choice, slider, toggle
from g2c_serving.lab.plots import BLACK, Blocks, line, source_note

Remedy = Callable[[np.ndarray], np.ndarray]
AS_IT_IS, TEMPERATURE, ISOTONIC = "none", "temperature and shift", "isotonic"
JUDGED = {"single confidences": single, "survival products": survival}


@dataclass(frozen=True, eq=False)
class Evidence:
    """K drafted continuations; confidences (K, n) are NaN where there was no draft."""

    confidences: np.ndarray  # (K, n)
    verified: np.ndarray  # (K,)
    accepted: np.ndarray  # (K,)

    def half(self, which: int) -> Evidence:
        """The first (0) or the second (1) half of the rows."""
        cut = len(self.verified) // 2
        rows = slice(cut, None) if which else slice(cut)
        return Evidence(self.confidences[rows], self.verified[rows], self.accepted[rows])

    def through(self, remedy: Remedy) -> Evidence:
        """The same drafts with other confidences."""
        return Evidence(remedy(self.confidences), self.verified, self.accepted)

    def pairs(self, judged: str) -> Pairs:
        """Scores and fates, of the single confidences or of the survival products."""
        return JUDGED[judged](self.confidences, self.verified, self.accepted)


def collect(drafts: Iterable[Drafted]) -> Evidence:
    """What an engine recorded: `d for record in engine.history for d in record.drafts`.

    ValueError where nothing was verified.
    """
    found = [d for d in drafts if d.verified]
    if not found:
        raise ValueError("drafts hold none that was verified: run an engine with speculation first")
    table = np.full((len(found), max(len(d.confidences) for d in found)), np.nan)
    for row, d in zip(table, found, strict=True):
        row[: len(d.confidences)] = d.confidences
    verified = np.array([d.verified for d in found])
    return Evidence(table, verified, np.array([d.accepted for d in found]))


def mend(evidence: Evidence, remedy: str) -> Remedy:
    """The remedy of that name, fitted to single confidences; products follow from them."""
    if remedy == AS_IT_IS:
        return LogOddsLine()
    pairs = single(evidence.confidences, evidence.verified, evidence.accepted)
    return fit_temperature(*pairs) if remedy == TEMPERATURE else fit_isotonic(*pairs)


def reliability_panel(evidence: Evidence) -> Panel:
    """The head on the second half of `evidence`: as it is, lying, mended by the first half."""
    controls = {
        "shift": slider("Make it lie: shift of the log odds", -3.0, 3.0, 0.0, 0.5),
        "remedy": choice("Remedy", (AS_IT_IS, TEMPERATURE, ISOTONIC)),
        "judged": choice("Judge", tuple(JUDGED)),
        "bins": slider("Bins", 4, 20, 10),
        "equal_drafts": toggle("Equally many drafts in each, and zoom", True),
    }
    return Panel(_draw, lambda art, **values: _update(art, evidence, **values), controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=BLACK, linewidth=1, linestyle=":", label="calibrated")
    art: dict[str, Any] = {"axes": left}
    (art["bins"],) = left.plot([], [], label="the head", **line(0))
    left.set(xlabel="said", title="came true")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:.2f}")
        axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))  # none that needs a third digit
    left.legend(loc="upper left", fontsize=9)
    art["drafts"] = Blocks(right, 0)
    right.set(xlim=(-0.02, 1.02), ylim=(0, 1), xlabel="said", title="share of the drafts")
    source_note(right, "Measured here")
    return art


def _update(
    art: dict[str, Any],
    evidence: Evidence,
    shift: float,
    remedy: str,
    judged: str,
    bins: int,
    equal_drafts: bool,
) -> str:
    told = evidence.through(LogOddsLine(1.0, shift))
    pairs = told.half(1).through(mend(told.half(0), remedy)).pairs(judged)
    found, wide = reliability(*pairs, bins, equal_drafts), reliability(*pairs, bins)
    some = found.drafts > 0
    x, y = found.said[some], found.came_true[some]
    art["bins"].set_data(x, y)
    _zoom(art, min(x.min(), y.min()) if equal_drafts else 0.0)
    art["drafts"].set_boxes(wide.edges[:-1], 0, 0.92 / bins, wide.drafts / wide.drafts.sum())
    return _sentence(found, shift, remedy, judged, bins, equal_drafts)


def _zoom(art: dict[str, Any], lowest: float) -> None:
    """Both axes from `lowest`, rounded down to a twentieth, to 1. New limits redraw all of it."""
    low = np.floor(min(lowest, 0.94) * 20) / 20
    ends = low - 0.05 * (1 - low), 1 + 0.05 * (1 - low)
    if art["axes"].get_xlim() != ends:
        art["axes"].set(xlim=ends, ylim=ends)


def _sentence(
    found: Reliability, shift: float, remedy: str, judged: str, bins: int, equal_drafts: bool
) -> str:
    head = "The head as it is" if shift == 0 else f"The head with a lie of {shift:+g}"
    cure = "no remedy" if remedy == AS_IT_IS else f"mended ({remedy})"
    equal = "equally many drafts" if equal_drafts else "equal width"
    said, true = (_mean(found, values) for values in (found.said, found.came_true))
    return (
        f"{head}, {cure}: {found.drafts.sum():,} {judged} that no remedy was fitted to say "
        f"{said:.1%} on average, and {true:.1%} came true; with {bins} bins of {equal} the "
        f"expected calibration error is {found.error:.1%}."
    )


def _mean(found: Reliability, values: np.ndarray) -> float:
    """The mean over drafts of a value that is given by bin."""
    return float(np.nansum(found.drafts * values) / max(1, found.drafts.sum()))
