"""Bytes that a GPU reads per step, and partial results in three orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2c_serving.cluster.combine import by_arrival, by_expert, by_gpu, vectors_sent
from g2c_serving.cluster.wide_ep import MADE_UP, MixtureOfExperts

# ---- bytes ----

SMALL = MixtureOfExperts(layers=2, experts=16, chosen=3, expert_bytes=10, other_bytes=100)


def test_by_hand():
    """Many tokens: all 16 / 4 experts of both layers. One token on one GPU: its 3 of each layer."""
    assert SMALL.streamed(4, 10_000) == pytest.approx(100 + 2 * 4 * 10)
    assert SMALL.streamed(1, 1) == pytest.approx(100 + 2 * 3 * 10)
    assert SMALL.streamed(4, 0) == 100
    assert SMALL.streamed(4, 1) == pytest.approx(
        100 + 80 * (1 - (13 / 16) ** 4)
    )  # all GPUs' tokens
    assert SMALL.held(4, copies=1) == 100 + 2 * 5 * 10
    assert SMALL.routed_bytes == 320


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_experts_that_someone_chose_against_drawing_them(tokens):
    draw = np.random.default_rng(tokens)
    seen = [
        len({e for _ in range(tokens) for e in draw.choice(16, 3, replace=False).tolist()})
        for _ in range(3000)
    ]
    assert SMALL.streamed(1, tokens) == pytest.approx(100 + 2 * 10 * np.mean(seen), rel=0.02)


def test_the_made_up_model():
    """258 billion weights in experts, at 4.25 bits."""
    weights = 40 * 256 * 3 * 4096 * 2048
    assert MADE_UP.routed_bytes == pytest.approx(weights * 4.25 / 8) and weights > 257e9


def test_more_gpus_read_less_each_and_never_less_than_the_others():
    read = [MADE_UP.streamed(g, 60) for g in (2, 4, 8, 16, 32, 64, 128)]
    assert read == sorted(read, reverse=True) and read[-1] > MADE_UP.other_bytes
    assert MADE_UP.streamed(64, 60, copies=2) > MADE_UP.streamed(64, 60)


def test_what_is_refused():
    with pytest.raises(ValueError, match="chosen=9"):
        MixtureOfExperts(1, 8, 9, 1, 1)
    with pytest.raises(ValueError, match="other_bytes=-1"):
        MixtureOfExperts(1, 8, 2, 1, -1)
    with pytest.raises(ValueError, match="gpus=0"):
        MADE_UP.streamed(0, 1)


# ---- the order of adding up ----


def partials(dtype: torch.dtype = torch.float32):
    draw = torch.Generator().manual_seed(1)
    parts = torch.randn(50, 8, 32, generator=draw).to(dtype)
    before = torch.randint(0, 8, (50, 8), generator=draw)
    after = before.clone()
    after[:, 2] = (after[:, 2] + 1) % 8  # the third expert of every token moves
    times = torch.rand(2, 50, 8, generator=draw)
    return parts, before, after, times


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_experts_order_survives_a_reassignment(dtype):
    parts, before, after, times = partials(dtype)
    assert not torch.equal(by_arrival(parts, before, times[0]), by_arrival(parts, before, times[1]))
    assert torch.equal(by_gpu(parts, before, times[0]), by_gpu(parts, before, times[1]))
    assert not torch.equal(by_gpu(parts, before, times[0]), by_gpu(parts, after, times[0]))
    one, other = by_expert(parts, before, times[0]), by_expert(parts, after, times[1])
    assert torch.equal(one, other)


def test_all_are_the_sum():
    parts, before, _, times = partials()
    exact = parts.double().sum(1)
    for rule in (by_arrival, by_gpu, by_expert):
        assert torch.allclose(rule(parts, before, times[0]).double(), exact, atol=1e-5)


def test_grouping_by_hand():
    """In float32 a hundred millions swallow a 1: (1e8 + 1) - 1e8 is 0, and 1 + (1e8 - 1e8) is 1."""
    parts = torch.tensor([1e8, 1.0, -1e8]).reshape(1, 3, 1)
    one, apart = torch.tensor([[0, 0, 0]]), torch.tensor([[0, 1, 0]])
    late = torch.tensor([[0.0, 2.0, 1.0]])
    assert by_expert(parts, one, late).item() == 0
    assert by_gpu(parts, one, late).item() == 0 and by_gpu(parts, apart, late).item() == 1
    assert by_arrival(parts, one, late).item() == 1


def test_a_gpu_adds_forwards_and_so_do_the_gpus():
    """(1 + 1e8) - 1e8 is 0 where (-1e8 + 1e8) + 1 is 1."""
    parts, never = torch.tensor([1.0, 1e8, -1e8]).reshape(1, 3, 1), torch.zeros(1, 3)
    for gpus, expected in (([0, 0, 0], 0), ([0, 1, 2], 0), ([2, 1, 0], 1), ([1, 0, 0], 1)):
        assert by_gpu(parts, torch.tensor([gpus]), never).item() == expected


def test_the_experts_of_others_change_no_bit_not_even_the_sign_of_zero():
    parts = torch.tensor([-0.0, 0.0, -0.0, -0.0]).reshape(2, 2, 1)
    sums = by_gpu(parts, torch.tensor([[0, 0], [3, 1]]), torch.zeros(2, 2))
    assert torch.signbit(sums).ravel().tolist() == [False, True]  # -0 + 0 is 0, -0 + -0 is -0


def test_vectors_sent():
    gpus = torch.tensor([[0, 0, 1], [2, 2, 2]])
    assert vectors_sent(gpus, by_gpu) == 1.5
    assert vectors_sent(gpus, by_expert) == vectors_sent(gpus, by_arrival) == 3
