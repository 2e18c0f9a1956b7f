"""Who takes part in the benchmark: ways to serve the same prompts greedily from the same weights.

Each is a function from prompts and a number of new tokens to the new ids of each prompt. Cost is
counted in CPU-seconds of the whole process, all its threads together: on a busy machine that is
steadier than the clock, and a second thread is not had for nothing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from g2c_serving.config import DTYPES, EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import theirs
from g2c_serving.lab.machine import version
from g2c_serving.lab.one_user import OneUserModel, generate_cached
from g2c_serving.request import SamplingParams

Prompts = Sequence[Sequence[int]]
Serve = Callable[[Prompts, int], list[list[int]]]

TOKENS_A_STEP = 1024  # for the two that batch continuously

OURS, ONE_BY_ONE, ONE_USER = "ours", "ours, max_num_seqs=1", "one-user loop"
CONTINUOUS, PADDED = "transformers continuous batching", "transformers padded generate"


@dataclass
class Contestant:
    """`run(prompts, new_tokens)` gives new ids; `absent` says why it cannot take part, if so;
    `clock` counts its CPU-seconds, this process's where it is not another. One that `may_fail` is
    absent from then on, and the race goes on without it."""

    name: str
    run: Serve
    absent: str | None = None
    clock: Callable[[], float] = time.process_time
    may_fail: bool = False


@dataclass
class Result:
    """The best of a contestant's runs: (prompt + new) tokens per CPU-second, and the ids."""

    requests: int = 0
    rate: float = 0.0
    ids: list[list[int]] | None = None


def made_up_prompts(lm: LanguageModel, count: int, length: int) -> list[list[int]]:
    """Random ordinary ids: neither reserved ones nor, where there are merges, single bytes."""
    first = min(266, lm.vocab_size // 2)
    generator = torch.Generator().manual_seed(count * 1000 + length)
    return torch.randint(first, lm.vocab_size, (count, length), generator=generator).tolist()


def room_for(batch: int, prompt: int, tokens: int, **others: Any) -> EngineConfig:
    """`batch` requests at once, each with so many ids in its prompt and so many new ones."""
    return EngineConfig(
        num_blocks=batch * -(-(prompt + tokens + 1) // EngineConfig.block_size),
        max_num_batched_tokens=prompt * batch,
        max_num_seqs=batch,
        **others,
    )


def fill(engine: Engine, batch: int, prompt: int, params: SamplingParams, steps: int = 1) -> None:
    """Add `batch` requests with made-up prompts, each with its own seed, and do `steps` steps:
    after the first, all of them decode."""
    for seed, ids in enumerate(made_up_prompts(engine.lm, batch, prompt)):
        engine.add(ids, replace(params, seed=seed))
    for _ in range(steps):
        engine.step()


def ours(lm: LanguageModel, max_num_seqs: int = 128, dtype: str = "float32") -> Contestant:
    """The engine, with as many tokens a step as transformers' continuous batching has."""
    config = EngineConfig(
        num_blocks=640, max_num_seqs=max_num_seqs, max_num_batched_tokens=TOKENS_A_STEP, dtype=dtype
    )
    engine = Engine(lm, config)

    def run(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        return [output.token_ids for output in engine.generate(list(prompts), params)]

    return Contestant(OURS if max_num_seqs > 1 else ONE_BY_ONE, run)


def one_user(lm: LanguageModel) -> Contestant:
    """The loop before the engine; absent for a model of another shape than the course's."""
    try:
        model = OneUserModel(lm)
    except ValueError as err:
        return absent(ONE_USER, str(err))
    return Contestant(ONE_USER, lambda prompts, n: [generate_cached(model, p, n) for p in prompts])


def transformers_pair(lm: LanguageModel, dtype: str = "float32") -> list[Contestant]:
    """Continuous batching and padded `generate` of transformers; absent where they cannot run."""
    if version("transformers") == "not installed":
        return [absent(name, "transformers is not installed") for name in (CONTINUOUS, PADDED)]
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        model = theirs.transformers_model(lm, DTYPES[dtype])
    except Exception as err:  # its shape, or another version of transformers
        return [absent(name, str(err)) for name in (CONTINUOUS, PADDED)]
    pair = []
    continuous = partial(theirs.continuous_generate, max_batch_tokens=TOKENS_A_STEP)
    for name, serve in ((CONTINUOUS, continuous), (PADDED, theirs.padded_generate)):
        pair.append(Contestant(name, partial(serve, model), may_fail=True))
        try:
            pair[-1].run([[1, 2]], 2)
        except Exception as err:  # another version of it, with another interface
            pair[-1].absent = f"transformers {version('transformers')} cannot: {err!r}"
    return pair


def absent(name: str, why: str) -> Contestant:
    return Contestant(name, lambda prompts, n: [], why)


def race(
    entries: Sequence[tuple[Contestant, Prompts]], new_tokens: int, repetitions: int
) -> dict[str, Result]:
    """Each contestant's best result; they take turns (A B C, A B C, ...), so that a slow minute of
    the machine hits them all. One that is absent, or fails on the way, has no result."""
    entries = [entry for entry in entries if not entry[0].absent]
    results = {contestant.name: Result(len(prompts)) for contestant, prompts in entries}
    for _ in range(repetitions):
        gc.collect()
        for contestant, prompts in entries:
            if contestant.absent:
                continue
            try:
                rate, ids = timed(contestant, prompts, new_tokens)
            except Exception as err:
                if not contestant.may_fail:
                    raise
                contestant.absent = str(err) or type(err).__name__
                del results[contestant.name]
                continue
            best = results[contestant.name]
            best.rate, best.ids = max(best.rate, rate), ids
    return results


def timed(
    contestant: Contestant, prompts: Prompts, new_tokens: int
) -> tuple[float, list[list[int]]]:
    """Tokens per CPU-second, prompts included, and the new ids. RuntimeError where its clock stood
    still, as a coarse one does for a short run."""
    start = contestant.clock()
    ids = contestant.run(prompts, new_tokens)
    spent = contestant.clock() - start
    if spent <= 0:
        raise RuntimeError(f"{contestant.name} took no time that its CPU clock shows: measure more")
    tokens = sum(len(prompt) + len(new) for prompt, new in zip(prompts, ids, strict=True))
    return tokens / spent, ids


def share_equal(ours_ids: list[list[int]], their_ids: list[list[int]]) -> float:
    """The share of tokens that agree, over the requests that both served."""
    pairs = [
        one == other
        for mine, their in zip(ours_ids, their_ids, strict=False)
        for one, other in zip(mine, their, strict=True)
    ]
    return sum(pairs) / len(pairs)
