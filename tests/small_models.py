"""Small random models, for tests that need a real forward pass: seeded, and made in no time."""

from __future__ import annotations

import torch

import g2c_serving as g
from g2c_serving.forward.language_model import param_shapes
from g2c_serving.forward.model import ModelConfig


def random_lm(
    *,
    vocab_size: int = 300,
    dim: int = 32,
    layers: int = 2,
    heads: int = 2,
    context: int = 64,
    hidden: int = 64,
    seed: int = 0,
    eos_id: int | None = None,
    window: int = 0,
    window_layers: tuple[int, ...] = (),
) -> g.LanguageModel:
    """Weights wide enough that the next token depends on the whole context, near and far."""
    config = ModelConfig(
        vocab_size, dim, layers, heads, context, hidden, window, tuple(window_layers)
    )
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in param_shapes(config):
        spread = 0.3 if name.endswith((".b", "beta")) else 2 * shape[0] ** -0.5
        if "embed" in name:
            spread = 1.0
        centre = float(name.endswith("gamma"))
        weights[name] = centre + spread * torch.randn(shape, generator=generator)
    weights["head_bias"] = torch.zeros(vocab_size)  # GPT-2 has none
    return g.LanguageModel("random", config, weights, g.Tokenizer(), eos_id)


def random_ids(lm: g.LanguageModel, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, lm.vocab_size, (count,), generator=generator).tolist()
