"""Which ways of setting a budget still write what the target writes: a table, and a panel.

Brief, sections 4 and 6. Both count every outcome in fractions (`exact_budget.py`), the table draws
as well (`budget_draws.py`). The panel's request is the smallest in which it matters: two tokens,
two drafts, a drafter that draws the first by a coin, and a head that is exactly right.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab import exact_budget as exact
from g2c_serving.lab.budget_draws import draw
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, Blocks, source_note
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

NAMES = ("fixed: both drafts", "total settled before", "total by the fresh", "first peak")
EXPLAINED = {
    NAMES[0]: "every draft is verified",
    NAMES[1]: "settled before drafting, split by fresh confidences",
    NAMES[2]: "plan() on the confidences of the drafts themselves",
    NAMES[3]: "rows as long as the next one pays, in order",
}
TWENTIETHS = 20
EQUAL, UNEQUAL = "=", "\u2260"


def rules(requests: Any, step_time: Any, total: int) -> dict[str, exact.Rule]:
    """The four, by name."""
    drafts = max(tiny.drafts for tiny in requests)
    made = (
        exact.fixed(requests, drafts),
        exact.stale(requests, total),
        exact.fresh(requests, step_time),
        exact.first_peak(requests, step_time),
    )
    return dict(zip(NAMES, made, strict=True))


def table(steps: int = 200_000) -> Table:
    """The four on a counterexample with the Brief's step times (`exact_budget.on_stairs`): how far
    what comes out is from the target, counted out, and by the chi-square test on drawn steps."""
    requests, step_time = exact.on_stairs()
    wanted, rows = exact.wanted(requests), []
    for name, rule in rules(requests, step_time, total=3).items():
        off = exact.distance(exact.joint(requests, rule), wanted)
        drawn = draw(requests, rule, steps)
        says = f"{float(off):.2%}" if off else "0, exactly"
        rows.append((name, EXPLAINED[name], says, f"{drawn.deviations:+.1f}"))
    head = ("rule", "the budget", "off by, in fractions", f"chi-square, {steps:,} steps")
    return Table(head, rows, words=2)


def world(p: int, sure: int) -> exact.TinyRequest:
    """One request. The target writes token 0 first with p / 20, the drafter with 1/2. After token 0
    the second draft is accepted with sure / 20, after token 1 never."""
    even, certain = exact.chances(1, 1), exact.chances(1, 0)
    second = {(): even, (0,): exact.chances(sure, TWENTIETHS - sure), (1,): exact.chances(0, 1)}
    target = {(): exact.chances(p, TWENTIETHS - p), (0,): certain, (1,): certain}
    return exact.request(target.__getitem__, second.__getitem__, drafts=2)


def panel() -> Panel:
    """How often token 0 comes out under each rule; the line is the target's own chance."""
    controls = {
        "p": slider("Target's chance of token 0 (of 20)", 1, 19, 18),
        "sure": slider("Second draft is accepted, after token 0 (of 20)", 0, 20, 20),
        "ms": slider("A step of 2 or 3 rows takes (ms; 1 row: 10)", 10, 30, 20),
        "total": slider("The settled total (drafts)", 0, 2, 1),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {
        "right": Blocks(axes, 2, "the target's"),
        "wrong": Blocks(axes, 1, "another"),
    }
    (art["p"],) = axes.plot([], [], color=BLACK, linestyle="--", label="target's chance")
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the grid
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 10, "bbox": white}
    art["words"] = [axes.text(x, 0, "", **look) for x in range(len(NAMES))]
    axes.set(xlim=(-0.6, len(NAMES) - 0.4), ylim=(0, 1.2), ylabel="token 0 comes out")
    axes.set_xticks(range(len(NAMES)), NAMES)
    axes.legend(loc="upper right", ncols=3, fontsize=9)
    source_note(axes, "Derived", "counted out in fractions")
    return art


def _update(art: dict[str, Any], p: int, sure: int, ms: int, total: int) -> str:
    requests = (world(p, sure),)
    wanted = Fraction(p, TWENTIETHS)
    found = {
        name: exact.first_token(exact.joint(requests, rule), 0, 0)
        for name, rule in rules(requests, lambda rows: 10 if rows == 1 else ms, total).items()
    }
    heights = np.array([float(chance) for chance in found.values()])
    good = np.array([chance == wanted for chance in found.values()])
    for name, chosen in (("right", good), ("wrong", ~good)):
        (at,) = chosen.nonzero()
        art[name].set_boxes(at - 0.3, 0, 0.6, heights[at])
    for words, height, right in zip(art["words"], heights, good, strict=True):
        words.set_text(f"{height:.3g} {EQUAL if right else UNEQUAL} {float(wanted):.3g}")
        words.set_y(height + 0.02)
    art["p"].set_data([-0.6, len(NAMES) - 0.4], [float(wanted)] * 2)
    wrong = [f'"{name}": {float(found[name]):.3g}' for name in NAMES if found[name] != wanted]
    but = f", except {', '.join(wrong)}" if wrong else ""
    return (
        f"The target writes token 0 with {float(wanted):.3g}; the second draft is accepted with "
        f"{sure / TWENTIETHS:.3g} after token 0 and never after token 1; 2 or 3 rows take {ms} ms, "
        f"one takes 10; {many(total, 'draft')} settled before. All rules write token 0 "
        f"with {float(wanted):.3g}{but}."
    )
