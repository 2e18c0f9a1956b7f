"""The controls of a panel: sliders with a number box, lists, switches, a box to type in.

Only ipywidgets' core widgets. A slider has no name that a screen reader could say, so each comes
with a box that has: the label belongs to the box, and typing there is the exact way. The arrow
keys move a focused slider in JupyterLab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import ipywidgets as w
from traitlets import Int, validate

WHOLE_LABEL = {"description_width": "initial"}


@dataclass
class Control:
    """One control. `widget` holds the value, `view` is what is shown, `ends` are its extremes."""

    label: str
    widget: w.Widget
    view: w.Widget
    ends: tuple[Any, Any]

    @property
    def value(self) -> Any:
        return self.widget.value

    @value.setter
    def value(self, value: Any) -> None:
        self.widget.value = value

    def set_high(self, high: int) -> None:
        """Give a slider another upper end, as `update` finds it; a value above it comes down."""
        self.ends = self.ends[0], high
        for widget in (self.widget, *getattr(self.view, "children", ())):
            if getattr(widget, "max", high) != high:
                widget.max = high


def slider(
    label: str, low: float, high: float, value: float, step: float = 1, *, live: bool = True
) -> Control:
    """A number between low and high. Put the unit in the label: "Step budget (ms)".

    All of low, high, value and step whole: whole numbers come out; else floats, rounded to as many
    decimals as these four have (a browser's 14 steps of 0.05 are 0.7000000000000001).
    live=False: it draws when the slider is let go (for 100 ms of work and more).
    Raises ValueError where value is outside the range or the step does not fit.
    """
    _check_range(label, low, high, value, step)
    whole = all(isinstance(number, int) for number in (low, high, value, step))
    bar_type, box_type = (w.IntSlider, w.BoundedIntText) if whole else _FLOATS
    range_ = {"min": low, "max": high, "step": step, "value": value}
    if not whole:
        range_["decimals"] = max(_decimals(number) for number in (low, high, value, step))
    bar = bar_type(**range_, readout=False, continuous_update=live, layout=w.Layout(width="260px"))
    box = box_type(**range_, description=label, style=WHOLE_LABEL, layout=_box_width(label))
    w.link((bar, "value"), (box, "value"))
    return Control(label, bar, _side_by_side(box, bar), (low, high))


def stops(label: str, values: Sequence[Any], value: Any, *, live: bool = True) -> Control:
    """A slider over a few given values, such as 1, 2, 4, ... 256, with a list beside it."""
    _check_choice(label, values, value)
    options = [(f"{v:,}" if isinstance(v, int) else str(v), v) for v in values]
    bar = w.SelectionSlider(
        options=options,
        value=value,
        readout=False,
        continuous_update=live,
        layout=w.Layout(width="260px"),
    )
    box = w.Dropdown(
        options=options, value=value, description=label, style=WHOLE_LABEL, layout=_box_width(label)
    )
    w.link((bar, "value"), (box, "value"))
    return Control(label, bar, _side_by_side(box, bar), (values[0], values[-1]))


def choice(label: str, values: Sequence[Any], value: Any = None) -> Control:
    """One of a few values, from a list. Without `value` the first is chosen."""
    value = values[0] if value is None else value
    _check_choice(label, values, value)
    options = [(str(v), v) for v in values]
    box = w.Dropdown(
        options=options,
        value=value,
        description=label,
        style=WHOLE_LABEL,
        layout=w.Layout(width="max-content", max_width="100%"),
    )
    return Control(label, box, box, (values[0], values[-1]))


def toggle(label: str, value: bool = False) -> Control:
    """A switch: True or False."""
    box = w.Checkbox(
        value=value, description=label, indent=False, layout=w.Layout(width="max-content")
    )
    return Control(label, box, box, (False, True))


def text(label: str, value: str, *, rows: int = 3) -> Control:
    """A box of a few lines to type in; it draws at every key."""
    return _typed(w.Textarea(rows=rows), label, value, "780px")


def entry(label: str, value: str) -> Control:
    """One line to type in, half a page wide."""
    return _typed(w.Text(), label, value, "380px")


def _typed(box: w.Text | w.Textarea, label: str, value: str, width: str) -> Control:
    box.set_trait("value", value)
    box.description, box.continuous_update, box.style = label, True, WHOLE_LABEL
    box.layout = w.Layout(width=width, max_width="100%")
    return Control(label, box, box, ("", value))


class _Rounded(w.Widget):
    """A number with so many decimals, whatever the browser's additions make of it."""

    decimals = Int(15)

    @validate("value")
    def _validate_value(self, proposal: Any) -> float:
        inside = min(max(proposal["value"], self.min), self.max)
        return round(inside, self.decimals)


class _RoundedSlider(_Rounded, w.FloatSlider):
    pass


class _RoundedBox(_Rounded, w.BoundedFloatText):
    pass


_FLOATS = (_RoundedSlider, _RoundedBox)


def _decimals(number: float) -> int:
    """How many decimals a number is written with: 2 for 0.05."""
    exponent = Decimal(str(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def _side_by_side(box: w.Widget, bar: w.Widget) -> w.HBox:
    """Without a scrollbar when the handle stands at the end of the bar and a little beyond; on a
    narrow page the bar goes below its box."""
    layout = w.Layout(overflow="visible", flex_flow="row wrap", max_width="100%")
    return w.HBox([box, bar], layout=layout)


def _box_width(label: str) -> w.Layout:
    """Room for the whole label and a number of seven digits."""
    return w.Layout(width=f"{len(label) * 7 + 100}px")


def _check_range(label: str, low: float, high: float, value: float, step: float) -> None:
    if not low < high:
        raise ValueError(f"slider {label!r}: low {low} must be below high {high}")
    if not low <= value <= high:
        raise ValueError(f"slider {label!r}: value {value} is outside {low} to {high}")
    if step <= 0 or step > high - low:
        raise ValueError(f"slider {label!r}: step {step} must be above 0 and within the range")


def _check_choice(label: str, values: Sequence[Any], value: Any) -> None:
    if len(values) < 2:
        raise ValueError(f"{label!r}: give at least two values to choose from")
    if value not in values:
        raise ValueError(f"{label!r}: value {value!r} is not one of {list(values)}")
