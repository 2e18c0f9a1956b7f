"""A panel: temperature, top-k and top-p over a real next-token distribution, and the draw from it.

Brief, section 3; Module 11's pipeline. The weights, the filters and the target are the engine's own
(`sample/sampler.py`): whole numbers, summed in the order of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, BLUE, ORANGE, Blocks, fill
from g2c_serving.lab.scoring import next_logits
from g2c_serving.lab.words import visible
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import SamplingBatch, below, integer_weights

PROMPT = "Mia and Tom went to the"
SHOWN = 14  # tokens in the left picture
OTHER = dict(facecolor="white", edgecolor=BLACK, hatch="////", linewidth=0.6)


@dataclass(frozen=True)
class Drawn:
    """One draw: the weights (V,) that stay and those before any filter, target, token."""

    weights: np.ndarray
    unfiltered: np.ndarray
    target: int
    token: int

    @property
    def total(self) -> int:
        return int(self.weights.sum())

    @property
    def kept(self) -> int:
        return int((self.weights > 0).sum())


def draw(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, seed: int, position: int
) -> Drawn:
    """The draw of one token from logits (V,), by the engine's own steps."""
    batch = _settings(temperature, top_k, top_p, seed, position)
    weights = integer_weights(logits[None].clone(), batch)  # (1, V)
    cumulative = weights.cumsum(-1)
    words = torch.from_numpy(rng.target_words(batch.seeds, batch.positions))
    target, _ = below(words, cumulative[:, -1])
    token = torch.searchsorted(cumulative, target[:, None], right=True)
    unfiltered = integer_weights(logits[None].clone(), _settings(temperature, 0, 1.0, seed, 0))
    return Drawn(weights[0].numpy(), unfiltered[0].numpy(), int(target), int(token))


def _settings(
    temperature: float, top_k: int, top_p: float, seed: int, position: int
) -> SamplingBatch:
    return SamplingBatch(
        seeds=np.array([seed], dtype=np.uint64),
        positions=np.array([position]),
        temperature=np.array([float(temperature)]),
        top_k=np.array([top_k]),
        top_p=np.array([float(top_p)]),
    )


def panel(lm: LanguageModel, prompt: str = PROMPT) -> Panel:
    """Bars of the likeliest tokens, kept or left out; the cumulative sum and the target."""
    ids = lm.tokenizer.encode(prompt)
    logits = next_logits(lm, ids)
    order = logits.sort(descending=True, stable=True).indices[:SHOWN].tolist()
    names = [visible(lm.tokenizer.decode([t]), 20) for t in order]
    controls = {
        "temperature": slider("Temperature", 0.0, 2.0, 0.8, 0.05),
        "top_k": stops("Top-k (0 is off)", (0, 1, 2, 3, 4, 6, 8), 0),
        "top_p": slider("Top-p", 0.05, 1.0, 0.7, 0.05),
        "seed": slider("Seed", 0, 99, 7),
    }

    def update(art: dict[str, Any], **settings: Any) -> str:
        drawn = draw(logits, **settings, position=len(ids))
        return _update(art, drawn, order, lm.tokenizer.decode([drawn.token]), settings["seed"])

    return Panel(lambda figure: _draw(figure, names, lm.vocab_size), update, controls)


def _draw(figure: Figure, names: list[str], vocab_size: int) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {
        "kept": Blocks(left, 0, "stays", **fill(0)),
        "out": Blocks(left, 1, "left out", **OTHER),
        "axes": left,
    }
    left.set(xlim=(-0.6, SHOWN - 0.4), title="likeliest tokens")
    left.set_xticks(range(SHOWN), names, rotation=60, ha="right", rotation_mode="anchor")
    left.tick_params(axis="x", labelsize=9)
    left.set_ylabel("probability before the filters")
    left.legend(loc="upper right", fontsize=9)
    (art["sum"],) = right.step([], [], where="post", color=BLUE, label="sum of what stays")
    (art["target"],) = right.plot([], [], color=ORANGE, linestyle="--", label="target")
    (art["token"],) = right.plot([], [], color=BLACK, marker="v", linestyle="", label="token")
    right.set(xlim=(0, vocab_size), ylim=(0, 1.3), xlabel="token id", yticks=(0, 0.5, 1))
    right.set(title="the draw")
    right.legend(loc="upper left", ncols=3, fontsize=9, handlelength=1.4, columnspacing=1)
    return art


def _update(art: dict[str, Any], drawn: Drawn, order: list[int], text: str, seed: int) -> str:
    probability = drawn.unfiltered / drawn.unfiltered.sum()
    stays = np.array([drawn.weights[token] > 0 for token in order])
    bars = probability[order]
    art["axes"].set_ylim(0, 1.15 * bars[0])
    for name, chosen in (("kept", stays), ("out", ~stays)):
        (at,) = chosen.nonzero()
        art[name].set_boxes(at - 0.4, 0, 0.8, bars[at])
    total = drawn.total
    sums = np.concatenate(([0], drawn.weights.cumsum())) / total
    art["sum"].set_data(np.arange(len(sums)), np.concatenate((sums[1:], [1.0])))
    height = drawn.target / total
    art["target"].set_data([0, drawn.token], [height, height])
    art["token"].set_data([drawn.token], [height])
    share, stay = drawn.weights[drawn.token] / total, probability[drawn.weights > 0].sum()
    return (
        f"{drawn.kept:,} of {len(drawn.weights):,} tokens stay, {stay:.1%} "
        f"of the probability. Seed {seed} draws a target at {height:.1%} of their sum: token "
        f"{drawn.token}, {text!r}, which has {share:.1%} of what stays."
    )
