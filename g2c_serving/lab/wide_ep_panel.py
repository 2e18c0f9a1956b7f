"""A panel: what each GPU reads of the weights per step, by how many GPUs share the experts.

Brief, section 1 ("Wide-EP"); Simulated by cluster/wide_ep.py for a made-up model.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from g2c_serving.cluster.wide_ep import MADE_UP
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, line, plain_ticks, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.words import many

GPUS = (2, 4, 8, 16, 32, 64, 128)
BANDWIDTH = 8e12  # bytes a second that a GPU reads: a round number of ours


def panel() -> Panel:
    """GB that a GPU reads per step, over the GPUs that share the experts."""
    controls = {
        "gpus": stops("GPUs that share the experts", GPUS, 64),
        "tokens": stops("Tokens per GPU in a step", (1, 4, 16, 64, 256, 1024), 64),
        "copies": slider("Redundant experts per GPU and layer", 0, 8, 0),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    (read,) = axes.plot([], [], label="read by a GPU per step", zorder=3, **line(0))
    (held,) = axes.plot([], [], label="held by a GPU", **line(1))
    (here,) = axes.plot([], [], "o", color=BLACK, ms=11, fillstyle="none", mew=2, zorder=4)
    others = MADE_UP.other_bytes / 1e9
    floor = f"weights that every GPU holds whole: {others:g} GB"
    axes.axhline(others, color=BLACK, linestyle=":", linewidth=1.4, label=floor)
    low, high = (value(f"supernode.{end}") for end in ("low", "high"))
    label = "a decode supernode (Reported)"
    axes.axvspan(low, high, facecolor="#E8E8E8", label=label)
    axes.set(xscale="log", yscale="log", xlim=(1.8, 145), ylim=(4, 150), ylabel="GB")
    axes.set_xlabel("GPUs that share the experts")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.set_xticks(GPUS)
    axes.legend(loc="upper center", fontsize=10)
    source_note(axes, "Simulated", "a made-up model")
    return {"read": read, "held": held, "here": here}


def _update(art: dict[str, Any], gpus: int, tokens: int, copies: int) -> str:
    read = {g: MADE_UP.streamed(g, tokens, copies) / 1e9 for g in GPUS}
    art["read"].set_data(GPUS, list(read.values()))
    art["held"].set_data(GPUS, [MADE_UP.held(g, copies) / 1e9 for g in GPUS])
    art["here"].set_data([gpus], [read[gpus]])
    others = MADE_UP.other_bytes / 1e9
    ms = {g: 1e12 * gigabytes / BANDWIDTH for g, gigabytes in read.items()}
    other = GPUS[0] if gpus != GPUS[0] else GPUS[-1]
    each = f"{many(tokens, 'token')} per GPU and step"
    return (
        f"Simulated, a made-up model with {MADE_UP.routed_bytes / 1e9:.0f} GB of routed experts, "
        f"{each}, {copies} redundant experts a GPU and layer: on {gpus} GPUs each reads "
        f"{read[gpus]:.1f} GB a step, {read[gpus] - others:.1f} of them experts, {ms[gpus]:.1f} ms "
        f"at an assumed 8 TB/s; on {other} it would be {read[other]:.1f} GB, {ms[other]:.1f} ms."
    )
