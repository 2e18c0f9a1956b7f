"""The way of a cache from a prefill to a decode machine: what of it is hidden behind the prefill.

Brief, section 1 and "The parts that are pure infrastructure". Two lanes on a scale of the prefill's
own time: the layers as they are computed, and their caches on the link. Bytes a token are Reported
(V4.1-Flash) or Derived (Module 16's 7B); the rest is Simulated by `cluster/layer_transfer.py`: a
prefill machine that computes 20,000 tokens a second, and half as many at 200,000 tokens, since
attention grows with their square; 32 layers; a link without other traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster.layer_transfer import ship, shown_ms
from g2c_serving.lab import hit_calculator, memory
from g2c_serving.lab.panel import Panel, choice, stops, toggle
from g2c_serving.lab.plots import BLACK, ORANGE, Blocks, source_note

LAYERS, PREFILL_PER_S, TWICE = 32, 20_000, 200_000
CONTEXTS = (1_000, 10_000, 100_000, 1_000_000)  # tokens
LINKS = (0.1, 1, 5, 10, 25, 50, 100, 400)  # GB/s
FLASH, SEVEN = "V4.1-Flash, 890 bytes a token", "7B of Module 16, 524,288 bytes a token"
WIDEST = 2.0  # prefill times that are drawn


@dataclass(frozen=True)
class Way:
    """One prompt's cache on its way. ms."""

    num_bytes: float
    prefill_ms: float
    transfer_ms: float
    layer_by_layer: bool

    @property
    def shown_ms(self) -> float:
        """What the user waits for it."""
        if not self.layer_by_layer:
            return self.transfer_ms
        return float(shown_ms(LAYERS, self.prefill_ms, self.transfer_ms))


def num_bytes(model: str, tokens: int) -> float:
    """Of a context's cache; for V4.1-Flash with the state of its window layers."""
    if model == FLASH:
        return hit_calculator.global_bytes(tokens) + hit_calculator.WINDOW_BYTES
    return memory.SHAPES["7B of Module 16, float16"].token_bytes * tokens


def prefill_ms(tokens: int) -> float:
    return 1e3 * tokens / PREFILL_PER_S * (1 + tokens / TWICE)


def way(model: str, tokens: int, gb_per_s: float, layer_by_layer: bool = True) -> Way:
    size = num_bytes(model, tokens)
    return Way(size, prefill_ms(tokens), size / (gb_per_s * 1e6), layer_by_layer)


def ship_panel() -> Panel:
    """Controls: the model, the context, the link, and whether each layer leaves as it is done."""
    controls = {
        "model": choice("Cache of", (FLASH, SEVEN), SEVEN),
        "tokens": stops("Context (tokens)", CONTEXTS, 100_000),
        "gb_per_s": stops("Link (GB/s)", LINKS, 5),
        "layer_by_layer": toggle("Layer by layer", True),
    }
    return Panel(_draw, _update, controls, size=(8, 2.2))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.grid(False)
    axes.set(xlim=(0, WIDEST), ylim=(1.6, -0.6), yticks=(0, 1))
    axes.set_xlabel("time (1: the prompt is computed)")
    axes.set_yticklabels(("prefill", "link"))
    look = {"edgecolor": "white", "linewidth": 0.5}
    art = {
        "compute": Blocks(axes, 0, "layers computed", **look),
        "link": Blocks(axes, 2, "their caches", **{**look, "hatch": ""}),
        "shown": Blocks(axes, 1, "decoding waits", facecolor="none", edgecolor=ORANGE),
        "beyond": axes.text(WIDEST, 1, "", ha="right", va="center", fontsize=9, color=BLACK,
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}),
    }  # fmt: skip
    handles = [art[name] for name in ("compute", "link", "shown")]
    axes.legend(handles=handles, ncols=3, fontsize=9, handlelength=1.6, loc="lower left",
                bbox_to_anchor=(-0.01, 0.97), borderpad=0.2)  # fmt: skip
    source_note(axes, "Simulated")
    return art


def _update(
    art: dict[str, Any], model: str, tokens: int, gb_per_s: float, layer_by_layer: bool
) -> str:
    found = way(model, tokens, gb_per_s, layer_by_layer)
    ratio = round(found.transfer_ms / found.prefill_ms, 6)
    shipment = ship(LAYERS, 1, ratio, layer_by_layer)
    for lane, y in ((shipment.compute, 0), (shipment.link, 1)):
        ends = np.array([(float(s.start), float(s.end)) for s in lane.spans])
        art[lane.name].set_boxes(ends[:, 0], y - 0.3, np.maximum(ends[:, 1] - ends[:, 0], 0), 0.6)
    arrived = float(shipment.arrived)
    art["shown"].set_boxes(1, 0.62, arrived - 1, 0.76)
    art["beyond"].set_text(f"until {arrived:,.1f} \u2192" if arrived > WIDEST else "")
    return _said(found, model, tokens, gb_per_s)


def _said(found: Way, model: str, tokens: int, gb_per_s: float) -> str:
    how = "layer by layer" if found.layer_by_layer else "all at the end"
    hidden = 1 - found.shown_ms / found.transfer_ms
    return (
        f"Simulated, {model.split(',')[0]}: {tokens:,} tokens have {_size(found.num_bytes)} of "
        f"cache; to compute them takes {_time(found.prefill_ms)}, to ship them over "
        f"{gb_per_s:g} GB/s {_time(found.transfer_ms)}. Sent {how}, {_time(found.shown_ms)} of it "
        f"show between the first token and the second; {hidden:.0%} is hidden."
    )


def _size(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _time(ms: float) -> str:
    return f"{ms / 1e3:,.2f} s" if ms >= 1e3 else f"{ms:.2g} ms" if ms < 10 else f"{ms:.0f} ms"
