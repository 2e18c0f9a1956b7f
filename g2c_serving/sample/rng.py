"""Philox4x32-10: random numbers as a function of a key and a counter, with no state to share.

A generator that is drawn from ties each draw to all draws before it, so to everyone in the batch.
Here the key is the request's own 64-bit seed, and the counter says what the number is for:

    counter = (position * 3 + use, low word; the same, high word; attempt; lane)

`position` is the absolute index of the token to draw; `use` is 0 for an ordinary sample, 1 for a
resample after a rejected draft, 2 for the accept-or-reject coin. Brief, section 3, "Whose random
numbers?"; DeepInfer's `rng_init(seed, position * 3 + k)`. Philox: Salmon and others, "Parallel
random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import numpy as np

SAMPLE, RESAMPLE, ACCEPT = 0, 1, 2  # uses at one position
TARGET_LANE, DRAFTER_LANE, SEED_LANE = 0, 1, 0xFFFFFFFF

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Four random words for each key and counter.

    key (R,) uint64; counter (R, 4), words below 2^32; returns (R, 4) uint64, words below 2^32.
    """
    key = np.asarray(key, dtype=np.uint64)
    k0, k1 = key & _LOW, key >> _WORD
    c0, c1, c2, c3 = np.asarray(counter, dtype=np.uint64).T
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _WORD) ^ c1 ^ k0, p1 & _LOW, (p0 >> _WORD) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=-1)


def draw(
    seeds: np.ndarray,
    positions: np.ndarray,
    use: int = SAMPLE,
    attempt: int = 0,
    lane: int = TARGET_LANE,
) -> np.ndarray:
    """The random words (R, 4) for the token at `positions` (R,) of requests with `seeds` (R,)."""
    stream = np.asarray(positions, dtype=np.uint64) * np.uint64(3) + np.uint64(use)
    counter = np.zeros((len(stream), 4), dtype=np.uint64)
    counter[:, 0], counter[:, 1] = stream & _LOW, stream >> _WORD
    counter[:, 2], counter[:, 3] = attempt, lane
    return philox(seeds, counter)


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) for each request, of 53 random bits."""
    words = draw(seeds, positions)
    bits = (words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))  # 53 bits
    return bits.astype(np.float64) * 2.0**-53


def sample_seed(seed: int, sample_index: int) -> int:
    """The seed of one of a request's samples: its own for sample 0, a mix for each other."""
    if sample_index == 0:
        return seed
    counter = np.array([[sample_index, 0, 0, SEED_LANE]])
    low, high = philox(np.array([seed], dtype=np.uint64), counter)[0, :2].tolist()
    return low | high << 32
