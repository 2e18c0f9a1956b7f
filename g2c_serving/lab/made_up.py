"""A model with as large a vocabulary as you like: random weights, made-up tokens.

The shipped one has 1,024 tokens. What a mask or a grammar's compilation costs grows with the
vocabulary, so it is measured at 32,000 too. What such a model writes means nothing.
"""

from __future__ import annotations

import random

import torch

from g2c_serving.forward.language_model import LanguageModel, param_shapes
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer

LETTERS = b"etaoinshrdlu .,0123456789"  # what its tokens of several bytes are made of
LONGEST = 10  # bytes of a token


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Bytes, reserved tokens, and merges of an earlier token and a letter, no two alike."""
    generator = random.Random(0)
    pool = [(letter, bytes([letter])) for letter in LETTERS]
    known = {token for _, token in pool}
    merges: list[tuple[int, int, int]] = []
    for new_id in range(256 + len(RESERVED_TOKENS), vocab_size):
        token = pool[0][1]
        while token in known:
            (left, start), letter = generator.choice(pool), generator.choice(LETTERS)
            token = start + bytes([letter])
        merges.append((left, letter, new_id))
        known.add(token)
        if len(token) < LONGEST:
            pool.append((new_id, token))
    return Tokenizer(merges)


def made_up_model(
    vocab_size: int, dim: int = 256, layers: int = 4, context: int = 512
) -> LanguageModel:
    """A model of `tiny`'s shape over such a vocabulary. Its logits are a few units apart."""
    config = ModelConfig(vocab_size, dim, layers, dim // 64 or 1, context, 4 * dim)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in param_shapes(config):
        spread = 0.02 if len(shape) == 1 else shape[0] ** -0.5
        if "embed" in name:
            spread = 2 * dim**-0.5
        weights[name] = float(name.endswith("gamma")) + spread * torch.randn(
            shape, generator=generator
        )
    tokenizer = made_up_tokenizer(vocab_size)
    eos_id = tokenizer.reserved["<|endoftext|>"]
    return LanguageModel(f"random, V={vocab_size:,}", config, weights, tokenizer, eos_id)
