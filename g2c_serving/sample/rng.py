"""Philox4x32-10: random numbers as a function of a key and a counter, with no state to share.

A generator that is drawn from ties each draw to all draws before it, so to everyone in the batch.
Here the key is the request's own 64-bit seed, and the counter says what the number is for:

    counter = (position * 3 + use, low word; the same, high word; attempt; lane)

`position` is the absolute index of the token to draw; `use` is 0 for an ordinary sample, 1 for a
resample after a rejected draft, 2 for the accept-or-reject coin. `attempt` counts the rejections of
an integer target, `lane` tells the target model from its drafter. Brief, section 3, "Whose random
numbers?"; DeepInfer's `rng_init(seed, position * 3 + k)`. Philox: Salmon and others, "Parallel
random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import numpy as np

SAMPLE, RESAMPLE, ACCEPT = 0, 1, 2  # uses at one position
TARGET_LANE, DRAFTER_LANE, SEED_LANE = 0, 1, 0xFFFFFFFF
ATTEMPTS = 4  # at an integer target
TARGET_BITS = 62  # of each attempt: the sign of an int64 and one bit stay free

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_ROUNDS = np.arange(10, dtype=np.uint64)[:, None, None]
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Four random words for each key and counter.

    key (R,) uint64; counter (R, 4), words below 2^32; returns (R, 4) uint64, words below 2^32.
    """
    key = np.asarray(key, dtype=np.uint64)
    keys = (np.stack((key & _LOW, key >> _WORD)) + _ROUNDS * _KEY_STEPS) & _LOW  # (10, 2, R)
    counter = np.asarray(counter, dtype=np.uint64).T
    even, odd = counter[0::2], counter[1::2]  # words 0 and 2, words 1 and 3: (2, R) each
    for round_keys in keys:
        product = (even * _MULTIPLIERS)[::-1]  # (2, R), 64 bits: word 2's first, then word 0's
        even, odd = (product >> _WORD) ^ odd ^ round_keys, product & _LOW
    return np.stack((even[0], odd[0], even[1], odd[1]), axis=-1)


def counters(
    positions: np.ndarray,
    use: int | np.ndarray = SAMPLE,
    attempt: int | np.ndarray = 0,
    lane: int = TARGET_LANE,
) -> np.ndarray:
    """The counter words (R, 4) of the draws for the tokens at `positions` (R,)."""
    stream = np.asarray(positions, dtype=np.uint64) * np.uint64(3) + np.asarray(use, np.uint64)
    counter = np.empty((len(stream), 4), dtype=np.uint64)
    counter[:, 0], counter[:, 1] = stream & _LOW, stream >> _WORD
    counter[:, 2], counter[:, 3] = attempt, lane
    return counter


def target_words(
    seeds: np.ndarray,
    positions: np.ndarray,
    use: int | np.ndarray = SAMPLE,
    lane: int = TARGET_LANE,
    draft: int = 0,
) -> np.ndarray:
    """The numbers that an integer target is made of: (ATTEMPTS, R) int64, each even in [0, 2^62).

    One for each attempt, all in advance: to draw the next only after a rejection would be a loop
    that waits for data. `sampler.below` takes the first that it can use.

    draft   on the drafter's lane: which draft of its round it is, counted from 0. A position that
            is drafted again, since a draft before it was rejected, draws new numbers: in another
            round it is another draft. The attempts of draft i are counted from i * ATTEMPTS
    """
    seeds, positions = np.tile(seeds, ATTEMPTS), np.tile(positions, ATTEMPTS)
    use = np.tile(use, ATTEMPTS) if isinstance(use, np.ndarray) else use
    attempts = draft * ATTEMPTS + np.repeat(np.arange(ATTEMPTS), len(seeds) // ATTEMPTS)
    words = philox(seeds, counters(positions, use, attempts, lane))
    bits = (words[:, 0] << np.uint64(30)) | (words[:, 1] >> np.uint64(2))
    return bits.astype(np.int64).reshape(ATTEMPTS, -1)


def uniform_bits(seeds: np.ndarray, positions: np.ndarray, use: int = ACCEPT) -> np.ndarray:
    """53 random bits (R,) for each request, int64: a coin shows heads below p * 2^53."""
    words = philox(seeds, counters(positions, use))
    bits = (words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))
    return bits.astype(np.int64)


def uniform(seeds: np.ndarray, positions: np.ndarray, use: int = SAMPLE) -> np.ndarray:
    """One float64 in [0, 1) for each request, of 53 random bits."""
    return uniform_bits(seeds, positions, use) * 2.0**-53


def sample_seed(seed: int, sample_index: int) -> int:
    """The seed of one of a request's samples: its own for sample 0, a mix for each other."""
    if sample_index == 0:
        return seed
    counter = np.array([[sample_index, 0, 0, SEED_LANE]])
    low, high = philox(np.array([seed], dtype=np.uint64), counter)[0, :2].tolist()
    return low | high << 32
