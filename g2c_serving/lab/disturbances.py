"""One request on the real engine, twice, with one thing about its surroundings changed.

Brief, section 3: think of reproducibility as three contracts, random draws, numerical results and
sampling path. A `Contracts` says which of them an engine keeps; a disturbance is what differs
between two runs of the same request. `parting.py` tells where two runs part, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from g2c_serving.cluster import handover
from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.parting import Seen
from g2c_serving.lab.shared_draws import SharedDrawEngine
from g2c_serving.request import SamplingParams
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sampling import Sampled
from g2c_serving.schedule.scheduled import Scheduled
from g2c_serving.speculating import Round

BLOCK = 8  # tokens: small, so that a small pool overflows soon
ROOMY = 256  # blocks: enough for all of the crowd, and their drafts
COMPANY, CROWD = 7, 31  # strangers
SHARED_SEED = 1  # of the one generator


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
    strangers: tuple[tuple[int, ...], ...]


# an engine that remembers


class _Watch(Engine):
    """Keeps the logits from which each request was sampled, by request id and position."""

    def _sample(
        self,
        scheduled: list[Scheduled],
        logits: torch.Tensor | None,
        drafted: Round | None = None,
    ) -> Sampled:
        sampled, row = super()._sample(scheduled, logits, drafted), 0
        for s in scheduled:
            if s.samples and logits is not None:
                for i in range(len(sampled[s.request.sequence_id])):
                    position = len(s.request.token_ids) + i
                    self.logits_of[s.request.request_id, position] = logits[row + i].clone()
                row += 1 + s.num_verified
        return sampled

    logits_of: dict[tuple[int, int], torch.Tensor]


class _WatchShared(_Watch, SharedDrawEngine):
    """The same, with one generator for all."""


def make_engine(case: Case, contracts: Contracts, **changes: Any) -> _Watch:
    """An engine that keeps `contracts`, with `changes` in its configuration."""
    usual: dict[str, Any] = {"block_size": BLOCK, "num_blocks": ROOMY}
    if contracts.path is not None:
        drafter = _drafter_of(case.lm)
        usual["speculation"] = Speculation(contracts.path, 5, drafter, step_time=_step_ms)
    config = EngineConfig(**{**usual, **changes}, batch_invariant=contracts.invariant)
    kinds: dict[bool, type[_Watch]] = {True: _Watch, False: _WatchShared}
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


def serve(engine: _Watch, case: Case, before: Sequence, after: Sequence = ()) -> Seen:
    """Run the request between strangers' prompts that stand before and after it."""
    ids = [engine.add(prompt, stranger(case, i)) for i, prompt in enumerate(before)]
    mine = engine.add(case.prompt, case.params)
    for i, prompt in enumerate(after):
        ids.append(engine.add(prompt, stranger(case, len(before) + i)))
    return watch(engine, case, [mine])


def stranger(case: Case, i: int) -> SamplingParams:
    """A stranger's parameters: as many tokens, and a seed of its own."""
    return SamplingParams(max_tokens=case.params.max_tokens, seed=1000 + i, ignore_eos=True)


def watch(engine: _Watch, case: Case, ids: Sequence[int]) -> Seen:
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


# the disturbances: two runs each


def _with(case: Case, count: int) -> list[tuple[int, ...]]:
    return list(case.strangers[:count])


def order(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """The same company; the request comes first, or last."""
    first, last = make_engine(case, keeps), make_engine(case, keeps)
    company = _with(case, COMPANY)
    return serve(first, case, [], company), serve(last, case, company)


def company(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """As many strangers, with other and shorter prompts."""
    one, other = make_engine(case, keeps), make_engine(case, keeps)
    others = [ids[: 3 + 4 * i] for i, ids in enumerate(case.strangers[-COMPANY:])]
    return serve(one, case, _with(case, COMPANY)), serve(other, case, others)


def batch_size(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone, and with 31 strangers."""
    alone, crowd = make_engine(case, keeps), make_engine(case, keeps)
    return serve(alone, case, []), serve(crowd, case, _with(case, CROWD))


def chunking(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """The same company; at most 256 tokens in a step, or 24."""
    whole = make_engine(case, keeps)
    pieces = make_engine(case, keeps, max_num_batched_tokens=24)
    return serve(whole, case, _with(case, COMPANY)), serve(pieces, case, _with(case, COMPANY))


def prefix_hit(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Its prompt is new to the engine, or a stranger has asked the same before."""
    cold, warm = (make_engine(case, keeps, enable_prefix_caching=True) for _ in range(2))
    warm.generate([case.prompt], stranger(case, 0))
    return serve(cold, case, []), serve(warm, case, [])


def preemption(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """With one stranger; blocks for both to the end, or for their prompts alone, so that the one
    who came last gives way and is computed again."""
    block = len(case.prompt)
    roomy = make_engine(case, keeps, block_size=block, num_blocks=4)
    tight = make_engine(case, keeps, block_size=block, num_blocks=2)
    seen = serve(roomy, case, _with(case, 1)), serve(tight, case, _with(case, 1))
    assert tight.stats.preemptions >= 1
    return seen


def fork(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone, or a copy that was made after the first token and keeps the seed."""
    alone, forked = make_engine(case, keeps), make_engine(case, keeps)
    parent = forked.add(case.prompt, case.params)
    forked.step()
    child = forked.fork(parent, seed=case.params.seed)
    return serve(alone, case, []), watch(forked, case, [parent, child])


def another_engine(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """A new engine, or one with blocks of another size, which has served others and still does."""
    one, other = make_engine(case, keeps), make_engine(case, keeps, block_size=2 * BLOCK)
    other.generate(_with(case, 3), stranger(case, 0))
    return serve(one, case, []), serve(other, case, _with(case, 2))


def migration(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone to the end; or moved after its first token, with its cache, to an engine with blocks of
    another size, which serves others."""
    alone, source = make_engine(case, keeps), make_engine(case, keeps)
    target = make_engine(case, keeps, block_size=2 * BLOCK)
    for i, prompt in enumerate(_with(case, 3)):
        target.add(prompt, stranger(case, i))
    target.step()
    first = source.add(case.prompt, case.params)
    source.step()
    moved = handover.move(source, target, first)
    _remember(target, source, first, moved)
    return serve(alone, case, []), watch(target, case, [moved])


def _remember(target: _Watch, source: _Watch, first: int, moved: int) -> None:
    """What the source has seen of the request belongs to its story at the target."""
    for (_, position), logits in source.logits_of.items():
        target.logits_of[moved, position] = logits
    if isinstance(source, SharedDrawEngine) and isinstance(target, SharedDrawEngine):
        for (_, position), word in source.words_of.items():
            target.words_of[moved, position] = word
    assert source.ledger is not None and target.ledger is not None
    target.ledger.join(source.ledger)


Disturbance = Callable[[Case, Contracts], tuple[Seen, Seen]]
DISTURBANCES: dict[str, Disturbance] = {
    "order": order,
    "company": company,
    "batch size": batch_size,
    "chunking": chunking,
    "prefix hit": prefix_hit,
    "preemption": preemption,
    "fork": fork,
    "another engine": another_engine,
    "migration": migration,
}
