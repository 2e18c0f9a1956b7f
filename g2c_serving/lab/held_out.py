"""Texts that no training has seen: of a seed of their own.

What a drafter says of texts that it was trained on would flatter it. Brief, section 4.
"""

from __future__ import annotations

import random

import torch

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.train.batches import batch, known
from g2c_serving.train.corpus import document

PROMPT = 24  # tokens
SEED = 9_000_000  # of the rows; the models were trained on seed 0


def held_out_rows(lm: LanguageModel, count: int, length: int) -> torch.Tensor:
    """Documents in rows as in training, ids (count, length + 1): the last column is there to say
    what follows."""
    return batch(lm.tokenizer, SEED, 0, count, length, drills=0)


def held_out_prompts(lm: LanguageModel, count: int) -> list[list[int]]:
    """The first 24 tokens of `count` documents: stories, sums, chats, tool calls, no drills."""
    rng = random.Random("held out")
    found: list[list[int]] = []
    while len(found) < count:
        ids = lm.tokenizer.encode_parts(known(lm.tokenizer, document(rng, 0.0)))
        if len(ids) > PROMPT:
            found.append(ids[:PROMPT])
    return found
