"""Batches: documents packed into rows of ids, the same for the same seed and step.

Each row begins with a document and holds whole documents while they fit; the last place is filled
with the beginning of one. All positions are trained, and a document sees those before it in the
row, as it would in a long text. Nothing is stored: a step's batch is written when it is needed,
so a run that is resumed sees what it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from g2c_serving.process.prompt import Part, Reserved
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train.corpus import document


def drill_share(progress: float) -> float:
    """Share of the documents that are drills: half up to a quarter of the run, then falling to a
    tenth at half of it. Without them copying does not appear in such a short training."""
    return 0.1 + 0.4 * min(1.0, max(0.0, (0.5 - progress) / 0.25))


def batch(
    tokenizer: Tokenizer, seed: int, step: int, rows: int, length: int, drills: float
) -> Tensor:
    """Ids of one step, int64, (rows, length + 1): inputs are [:, :-1], targets [:, 1:]."""
    rng = random.Random(f"{seed} {step}")
    waiting: list[list[int]] = []
    packed = []
    for _ in range(rows):
        packed.append(_row(rng, tokenizer, waiting, length + 1, drills))
    return torch.tensor(packed)


def known(tokenizer: Tokenizer, parts: Iterable[Part]) -> list[Part]:
    """The parts without the reserved tokens that a tokenizer lacks: the parent course's has no
    `<think>`."""
    names = tokenizer.reserved
    return [part for part in parts if not isinstance(part, Reserved) or part.name in names]


def _row(
    rng: random.Random, tokenizer: Tokenizer, waiting: list[list[int]], size: int, drills: float
) -> list[int]:
    """First fit from a pool of 16 waiting documents; cut the last one to size."""
    row: list[int] = []
    while len(row) < size:
        while len(waiting) < 16:
            waiting.append(tokenizer.encode_parts(known(tokenizer, document(rng, drills))))
        fits = (i for i, ids in enumerate(waiting) if len(row) + len(ids) <= size)
        row += waiting.pop(next(fits, 0))
    return row[:size]
