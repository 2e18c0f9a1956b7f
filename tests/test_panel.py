"""Panels: what a reader sees after a move, what the page keeps where no kernel runs."""

from __future__ import annotations

import base64
import gc
import html
import io
import re
import time
import weakref

import ipywidgets
import matplotlib.pyplot
import numpy as np
import pytest
from PIL import Image

from g2c_serving.lab import panel as panel_module
from g2c_serving.lab import plots
from g2c_serving.lab.panel import Panel, choice, slider, stops, toggle


def draw(figure):
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(0, 10), title="fixed")
    (curve,) = axes.plot([], [], **plots.line(0))
    return {"axes": axes, "curve": curve, "more": [plots.Blocks(axes, 1)]}


def update(art, height, wide=False):
    if height == 7:
        raise ValueError("seven <is> bad")
    art["curve"].set_data([0, 10 if wide else 5], [height, height])
    art["more"][0].set_boxes([1, 3], 0, 1, height)
    return f"The line is at {height}, {'wide' if wide else 'narrow'} & straight."


def make(**options):
    controls = {"height": slider("Height (m)", 0, 9, 3), "wide": toggle("Wide")}
    return Panel(draw, update, controls, **options)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


# ---- a move ----


def test_a_move_changes_picture_and_sentence_with_one_draw():
    panel = make()
    before, text = panel.png, panel.text
    panel.controls["height"].value = 8
    assert panel.draws == 2 and panel.png != before
    assert text == "The line is at 3, narrow & straight."
    assert panel.text == "The line is at 8, narrow & straight."


def test_the_number_box_and_the_slider_are_one_control():
    panel = make()
    box, bar = panel.controls["height"].view.children
    box.value = 5
    assert bar.value == 5 and panel.draws == 2 and "at 5" in panel.text
    bar.value = 6
    assert box.value == 6 and panel.draws == 3
    assert box.description == "Height (m)" and bar.description == ""


def test_drawing_only_what_moved_gives_the_picture_of_a_full_drawing():
    moved, fresh = make(), make()
    for height in (9, 1, 4):
        moved.controls["height"].value = height
    fresh.controls["height"].value = 4
    assert np.array_equal(pixels(moved.png), pixels(fresh.png))
    fresh.figure.stale = True  # draw everything again
    fresh.run()
    assert np.array_equal(pixels(moved.png), pixels(fresh.png))


def test_a_change_of_something_else_than_the_moving_artists_is_drawn_too():
    def retitle(art, height):
        art["axes"].set_title(f"height {height}")
        return f"Titled {height}."

    panel = Panel(draw, retitle, {"height": slider("Height", 0, 9, 3)})
    top = pixels(panel.png)[:60]
    panel.controls["height"].value = 8
    assert not np.array_equal(pixels(panel.png)[:60], top)


def test_axes_stay_in_place_while_numbers_grow():
    def relimit(art, height):
        art["axes"].set_ylim(0, 10**height)
        return f"Up to 1e{height}."

    panel = Panel(draw, relimit, {"height": slider("Height", 1, 9, 3)})
    place = panel.artists["axes"].get_position().bounds
    panel.controls["height"].value = 9
    assert panel.artists["axes"].get_position().bounds == place


# ---- errors ----


def test_an_error_takes_the_sentences_place_and_the_picture_stays():
    panel = make()
    before = panel.picture.value
    panel.controls["height"].value = 7
    assert 'role="alert"' in panel.caption.value
    assert "ValueError: seven &lt;is&gt; bad" in panel.caption.value
    assert panel.picture.value == before and isinstance(panel.error, ValueError)
    panel.controls["height"].value = 8
    assert panel.error is None and 'role="status"' in panel.caption.value


def test_the_first_update_raises_so_that_the_cell_fails_in_sight():
    with pytest.raises(ValueError, match="seven"):
        Panel(draw, update, {"height": slider("Height", 0, 9, 7)})


@pytest.mark.parametrize("nothing", [None, "", "  ", 3])
def test_an_update_without_a_sentence_is_refused(nothing):
    with pytest.raises(TypeError, match="sentence"):
        Panel(draw, lambda art, height: nothing, {"height": slider("Height", 0, 9, 3)})


# ---- the button ----


def test_with_a_button_only_the_button_draws():
    panel = make(run="Measure")
    panel.controls["height"].value = 8
    assert panel.draws == 1 and "at 3" in panel.text
    assert "settings have changed: press Measure" in panel.caption.value
    panel.run()
    assert "settings have changed" not in panel.caption.value
    assert panel.draws == 2 and "at 8" in panel.text and not panel.button.disabled


def test_an_interrupt_stops_a_measurement_and_the_button_takes_the_next_press():
    """Interrupt, in JupyterLab, while a button's work is done."""
    presses = []

    def update(artists, height):
        presses.append(height)
        if len(presses) == 2:
            raise KeyboardInterrupt
        return f"at {height}"

    height = slider("Height (m)", 0, 9, 3)
    panel = Panel(lambda figure: figure.subplots(), update, {"height": height}, run="Measure")
    panel.button.click()
    assert "Stopped. Measure begins anew." in panel.caption.value
    assert panel.draws == 1 and not panel.button.disabled
    panel.run()
    assert "Stopped" not in panel.caption.value and panel.draws == 2


def test_a_double_click_runs_once(monkeypatch):
    """Its second half is a message that waits until the first run is over; later presses count."""
    panel = make(run="Measure")
    panel.button.click()
    panel.button.click()
    assert panel.draws == 2
    monkeypatch.setattr("g2c_serving.lab.panel.WAITED_S", 0.0)
    time.sleep(0.01)
    panel.button.click()
    assert panel.draws == 3


def test_settings_that_change_while_it_computes_are_told_when_it_is_done():
    """The progress stays in its place; afterwards the picture is that of the former settings."""
    seen = []

    def slow(art, height):
        yield "Measuring ..."
        if panels:
            panels[0].controls["height"].value = 9
            seen.append(panels[0].caption.value)
        return f"Done at {height}."

    panels = []
    panels.append(Panel(draw, slow, {"height": slider("Height", 0, 9, 3)}, run="Run"))
    panels[0].run()
    assert "Measuring ..." in seen[0] and "settings have changed" not in seen[0]
    assert "Done at 3. (The settings have changed: press Run.)" in panels[0].caption.value
    panels[0].run()
    assert "Done at 9." in panels[0].caption.value
    assert "settings have changed" not in panels[0].caption.value


def test_progress_of_a_slow_update_stands_in_the_sentences_place():
    seen = []

    def slow(art, height):
        for step in (1, 2):
            yield f"{step} of 2 ..."
            seen.append(panels[0].caption.value if panels else "")
        return f"Done at {height}."

    panels = []
    panels.append(Panel(draw, slow, {"height": slider("Height", 0, 9, 3)}, run="Run"))
    panels[0].run()
    assert ["1 of 2" in seen[2], "2 of 2" in seen[3]] == [True, True]
    assert panels[0].text == "Done at 3."


# ---- what the page keeps ----


def test_the_picture_has_the_sentence_as_alt_text_and_so_has_the_saved_output():
    panel = make()
    alt = re.search(r'alt="([^"]*)"', panel.picture.value)[1]
    assert html.unescape(alt) == panel.text and "&amp;" in alt
    data, metadata = panel._repr_mimebundle_()
    assert data["text/plain"] == panel.text
    assert base64.b64decode(data["image/png"]) == panel.png
    assert metadata["image/png"] == {"alt": panel.text, "width": 800}
    assert "application/vnd.jupyter.widget-view+json" in data


def test_no_pyplot_figure_is_open():
    make()
    assert matplotlib.pyplot.get_fignums() == []


def test_the_background_is_white_whatever_the_readers_theme():
    with matplotlib.rc_context({"figure.facecolor": "black", "axes.facecolor": "black"}):
        panel = make()
    assert (pixels(panel.png)[2, 2] == 255).all()


def test_a_cell_that_runs_again_frees_its_former_panel(monkeypatch):
    class Shell:
        run = 0

        def get_parent(self):
            return {"header": {"msg_id": self.run}, "metadata": {"cellId": "abc"}}

    shell = Shell()
    monkeypatch.setattr(panel_module, "get_ipython", lambda: shell)
    first, beside = make(), make()  # two panels in one cell live together
    assert first.comm is not None and beside.comm is not None
    former = weakref.ref(first.figure)
    shell.run = 1
    second = make()
    assert first.comm is None and beside.comm is None and second.comm is not None
    del first, beside
    gc.collect()
    assert former() is None


def test_only_core_widgets_are_used():
    panel = make(run="Run")
    todo, modules = [panel], set()
    while todo:
        widget = todo.pop()
        modules.add(widget._model_module)
        todo += getattr(widget, "children", ())
    assert modules <= {"@jupyter-widgets/controls", "@jupyter-widgets/base"}


# ---- controls ----


def test_whole_numbers_stay_whole_and_fractions_are_floats():
    assert isinstance(slider("Rows", 1, 64, 8).widget, ipywidgets.IntSlider)
    assert slider("Budget (ms)", 0.5, 20, 5, step=0.5).value == 5.0
    assert slider("Rows", 1, 64, 8).ends == (1, 64)


@pytest.mark.parametrize(
    "low, high, step, sent, shown",
    [
        (0.05, 1.0, 0.05, 0.05 + 13 * 0.05, 0.7),
        (0.0, 2.0, 0.05, 0.15000000000000002, 0.15),
        (0.25, 2.25, 0.5, 0.75, 0.75),  # the decimals of the lower end count too
        (1e-6, 1e-3, 1e-6, 3e-6 + 1e-21, 3e-6),
        (0.0, 100.0, 0.5, 250, 100.0),
    ],
)
def test_a_slider_shows_no_more_decimals_than_its_step(low, high, step, sent, shown):
    """As a message of the browser sets it; its box shows the same number, and one draw is made."""
    control = slider("Share", low, high, low, step)
    box, bar = control.view.children
    seen = []
    control.widget.observe(lambda change: seen.append(change["new"]), "value")
    for widget in (bar, box):
        widget.value = low
        seen.clear()
        widget.set_state({"value": sent})
        assert seen == [shown] and bar.value == box.value == shown


def test_stops_and_choice_give_the_value_itself():
    control = stops("Requests", (1, 8, 1024), 8)
    assert control.ends == (1, 1024) and control.value == 8
    assert [label for label, _ in control.widget.options] == ["1", "8", "1,024"]
    control.value = 1024
    assert control.view.children[0].value == 1024
    assert choice("Model", ("tiny", "large")).value == "tiny"


@pytest.mark.parametrize(
    "make_it, words",
    [
        (lambda: slider("Rows", 5, 5, 5), "low 5 must be below high 5"),
        (lambda: slider("Rows", 1, 5, 6), "value 6 is outside 1 to 5"),
        (lambda: slider("Rows", 1, 5, 2, step=0), "step 0"),
        (lambda: stops("Rows", (1, 2), 3), "3 is not one of"),
        (lambda: choice("Model", ("tiny",)), "at least two"),
    ],
)
def test_impossible_controls_say_the_label_and_the_value(make_it, words):
    with pytest.raises(ValueError, match=words):
        make_it()


# ---- still pictures, and many rectangles ----


def test_a_still_picture_carries_its_sentence():
    figure = plots.new_figure(size=(4, 2))
    figure.subplots().plot([1, 2])
    still = plots.picture(figure, "It rises.")
    data, metadata = still._repr_mimebundle_()
    assert data["text/plain"] == repr(still) == "It rises."
    assert metadata["image/png"] == {"alt": "It rises.", "width": 400}
    assert '<img alt="It rises." src="data:image/png;base64,' in data["text/html"]
    assert pixels(still.png).shape == (2 * plots.DPI, 4 * plots.DPI, 3)
    with pytest.raises(ValueError, match="sentence"):
        plots.picture(figure, " ")


def test_blocks_cover_what_bars_cover():
    def image(fill):
        figure = plots.new_figure(size=(3, 2))
        axes = figure.subplots()
        axes.set(xlim=(0, 4), ylim=(0, 4))
        fill(axes)
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba()).astype(int)

    look = {"facecolor": "black", "edgecolor": "none", "hatch": "", "linewidth": 0}
    bars = image(lambda axes: axes.bar([0, 2], [1, 3], width=1, align="edge", **look))
    blocks = image(lambda axes: plots.Blocks(axes, 0, **look).set_boxes([0, 2], 0, 1, [1, 3]))
    assert np.abs(bars - blocks).max() <= 128 and np.abs(bars - blocks).mean() < 0.5


def test_kinds_differ_without_colour():
    fills = {plots.fill(k)["hatch"] for k in range(len(plots.COLOURS))}
    lines = {str(plots.line(k)["linestyle"]) for k in range(len(plots.COLOURS))}
    assert len(fills) == len(lines) == len(plots.COLOURS)
