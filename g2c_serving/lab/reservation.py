"""A row reserved for every request, or blocks handed out as it grows: how many slots are used.

Brief, section 2. Pure counting of token slots, not bytes, and the small panel of notebook 00. The
blocks that the engine really hands out are the business of schedule/block_manager.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider, stops, toggle
from g2c_serving.lab.plots import GREY, Blocks, fill, source_note

RESERVED = 2048  # the reservation of the Brief's example, in token slots


@dataclass(frozen=True)
class Use:
    """Slots that a request of `tokens` tokens holds, in blocks and in one reserved row."""

    tokens: int
    blocks: int
    slots: int
    reserved: int = RESERVED

    @property
    def of_blocks(self) -> float:
        """Share of the slots in its blocks that hold a token, 0 to 1."""
        return self.tokens / self.slots

    @property
    def of_reserved(self) -> float:
        """Share of the reserved row that holds a token, 0 to 1."""
        return self.tokens / self.reserved


def use(tokens: int, block_size: int, reserved: int = RESERVED) -> Use:
    """Raises ValueError for fewer than one token, or more than the reserved row has slots."""
    if not 1 <= tokens <= reserved:
        raise ValueError(f"tokens {tokens} must be from 1 to the reserved {reserved}")
    blocks = -(-tokens // block_size)
    return Use(tokens, blocks, blocks * block_size, reserved)


def panel() -> Panel:
    """The panel of notebook 00: one request's slots, reserved and in blocks."""
    controls = {
        "tokens": slider("Tokens in the request", 1, RESERVED, 300),
        "block_size": stops("Tokens in a block", (16, 32, 64, 128, 256, 512), 128),
        "edges": toggle("Show the edges of the blocks", True),
    }
    return Panel(_draw, _update, controls, size=(8, 2.6))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xlim=(0, RESERVED), ylim=(-0.6, 1.6), xlabel="token slots", yticks=(0, 1))
    axes.set_yticklabels(["in blocks", "reserved row"])
    axes.set_xticks(range(0, RESERVED + 1, 256))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(False)
    empty = {"facecolor": "#EEEEEE", "hatch": "", "edgecolor": GREY}
    held = Blocks(axes, 0, "held, empty", **empty)
    used = Blocks(axes, 0, "holds a token", **{**fill(0), "linewidth": 0})
    edges = Blocks(axes, 0, facecolor="none", edgecolor="black", linewidth=0.8)
    axes.legend(handles=[used, held], ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    source_note(axes, "Derived", "counting slots")
    return {"held": held, "used": used, "edges": edges}


def _update(art: dict[str, Any], tokens: int, block_size: int, edges: bool) -> str:
    found = use(tokens, block_size)
    art["held"].set_boxes(0, [-0.3, 0.7], [found.slots, RESERVED], 0.6)
    art["used"].set_boxes(0, [-0.3, 0.7], tokens, 0.6)
    lefts = [k * block_size for k in range(found.blocks)]
    art["edges"].set_boxes(lefts, -0.3, block_size, 0.6)
    art["edges"].set_visible(edges)
    noun = "block" if found.blocks == 1 else "blocks"
    return (
        f"{tokens:,} tokens use {found.of_reserved:.0%} of a reserved row of {RESERVED:,} slots, "
        f"and {found.of_blocks:.0%} of the {found.slots:,} slots in {found.blocks} {noun} "
        f"of {block_size}{' (edges drawn)' if edges else ''}."
    )
