"""Small random models, for tests that need a real forward pass: seeded, and made in no time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

import g2c_serving as g
from g2c_serving.forward.language_model import param_shapes
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.rotary import Rotary


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


def random_llama(
    *,
    vocab_size: int = 300,
    dim: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 0,
    context: int = 64,
    hidden: int = 64,
    seed: int = 0,
    rotary: Rotary | None = None,
    **more: Any,
) -> g.LanguageModel:
    """The other shape: RMS norm, rotary positions, shared key heads, a gated SiLU, no biases, a
    head of its own."""
    sizes = vocab_size, dim, layers, heads, context, hidden
    shape = {"num_kv_heads": kv_heads, "head_size": head_size, "norm": "rms", "norm_eps": 1e-6}
    config = ModelConfig(
        *sizes, **shape, activation="silu", gated=True, rotary=rotary or Rotary(), **more
    )
    generator = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int, spread: float | None = None) -> torch.Tensor:
        numbers = torch.randn((rows, columns), generator=generator)
        return numbers * (2 * rows**-0.5 if spread is None else spread)

    weights = {
        "token_embed.weight": random(vocab_size, dim, 1.0),
        "head.W": random(dim, vocab_size),
    }
    queries, pairs = heads * config.head_dim, kv_heads * config.head_dim
    for i in range(layers):
        widths = {"q": (dim, queries), "k": (dim, pairs), "v": (dim, pairs), "out": (queries, dim)}
        for name, size in widths.items():
            weights[f"blocks.{i}.attn.{name}_proj.W"] = random(*size)
        for name, size in {
            "gate": (dim, hidden),
            "fc1": (dim, hidden),
            "fc2": (hidden, dim),
        }.items():
            weights[f"blocks.{i}.ffn.{name}.W"] = random(*size)
        for norm in ("ln1", "ln2"):
            weights[f"blocks.{i}.{norm}.gamma"] = 1 + random(1, dim, 0.3)[0]
    weights["ln_final.gamma"] = 1 + random(1, dim, 0.3)[0]
    return g.LanguageModel("random llama", config, weights, g.Tokenizer(), None)


def random_ids(lm: g.LanguageModel, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, lm.vocab_size, (count,), generator=generator).tolist()


def ragged_plan(lengths: Sequence[int], rng: random.Random) -> list[list[tuple[int, int]]]:
    """Texts of `lengths` cut and mixed at random: for each pass, (text, how many of its tokens)."""
    left, plan = list(lengths), []
    while any(left):
        rows = [i for i, count in enumerate(left) if count]
        rows = rng.sample(rows, rng.randint(1, len(rows)))
        plan.append([(i, rng.choice([1, rng.randint(1, left[i])])) for i in rows])
        for i, count in plan[-1]:
            left[i] -= count
    return plan
