"""One request on the real engine, watched: its tokens, and the logits and numbers behind each.

Brief, section 3: think of reproducibility as three contracts, random draws, numerical results and
sampling path. A `Contracts` says which of them an engine keeps. `disturbances.py` runs a request
twice, with something changed around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.parting import Seen
from g2c_serving.lab.shared_draws import SharedDrawEngine
from g2c_serving.launches import Step
from g2c_serving.request import SamplingParams
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sampling import Sampled

BLOCK = 8  # tokens: small, so that a small pool overflows soon
ROOMY = 256  # blocks: enough for all of the crowd, and their drafts
CROWD = 31  # strangers, at most
SHARED_SEED = 1  # of the one generator
Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Contracts:
    """What an engine promises: draws keyed by request and position; logits of fixed bits. With
    speculation its path: fixed, or under a budget (see `Speculation`)."""

    keyed: bool
    invariant: bool
    path: str | None = None


@dataclass(frozen=True)
class Case:
    """The request that is watched: prompt and parameters, with a seed of its own; and the prompts
    of `CROWD` strangers, each as long as its own."""

    lm: LanguageModel
    prompt: tuple[int, ...]
    params: SamplingParams
    strangers: Prompts


# an engine that remembers


class Watched(Engine):
    """Keeps the logits from which each request was sampled, by request id and position."""

    def _sample(self, step: Step, logits: torch.Tensor | None) -> Sampled:
        sampled, row = super()._sample(step, logits), 0
        for s in step.scheduled:
            if s.samples and logits is not None:
                for i in range(len(sampled[s.request.sequence_id])):
                    position = len(s.request.token_ids) + i
                    self.logits_of[s.request.request_id, position] = logits[row + i].clone()
                row += 1 + s.num_verified
        return sampled

    logits_of: dict[tuple[int, int], torch.Tensor]


class WatchedSharing(Watched, SharedDrawEngine):
    """The same, with one generator for all."""


def make_engine(case: Case, contracts: Contracts, **changes: Any) -> Watched:
    """An engine that keeps `contracts`, with `changes` in its configuration."""
    usual: dict[str, Any] = {"block_size": BLOCK, "num_blocks": ROOMY}
    if contracts.path is not None:
        drafter = _drafter_of(case.lm)
        usual["speculation"] = Speculation(contracts.path, 5, drafter, step_time=_step_ms)
    config = EngineConfig(**{**usual, **changes}, batch_invariant=contracts.invariant)
    kinds: dict[bool, type[Watched]] = {True: Watched, False: WatchedSharing}
    engine = kinds[contracts.keyed](case.lm, config)
    engine.logits_of = {}
    engine.ledger = Ledger()
    if isinstance(engine, SharedDrawEngine):
        engine.generator.manual_seed(SHARED_SEED)
    return engine


def _drafter_of(lm: LanguageModel) -> LanguageModel:
    """The shipped drafter, or the model itself where it does not fit."""
    drafter = _shipped_drafter()
    longer = drafter.config.max_seq_len >= lm.config.max_seq_len
    return drafter if longer and drafter.vocab_size == lm.vocab_size else lm


@cache
def _shipped_drafter() -> LanguageModel:
    return load("tiny-drafter")


def _step_ms(rows: int) -> float:
    """A made-up step time, so that a budget is the same on every machine: four rows are free, and
    each further one is so dear that only a sure draft is worth it. Then whose drafts are checked
    depends on all confidences in the step, and on what the engine has seen before."""
    return 10.0 + 1.5 * max(0, rows - 4)


# one run


def serve(engine: Watched, case: Case, before: Sequence, after: Sequence = ()) -> Seen:
    """Run the request between strangers' prompts that stand before and after it."""
    ids = [engine.add(prompt, stranger(case, i)) for i, prompt in enumerate(before)]
    mine = engine.add(case.prompt, case.params)
    for i, prompt in enumerate(after):
        ids.append(engine.add(prompt, stranger(case, len(before) + i)))
    return watch(engine, case, [mine])


@lru_cache(maxsize=64)
def run(
    case: Case, keeps: Contracts, before: Prompts = (), after: Prompts = (), **changes: Any
) -> Seen:
    """What a new engine serves when nothing more happens. Several disturbances compare with one
    and the same run, so it is remembered, until somebody calls `run.cache_clear()`."""
    return serve(make_engine(case, keeps, **changes), case, before, after)


def stranger(case: Case, i: int) -> SamplingParams:
    """A stranger's parameters: as many tokens, and a seed of its own."""
    return SamplingParams(max_tokens=case.params.max_tokens, seed=1000 + i, ignore_eos=True)


def watch(engine: Watched, case: Case, ids: Sequence[int]) -> Seen:
    """Run to the end; what the last of `ids` saw, with what those it was forked from had seen."""
    seen = Seen()
    while engine.has_unfinished:
        for output in engine.step():
            if output.request_id == ids[-1]:
                seen.tokens = output.token_ids
    assert engine.ledger is not None and case.params.seed is not None
    drawn = {draw.position: draw for draw in engine.ledger.of(case.params.seed)}  # the last decides
    for i in range(len(seen.tokens)):
        position = len(case.prompt) + i
        owner = next(id for id in reversed(ids) if (id, position) in engine.logits_of)
        seen.logits.append(engine.logits_of[owner, position])
        if isinstance(engine, SharedDrawEngine):
            seen.numbers.append(engine.words_of[owner, position] / 2**rng.TARGET_BITS)
        else:  # as it was drawn: the target's share of the total is the random number
            seen.numbers.append(drawn[position].target / drawn[position].total)
            seen.uses.append(drawn[position].use)
    return seen
