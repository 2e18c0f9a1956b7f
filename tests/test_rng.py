"""Philox against its published answers, and what a keyed draw promises."""

import numpy as np
import pytest

from g2c_serving.sample import rng

# Known answers of the authors' library Random123 for philox4x32 with 10 rounds:
# counter words, key words, result words.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("counter, key, result", KNOWN_ANSWERS)
def test_published_answers(counter, key, result):
    low, high = words(key)
    got = rng.philox(np.array([low | high << 32], dtype=np.uint64), np.array([words(counter)]))
    assert got.tolist() == [words(result)]


def test_published_answers_in_one_call():
    """A vector of keys and counters gives what each gives alone."""
    keys = [words(key)[0] | words(key)[1] << 32 for _, key, _ in KNOWN_ANSWERS]
    counters = [words(counter) for counter, _, _ in KNOWN_ANSWERS]
    got = rng.philox(np.array(keys, dtype=np.uint64), np.array(counters))
    assert got.tolist() == [words(result) for _, _, result in KNOWN_ANSWERS]


def test_stream_is_position_times_three_plus_use():
    """The Brief's stream: position 7, use 2 is counter 23 (figures.csv, rng.stream)."""
    seed = np.array([5], dtype=np.uint64)
    counter = np.array([[7 * 3 + 2, 0, 0, 0]])
    assert (rng.draw(seed, np.array([7]), rng.ACCEPT) == rng.philox(seed, counter)).all()


def test_a_position_beyond_32_bits_uses_the_high_word():
    seed, position = np.array([5], dtype=np.uint64), 2**33
    stream = position * 3
    counter = np.array([[stream % 2**32, stream // 2**32, 0, 0]])
    assert (rng.draw(seed, np.array([position])) == rng.philox(seed, counter)).all()


def test_uniform_is_in_range_and_even():
    """20,000 draws fill ten bins evenly: chi-square with 9 degrees of freedom below 27.9
    (one run in a thousand is above; the seeds are fixed)."""
    seeds = np.arange(20_000, dtype=np.uint64)
    u = rng.uniform(seeds, np.full(20_000, 3))
    assert 0 <= u.min() and u.max() < 1
    counts = np.histogram(u, bins=10, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9


def test_samples_of_one_request_have_distinct_seeds():
    """nanochat 201 and 38: sample 0 keeps the request's seed, the others differ from it and from
    each other, and whichever n is asked for, they are the same."""
    seeds = [rng.sample_seed(7, i) for i in range(64)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 64
    assert all(0 <= seed < 2**64 for seed in seeds)
