"""A panel: controls, one sentence with the numbers, one picture that follows the controls.

The figure is made once. A move of a control sets new data in its artists and draws only those
(blitting); when something else changed too (limits, ticks, new artists) all of it is drawn. The
picture goes out as PNG inside an HTML widget, so it has alt text and needs only the core widgets
that every front end ships. The sentence is the status line, the alt text and the text of the cell
where no kernel runs; tests read it too.

    def draw(figure):                      # once: axes, and the artists that will move
        axes = figure.subplots()
        (curve,) = axes.plot([], [])
        return {"curve": curve}

    def update(artists, rows):             # at every move; returns the sentence
        artists["curve"].set_data(...)
        return f"With {rows} rows a step takes 12 ms."

    panel = Panel(draw, update, {"rows": slider("Rows in the step", 1, 64, 8)})
    display(panel)                         # not a bare `panel`: Out[...] would keep it alive
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import ipywidgets as w
from IPython import get_ipython
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from g2c_serving.lab.controls import Control, choice, entry, slider, stops, text, toggle
from g2c_serving.lab.plots import DPI, SIZE, encode, image_tag, mime, new_figure, style

__all__ = ["Control", "Frame", "Panel", "choice", "entry", "slider", "stops", "text", "toggle"]

# an error, in the page's own text colour: a dark theme has another one
ALERT = "border-left:4px solid #D55E00;padding-left:8px;font-weight:bold"
WAITED_S = 0.2  # a press that comes so soon after a run was made while it ran
Artists = Any  # whatever `draw` returns: a dict, a list, an object; `update` gets it back
Update = Callable[..., "str | Iterator[str]"]


class Frame(str):
    """Progress to be read, with which the picture is drawn as well."""


class Panel(w.VBox):
    """Controls above a sentence above a picture.

    draw(figure) -> artists makes the axes once. Every artist found in what it returns (in a dict,
    list or tuple, at any depth; axes aside) is one that moves: it is drawn above the rest.
    update(artists, **values) -> sentence sets the data for one setting of the controls. A slow
    one may be a generator: what it yields is shown as progress, a `Frame` with the picture as it
    then stands (not in the first update), what it returns is the sentence.
    controls maps the names of update's arguments to controls (see controls.py).
    run: the text of a button; then only the button draws, for work above a second.

    The first update runs at once and its errors are raised. Later ones are shown in the place of
    the sentence; the last picture stays, and `error` holds the exception.
    """

    def __init__(
        self,
        draw: Callable[[Any], Artists],
        update: Update,
        controls: Mapping[str, Control],
        *,
        run: str | None = None,
        size: tuple[float, float] = SIZE,
        dpi: int = DPI,
    ) -> None:
        self.controls = dict(controls)
        self.text, self.png, self.draws = "", b"", 0
        self.error: Exception | None = None
        self._ended = -WAITED_S
        self._update, self._width = update, round(size[0] * 100)
        self.figure = new_figure(size, dpi)
        with style():
            self.artists = draw(self.figure)
        self._moving = sorted(find_artists(self.artists), key=Artist.get_zorder)
        self._canvas: Any = self.figure.canvas  # Agg's
        self._background: Any = None
        self.caption, self.picture = w.HTML(), w.HTML()
        self.button = w.Button(description=run, button_style="primary") if run else None
        super().__init__([self._control_row(), self.caption, self.picture])
        self._show(self._compute())
        self._watch()
        close_former(self)

    # ---- what tests and notebooks use ----

    def values(self) -> dict[str, Any]:
        """The controls' values, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def run(self, _change: object = None) -> None:
        """Compute and draw for the present values; the handler of every control and the button."""
        began = self.values()
        if self.button:
            self.button.disabled = True
        try:
            self._show(self._compute())
            self.error = None
        except Exception as error:
            self.error = error
            self._say(f"{type(error).__name__}: {error}", role="alert")
        except KeyboardInterrupt:
            if not self.button:
                raise
            self._say(f"Stopped. {self.button.description} begins anew.", role="alert")
        finally:
            self._ended = time.monotonic()
            if self.button:
                self.button.disabled = False
        if self.button and self.error is None and self.values() != began:
            self._ask(None)  # somebody has moved a control meanwhile

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        live = super()._repr_mimebundle_(**kwargs) or {}
        data, metadata = mime(self.png, self.text, self._width)
        return {**live, **data}, metadata

    # ---- layout ----

    def _control_row(self) -> w.Widget:
        views = [control.view for control in self.controls.values()]
        views += [self.button] if self.button else []
        return w.HBox(views, layout=w.Layout(flex_flow="row wrap", grid_gap="2px 24px"))

    def _watch(self) -> None:
        if self.button:
            self.button.on_click(self._pressed)
        for control in self.controls.values():
            control.widget.observe(self._ask if self.button else self.run, "value")

    def _pressed(self, _button: object) -> None:
        """Run; once for a double click, whose second half has waited for the end of the first."""
        if time.monotonic() - self._ended > WAITED_S:
            self.run()

    def _ask(self, _change: object) -> None:
        """With a button: say that sentence and picture belong to the former settings. Not while
        it computes: there the progress is shown."""
        if self.button and not self.button.disabled:
            self._say(f"{self.text} (The settings have changed: press {self.button.description}.)")

    # ---- one update ----

    def _compute(self) -> str:
        """Run the update with the artists' style; show the progress that it yields."""
        with style():
            result = self._update(self.artists, **self.values())
            if isinstance(result, GeneratorType):
                result = self._drain(result)
        if not isinstance(result, str) or not result.strip():
            raise TypeError(f"update must return a sentence (a non-empty str), not {result!r}")
        return result

    def _drain(self, steps: GeneratorType) -> str:
        while True:
            try:
                said = next(steps)
                if isinstance(said, Frame) and self.draws:
                    self._show_picture(encode(self._paint()), said)
                self._say(said)
            except StopIteration as end:
                return end.value

    def _show(self, sentence: str) -> None:
        pixels = self._paint()
        self.png, self.text = encode(pixels), sentence
        self.draws += 1
        self._show_picture(self.png, sentence)
        self._say(sentence)

    def _show_picture(self, png: bytes, sentence: str) -> None:
        self.picture.value = image_tag(png, sentence, self._width)

    def _say(self, text: str, role: str = "status") -> None:
        look = ALERT if role == "alert" else ""
        self.caption.value = (
            f'<p role="{role}" style="margin:0;line-height:1.4;{look}">{html.escape(text)}</p>'
        )

    # ---- drawing ----

    def _paint(self) -> Any:
        """Draw what moved, and the rest only when it changed; the canvas as (H, W, 4) bytes."""
        canvas = self._canvas
        if self._background is None:
            self._lay_out_once()
        if self._background is None or self.figure.stale:
            canvas.draw()  # animated artists are left out of it
            self._background = canvas.copy_from_bbox(self.figure.bbox)
        else:
            canvas.restore_region(self._background)
        for artist in self._moving:
            self.figure.draw_artist(artist)
        return canvas.buffer_rgba()

    def _lay_out_once(self) -> None:
        """Fix the axes' places with all artists in them, so that nothing jumps afterwards."""
        self._canvas.draw()
        self.figure.set_layout_engine("none")
        for artist in self._moving:
            artist.set_animated(True)


_by_cell: dict[str, tuple[str, list[Panel]]] = {}  # cell id: the run that made them, its panels


def close_former(panel: Panel) -> None:
    """Close the panels of this cell's former run: ipywidgets would keep each with its figure."""
    shell = get_ipython()
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = parent.get("metadata", {}).get("cellId")
    if not cell:
        return
    run = parent["header"]["msg_id"]
    former_run, panels = _by_cell.get(cell, (run, []))
    if former_run != run:
        for former in panels:
            close_all(former)
        panels = []
    _by_cell[cell] = (run, [*panels, panel])


def close_all(widget: w.Widget) -> None:
    for child in getattr(widget, "children", ()):
        close_all(child)
    widget.close()


def find_artists(found: Any) -> Iterable[Artist]:
    """The artists in a value of any depth, axes and figures aside."""
    if isinstance(found, Artist):
        if not isinstance(found, Axes | FigureBase):
            yield found
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from find_artists(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from find_artists(value)
