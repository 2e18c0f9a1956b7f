"""The look of every picture, and a picture without controls that carries its own words.

Figures are made with matplotlib's object-oriented API and drawn with Agg. pyplot is never used: it
keeps every figure alive, and a notebook would show some of them twice. Colours come with a line
style, a marker or a hatch, so that no picture depends on colour alone.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import LogLocator
from PIL import Image

BLUE, ORANGE, GREEN, PINK, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
GREY = "#8C8C8C"  # for what is empty, past or not counted
COLOURS = (BLUE, ORANGE, GREEN, PINK, BLACK)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")

SIZE = (8.0, 3.2)  # inches; shown 100 pixels to the inch, so that controls and picture fit a screen
DPI = 160

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "figure.facecolor": "white",  # set, not inherited: pages may be dark
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.prop_cycle": cycler(color=COLOURS, linestyle=LINES),
    "lines.linewidth": 2,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.08,
}


def style() -> AbstractContextManager:
    """The style as a context: make axes and artists inside it. (Figures keep what they took.)"""
    return mpl.rc_context(STYLE)


def new_figure(size: tuple[float, float] = SIZE, dpi: int = DPI) -> Figure:
    """An empty figure in our style, with its Agg canvas. Size in inches."""
    with style():
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def line(k: int) -> dict:
    """Keywords for the k-th line of a plot: its colour, dashes and marker go together."""
    k %= len(COLOURS)
    return {"color": COLOURS[k], "linestyle": LINES[k], "marker": MARKERS[k], "markersize": 5}


def unmarked(k: int) -> dict:
    """Keywords for the k-th line where there are too many points for markers."""
    return {**line(k), "marker": ""}


def fill(k: int) -> dict:
    """Keywords for the k-th kind of bar or area: its colour and hatch go together."""
    k %= len(COLOURS)
    return {"facecolor": COLOURS[k], "hatch": HATCHES[k], "edgecolor": "white", "linewidth": 0.6}


class Blocks(PathPatch):
    """Many rectangles of one kind, drawn as one artist: bars, blocks of memory, rows of a timeline.

    A hatch costs 1.4 ms an artist, so a picture of 64 hatched bars has room for one artist, not 64.
    """

    def __init__(self, axes: Axes, k: int, label: str = "", **look: Any) -> None:
        super().__init__(Path(np.zeros((0, 2))), label=label, **{**fill(k), **look})
        axes.add_patch(self)

    def set_boxes(self, left: Any, bottom: Any, width: Any, height: Any) -> None:
        """Show these n rectangles, in data units; each argument an array (n,) or one number."""
        sides = np.broadcast_arrays(*np.atleast_1d(left, bottom, width, height))
        x, y, w, h = (np.asarray(side, float) for side in sides)  # (n,) each
        corners = [(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)]
        points = np.stack([np.stack(corner, -1) for corner in corners], 1)  # (n, 5, 2)
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        self.set_path(Path(points.reshape(-1, 2), np.tile(codes, len(x))))


def sheet(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Without ticks, grid and frame, from x[0] to x[1] and from y[0] to y[1]."""
    axes.set(xlim=x, ylim=y, xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def columns(rows: Sequence[Sequence[float]], count: int) -> np.ndarray:
    """Rows of `count` numbers, perhaps none, as columns (count, n): for `set_boxes`."""
    return np.array(rows, dtype=float).reshape(-1, count).T


def plain_ticks(axis: Axis) -> None:
    """1, 2, 5, 10 and so on, written out, on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("")


def source_note(axes: Axes, label: str, where: str = "") -> None:
    """Say in the picture's corner what kind of number it shows: Derived, Simulated, ..."""
    text = f"{label}: {where}" if where else label
    axes.annotate(
        text, (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=9, color="#555555"
    )


def encode(pixels: np.ndarray) -> bytes:
    """PNG bytes of an (H, W, 4) canvas. Fast rather than small: it is made at every key press."""
    buffer = io.BytesIO()
    image = Image.fromarray(np.asarray(pixels)).convert("RGB")
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def mime(png: bytes, sentence: str, width: int) -> tuple[dict, dict]:
    """The two dictionaries of a display: the picture with its words, for every front end."""
    data = {"image/png": base64.b64encode(png).decode(), "text/plain": sentence}
    return data, {"image/png": {"alt": sentence, "width": width}}


def image_tag(png: bytes, sentence: str, width: int) -> str:
    """The picture as HTML, at most `width` pixels wide, with the sentence as its alt text."""
    source = base64.b64encode(png).decode()
    return (
        f'<img alt="{html.escape(sentence, quote=True)}" src="data:image/png;base64,{source}"'
        f' style="width:100%;max-width:{width}px;height:auto">'
    )


def paragraph(sentence: str) -> str:
    """The sentence as HTML, as it stands above its picture."""
    return f'<p style="margin:0;line-height:1.4">{html.escape(sentence)}</p>'


class Picture:
    """A still picture: `png` (bytes), `text` (what it shows), `width` (pixels on the page).

    JupyterLab gives an image/png no alt text, whatever its metadata say; so there is HTML as well,
    which `render` takes out again before a page is committed.
    """

    def __init__(self, png: bytes, text: str, width: int) -> None:
        self.png, self.text, self.width = png, text, width

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        data, metadata = mime(self.png, self.text, self.width)
        page = paragraph(self.text) + image_tag(self.png, self.text, self.width)
        return {**data, "text/html": page}, metadata


def picture(figure: Figure, sentence: str) -> Picture:
    """The figure as a still picture, with the one sentence that says what it shows (its alt text).

    End a cell with it. Raises ValueError for an empty sentence: a reader who cannot see the
    picture has nothing else.
    """
    if not sentence.strip():
        raise ValueError("sentence is empty: say in one sentence what the picture shows")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Picture(
        encode(np.asarray(canvas.buffer_rgba())), sentence, round(figure.get_figwidth() * 100)
    )
