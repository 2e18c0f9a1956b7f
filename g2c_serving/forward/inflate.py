"""`inflate`: a bigger model that writes the same tokens, to show what the size of weights costs.

The shipped model fits into a processor's cache, so it cannot show what reading weights from memory
means for a batch (Brief, section 1). An inflated one does, at the true cost of its linear layers.
"""

from __future__ import annotations

import dataclasses

import torch

from g2c_serving.checks import as_number
from g2c_serving.forward.language_model import LanguageModel

INFLATE_WIDTH = 8192  # hidden units of one block that `inflate` adds, about


def inflate(lm: LanguageModel, megabytes: float, seed: int = 0) -> LanguageModel:
    """`lm` with feed-forward blocks added until its float32 weights take `megabytes` (10^6 bytes).

    The added blocks have no attention and no KV, and their output projections are zero: the tokens
    stay the same, each pass costs what a model of that size costs in its linear layers. A model
    that has as much already is returned as it is, and a printed line says so. ValueError for a
    `megabytes` below 0.
    """
    if not isinstance(lm, LanguageModel):
        raise TypeError(f"lm is {lm!r}: pass a loaded model, for example load('tiny')")
    if (megabytes := as_number("megabytes", megabytes)) < 0:
        raise ValueError(f"megabytes={megabytes:g} must be 0 or more; pass a size, such as 150")
    now = 4 * lm.num_parameters / 1e6
    if megabytes <= now:
        print(f"{lm.name} takes {now:,.0f} MB, not below {megabytes:g}: it is used as it is.")
        return lm
    dim, first = lm.config.embedding_dim, lm.config.num_layers
    wide = ["fc1", "gate"] if lm.config.gated else ["fc1"]
    # hidden units to add, each with its biases
    units = (megabytes - now) * 1e6 / 4 / ((len(wide) + 1) * dim + len(wide))
    count = max(1, round(units / INFLATE_WIDTH))
    hidden = max(1, round(units / count))
    generator = torch.Generator().manual_seed(seed)
    weights = dict(lm.weights)
    for i in range(first, first + count):
        weights |= {
            f"blocks.{i}.ln2.gamma": torch.ones(dim),
            f"blocks.{i}.ln2.beta": torch.zeros(dim),  # unused by an RMS norm
            f"blocks.{i}.ffn.fc2.W": torch.zeros(hidden, dim),
            f"blocks.{i}.ffn.fc2.b": torch.zeros(dim),
        }
        for name in wide:
            random = torch.randn(dim, hidden, generator=generator)
            weights[f"blocks.{i}.ffn.{name}.W"] = random * dim**-0.5
            weights[f"blocks.{i}.ffn.{name}.b"] = torch.zeros(hidden)
    config = dataclasses.replace(lm.config, num_layers=first + count)
    name = f"{lm.name} inflated to {megabytes:g} MB"
    return dataclasses.replace(lm, name=name, config=config, weights=weights)
