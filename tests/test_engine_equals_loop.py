"""The whole engine against the one-user loop: the same tokens, whoever shares the step.

In float64 the rounding differences between a batch and a row alone (about 1e-15) never decide a
token of these models, so tokens are compared for equality.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.lab.one_user import OneUserModel, generate_cached
from g2c_serving.sample import rng

LM = random_lm(eos_id=48)  # a token that it likes
LOOP = OneUserModel(LM, torch.float64)
MIXES = 100


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    params: g.SamplingParams


@dataclass
class Outcome:
    """What an engine made of a mix: new ids and reason of each arrival, and its preemptions."""

    ids: list[list[int]]
    reasons: list[str]
    preemptions: int
    chunked_rows: int


def serve(arrivals: list[Arrival], config: g.EngineConfig) -> Outcome:
    """Add each arrival before its step, run to the end; the blocks are proved after every step."""
    engine = g.Engine(LM, config)
    number: dict[int, int] = {}  # request id: its place among the arrivals
    final: dict[int, g.RequestOutput] = {}
    step = 0
    while len(final) < len(arrivals):
        for i, arrival in enumerate(arrivals):
            if arrival.step == step:
                number[engine.add(list(arrival.prompt), arrival.params)] = i
        for output in engine.step():
            if output.finish_reason is not None:
                final[number[output.request_id]] = output
        engine.block_manager.check()
        step += 1
        assert step < 5000, "no end"
    assert not engine.has_unfinished
    assert engine.block_manager.num_free == config.num_blocks
    outputs = [final[i] for i in range(len(arrivals))]
    chunks = [row for r in engine.history for row in r.rows if row.kind == "prefill"]
    return Outcome(
        [o.token_ids for o in outputs],
        [str(o.finish_reason) for o in outputs],
        engine.stats.preemptions,
        sum(row.num_computed > 0 for row in chunks),
    )


def random_mix(seed: int) -> tuple[list[Arrival], g.EngineConfig]:
    """Some requests, some of which meet the context limit, and an engine too small to be at ease:
    its pool holds the longest of them, and not much more."""
    dice = random.Random(seed)
    arrivals = []
    for i in range(dice.randint(2, 7)):
        prompt = random_ids(LM, dice.randint(1, dice.choice([5, 20, 60])), seed=100 * seed + i)
        max_tokens = dice.randint(1, dice.choice([4, 30]))
        params = g.SamplingParams(temperature=0, max_tokens=max_tokens)
        arrivals.append(Arrival(dice.choice([0, dice.randint(0, 20)]), tuple(prompt), params))
    block_size = dice.choice([1, 2, 4, 8, 16])
    longest = max(len(a.prompt) + a.params.max_tokens for a in arrivals)
    least = -(-min(longest, LM.config.max_seq_len) // block_size)
    config = g.EngineConfig(
        num_blocks=least + dice.randint(0, least // 2 + 1),
        block_size=block_size,
        max_num_batched_tokens=dice.choice([1, 2, 5, 16, 64, 256]),
        max_num_seqs=dice.choice([1, 2, 3, 8]),
        dtype="float64",
    )
    return arrivals, config


@cache
def outcome_of_mix(seed: int) -> Outcome:
    return serve(*random_mix(seed))


@pytest.mark.parametrize("seed", range(MIXES))
def test_greedy_tokens_equal_the_one_user_loop(seed):
    """Right values: the loop, for each request alone. Arrivals, lengths, chunk sizes, pool sizes
    and the number of running requests are drawn at random."""
    arrivals, _ = random_mix(seed)
    found = outcome_of_mix(seed)
    for arrival, ids, reason in zip(arrivals, found.ids, found.reasons, strict=True):
        expected = generate_cached(LOOP, arrival.prompt, arrival.params.max_tokens, [LM.eos_id])
        assert ids == expected
        assert reason == ("stop" if expected[-1] == LM.eos_id else "length")


def test_the_mixes_cover_what_they_are_meant_to():
    """Preemptions, chunks after the first, ends of text, ends at the context limit, and texts
    that are not one token over and over."""
    mixes, outcomes = zip(*((random_mix(s), outcome_of_mix(s)) for s in range(MIXES)), strict=True)
    assert sum(o.preemptions > 0 for o in outcomes) >= 10
    assert sum(o.chunked_rows > 0 for o in outcomes) >= 10
    assert sum(o.reasons.count("stop") for o in outcomes) >= 3
    lengths = [
        len(arrival.prompt) + len(ids)
        for (arrivals, _), o in zip(mixes, outcomes, strict=True)
        for arrival, ids in zip(arrivals, o.ids, strict=True)
    ]
    assert lengths.count(LM.config.max_seq_len) >= 3
    assert len({token for o in outcomes for ids in o.ids for token in ids}) > 50


SAMPLED = [
    Arrival(0, tuple(random_ids(LM, 3 + 4 * i, seed=i)), params)
    for i, params in enumerate(
        [
            g.SamplingParams(max_tokens=24, seed=1, ignore_eos=True),
            g.SamplingParams(max_tokens=24, seed=2**64 - 1, temperature=2.5, ignore_eos=True),
            g.SamplingParams(max_tokens=20, seed=3, temperature=0.7, top_k=40, ignore_eos=True),
            g.SamplingParams(max_tokens=24, seed=0, top_p=0.9, ignore_eos=True),
            g.SamplingParams(max_tokens=16, seed=3, top_k=5, top_p=0.6, ignore_eos=True),
            g.SamplingParams(max_tokens=24, seed=9, temperature=0, ignore_eos=True),
        ]
    )
]
ROOMY = g.EngineConfig(dtype="float64", num_blocks=64)


@cache
def each_alone() -> list[list[int]]:
    return [serve([replace(a, step=0)], ROOMY).ids[0] for a in SAMPLED]


COMPANIES = {
    "together": (range(6), ROOMY),
    "reordered": ([4, 2, 0, 5, 1, 3], ROOMY),
    "one at a time": (range(6), replace(ROOMY, max_num_seqs=1)),
    "chunks of 1": (range(6), replace(ROOMY, max_num_batched_tokens=1)),
    "chunks of 7": (range(6), replace(ROOMY, max_num_batched_tokens=7)),
    "pages of 1": (range(6), replace(ROOMY, block_size=1, num_blocks=200)),
    "a small pool": (range(6), replace(ROOMY, block_size=4, num_blocks=14)),
}


@pytest.mark.parametrize("company", COMPANIES)
def test_seeded_samples_are_the_same_in_any_company(company):
    """Right values: the same requests, each alone in an engine with room."""
    order, config = COMPANIES[company]
    found = serve([SAMPLED[i] for i in order], config)
    assert found.ids == [each_alone()[i] for i in order]
    if company == "a small pool":
        assert found.preemptions > 0


@pytest.mark.parametrize("i", [0, 1])
def test_seeded_samples_are_the_loops_with_the_same_coin(i):
    """Right values: the loop, with weights of 32 bits in Python's own integers, and the token where
    their sum passes the request's own Philox number for that position."""
    prompt, params = SAMPLED[i].prompt, SAMPLED[i].params
    position = len(prompt)

    def pick(logits: torch.Tensor) -> int:
        nonlocal position
        scaled = (logits.numpy() - logits.numpy().max()) / params.temperature
        weights = [round(w * 2**32) for w in np.exp(scaled).tolist()]
        key, counter = np.array([params.seed], dtype=np.uint64), rng.counters(np.array([position]))
        low, high, *_ = rng.philox(key, counter)[0]
        target = ((int(low) << 32 | int(high)) >> 2) * sum(weights) >> 62
        position += 1
        return next(i for i, total in enumerate(itertools.accumulate(weights)) if total > target)

    assert each_alone()[i] == generate_cached(LOOP, prompt, params.max_tokens, pick=pick)
