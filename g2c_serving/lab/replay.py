"""The picture of bounded replay: what a rebuilt window state gets wrong, over its length and depth.

On the left the error of all that follows, over the number of replayed tokens; on the right where
it sits, in the rebuilt state itself, layer by layer. Brief, section 2. The measuring is done in
replay_errors.py, once, when the panel is made; a move only looks a length up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import GREY, line, source_note, unmarked
from g2c_serving.lab.replay_errors import ReplayErrors, measured, receptive_field
from g2c_serving.lab.table import Table

FLOOR = 1e-12  # of the logarithmic axes: below it there is only the rounding of float64
ROUNDING = 1e-10  # a replay whose largest logit error is below this is exact
CURVES = ("largest logit error", "KL (nats)", "this layer (relative)")


def replay_panel(errors: ReplayErrors | None = None) -> Panel:
    """Sliders for the replay length and the depth; `errors` are those of the shipped model, in
    float64, unless others are given (some seconds of measuring at the first call)."""
    errors = measured() if errors is None else errors
    lengths, layers = errors.lengths, errors.config.window_layers
    step = lengths[1] - lengths[0]
    controls = {
        "length": slider("Tokens replayed", lengths[0], lengths[-1], errors.config.window, step),
        "depth": slider("Window layer", 1, len(layers), len(layers)),
    }
    return Panel(
        lambda figure: _draw(figure, errors),
        lambda art, length, depth: _update(art, errors, length, depth),
        controls,
    )


def replay_table(errors: ReplayErrors | None = None, lengths: Sequence[int] | None = None) -> Table:
    """One line a replay length: nothing, the window, the receptive field and between them."""
    errors = measured() if errors is None else errors
    window, reach = errors.config.window, errors.reach
    if lengths is None:
        marks = {0, window // 2, window, reach // 2, reach - 4, reach, max(errors.lengths)}
        lengths = sorted(marks & set(errors.lengths))
    head = ("replayed", "largest logit error", "mean logit error", "KL, nats", "flipped choices",
            "last window layer off by")  # fmt: skip
    return Table(head, [_row(errors, errors.lengths.index(length)) for length in lengths])


def _row(errors: ReplayErrors, i: int) -> tuple[str, ...]:
    return (
        f"{errors.lengths[i]} tokens",
        _decimals(errors.largest[i]),
        _decimals(errors.mean[i]),
        _decimals(max(errors.kl[i], 0)),
        f"{errors.flipped[i]:.1%}",
        _percent(errors.state[i, -1].mean()),
    )


def _draw(figure: Figure, errors: ReplayErrors) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    lengths, window = errors.lengths, errors.config.window
    left.set(yscale="log", xlim=(lengths[0], lengths[-1]), ylim=(FLOOR / 3, 100))
    left.set_yticks([FLOOR, 1e-9, 1e-6, 1e-3, 1])
    left.set_yticklabels(["rounding", *(f"$10^{{{e}}}$" for e in (-9, -6, -3)), "1"])
    left.set(xlabel="tokens replayed", title="What follows the hit")
    for place, name in ((window, f"W = {window}"), (errors.reach, f"k (W - 1) = {errors.reach}")):
        left.axvline(place, color=GREY, linewidth=1, linestyle="-")
        left.text(place + 1, 3e-5, name, fontsize=9, rotation=90, va="top")
    for k, values in enumerate((errors.largest, errors.kl)):
        left.plot(lengths, _shown(values), **unmarked(k))
    now = [left.plot([], [], **line(k), label=name, clip_on=False)[0] for k, name in enumerate(
        CURVES)]  # fmt: skip
    (of_layer,) = left.plot([], [], **unmarked(2))
    left.set_ylabel("error")
    right.set(xlim=(1 - window, -1), xlabel="position, from the end of the hit")
    right.set_xticks(range(5 - window // 5 * 5, 0, 5))  # the first one clear of the left picture
    right.set(title="The rebuilt state", ylabel="relative error")
    others = [right.plot([], [], color=GREY, linewidth=1, linestyle="-")[0] for _ in range(
        len(errors.config.window_layers))]  # fmt: skip
    (chosen,) = right.plot([], [], **unmarked(2))
    others[0].set_label("other window layers")
    handles = [*now, others[0]]  # outside: the curves of some layer run everywhere
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, columnspacing=1)
    source_note(left, "Measured here", f"{errors.positions} predictions")
    return {"now": now, "of_layer": of_layer, "others": others, "chosen": chosen}


def _update(art: dict[str, Any], errors: ReplayErrors, length: int, depth: int) -> str:
    i, layer = errors.lengths.index(length), _shown(errors.state[:, depth - 1].mean(-1))  # (R,)
    curves = (_shown(errors.largest), _shown(errors.kl), layer)
    for marker, values in zip(art["now"], curves, strict=True):
        marker.set_data([length], [values[i]])
    art["of_layer"].set_data(errors.lengths, layer)
    positions = np.arange(1 - errors.config.window, 0)
    state = _shown(errors.state[i])  # (K, W-1)
    for artist, values in zip(art["others"], state, strict=True):
        artist.set_data(positions, values)
    art["chosen"].set_data(positions, state[depth - 1])
    return f"{_outputs(errors, i)} {_state(errors, i, depth)}"


def _shown(values: np.ndarray) -> np.ndarray:
    """What is below the axis lies on its lowest line, "rounding"."""
    return np.maximum(values, FLOOR)


def _outputs(errors: ReplayErrors, i: int) -> str:
    length, largest = errors.lengths[i], errors.largest[i]
    replayed = "Nothing replayed" if length == 0 else f"The last {length} tokens replayed"
    if length == errors.config.window:
        replayed += ", as the hit rule has it"
    if largest < ROUNDING:
        left = "bit for bit" if largest == 0 else f"but for rounding ({largest:.0e} in a logit)"
        return (
            f"{replayed}: exact, {left}. They hold the receptive field of all "
            f"{len(errors.config.window_layers)} window layers, {errors.reach} tokens."
        )
    return (
        f"{replayed}: no exact memo. The following {errors.positions:,} predictions have logits "
        f"off by {_decimals(errors.mean[i])} on average and {_decimals(largest)} at most, "
        f"KL {_decimals(errors.kl[i])} nats, {errors.flipped[i]:.1%} of the choices flipped."
    )


def _state(errors: ReplayErrors, i: int, depth: int) -> str:
    layer, mean = errors.config.window_layers[depth - 1], errors.state[i, depth - 1].mean()
    reach = receptive_field(errors.config, depth)
    ordinal = f"Window layer {depth} (layer {layer + 1} of the model's {errors.config.num_layers})"
    if errors.state[i, depth - 1].max() < ROUNDING:
        return f"{ordinal} is rebuilt exactly: it needs {reach} tokens."
    return f"{ordinal} is off by {_percent(mean)} on average; it is exact from {reach} tokens on."


def _decimals(number: float) -> str:
    return f"{number:.2g}" if number >= 1e-3 or number == 0 else f"{number:.0e}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 5e-4 or share < ROUNDING else "under 0.1%"
