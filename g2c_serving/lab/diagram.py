"""The picture of one engine step, as in the Brief's opening: four phases, and the files of each."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from g2c_serving.lab.plots import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    Picture,
    new_figure,
    picture,
    style,
)

PHASES = (  # name, what it decides, the files that do it, colour
    ("schedule", "who runs, with how\nmany tokens, in\nwhich cache blocks",
     "scheduler\nblock_manager\ncost_model", BLUE),
    ("forward", "one batched pass\nover all of them",
     "model, attention\nkv_cache\nlinear", ORANGE),
    ("sample", "one token\nper request",
     "sampler\nrng", GREEN),
    ("process", "append the token,\nstop, stream",
     "request\ntokenizer", PINK),
)  # fmt: skip
SENTENCE = (
    "One engine step: waiting requests enter at the left; schedule picks who runs, with how many "
    "tokens and in which cache blocks; forward is one batched pass over all of them; sample draws "
    "one token per request; process appends it, checks stop conditions and streams. Finished "
    "requests leave at the right, the others go round again."
)


def engine_step() -> Picture:
    """The step as a still picture, 800 pixels wide."""
    return picture(engine_step_figure(), SENTENCE)


def engine_step_figure() -> Figure:
    figure = new_figure(size=(8, 2.9))
    figure.set_layout_engine("none")
    with style():
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 8), ylim=(0, 2.9))
        axes.set_axis_off()
        _box(axes, 1.06, 0.56, 5.88, 2.0, BLACK, "white", dashed=True)
        axes.text(4, 2.73, "one engine step", ha="center", va="center", fontsize=12)
        for place, phase in enumerate(PHASES):
            _phase(axes, 1.17 + place * 1.45, *phase)
        for place in range(3):
            _arrow(axes, (2.49 + place * 1.45, 1.6), (2.62 + place * 1.45, 1.6))
        _requests(axes)
        _round_again(axes)
    return figure


def _phase(axes: Axes, left: float, name: str, words: str, files: str, colour: str) -> None:
    _box(axes, left, 0.68, 1.31, 1.76, colour, "white")
    centre: dict[str, Any] = {"x": left + 0.655, "ha": "center", "va": "top"}
    axes.text(y=2.33, s=name, fontsize=13, weight="bold", color=colour, **centre)
    axes.text(y=1.99, s=words, fontsize=8.8, linespacing=1.45, **centre)
    axes.plot([left + 0.2, left + 1.11], [1.3, 1.3], color=colour, linewidth=0.8, linestyle="-")
    axes.text(y=1.22, s=files, fontsize=7.8, family="monospace", linespacing=1.4, **centre)


def _round_again(axes: Axes) -> None:
    """The way back to the next step, under the box."""
    axes.plot([6.5, 6.5, 1.5], [0.56, 0.24, 0.24], color=BLACK, linewidth=1.3, linestyle="-")
    _arrow(axes, (1.5, 0.24), (1.5, 0.56))
    axes.text(4, 0.24, "next step: all who are not finished, and who came in between",
              ha="center", va="center", fontsize=9.5, backgroundcolor="white")  # fmt: skip


def _requests(axes: Axes) -> None:
    """The waiting ones at the left, a finished one at the right."""
    for place in range(4):
        _box(axes, 0.14, 1.05 + place * 0.3, 0.56, 0.2, BLACK, "#EEEEEE", width=1.0)
    _box(axes, 7.3, 1.5, 0.56, 0.2, BLACK, "#EEEEEE", width=1.0)
    axes.text(0.42, 2.38, "waiting", ha="center", va="center", fontsize=10)
    axes.text(7.58, 1.88, "finished", ha="center", va="center", fontsize=10)
    _arrow(axes, (0.76, 1.6), (1.06, 1.6))
    _arrow(axes, (6.94, 1.6), (7.24, 1.6))


def _box(
    axes: Axes, x: float, y: float, w: float, h: float, edge: str, face: str,
    *, width: float = 1.6, dashed: bool = False,
) -> None:  # fmt: skip
    shape = FancyBboxPatch(
        (x, y), w, h, boxstyle="round,pad=0,rounding_size=0.06",
        edgecolor=edge, facecolor=face, linewidth=1.0 if dashed else width,
    )  # fmt: skip
    shape.set_linestyle("--" if dashed else "-")
    axes.add_patch(shape)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, color=BLACK, linewidth=1.3, **look))
