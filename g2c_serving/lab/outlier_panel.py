"""One number too large: what it does to its neighbours in four bits, by slider.

Brief, "The parts that are pure infrastructure" (low-precision formats). 32 numbers share one scale
in MXFP4 and two in NVFP4-like; one of them is made larger, and the steps of its block grow with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.forward.low_precision import FORMATS, NVFP4, encode, rounded
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import BLACK, GREY, Blocks, source_note

COUNT, PLACE = 32, 21  # numbers, and which of them is the outlier
LIMIT = 3.2  # of the picture
SIZES = (1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 200)  # times its first size


def numbers(size: float) -> torch.Tensor:
    """The 32 numbers, the outlier `size` times as large as at first, when it is like the others."""
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(4))
    values[PLACE] = 1.5 * size
    return values


def panel() -> Panel:
    """A slider for the outlier's size, and the format."""
    controls = {
        "size": stops("The outlier, times its size", SIZES, 1),
        "format": choice("Format", tuple(FORMATS), NVFP4.name),
    }
    return Panel(_draw, _update, controls, size=(8, 2.9))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xlim=(-0.7, COUNT - 0.3), ylim=(-LIMIT, LIMIT), xlabel="32 numbers in a row")
    axes.grid(visible=False)
    bars = {
        "others": Blocks(axes, 0, "comes back", edgecolor=BLACK),
        "outlier": Blocks(axes, 1, "the outlier", edgecolor=BLACK),
    }
    (marks,) = axes.plot([], [], "_", color=BLACK, markersize=12, markeredgewidth=2, label="exact")
    steps = [axes.plot([], [], color=GREY, linestyle="-", linewidth=0.7)[0] for _ in range(2)]
    (edge,) = axes.plot([], [], color=BLACK, linestyle="--", linewidth=1.2)
    note = axes.text(PLACE + 0.7, LIMIT * 0.86, "", fontsize=10)
    handles = [bars["others"], bars["outlier"], marks]
    axes.legend(handles=handles, loc="lower left", ncols=3, fontsize=9, bbox_to_anchor=(0, 0.98))
    source_note(axes, "Derived; grey: what each block can say")
    return {"steps": steps, "edge": edge, "bars": bars, "marks": marks, "note": note}


def _update(art: dict[str, Any], size: float, format: str) -> str:
    chosen, values = FORMATS[format], numbers(size)
    back = rounded(values, chosen)
    x = np.arange(COUNT)
    other = x != PLACE
    art["bars"]["others"].set_boxes(x[other] - 0.36, 0, 0.72, back.numpy()[other])
    art["bars"]["outlier"].set_boxes(PLACE - 0.36, 0, 0.72, min(back[PLACE].item(), 2 * LIMIT))
    art["marks"].set_data(x, values.numpy())
    art["note"].set_text(f"up to {values[PLACE]:g}" if values[PLACE] > LIMIT else "")
    scales = chosen.scale_values(encode(values, chosen).scales)
    ends = np.arange(0, COUNT + 1, chosen.block) - 0.5
    for k, steps in enumerate(art["steps"]):
        steps.set_data(*_levels(ends[k : k + 2], scales[k].item() if k < len(scales) else None))
    inner = ends[1:-1].repeat(2)
    art["edge"].set_data(inner, [-LIMIT, LIMIT][: len(inner)])
    return _say(chosen.name, values, back, scales, x // chosen.block == PLACE // chosen.block)


def _levels(ends: np.ndarray, scale: float | None) -> tuple[list[float], list[float]]:
    """Lines across a block at all that it can say within the picture, as one broken line."""
    if scale is None:
        return [], []
    elements = np.array([0.5, 1, 1.5, 2, 3, 4, 6]) * scale
    levels = [v for e in elements if e < LIMIT for v in (e, -e)]
    left, right = ends
    return [left, right, np.nan] * len(levels), [y for v in levels for y in (v, v, np.nan)]


def _say(
    name: str, values: torch.Tensor, back: torch.Tensor, scales: torch.Tensor, block: np.ndarray
) -> str:
    near = torch.from_numpy(block & (np.arange(COUNT) != PLACE))
    far = torch.from_numpy(~block)

    def error(which: torch.Tensor) -> str:
        return f"{((back - values)[which].norm() / values[which].norm()).item():.0%}"

    own = scales[PLACE * len(scales) // COUNT].item()
    zeros = int((back[near] == 0).sum())
    rest = f", those of the other block {error(far)}" if far.any() else "; there is no other block"
    return (
        f"{name}: the outlier is {values[PLACE]:g} and its block's scale {own:.4g}, so the "
        f"smallest step there is {own / 2:.3g}. Its {int(near.sum())} neighbours are off by "
        f"{error(near)} of their size and {zeros} of them {'is' if zeros == 1 else 'are'} 0{rest}."
    )
