"""Philox against its published answers, and what a keyed draw promises."""

import itertools

import numpy as np
import pytest
from chi_square import fits

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
    assert rng.counters(np.array([7]), rng.ACCEPT).tolist() == [[23, 0, 0, 0]]


def test_a_position_beyond_32_bits_uses_the_high_word():
    assert rng.counters(np.array([2**33 + 1])).tolist() == [[3, 6, 0, 0]]


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


def test_seeds_of_many_samples_of_many_requests_never_meet():
    """Keys of 64 bits from 20 requests, neighbours among them, with 200 samples each."""
    seeds = [*range(10), 2**64 - 1, *(7 << shift for shift in range(9, 63, 6))]
    assert len({rng.sample_seed(seed, i) for seed in seeds for i in range(200)}) == 20 * 200


def test_a_sample_of_a_request_is_another_stream_not_another_place_in_it():
    """The words that make the seeds come of their own lane: no draw of the request shows them."""
    seed = np.array([7], dtype=np.uint64)
    drawn = set(map(tuple, rng.philox(np.repeat(seed, 999), rng.counters(np.arange(999))).tolist()))
    for i in range(1, 50):
        low, high = rng.sample_seed(7, i) % 2**32, rng.sample_seed(7, i) >> 32
        assert all((low, high) != words[:2] for words in drawn)


def test_no_two_uses_attempts_or_lanes_share_a_counter():
    """Position * 3 + use: the uses of one position lie between those of its neighbours."""
    positions = np.array([0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**40])
    found = set()
    for use, attempt, lane in itertools.product(range(3), range(rng.ATTEMPTS), range(2)):
        for counter in rng.counters(positions, use, attempt, lane).tolist():
            position, its_use = divmod(counter[0] + (counter[1] << 32), 3)
            assert position in positions and its_use == use
            assert counter[2:] == [attempt, lane] and max(counter) < 2**32
            found.add(tuple(counter))
    assert len(found) == len(positions) * 3 * rng.ATTEMPTS * 2


def test_the_words_of_a_target_are_philoxs_attempt_by_attempt():
    """62 bits: the first word and all but two bits of the second, for attempts 0, 1, 2, 3."""
    seeds, positions = np.array([3, 2**63 + 5], dtype=np.uint64), np.array([11, 2**33])
    words = rng.target_words(seeds, positions, rng.RESAMPLE, rng.DRAFTER_LANE)
    assert words.shape == (rng.ATTEMPTS, 2) and words.dtype == np.int64
    for attempt in range(rng.ATTEMPTS):
        for i in range(2):
            stream = int(positions[i]) * 3 + 1
            counter = np.array([[stream % 2**32, stream // 2**32, attempt, 1]])
            first, second, *_ = rng.philox(seeds[i : i + 1], counter)[0].tolist()
            assert words[attempt, i] == ((first << 32) + second) // 4


DRAWS = 1 << 16
ONE = np.full(DRAWS, 12345, dtype=np.uint64)
STREAMS = {
    "positions of a request": lambda use: rng.target_words(ONE, np.arange(DRAWS), use)[0],
    "requests, seeds 0, 1, 2": lambda use: rng.target_words(
        np.arange(DRAWS, dtype=np.uint64), np.full(DRAWS, 40), use
    )[0],
    "seeds that differ in high bits": lambda use: rng.target_words(
        np.arange(DRAWS, dtype=np.uint64) << np.uint64(46), np.full(DRAWS, 40), use
    )[0],
    "second attempts": lambda use: rng.target_words(ONE, np.arange(DRAWS), use)[1],
    "the drafter's lane": lambda use: rng.target_words(
        ONE, np.arange(DRAWS), use, rng.DRAFTER_LANE
    )[0],
}


@pytest.mark.parametrize("use", [rng.SAMPLE, rng.RESAMPLE, rng.ACCEPT])
@pytest.mark.parametrize("name", STREAMS)
def test_words_are_even_in_their_high_middle_and_low_bits(name, use):
    """65,536 words in 256 bins of 8 bits, taken at four places of the 62."""
    words = STREAMS[name](use)
    for shift in (54, 40, 20, 0):
        counts = np.bincount((words >> shift) & 255, minlength=256)
        assert fits(counts, np.full(256, DRAWS / 256))


def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Counts of the pairs of their upper four bits, (256,)."""
    return np.bincount((a >> 58 << 4) + (b >> 58), minlength=256)


@pytest.mark.parametrize("name", STREAMS)
def test_neighbours_are_independent(name):
    """A position and the next, a seed and the next: pairs fall evenly over 16 x 16 cells."""
    words = STREAMS[name](rng.SAMPLE)
    for step in (1, 2, 3, 64):
        assert fits(pairs(words[:-step], words[step:]), np.full(256, (DRAWS - step) / 256))


@pytest.mark.parametrize("one, other", [(0, 1), (0, 2), (1, 2)])
def test_uses_of_one_position_are_independent(one, other):
    for stream in STREAMS.values():
        assert fits(pairs(stream(one), stream(other)), np.full(256, DRAWS / 256))


def test_attempts_lanes_and_samples_are_independent():
    positions = np.arange(DRAWS)
    first, second, *_ = rng.target_words(ONE, positions)
    drafter = rng.target_words(ONE, positions, lane=rng.DRAFTER_LANE)[0]
    sibling = np.full(DRAWS, rng.sample_seed(12345, 1), dtype=np.uint64)
    sample_1 = rng.target_words(sibling, positions)[0]
    for a, b in itertools.combinations((first, second, drafter, sample_1), 2):
        assert fits(pairs(a, b), np.full(256, DRAWS / 256))


def test_the_seed_of_a_sample_is_all_64_bits_of_a_philox_draw():
    """Replays of old answers depend on it: it may not change."""
    for seed, index in ((7, 1), (2**64 - 1, 3), (0, 16_384)):
        counter = np.array([[index, 0, 0, rng.SEED_LANE]])
        low, high, *_ = rng.philox(np.array([seed], dtype=np.uint64), counter)[0].tolist()
        assert rng.sample_seed(seed, index) == low + 2**32 * high
    assert any(rng.sample_seed(7, index) >= 2**63 for index in range(1, 20))
