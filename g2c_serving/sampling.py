"""The sample phase of a step: from the rows of logits to the tokens of each request.

A request that decodes or has just finished its prompt has one row and gets one token; a prompt's
row serves all samples of it. A request with drafts has a row for its last token and one for each
draft that is checked, and gets the drafts that stand and the token after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from g2c_serving.on_device import on_device
from g2c_serving.request import Request
from g2c_serving.sample.grammar import as_mask, bitmask
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import AskedLogprobs, TokenLogprobs, asked_logprobs
from g2c_serving.sample.sampler import batch_of, sample
from g2c_serving.schedule.scheduled import Scheduled
from g2c_serving.speculating import Grammars, Round, Speculator

MAX_SAMPLED_ROWS = 1024  # at a time: each takes a few times the vocabulary's size in memory

# by sequence id: tokens, the last one negative for none, each with what was asked of it
Sampled = dict[int, list[tuple[int, TokenLogprobs | None]]]


@dataclass(frozen=True)
class Drawn:
    """What was drawn for R requests, not read yet.

    tokens (R, n)   of each request its first `counts` (R,) stand; one, if that is None
    rows (R,)       how many rows of logits each had; `logprobs` has an entry for each row
    """

    requests: list[Request]
    tokens: torch.Tensor
    rows: list[int]
    counts: torch.Tensor | None = None
    logprobs: AskedLogprobs | None = None

    def to_host(self) -> Drawn:
        """A copy that is on its way to the host when this returns (on a CPU: the same)."""
        counts, logprobs = self.counts, self.logprobs
        if logprobs is not None:
            logprobs = replace(logprobs, columns=tuple(map(_to_host, logprobs.columns)))
        counts = counts if counts is None else _to_host(counts)
        return replace(self, tokens=_to_host(self.tokens), counts=counts, logprobs=logprobs)

    def read(self) -> Sampled:
        """It waits for the device."""
        counts = [1] * len(self.rows) if self.counts is None else self.counts.tolist()
        asked = [None] * sum(self.rows) if self.logprobs is None else self.logprobs.read()
        sampled, first = {}, 0
        for request, tokens, count, rows in zip(
            self.requests, self.tokens.tolist(), counts, self.rows, strict=True
        ):
            some = asked[first : first + count]
            sampled[request.sequence_id] = list(zip(tokens[:count], some, strict=True))
            first += rows
        return sampled


@dataclass(frozen=True)
class Draws:
    """What was drawn in a step, piece by piece."""

    pieces: list[Drawn]

    def read(self) -> Sampled:
        """It waits for the device."""
        return {key: tokens for piece in self.pieces for key, tokens in piece.read().items()}


def next_tokens(
    scheduled: Sequence[Scheduled],
    logits: torch.Tensor,
    grammars: Grammars,
    speculator: Speculator | None,
    one: Round | None,
    ledger: Ledger | None,
) -> Draws:
    """The next tokens of all requests that sample in this step, from their rows of logits (M, V),
    request after request as they stand in `scheduled`. Those whose mask hangs on a token that is
    still on its way come last."""
    sampling = [s for s in scheduled if s.samples]
    first = np.cumsum([0, *(1 + s.num_verified for s in sampling)])  # each one's first row
    ordinary = [
        (row, request)
        for row, s in zip(first, sampling, strict=False)
        if not s.num_drafts
        for request in s.request.family
    ]
    early = [pair for pair in ordinary if not _is_late(pair[1])]
    late = [pair for pair in ordinary if _is_late(pair[1])]
    pieces = []
    for some in (*_pieces(early, MAX_SAMPLED_ROWS), *_pieces(late, MAX_SAMPLED_ROWS)):
        requests, rows = [request for _, request in some], [row for row, _ in some]
        pieces.append(_draw(requests, _take(logits, rows), grammars, ledger))
    drafted = [(row, s) for row, s in zip(first, sampling, strict=False) if s.num_drafts]
    if one is not None and speculator is not None:
        depth = 1 + speculator.speculation.num_drafts
        for group in _pieces(drafted, max(1, MAX_SAMPLED_ROWS // depth)):
            rows = [row + i for row, s in group for i in range(1 + s.num_verified)]
            some_scheduled = [s for _, s in group]
            pieces.append(_verify(some_scheduled, _take(logits, rows), speculator, one, ledger))
    return Draws(pieces)


def _is_late(request: Request) -> bool:
    return request.num_pending > 0 and request.params.grammar is not None


def _draw(
    requests: list[Request], logits: torch.Tensor, grammars: Grammars, ledger: Ledger | None
) -> Drawn:
    """One token for each of `requests` (R,) from its row of logits (R, V)."""
    size = logits.shape[1]
    mask = as_mask(bitmask(grammars(requests), size), size)
    tokens = sample(logits, batch_of(requests, size), mask, ledger=ledger)
    asked = asked_logprobs(logits, tokens, [request.params.logprobs for request in requests])
    return Drawn(requests, tokens[:, None], [1] * len(requests), logprobs=asked)


def _verify(
    scheduled: list[Scheduled],
    logits: torch.Tensor,
    speculator: Speculator,
    one: Round,
    ledger: Ledger | None,
) -> Drawn:
    """The drafts that stand and the token after them, for each request with drafts."""
    verdict = speculator.verify(logits, scheduled, one, ledger)
    rows = [1 + s.num_verified for s in scheduled]
    asked = [s.request.params.logprobs for s in scheduled for _ in range(1 + s.num_verified)]
    places = np.repeat(np.arange(len(rows)), rows), np.concatenate([np.arange(n) for n in rows])
    which, at = (on_device(index, verdict.tokens.device) for index in places)
    logprobs = asked_logprobs(logits, verdict.tokens[which, at], asked)  # of all rows, (K,)
    requests = [s.request for s in scheduled]
    return Drawn(requests, verdict.tokens, rows, verdict.accepted + 1, logprobs)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True)


def _take(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of the logits; no copy where they are all."""
    if len(rows) == len(logits) and list(rows) == list(range(len(rows))):
        return logits
    return logits[on_device(rows, logits.device)]


def _pieces(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
