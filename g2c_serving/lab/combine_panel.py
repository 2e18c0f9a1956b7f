"""A panel: which tokens' bits change when experts move, by the order of adding up.

Brief, "The parts that are pure infrastructure" (experts are reassigned) and section 3 (the order of
floating-point sums); cluster/combine.py adds up, on real tensors of made-up numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.cluster.combine import Combine, by_arrival, by_expert, by_gpu, vectors_sent
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLUE, GREY, ORANGE, source_note

RULES: dict[str, Combine] = {
    "as they arrive": by_arrival,
    "each GPU first, then GPU after GPU": by_gpu,
    "by the experts' numbers": by_expert,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS, EXPERTS, CHOSEN, GPUS, WIDTH = 96, 64, 8, 16, 128
EQUAL = 1e-9  # where the picture puts a difference of 0


@dataclass(frozen=True)
class Both:
    """A step's tokens before and after a reassignment: what changed in each (N,), at most, beside
    the largest of its numbers; which have an expert that moved (N,); vectors sent per token."""

    changed: np.ndarray
    touched: np.ndarray
    all_equal: bool
    vectors: float


@lru_cache(maxsize=256)
def both(rule: str, moved: int, dtype: str) -> Both:
    """Add up the same partial results twice: with experts where they are, and with the first
    `moved` experts of a shuffled list on the next GPU. They arrive at other times."""
    draw = torch.Generator().manual_seed(5)
    parts = torch.randn(TOKENS, CHOSEN, WIDTH, generator=draw).to(DTYPES[dtype])
    chosen = torch.rand(TOKENS, EXPERTS, generator=draw).topk(CHOSEN).indices.sort().values
    placement = torch.arange(EXPERTS) % GPUS
    early, late = torch.rand(2, TOKENS, CHOSEN, generator=draw)
    moving = torch.randperm(EXPERTS, generator=draw)[:moved]
    after = placement.clone()
    after[moving] = (placement[moving] + 1) % GPUS
    one = RULES[rule](parts, placement[chosen], early)  # (N, D)
    other = RULES[rule](parts, after[chosen], late)
    apart = (one.double() - other.double()).abs().amax(1) / one.double().abs().amax(1)
    touched = torch.isin(chosen, moving).any(1)
    sent = vectors_sent(placement[chosen], RULES[rule])
    return Both(apart.numpy(), touched.numpy(), torch.equal(one, other), sent)


def panel() -> Panel:
    """The change of each token's sum, and which tokens have an expert that moved."""
    rules = list(RULES)
    controls = {
        "rule": choice("Added up", rules, rules[1]),
        "moved": slider("Experts that move (of 64)", 0, 16, 2),
        "dtype": choice("Numbers", list(DTYPES)),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    look: dict[str, Any] = {"linestyle": "none", "fillstyle": "none", "markeredgewidth": 1.6}
    (touched,) = axes.plot([], [], "|", color=GREY, ms=9, ls="none", label="an expert moved")
    (equal,) = axes.plot([], [], "o", color=BLUE, ms=5, label="the same bits", **look)
    (changed,) = axes.plot([], [], "x", color=ORANGE, ms=6, label="other bits", **look)
    axes.set(yscale="log", xlim=(-1, TOKENS), ylim=(1e-10, 5), xlabel="token of the step")
    axes.set_ylabel("change of its sum\n(share of the largest)")
    axes.set_yticks((EQUAL, 1e-7, 1e-5, 1e-3, 1e-1), ("0", "1e-7", "1e-5", "1e-3", "1e-1"))
    axes.minorticks_off()
    axes.legend(loc="upper left", ncols=3)
    source_note(axes, "Simulated", "real sums of made-up numbers")
    return {"touched": touched, "equal": equal, "changed": changed}


def _update(art: dict[str, Any], rule: str, moved: int, dtype: str) -> str:
    found = both(rule, moved, dtype)
    same = found.changed == 0
    places = np.arange(TOKENS)
    art["touched"].set_data(places[found.touched], np.full(found.touched.sum(), EQUAL / 3))
    art["equal"].set_data(places[same], np.full(same.sum(), EQUAL))
    art["changed"].set_data(places[~same], found.changed[~same])
    most = f", by up to {found.changed.max():.1e} of its largest number" if not same.all() else ""
    return (
        f"Partial results in {dtype}, added up {rule}, before and after {moved} of {EXPERTS} "
        f"experts move: torch.equal says {found.all_equal}; {np.count_nonzero(~same)} of {TOKENS} "
        f"tokens have other bits{most}. {found.touched.sum()} tokens use an expert that moved. "
        f"{found.vectors:.1f} vectors are sent per token."
    )
