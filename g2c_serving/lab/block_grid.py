"""Memory as a grid of blocks, while a real batch runs: it fills, shares, copies, frees and keeps.

Brief, section 2. A slider over the steps of one run (block_record.py): every block with the letters
of those who use it, how far it is filled, what was copied in this step, what is kept for later; and
the block tables beside them. Everything on it is read from the engine.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.block_record import BLOCK, POOL, Moment, record
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, GREY, Blocks, fill

COLUMNS = 10
ONE, TAIL, SHARED, KEPT, FREE = "used by one", "half filled", "shared", "kept for later", "free"
LOOKS: dict[str, dict] = {
    ONE: {**fill(0), "facecolor": "#BBDDF2", "edgecolor": BLACK},
    TAIL: {"facecolor": "#F2F2F2", "edgecolor": BLACK, "hatch": ""},
    SHARED: {"facecolor": "#FFD9B8", "edgecolor": "#A04000", "hatch": "///"},
    KEPT: {"facecolor": "#CDEBDD", "edgecolor": "#00603F", "hatch": ".."},
    FREE: {"facecolor": "white", "edgecolor": GREY, "hatch": ""},
}
SIDE = 10.6  # where the tables stand, in columns of the grid
TABLES = 7  # the most sequences that the script has at a time


def panel(lm: LanguageModel) -> Panel:
    """A slider over the steps of one real run."""
    moments = record(roomy(lm))
    controls = {"step": slider("Step", 1, len(moments), 16)}
    return Panel(_draw, lambda art, step: _update(art, moments[step - 1], step), controls)


def _draw(figure: Figure) -> dict[str, Any]:
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.005, 0, 0.99, 1))
    axes.set(xlim=(0, 16.8), ylim=(4.8, -0.55))
    axes.set_axis_off()
    art: dict[str, Any] = {kind: Blocks(axes, 0, kind, **look) for kind, look in LOOKS.items()}
    art["part"] = Blocks(axes, 0, **{**LOOKS[ONE], "linewidth": 0.6})
    art["copied"] = Blocks(axes, 0, "copied in this step", facecolor="none", edgecolor="#B0006B",
                           hatch="", linewidth=2.6)  # fmt: skip
    art["users"] = [_text(axes, x, y + 0.1, 9.5, "center") for x, y in map(_cell, range(POOL))]
    for text in art["users"]:
        text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1})
    art["behind numbers"] = Blocks(axes, 0, facecolor="white", hatch="", linewidth=0, zorder=2.4)
    corners = [_cell(block) for block in range(POOL)]
    wide = [0.2 if block < 10 else 0.32 for block in range(POOL)]
    art["behind numbers"].set_boxes(
        [x - 0.45 for x, _ in corners], [y - 0.44 for _, y in corners], wide, 0.2
    )
    art["numbers"] = _numbers(axes)
    axes.text(SIDE, -0.3, "block tables", fontsize=10, va="center")
    art["tables"] = [_text(axes, SIDE, 0.22 + 0.44 * i, 9, "left") for i in range(TABLES)]
    for text in art["tables"]:
        text.set_family("monospace")
    art["state"] = _text(axes, SIDE, 0.35 + 0.44 * TABLES, 9.5, "left")
    art["event"] = _text(axes, 0.05, -0.3, 10, "left")
    handles = [art[kind] for kind in (ONE, TAIL, SHARED, "copied", KEPT, FREE)]
    axes.legend(handles=handles, loc="lower center", ncols=6, fontsize=9, columnspacing=1.2,
                handlelength=1.5, bbox_to_anchor=(0.5, 0))  # fmt: skip
    return art


def _text(axes: Axes, x: float, y: float, size: float, align: str) -> Any:
    return axes.text(x, y, "", fontsize=size, ha=align, va="center")


def _numbers(axes: Axes) -> PathPatch:
    """The number of every block in a corner of its cell, all as one artist."""
    paths = []
    for block in range(POOL):
        glyphs, (x, y) = TextPath((0, 0), str(block), size=1), _cell(block)
        points = glyphs.vertices * (0.2, -0.2) + (x - 0.43, y - 0.27)
        paths.append(Path(points, glyphs.codes))
    patch = PathPatch(Path.make_compound_path(*paths), facecolor="#333333", linewidth=0)
    axes.add_patch(patch)
    patch.set_zorder(2.5)
    return patch


def _cell(block: int) -> tuple[float, float]:
    """The middle of a block's cell."""
    return block % COLUMNS + 0.5, block // COLUMNS + 0.5


def _update(art: dict[str, Any], now: Moment, step: int) -> str:
    users, filled = now.users, now.filled
    kinds: dict[str, list[int]] = {kind: [] for kind in LOOKS}
    for block in range(POOL):
        kind, who = _kind(block, now, users, filled), users.get(block, "")
        kinds[kind].append(block)
        who = "kept" if kind == KEPT else who
        art["users"][block].set_text(f"{who}\n\u00d7{len(who)}" if kind == SHARED else who)
    for kind, blocks in kinds.items():
        _boxes(art[kind], blocks)
    tails = [b for b, n in filled.items() if 0 < n < BLOCK and len(users[b]) == 1]
    _boxes(art["part"], tails, [filled[b] / BLOCK for b in tails])
    _boxes(art["copied"], now.copied)
    rows = [f"{letter}: {' '.join(map(str, table))}" for letter, table in now.tables.items()]
    for text, row in zip(art["tables"], rows + [""] * TABLES, strict=False):
        text.set_text(row if len(row) <= 33 else row[:30] + " ..")
    art["event"].set_text("; ".join(now.events))
    kept, free = len(kinds[KEPT]), len(kinds[FREE])
    art["state"].set_text(
        f"{now.num_waiting} waiting; blocks: {POOL - kept - free} in use, {kept} kept, {free} free"
    )
    return _sentence(now, step, kinds)


def _kind(block: int, now: Moment, users: dict[int, str], filled: dict[int, int]) -> str:
    if block in users:
        shared = len(users[block]) > 1
        return SHARED if shared else ONE if filled[block] == BLOCK else TAIL
    return KEPT if block in now.cached else FREE


def _boxes(blocks: Blocks, which: list[int], parts: list[float] | None = None) -> None:
    """A box for each block, or for the filled part of it."""
    columns, rows = [b % COLUMNS for b in which], [b // COLUMNS for b in which]
    widths = [0.92 * part for part in parts or [1.0] * len(which)]
    blocks.set_boxes([x + 0.04 for x in columns], [y + 0.05 for y in rows], widths, 0.9)


def _sentence(now: Moment, step: int, kinds: dict[str, list[int]]) -> str:
    counts = {kind: len(blocks) for kind, blocks in kinds.items()}
    in_tables = sum(len(table) for table in now.tables.values())
    in_use = counts[ONE] + counts[TAIL] + counts[SHARED]
    events = "".join(f" {event}." for event in now.events)
    return (
        f"Step {step}, requests: {len(now.tables)}. Blocks in their tables: {in_tables}, in "
        f"use: {in_use}, of which {counts[SHARED]} shared, {counts[TAIL]} half filled, "
        f"{len(now.copied)} copied in this step; {counts[KEPT]} kept for later, {counts[FREE]} "
        f"free.{events}"
    )
