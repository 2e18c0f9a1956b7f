"""Three small facts of notebook 03 about sampling, each with its numbers: what floats, the course's
top-p and a bare clamp of the temperature do, beside what the engine's sampler does.

Brief, section 3, "Whose random numbers?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from g2c_serving.sample.sampler import (
    MIN_TEMPERATURE,
    WEIGHT_BITS,
    SamplingBatch,
    integer_weights,
    sample,
)

# the order of summation


@dataclass(frozen=True)
class Parting:
    """A target on which two ways of summing disagree, and the token that each of them gives."""

    target: float
    in_a_row: int
    in_blocks: int


def probabilities(vocab_size: int = 1024, seed: int = 0) -> np.ndarray:
    """Made-up float32 probabilities (V,), as a softmax gives them."""
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    return torch.softmax(logits, -1).numpy()


def sum_in_blocks(weights: np.ndarray, block: int = 32) -> np.ndarray:
    """Cumulative sums as threads make them: each sums its block, then adds the blocks before it.

    weights (V,), V a multiple of `block`; the result has their dtype. `np.cumsum` adds in a row.
    """
    inside = weights.reshape(-1, block).cumsum(1, dtype=weights.dtype)  # (V / block, block)
    ends = inside[:, -1].cumsum(dtype=weights.dtype)
    inside[1:] += ends[:-1, None]
    return inside.ravel()


def order_changes_token(weights: np.ndarray, block: int = 32) -> Parting | None:
    """Where the two ways of summing the same numbers part most; None where they never do.

    weights (V,), of any dtype: give it probabilities, and then the same as whole numbers.
    """
    a_row, blocks = weights.cumsum(dtype=weights.dtype), sum_in_blocks(weights, block)
    widest = int(np.abs(a_row - blocks).argmax())
    if a_row[widest] == blocks[widest]:
        return None
    target = min(a_row[widest], blocks[widest])  # the one sum is beyond it, the other is not
    one, other = (int(np.searchsorted(sums, target, side="right")) for sums in (a_row, blocks))
    return Parting(float(target), one, other)


def whole_numbers(weights: np.ndarray) -> np.ndarray:
    """The same weights in fixed point, int64."""
    return np.rint(weights.astype(np.float64) * 2**WEIGHT_BITS).astype(np.int64)


# top-p

EVEN = (0.0, 0.0, 0.0, 0.0)  # logits of four quarters: at top_p 0.5 two of them reach it exactly


def course_top_p(logits: Sequence[float] = EVEN, top_p: float = 0.5) -> list[int]:
    """Ids kept by the rule of the course's Module 11, in our words: drop a token when the sum of
    those before it is above p. A sum that is just p lets one token more in."""
    ordered, ids = torch.tensor(logits).sort(descending=True, stable=True)
    sums = torch.softmax(ordered, -1).cumsum(-1)
    dropped = torch.cat((torch.tensor([False]), sums[:-1] > top_p))
    return sorted(ids[~dropped].tolist())


def our_top_p(logits: Sequence[float] = EVEN, top_p: float = 0.5) -> list[int]:
    """Ids kept by the engine: the token that reaches p is the last."""
    weights = integer_weights(torch.tensor([logits]), _rows(1, 1.0, top_p))
    return weights[0].nonzero()[:, 0].tolist()


# the clamp of temperature 0


def near_tie(draws: int) -> dict[str, np.ndarray]:
    """Two logits that differ in the last bit of a float32, drawn `draws` times: how often each came
    at the clamped temperature alone, and at the engine's temperature 0. The second is larger."""
    nine = torch.tensor(9.0)
    logits = torch.stack((nine, torch.nextafter(nine, 2 * nine))).expand(draws, 2)
    temperatures = {"clamp alone": MIN_TEMPERATURE, "temperature 0": 0.0}
    return {
        name: np.bincount(sample(logits, _rows(draws, t)).numpy(), minlength=2)
        for name, t in temperatures.items()
    }


def _rows(count: int, temperature: float, top_p: float = 1.0) -> SamplingBatch:
    seeds, same = np.arange(count, dtype=np.uint64), np.ones(count)
    off = np.zeros(count, dtype=int)
    return SamplingBatch(seeds, off, same * temperature, off, same * top_p)
