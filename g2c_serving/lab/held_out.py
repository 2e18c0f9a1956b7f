"""Prompts that no training has seen: beginnings of documents of a seed of their own.

What a drafter says of texts that it was trained on would flatter it. Brief, section 4.
"""

from __future__ import annotations

import random

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.train.corpus import document

PROMPT = 24  # tokens


def held_out_prompts(lm: LanguageModel, count: int, seed: str = "held out") -> list[list[int]]:
    """The first 24 tokens of `count` documents: stories, sums, chats, tool calls, no drills."""
    rng = random.Random(seed)
    found: list[list[int]] = []
    while len(found) < count:
        ids = lm.tokenizer.encode_parts(document(rng, 0.0))
        if len(ids) > PROMPT:
            found.append(ids[:PROMPT])
    return found
