"""A panel: the random number that each of your tokens is drawn with, shared and keyed.

Brief, section 3, "Whose random numbers?". Both are real: torch's generator, drawn from as a batch
does in every step, and the engine's Philox, keyed by seed and position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import GREY, line
from g2c_serving.sample import rng

TOKENS, PROMPT = 16, 5  # tokens of your answer, and of your prompt
MOST = 15  # strangers


def shared(seed: int, strangers: int, tokens: int = TOKENS) -> tuple[np.ndarray, np.ndarray]:
    """What one generator gives in each step: your numbers (T,), and all the others' (T, S). You
    stand behind the strangers in the batch."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.rand(strangers + 1, generator=generator) for _ in range(tokens)]
    numbers = torch.stack(rows).numpy()  # (T, S + 1)
    return numbers[:, -1], numbers[:, :-1]


def keyed(seed: int, tokens: int = TOKENS, prompt: int = PROMPT) -> np.ndarray:
    """Your numbers (T,) from your own seed and the positions of your tokens."""
    return rng.uniform(np.full(tokens, seed, dtype=np.uint64), prompt + np.arange(tokens))


def panel() -> Panel:
    """Move the strangers: one of the two curves stays where it is."""
    controls = {
        "strangers": slider("Strangers in the batch before you", 0, MOST, 3),
        "seed": slider("Your seed", 0, 99, 7),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, sharey=True)
    art: dict[str, Any] = {}
    (art["others"],) = left.plot([], [], "_", color=GREY, markersize=7, label="strangers'")
    for axes, name, k in ((left, "shared", 1), (right, "keyed", 0)):
        (art[name],) = axes.plot([], [], label="yours", **line(k))
        axes.set(xlim=(0, TOKENS + 1), ylim=(-0.02, 1.2), xlabel="your token", yticks=(0, 0.5, 1))
        axes.set_xticks(range(0, TOKENS + 1, 4))
        axes.legend(loc="upper right", ncols=2, fontsize=9)
    left.set(title="one generator for the batch", ylabel="random number")
    right.set(title="keyed by seed and position")
    return art


def _update(art: dict[str, Any], strangers: int, seed: int) -> str:
    x = np.arange(1, TOKENS + 1)
    mine, others = shared(seed, strangers)
    own = keyed(seed)
    art["shared"].set_data(x, mine)
    art["keyed"].set_data(x, own)
    art["others"].set_data(np.repeat(x, strangers), others.ravel())
    company = "no stranger" if strangers == 0 else "1 stranger"
    company = company if strangers < 2 else f"{strangers} strangers"
    return (
        f"Seed {seed}, {company}: from the one generator you get numbers {_places(strangers)} of "
        f"its stream, {_first(mine)}; keyed, you get {_first(own)}, whoever else is there."
    )


def _places(strangers: int) -> str:
    return ", ".join(str((strangers + 1) * step) for step in (1, 2, 3)) + ", ..."


def _first(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.3f}" for number in numbers[:3]) + ", ..."
