"""Reserved rows against blocks over a mix of requests: which slots are held and stay empty.

Brief, section 2. One request's slots are counted in reservation.py; here are two hundred whose
lengths differ, as real ones do. Counts token slots, not bytes: what a slot weighs depends on the
model (memory.py). Simulated, with lengths from a log-normal distribution cut at the context limit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab import reservation
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import GREY, Blocks, fill, source_note
from g2c_serving.lab.table import Table

REQUESTS, SPREAD = 200, 0.9  # how many, and the log-normal's sigma
MEDIANS = (50, 100, 200, 300, 500, 1000, 2000)  # tokens
RESERVED = (512, 1024, 2048, 4096, 8192)  # slots of a reserved row: max_seq_len
BLOCKS = (1, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Mix:
    """Requests of `tokens` (n,) tokens: the slots that they hold in blocks, and reserved."""

    tokens: np.ndarray  # (n,), ascending
    block_size: int
    reserved: int

    @property
    def slots(self) -> np.ndarray:
        """Slots held in blocks, request by request (n,)."""
        return -(-self.tokens // self.block_size) * self.block_size

    @property
    def waste_in_blocks(self) -> float:
        """Slots that a request holds and does not use, on average."""
        return float(np.mean(self.slots - self.tokens))

    @property
    def waste_reserved(self) -> float:
        return float(np.mean(self.reserved - self.tokens))

    @property
    def used_of_blocks(self) -> float:
        """Share of the held slots that hold a token, 0 to 1."""
        return float(self.tokens.sum() / self.slots.sum())

    @property
    def used_of_reserved(self) -> float:
        return float(self.tokens.mean() / self.reserved)


def lengths(median: float, longest: int) -> np.ndarray:
    """Token counts (REQUESTS,), ascending, log-normal around `median`, cut to 1 .. longest."""
    normal = np.random.default_rng(0).standard_normal(REQUESTS)
    return np.sort(np.clip(np.exp(np.log(median) + SPREAD * normal).round(), 1, longest)).astype(
        int
    )


def example() -> Table:
    """The Brief's example: one request of 300 tokens, reserved and in blocks (Derived)."""
    tokens, block_size, reserved = 300, 128, 2048
    found = reservation.use(tokens, block_size, reserved)
    held_in = f"{found.blocks} blocks of {block_size}"
    return Table(
        (f"{tokens} tokens, Derived", "slots held", "slots empty", "used"),
        [
            (
                "a reserved row",
                f"{reserved:,}",
                f"{reserved - tokens:,}",
                f"{found.of_reserved:.0%}",
            ),
            (held_in, f"{found.slots:,}", f"{found.slots - tokens:,}", f"{found.of_blocks:.0%}"),
        ],
    )


def panel() -> Panel:
    """Every request a column, shortest first: its tokens, and what it holds."""
    controls = {
        "median": stops("Typical length (tokens)", MEDIANS, 300),
        "reserved": stops("max_seq_len (slots reserved)", RESERVED, 2048),
        "block_size": stops("Tokens in a block", BLOCKS, 128),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, sharey=True)
    art: dict[str, Any] = {"axes": left}
    empty = {"facecolor": "#EEEEEE", "edgecolor": GREY, "hatch": "////", "linewidth": 0}
    for axes, name in ((left, "reserved"), (right, "blocks")):
        art[f"{name} held"] = Blocks(axes, 0, "held, empty", **empty)
        art[f"{name} used"] = Blocks(axes, 0, "holds a token", **{**fill(0), "linewidth": 0})
        _set_axes(axes)
    left.set(title="reserved rows", ylabel="token slots")
    right.set(title="in blocks")
    handles = [art["blocks used"], art["blocks held"]]  # outside: columns may fill both pictures
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    source_note(right, "Simulated", "log-normal lengths")
    return art


def _set_axes(axes: Axes) -> None:
    axes.set(xlim=(0, REQUESTS), ylim=(0, 2048), xlabel="200 requests, shortest first", xticks=[])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(False)


def _update(art: dict[str, Any], median: int, reserved: int, block_size: int) -> str:
    mix = Mix(lengths(median, reserved), block_size, reserved)
    column = np.arange(REQUESTS)
    for name, held in (("reserved", np.full(REQUESTS, reserved)), ("blocks", mix.slots)):
        art[f"{name} held"].set_boxes(column, 0, 1, held)
        art[f"{name} used"].set_boxes(column, 0, 1, mix.tokens)
    if art["axes"].get_ylim()[1] != reserved * 1.02:
        art["axes"].set_ylim(0, reserved * 1.02)
    cut = int((lengths(median, sys.maxsize) > reserved).sum())
    return (
        f"200 requests of {mix.tokens[0]:,} to {mix.tokens[-1]:,} tokens (median "
        f"{np.median(mix.tokens):,.0f}, {cut or 'none'} cut off at max_seq_len). "
        f"Rows of {reserved:,} slots are {mix.used_of_reserved:.0%} used and waste "
        f"{mix.waste_reserved:,.0f} slots a request; blocks of {block_size} are "
        f"{mix.used_of_blocks:.0%} used and waste {mix.waste_in_blocks:,.0f}, "
        f"{'always 0' if block_size == 1 else f'never more than {block_size - 1}'}."
    )
