"""Whether the company changes a request's bits: the decode shape, and its two causes one by one.

Brief, section 3, "Batch invariance", and its snippet in "The laptop boundary", which compares
prompts of 64 tokens and may well find them equal. A server mostly decodes: one token a request.
There the products have as many rows as there are requests (cause one), and the attention pads the
contexts of a group to the longest of them (cause two). `batch_invariance.py` mends each by itself,
so each can be switched on alone here. Every number is Measured here: other machines have other
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.numerics import Numerics
from g2c_serving.lab.contestants import made_up_prompts
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.scoring import DecodeStep

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
FIXED: dict[str, tuple[bool, bool]] = {  # rows of the products, blocks of keys
    "nothing fixed": (False, False),
    "rows fixed": (True, False),
    "attention fixed": (False, True),
    "both fixed": (True, True),
}
CONTEXTS = {"all of 48 tokens": (48, 48), "from 16 to 80 tokens": (16, 80)}
EQUAL = 1e-8  # where the picture draws a difference of exactly zero


@dataclass(frozen=True)
class Found:
    """In a step of `batch` requests: how many have other bits than alone, and by how much."""

    batch: int
    differ: int
    gap: float


def measure(
    lm: LanguageModel, fixed: str, contexts: str, batches: Sequence[int] = BATCHES
) -> list[Found]:
    """Each request alone, then the first 1, 2, 3 ... of them together."""
    low, high = CONTEXTS[contexts]
    most = max(batches)
    lengths = [low + (high - low) * i // max(1, most - 1) for i in range(most)]
    spread = [lengths[i * 37 % most] for i in range(most)]  # so that small batches are mixed too
    rows, attention = FIXED[fixed]
    numerics = BatchInvariant(rows, attention) if rows or attention else Numerics()
    texts = [made_up_prompts(lm, i + 1, length)[i] for i, length in enumerate(spread)]
    step = DecodeStep(lm.model.with_numerics(numerics), texts)
    alone = torch.cat([step.logits([i]) for i in range(most)])  # (most, V)
    found = []
    for batch in batches:
        order = sorted(range(batch), key=spread.__getitem__)  # as in the engine
        apart = (step.logits(order) - alone[order]).abs().amax(-1)  # (batch,)
        found.append(Found(batch, int((apart > 0).sum()), apart.max().item()))
    return found


def measure_all(lm: LanguageModel) -> dict[tuple[str, str], list[Found]]:
    """All of it: by what is fixed and by the contexts."""
    return {(f, c): measure(lm, f, c) for f in FIXED for c in CONTEXTS}


def panel(measured: dict[tuple[str, str], list[Found]]) -> Panel:
    """The largest difference over the number of requests in the step."""
    controls = {
        "batch": stops("Requests in the step", BATCHES, 8),
        "contexts": choice("Contexts", tuple(CONTEXTS), "from 16 to 80 tokens"),
    }

    def update(art: dict[str, Any], batch: int, contexts: str) -> str:
        return _update(art, {f: measured[f, contexts] for f in FIXED}, batch, contexts)

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {}
    for k, name in enumerate(FIXED):
        (art[name],) = axes.loglog([], [], label=name, **line(k))
    (art["at"],) = axes.plot([8, 8], [EQUAL / 1.6, 5e-5], color=BLACK, linewidth=1, linestyle=":")
    axes.set(xlim=(0.9, 18), ylim=(EQUAL / 1.6, 2e-4), xlabel="requests in the step")
    axes.set_ylabel("largest difference\nfrom the logits alone")
    axes.set_xticks(BATCHES, [str(b) for b in BATCHES])
    axes.set_yticks([EQUAL, 1e-7, 1e-6, 1e-5], ["equal bits", "1e-7", "1e-6", "1e-5"])
    axes.minorticks_off()
    axes.legend(loc="upper center", ncols=4, fontsize=9)
    source_note(axes, "Measured here")
    return art


def _update(art: dict[str, Any], found: dict[str, list[Found]], batch: int, contexts: str) -> str:
    parts = []
    for name, those in found.items():
        art[name].set_data([f.batch for f in those], [max(f.gap, EQUAL) for f in those])
        (one,) = (f for f in those if f.batch == batch)
        gap = f"by up to {one.gap:.1e}" if one.differ else "all bits equal"
        parts.append(f"{name}: {one.differ} of {batch}, {gap}")
    art["at"].set_xdata([batch, batch])
    return f"Contexts {contexts}; requests with other bits than alone: {'; '.join(parts)}."
