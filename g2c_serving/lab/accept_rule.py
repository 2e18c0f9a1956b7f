"""The accept rule over five tokens: p, q, what they share, and the remainder that makes it exact.

Brief, section 4. Chances and remainder are the engine's own (`sample/speculation.py`); they are
added up over every outcome, so nothing here is drawn. The guard is DeepInfer's shrinking of q in
the remainder; the slider goes far beyond theirs, where the eye can see what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, BLUE, GREEN, ORANGE, Blocks, source_note
from g2c_serving.sample.speculation import GUARD, chances, residual

TOKENS = ("cat", "dog", "hen", "fox", "bee")
TARGET = (0.40, 0.25, 0.20, 0.10, 0.05)
DRAFTER = (1, 6, 2, 1, 2)  # shares of the drafter's probability, to begin with
GUARDS = (0.0, GUARD, 0.01, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Output:
    """What comes out of one draft, token by token: accepted, and drawn after a rejection."""

    p: torch.Tensor  # (V,)
    q: torch.Tensor  # (V,)
    accepted: torch.Tensor  # (V,), its sum is the chance that a draft stands
    replaced: torch.Tensor  # (V,)

    @property
    def written(self) -> torch.Tensor:
        return self.accepted + self.replaced

    @property
    def off(self) -> float:
        """Total variation from p: the share of draws that would have to change."""
        return (self.written - self.p).abs().sum().item() / 2


def output(p: Sequence[float], q: Sequence[float], guard: float = GUARD) -> Output:
    """The distribution that one draft of q, verified under p, leaves; by the engine's functions."""
    target = torch.tensor(p, dtype=torch.float64)
    drafter = torch.tensor(q, dtype=torch.float64)
    weights = [(values * 2**40).round().long() for values in (target, drafter)]
    totals = [values.sum() for values in weights]
    accepted = drafter * chances(weights[0], totals[0], weights[1], totals[1])  # (V,)
    left = residual(target[None], drafter[None], guard)[0].double()
    replaced = (1 - accepted.sum()) * left / left.sum().clamp(min=1)
    return Output(target, drafter, accepted, replaced)


def panel() -> Panel:
    """Sliders on q; the right-hand bars stay where p is."""
    controls = {
        name: slider(f"Drafter's share of '{name}'", 0, 10, share)
        for name, share in zip(TOKENS, DRAFTER, strict=True)
    }
    controls["guard"] = stops("Guard", GUARDS, GUARD)
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, sharey=True)
    grey: dict[str, Any] = {"facecolor": "#DDDDDD", "edgecolor": BLACK, "hatch": ""}
    less: dict[str, Any] = {"facecolor": ORANGE, "edgecolor": "white", "hatch": "///"}
    same: dict[str, Any] = {"facecolor": GREEN, "edgecolor": "white", "hatch": ""}
    more: dict[str, Any] = {"facecolor": BLUE, "edgecolor": "white", "hatch": "..."}
    art: dict[str, Any] = {
        "p": Blocks(left, 0, "target, p", **grey),
        "q": Blocks(left, 0, "drafter, q", **less),
        "shared": Blocks(right, 0, "accepted, min(p, q)", **same),
        "replaced": Blocks(right, 0, "drawn from the remainder", **more),
    }
    look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "marker": "_", "mew": 2.5}
    (art["line"],) = right.plot([], [], markersize=30, label="p", **look)
    left.set(title="drafted, and wanted", ylim=(0, 1.42), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
    right.set(title="what comes out")
    for axes in (left, right):
        axes.set(xlim=(-0.6, len(TOKENS) - 0.4))
        axes.set_xticks(range(len(TOKENS)), TOKENS)
        axes.legend(loc="upper right", fontsize=9, markerscale=0.5)
    source_note(right, "Derived", "every outcome added up")
    return art


def _update(art: dict[str, Any], guard: float, **shares: int) -> str:
    counts = np.array([shares[name] for name in TOKENS], dtype=float)
    if not counts.any():
        counts = np.ones(len(TOKENS))
    found = output(TARGET, (counts / counts.sum()).tolist(), guard)
    x = np.arange(len(TOKENS))
    art["p"].set_boxes(x - 0.4, 0, 0.38, found.p.numpy())
    art["q"].set_boxes(x + 0.02, 0, 0.38, found.q.numpy())
    art["shared"].set_boxes(x - 0.3, 0, 0.6, found.accepted.numpy())
    art["replaced"].set_boxes(x - 0.3, found.accepted.numpy(), 0.6, found.replaced.numpy())
    art["line"].set_data(x, found.p.numpy())
    accepted = found.accepted.sum().item()
    q = ", ".join(f"{name} {share:.2f}" for name, share in zip(TOKENS, found.q, strict=True))
    distance = f"{found.off:.1e}" if found.off > 1e-9 else "nothing that can be seen"
    return (
        f"q: {q}. A draft stands with {accepted:.1%}; the other {1 - accepted:.1%} are replaced "
        f"from the remainder. With a guard of {guard:g} what comes out is off from p by {distance}."
    )
