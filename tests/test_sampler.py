"""The sampling path: what is kept, what is drawn, and that rows do not touch each other."""

import numpy as np
import pytest
import torch

from g2c_serving.sample.sampler import (
    FAULTS,
    INFINITE,
    NOT_NUMBERS,
    NOTHING_LEFT,
    SamplingBatch,
    sample,
)

ROWS = 4000


def settings(rows, temperature=1.0, top_k=0, top_p=1.0, seeds=None, position=5):
    seeds = np.arange(rows) if seeds is None else np.asarray(seeds)
    return SamplingBatch(
        seeds.astype(np.uint64),
        np.full(rows, position),
        np.full(rows, float(temperature)),
        np.full(rows, top_k),
        np.full(rows, float(top_p)),
    )


def drawn(probabilities, **options) -> set[int]:
    """The tokens that 4,000 seeds draw from one distribution."""
    logits = torch.tensor(probabilities).log().expand(ROWS, -1)
    return set(sample(logits, settings(ROWS, **options)).tolist())


@pytest.mark.parametrize(
    "probabilities, options, kept",
    [
        ([0.3, 0.1, 0.1, 0.5], {"top_p": 0.8}, {0, 3}),  # transformers 18976
        ([0.3, 0.1, 0.1, 0.5], {"top_p": 1e-4}, {3}),  # transformers 19839
        ([0.25] * 4, {"top_p": 1.0}, {0, 1, 2, 3}),
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 2}, {2, 3}),
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 0}, {0, 1, 2, 3}),  # nanochat 466: 0 is off
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 99}, {0, 1, 2, 3}),
        ([0.25] * 4, {"top_k": 2}, {0, 1}),  # exactly k, the lowest ids on ties
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 3, "top_p": 0.77}, {2, 3}),  # of 0.9: 0.4 + 0.3 reach it
        ([0.0, 0.5, 0.0, 0.5], {}, {1, 3}),  # minus infinity is never drawn
    ],
)
def test_kept_tokens(probabilities, options, kept):
    assert drawn(probabilities, **options) == kept


def test_frequencies_are_the_probabilities():
    """20,000 seeds against the distribution: chi-square, 3 degrees of freedom, below 16.3
    (one run in a thousand is above; the seeds are fixed)."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    tokens = sample(p.log().expand(20_000, -1), settings(20_000))
    counts = torch.bincount(tokens, minlength=4)
    assert ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum() < 16.3


def test_temperature_zero_is_the_exact_argmax_beside_sampled_rows():
    """nano-vllm 249: greedy and sampled rows in one batch; the lowest id on ties, and a tie broken
    by the last bit of a float32 is no tie."""
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1))
    logits[0, [40, 70]] = 9.0
    logits[1, 40] = 9.0
    logits[1, 70] = torch.nextafter(torch.tensor(9.0), torch.tensor(10.0))
    batch = settings(64)
    batch.temperature[::2] = 0
    batch.temperature[1] = 0
    tokens = sample(logits, batch)
    assert tokens[:2].tolist() == [40, 70]
    assert tokens[2::2].tolist() == logits[2::2].argmax(-1).tolist()
    alone = sample(logits[3:4], settings(1, seeds=[3]))
    assert tokens[3] == alone[0]


def test_a_row_does_not_depend_on_its_place_or_company():
    """DeepInfer's own test: a batch, the same rows shuffled, and each row alone."""
    logits = torch.randn(32, 200, generator=torch.Generator().manual_seed(2))
    batch = settings(32, top_p=0.9)
    batch.top_p[::3] = 1.0
    batch.top_k[::4] = 7
    tokens = sample(logits, batch)
    order = np.random.default_rng(0).permutation(32)
    fields = (batch.seeds, batch.positions, batch.temperature, batch.top_k, batch.top_p)
    shuffled = sample(logits[order], SamplingBatch(*(f[order] for f in fields)))
    assert shuffled.tolist() == tokens[order].tolist()
    for i in range(32):
        one = SamplingBatch(*(f[i : i + 1] for f in fields))
        assert sample(logits[i : i + 1], one).tolist() == [tokens[i]]


def test_rows_that_cannot_be_drawn_say_why_and_the_others_are_drawn():
    """Not numbers, plus infinity, and nothing but minus infinity: three faults of their own row."""
    logits = torch.zeros(5, 5)
    logits[0, 2] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3, [3, 4]] = torch.tensor([torch.inf, torch.nan])
    for options in ({"temperature": 0}, {"top_k": 2, "top_p": 0.5}, {"top_p": 0.1}):
        tokens = sample(logits, settings(5, **options)).tolist()
        assert tokens == [NOT_NUMBERS, NOTHING_LEFT, INFINITE, NOT_NUMBERS, 0]
    assert set(FAULTS) == {NOT_NUMBERS, NOTHING_LEFT, INFINITE}


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("scale", [1.0, 1e30, 3e38])
def test_no_finite_temperature_or_logit_overflows(temperature, scale):
    """The masked token is never drawn, and a row of finite logits always draws one."""
    logits = torch.tensor([[-scale, scale, scale, -torch.inf]]).expand(200, -1)
    tokens = set(sample(logits, settings(200, temperature=temperature)).tolist())
    assert {1, 2} <= tokens <= {0, 1, 2}


def test_logits_are_not_changed():
    logits = torch.randn(4, 50)
    before = logits.clone()
    sample(logits, settings(4, temperature=0.7, top_k=3, top_p=0.5))
    assert torch.equal(logits, before)
