"""How many blocks a memory budget gives, and how many requests those hold.

Brief, section 2 (and the 7B example of Module 16). Arithmetic alone: bytes of keys and values a
token, tokens a block, blocks a budget. The model's weights come out of the same memory; the budget
here is what is left for the cache. All numbers are Derived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.lab import plots
from g2c_serving.lab.panel import Panel, choice, slider, stops
from g2c_serving.lab.plots import source_note, unmarked


@dataclass(frozen=True)
class Shape:
    """What decides the size of a cache: layers, width, bytes a number, positions at most."""

    layers: int
    width: int
    number_bytes: int
    positions: int

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.width * self.number_bytes

    @property
    def reserved_bytes(self) -> int:
        """A row of all positions, which a request holds whether it uses them or not."""
        return self.token_bytes * self.positions


SHAPES = {  # the shipped model, two models of the course, Module 16's example
    "tiny, float32": Shape(4, 256, 4, 512),
    "StoryLM-30M, float32": Shape(9, 512, 4, 256),
    "TinyLLM-100M, float32": Shape(12, 768, 4, 512),
    "7B of Module 16, float16": Shape(32, 4096, 2, 2048),
}
BLOCK_SIZES = (8, 16, 32, 64, 128)
BUDGETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # GB


def num_blocks(shape: Shape, budget_gb: float, block_size: int) -> int:
    """Blocks that fit into `budget_gb` (10^9 bytes each)."""
    return int(round(budget_gb * 1e9)) // (shape.token_bytes * block_size)


def requests_in_blocks(blocks: int, block_size: int, tokens: int) -> int:
    """Requests of `tokens` tokens that `blocks` blocks hold."""
    return blocks // -(-tokens // block_size)


def requests_reserved(shape: Shape, budget_gb: float) -> int:
    """Requests that fit when each reserves a row of all positions."""
    return int(round(budget_gb * 1e9)) // shape.reserved_bytes


def panel() -> Panel:
    """Requests that fit over their length, in blocks and in reserved rows."""
    controls = {
        "model": choice("Model", tuple(SHAPES), tuple(SHAPES)[-1]),
        "budget": stops("Memory for the cache (GB)", BUDGETS, 8.0),
        "block_size": stops("Tokens in a block", BLOCK_SIZES, 16),
        "tokens": slider("Tokens in a request", 1, 2048, 300),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=(1, 2600), ylim=(0.7, 3e6))
    axes.set(xlabel="tokens in a request", ylabel="requests that fit")
    axes.set_xticks((1, 10, 100, 512, 2048), ["1", "10", "100", "512", "2,048"])
    axes.set_yticks([10**k for k in range(7)], [f"{10**k:,}" for k in range(7)])
    axes.minorticks_off()
    (blocks,) = axes.step([], [], where="post", label="in blocks", **unmarked(0))
    (rows,) = axes.plot([], [], label="in reserved rows", **unmarked(1))
    ring: dict[str, Any] = {
        "marker": "o",
        "markersize": 12,
        "fillstyle": "none",
        "color": plots.BLACK,
    }
    (here,) = axes.plot([], [], **ring)
    axes.legend(loc="upper right")
    source_note(axes, "Derived", "bytes a token, tokens a block")
    return {"blocks": blocks, "rows": rows, "here": here}


def _update(art: dict[str, Any], model: str, budget: float, block_size: int, tokens: int) -> str:
    shape = SHAPES[model]
    tokens = min(tokens, shape.positions)
    blocks, reserved = num_blocks(shape, budget, block_size), requests_reserved(shape, budget)
    lengths = [*range(1, shape.positions, block_size), shape.positions]
    fit = [requests_in_blocks(blocks, block_size, n) for n in lengths]
    art["blocks"].set_data(lengths, fit)
    art["rows"].set_data([1, shape.positions], [reserved] * 2)
    found = requests_in_blocks(blocks, block_size, tokens)
    art["here"].set_data([tokens], [found])
    limit = " (the limit)" if tokens == shape.positions else ""
    return (
        f"{model}: {shape.token_bytes:,} bytes a token, so {budget:g} GB are {blocks:,} blocks of "
        f"{block_size} tokens. Requests of {tokens:,} tokens{limit} that fit: {found:,} in blocks, "
        f"{reserved:,} with {shape.positions:,} slots reserved for each."
    )
