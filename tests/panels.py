"""What every panel must do: each control changes the sentence and the picture, without an error."""

from __future__ import annotations

from collections.abc import Callable

from g2c_serving.lab.panel import Panel


def each_control_moves(panel: Callable[[], Panel], *names: str) -> None:
    """Or each of `names`: to both of its ends and back; one drawing a move."""
    shown = panel()
    for name in names or shown.controls:
        control = shown.controls[name]
        before = control.value
        for end in control.ends if control.ends[0] != control.value else control.ends[::-1]:
            text, png, draws = shown.text, shown.png, shown.draws
            control.value = end
            assert shown.error is None and shown.draws == draws + 1, (name, shown.error)
            assert shown.text != text and shown.png != png, name
        control.value = before
