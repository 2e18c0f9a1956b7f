"""A panel: the same weights summed in two orders, as floats and as whole numbers.

Brief, section 3: "integer addition is associative, so the sampled token can't depend on the order
in which threads add up probabilities". `sampling_pitfalls` does the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from g2c_serving.lab.panel import Panel, choice, slider, stops
from g2c_serving.lab.plots import BLUE, ORANGE, source_note
from g2c_serving.lab.sampling_pitfalls import (
    order_changes_token,
    probabilities,
    sum_in_blocks,
    whole_numbers,
)

KINDS = ("float32", "float64", "whole numbers")
BLOCKS = (8, 16, 32, 64, 128, 256)
VOCAB = 1024


def sums_apart(kind: str, seed: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights (V,) and, for each cumulative sum, by what share of the total the two orders
    differ: in a row, and in blocks."""
    weights = probabilities(VOCAB, seed)
    if kind == "float64":  # with digits that a float32 does not have
        weights = weights.astype(np.float64) ** 1.001
    if kind == "whole numbers":
        weights = whole_numbers(weights)
    a_row = weights.cumsum(dtype=weights.dtype)
    apart = a_row - sum_in_blocks(weights, block)
    return weights, apart.astype(float) / float(a_row[-1])


def panel() -> Panel:
    """Where the two orders part, over the vocabulary."""
    controls = {
        "kind": choice("Sums in", KINDS),
        "block": stops("Weights in a thread's block", BLOCKS, 32),
        "seed": slider("Distribution", 0, 19, 0),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    figure.set_layout_engine("constrained", rect=(0.03, 0, 0.97, 1))  # room for wider numbers
    axes = figure.subplots()
    (apart,) = axes.plot([], [], color=ORANGE, linewidth=1.4, label="in a row minus in blocks")
    (worst,) = axes.plot(
        [], [], color=BLUE, marker="o", linestyle="", markersize=7, label="where they differ most"
    )
    axes.set(
        xlim=(0, VOCAB), xlabel="token id", ylabel="difference of the two sums\n(share of all)"
    )
    axes.legend(loc="upper left", ncols=2, fontsize=9)
    source_note(axes, "Measured here", "invented weights")
    return {"axes": axes, "apart": apart, "worst": worst}


def _update(art: dict[str, Any], kind: str, block: int, seed: int) -> str:
    weights, apart = sums_apart(kind, seed, block)
    x = np.arange(VOCAB)
    art["apart"].set_data(x, apart)
    widest = float(np.abs(apart).max())
    limit = 1.5 * widest or 1  # the legend stands above the line
    art["axes"].set_ylim(-limit, limit)
    art["axes"].yaxis.set_major_locator(MaxNLocator(6) if widest else FixedLocator([0]))
    worst = [int(np.abs(apart).argmax())] if widest else []  # no dot on a flat line
    art["worst"].set_data(worst, apart[worst])
    if widest == 0:
        return (
            f"{kind}, blocks of {block}, distribution {seed} (the first token weighs "
            f"{weights[0]:,}): both orders give the same {VOCAB:,} sums, so every target gives "
            "the same token."
        )
    return (
        f"{kind}, blocks of {block}, distribution {seed}: the two orders differ in "
        f"{(apart != 0).sum():,} of {VOCAB:,} sums, by up to {widest:.1e} of the total."
        f"{_token(weights, block)}"
    )


def _token(weights: np.ndarray, block: int) -> str:
    part = order_changes_token(weights, block)
    if part is None:
        return ""
    return (
        f" At a target of {part.target:.9g} adding in a row draws token {part.in_a_row}, adding "
        f"block by block token {part.in_blocks}."
    )
