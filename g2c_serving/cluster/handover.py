"""A running request changes engines: what it is, in one parcel, with its cache or without.

    export    source -> Handover    copies of all that the request is; it goes on at the source
    admit     Handover -> target    it is queued there, and goes on without recomputing
    move      both; then the source lets go of it

A request is its tokens, its parameters and its seed: as draws are keyed by seed and position, any
engine of the same model can go on from those alone (`without_pages`) by computing its tokens again.
The pages of the cache save that work. They are used if all that decides their bits is equal on both
sides (`numerics`), else left. The tokens are those of a request that stayed if both engines draw
alike (`draws`): the same speculation, precision and mode. Then they are the same bit for bit in
batch-invariant mode, with fixed speculation too, and in the ordinary mode but for the rounding.
Engines that draw otherwise are refused unless you say that any will do.

Grammar and stop strings are not sent: both are read again from the tokens. Brief, section 1 (the
cache is shipped from prefill to decode) and "Fault tolerance"; DeepInfer's own plumbing is not
released. Left out: the network (a Handover can be pickled; never unpickle a stranger's), pages that
several samples of a prompt share (each takes its own along), and what a budgeted engine has learnt
of its drafter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from g2c_serving.cluster.likeness import draws, num_drafts, numerics, pool_tokens
from g2c_serving.engine import Engine
from g2c_serving.intake import check_can_run
from g2c_serving.output import RequestOutput
from g2c_serving.request import EXPECTED, WAITING, Request, SamplingParams
from g2c_serving.sample.logprobs import TokenLogprobs
from g2c_serving.schedule.arrivals import Pages


@dataclass(frozen=True)
class Sample:
    """One sample of a request, as far as it has come. The names are those of `Request`.

    is_expected   it waits for the first sample to compute the prompt
    pages         None: its tokens are computed again
    """

    sample_index: int
    seed: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_given: int = 0
    num_forks: int = 0
    num_cached_tokens: int = 0
    was_admitted: bool = False
    is_expected: bool = False
    confidences: np.ndarray | None = None
    pages: Pages | None = None


@dataclass(frozen=True)
class Handover:
    """A request on its way.

    model, numerics   fingerprints: of the weights, and of all that decides the bits of keys and
                      values
    draws             what else decides which token is drawn: speculation, precision, mode
    room              tokens that it and its drafts may need, as far as the source's pool holds them
    """

    model: str
    numerics: str
    draws: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stop_ids: frozenset[int]
    most_tokens: int
    room: int
    cache_salt: str
    traffic: str
    samples: tuple[Sample, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pages that it takes along."""
        return sum(s.pages.num_bytes for s in self.samples if s.pages is not None)

    def without_pages(self) -> Handover:
        """The same request; its tokens are computed again wherever it goes."""
        return replace(self, samples=tuple(replace(s, pages=None) for s in self.samples))

    def after(self, outputs: dict[int, RequestOutput]) -> Handover:
        """The request without pages as its last outputs, by sample, say that it stands; without the
        samples that have ended."""
        samples = []
        for sample in self.without_pages().samples:
            out = outputs.get(sample.sample_index)
            if out is not None and out.finish_reason is not None:
                continue
            if out is not None and len(out.token_ids):
                tokens = (*self.prompt_token_ids, *out.token_ids)
                logprobs = tuple(out.logprobs or ())
                sample = replace(
                    sample,
                    token_ids=tokens,
                    logprobs=logprobs,
                    num_cached_tokens=out.num_cached_tokens,
                    was_admitted=True,
                    is_expected=False,
                )
            samples.append(sample)
        return replace(self, samples=tuple(samples))

    def requests(self) -> list[Request]:
        """The samples as an engine has them; their ids are the engine's business."""
        found = []
        for s in self.samples:
            one = Request(
                0, 0, s.sample_index, list(self.prompt_token_ids), self.params, s.seed,
                logprobs=list(s.logprobs),
                most_tokens=self.most_tokens,
                num_forks=s.num_forks,
                num_given=s.num_given,
                state=EXPECTED if s.is_expected else WAITING,
                stop_ids=self.stop_ids,
                cache_salt=self.cache_salt,
                traffic=self.traffic,
                num_cached_tokens=s.num_cached_tokens,
                was_admitted=s.was_admitted,
                confidences=s.confidences,
            )  # fmt: skip
            one.token_ids = list(s.token_ids)
            found.append(one)
        found[0].siblings = [one for one in found if one.state == EXPECTED]
        return found


def export(source: Engine, request_id: int, pages: bool = True) -> Handover:
    """All that an unfinished request is. It goes on at the source as if nothing had happened.

    pages   take copies of its pages along

    RuntimeError while steps are on their way: call `source.settle()` first, which gives their
    outputs. KeyError for a request that has ended.
    """
    _require_settled(source)
    return parcel(source, request_id, pages)


def parcel(source: Engine, request_id: int, pages: bool = False) -> Handover:
    """`export` of a request that no step on its way can change: one that was just added, or all
    of a settled engine."""
    requests = source.unfinished(request_id)
    first = requests[0]
    return Handover(
        source.lm.fingerprint,
        numerics(source),
        draws(source),
        tuple(first.prompt_token_ids),
        first.params,
        first.stop_ids,
        first.most_tokens,
        min(first.most_tokens + num_drafts(source), pool_tokens(source)),
        first.cache_salt,
        first.traffic,
        tuple(_sample(source, request, pages) for request in requests),
    )


def admit(target: Engine, handover: Handover, any_draws: bool = False) -> int:
    """Let the target go on with the request; its request id there. Without a seat or blocks it
    waits there, in the order of arrival, and its pages wait with it.

    any_draws   also where the target draws otherwise: from here on the answer may be another

    ValueError, and nothing has changed, where it could never run: another model, other draws, or a
    pool that it may outgrow there and not at the source. RuntimeError from a target that is closed.
    """
    check(target, handover, any_draws)
    fits = handover.numerics == numerics(target)
    pages = {i: s.pages for i, s in enumerate(handover.samples) if fits and s.pages is not None}
    return target.take_on(handover.requests(), pages)


def check(target: Engine, handover: Handover, any_draws: bool = False) -> bool:
    """True. ValueError where the request could never run, as `admit`; pages do not matter."""
    if handover.model != target.lm.fingerprint:
        raise ValueError(
            f"the request was begun by a model other than {target.lm.name!r}: choose an engine "
            "that serves the same weights"
        )
    if not any_draws and handover.draws != draws(target):
        raise ValueError(
            f"the request draws with {handover.draws}, the engine with {draws(target)}: its answer "
            "would change. Choose an engine of the same configuration, or pass any_draws=True"
        )
    check_can_run(list(handover.prompt_token_ids), handover.params, target.lm, target.config)
    if handover.room > pool_tokens(target):
        raise ValueError(
            f"the request may need {handover.room} tokens, more than all {target.config.num_blocks}"
            f" blocks of {target.config.block_size}: choose an engine with more, or raise its "
            "EngineConfig.num_blocks"
        )
    if handover.params.grammar is not None:
        target.compiler.check(handover.params.grammar)
    return True


def move(
    source: Engine, target: Engine, request_id: int, pages: bool = True, any_draws: bool = False
) -> int:
    """Hand a request over; its request id at the target. The source lets go of it only once the
    target has it, so whatever is raised on the way, the request is still at the source.

    pages   False: the tokens alone, as after a crash

    As `export` and `admit` otherwise.
    """
    moved = admit(target, export(source, request_id, pages), any_draws)
    source.let_go(request_id)
    return moved


def _require_settled(engine: Engine) -> None:
    if not engine.is_settled:
        raise RuntimeError(
            "steps of the engine are on their way: call its settle() first, and take the outputs"
        )


def _sample(source: Engine, request: Request, pages: bool) -> Sample:
    return Sample(
        request.sample_index,
        request.seed,
        tuple(request.token_ids),
        tuple(request.logprobs),
        request.num_given,
        request.num_forks,
        request.num_cached_tokens,
        request.was_admitted,
        request.state == EXPECTED,
        request.confidences,
        _pages(source, request) if pages else None,
    )


def _pages(source: Engine, request: Request) -> Pages | None:
    """What the source has of it in pages; None where they are not whole."""
    arrivals, manager = source.scheduler.arrivals, source.block_manager
    table = manager.tables.get(request.sequence_id)
    if table is None or not request.num_computed_tokens:
        return arrivals.of(request)  # it came from elsewhere and still waits, or has none
    copied = manager.copies.keys().isdisjoint(table)
    loaded = all(load.request is not request for load in source.prefix_cache.loads)
    written = copied and loaded and arrivals.is_written(request)
    if not written or request.is_replaying:  # an error came between, or its windows are not whole
        return None
    return Pages.of(request, table, source.model, source.pages)
