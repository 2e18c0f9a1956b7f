"""What a request is, in one parcel: its tokens, parameters and seeds, and the pages of its cache.

Grammar and stop strings are not sent: both are read again from the tokens. Pages that several
samples of a prompt share are not shared here: each takes its own along. `Handover.requests` unpacks
it for another engine; handover.py says when that may go on with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from g2c_serving.cluster.likeness import draws, num_drafts, numerics, pool_tokens
from g2c_serving.engine import Engine
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
    table = source.block_manager.tables.get(request.sequence_id)
    if table is None or not request.num_computed_tokens:
        return source.scheduler.arrivals.of(request)  # it came from elsewhere and waits, or none
    if request.is_replaying or not source.scheduler.is_written(request):  # its windows are cut
        return None
    return Pages.of(request, table, source.model, source.pages)
