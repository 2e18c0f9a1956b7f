"""The first ten of eleven reads: closed forms of order statistics, and draws that nobody sums."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from g2c_serving.cluster.storage_reads import Read, ReadTimes, kth_of, simulate, under_load

PLAIN = ReadTimes()  # exponential, mean 1 ms


def harmonic(n: int) -> float:
    return float(sum(Fraction(1, i) for i in range(1, n + 1)))


@pytest.mark.parametrize("issued", [10, 11, 12])
def test_exponential_reads_have_the_known_mean(issued):
    """The k-th of n exponential times has mean H(n) - H(n - k): 2.929, 2.020, 1.603."""
    right = harmonic(issued) - harmonic(issued - 10)
    assert Read(PLAIN, issued).mean() == pytest.approx(right, abs=2e-4)
    assert under_load(0, issued) == pytest.approx(right)


def test_all_of_ten_is_the_product_and_any_of_ten_the_complement():
    p = np.linspace(0, 1, 21)
    assert kth_of(p, 10, 10) == pytest.approx(p**10)
    assert kth_of(p, 1, 10) == pytest.approx(1 - (1 - p) ** 10)
    assert kth_of(p, 0, 10) == pytest.approx(np.ones(21))
    assert kth_of(p, 10, 11) == pytest.approx(p**11 + 11 * p**10 * (1 - p))


def test_the_median_and_the_tail_by_hand():
    """All ten are there by t with (1 - e^-t)^10: solve for t."""
    for share in (0.5, 0.99):
        right = -np.log(1 - share**0.1)
        assert Read(PLAIN, 10).quantile(share) == pytest.approx(right, rel=1e-6)
    shifted = ReadTimes(fixed_ms=3, mean_ms=2)
    assert Read(shifted, 10).quantile(0.5) == pytest.approx(3 - 2 * np.log(1 - 0.5**0.1), rel=1e-6)


@pytest.mark.parametrize("issued", [10, 11, 12])
def test_slow_reads_against_random_draws(issued):
    times = ReadTimes(0.5, 1.0, slow=0.05, factor=20)
    drawn = np.sort(times.draw(np.random.default_rng(1), (200_000, issued)))[:, 9]
    read = Read(times, issued)
    assert read.mean() == pytest.approx(drawn.mean(), rel=0.01)
    for share in (0.5, 0.9, 0.99):
        assert read.quantile(share) == pytest.approx(np.quantile(drawn, share), rel=0.03)


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e12])
def test_the_mean_where_slow_reads_take_for_ever(factor):
    """Beside such reads the others take no time: with k slow ones of eleven it is the (k - 1)th of
    k that counts, so H(k) - 1 of their means."""
    slow = 0.01
    late = sum(
        comb(11, k) * slow**k * (1 - slow) ** (11 - k) * (harmonic(k) - 1) for k in range(2, 12)
    )
    found = Read(ReadTimes(3, 2, slow, factor)).mean()
    assert found == pytest.approx(3 + 2 * factor * late, rel=3 / factor, abs=8)
    assert Read(ReadTimes(3, 2, 0, factor)).mean() == pytest.approx(3 + 2 * (harmonic(11) - 1))
    middle = Read(ReadTimes(3, 2, 0, factor)).quantile(0.5)
    assert middle == pytest.approx(Read(ReadTimes(3, 2)).quantile(0.5))


def test_one_read_more_saves_the_tail():
    """With 1 read in 100 slow, 1 block in 10 of ten meets one; of eleven it takes two."""
    times = ReadTimes(1, 1, slow=0.01, factor=50)
    ten, eleven, twelve = (Read(times, n).quantile(0.95) for n in (10, 11, 12))
    assert ten > 4 * eleven > 4 * twelve


def test_extra_reads_help_until_the_disks_are_busy():
    """(H11 - 1) / (1 - 1.1 r) = H10 / (1 - r) at r = 0.756: beyond it the eleventh read hurts."""
    ten, eleven = harmonic(10), harmonic(11) - 1
    even = (ten - eleven) / (1.1 * ten - eleven)
    assert even == pytest.approx(0.756, abs=0.001)
    assert under_load(even, 11) == pytest.approx(under_load(even, 10))
    assert under_load(even - 0.1, 11) < under_load(even - 0.1, 10)
    assert under_load(even + 0.1, 11) > under_load(even + 0.1, 10)
    assert np.isinf(under_load(1, 10)) and np.isinf(under_load(0.95, 11))


def test_blocks_that_find_empty_queues_are_left_out():
    """The first of all find idle disks and take H10 = 2.9; the first that count take more."""
    first = np.mean([simulate(0.8, 10, blocks=250, seed=seed)[:10].mean() for seed in range(20)])
    assert first > 1.5 * harmonic(10)


@pytest.mark.parametrize("load, issued", [(0.3, 10), (0.5, 11), (0.6, 10)])
def test_queues_that_are_simulated_come_to_the_closed_form(load, issued):
    found = simulate(load, issued, blocks=8000, seed=5).mean()
    assert found == pytest.approx(float(under_load(load, issued)), rel=0.06)


def test_one_disk_a_block_is_m_m_1():
    """One read of one: 1 / (1 - load)."""
    found = simulate(0.5, 1, 1, disks=4, blocks=40_000, seed=2)
    assert found.mean() == pytest.approx(2, rel=0.05)
    assert under_load(0.5, 1, 1) == 2


def test_bad_input():
    with pytest.raises(ValueError, match="slow=1.5 must be from 0 to 1"):
        ReadTimes(slow=1.5)
    with pytest.raises(ValueError, match=r"factor=1e\+300 must be from 1 to 1e\+12"):
        ReadTimes(factor=1e300)
    with pytest.raises(ValueError, match="issued=9"):
        Read(PLAIN, 9)
    with pytest.raises(ValueError, match="share=1 "):
        Read(PLAIN).quantile(1)
    with pytest.raises(ValueError, match="load=1.2"):
        under_load(1.2, 11)
    with pytest.raises(ValueError, match="load=0.95 with issued=11"):
        simulate(0.95, 11, seed=1)
