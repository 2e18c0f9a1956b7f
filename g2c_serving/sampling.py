"""The sample phase of a step: from the rows of logits to the tokens of each request.

A request that decodes or has just finished its prompt has one row and gets one token; a prompt's
row serves all samples of it. A request with drafts has a row for its last token and one for each
draft that is checked, and gets the drafts that stand and the token after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from g2c_serving.request import Request
from g2c_serving.sample.grammar import as_mask, bitmask
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import TokenLogprobs, token_logprobs
from g2c_serving.sample.sampler import batch_of, sample
from g2c_serving.schedule.scheduler import Scheduled
from g2c_serving.speculating import Round, Speculator

MAX_SAMPLED_ROWS = 1024  # at a time: each takes a few times the vocabulary's size in memory

# by sequence id: tokens, the last one negative for none, each with what was asked of it
Sampled = dict[int, list[tuple[int, TokenLogprobs | None]]]


def next_tokens(
    scheduled: Sequence[Scheduled],
    logits: torch.Tensor,
    speculator: Speculator | None = None,
    one: Round | None = None,
    ledger: Ledger | None = None,
) -> Sampled:
    """The next tokens of all requests that sample in this step, from their rows of logits (M, V),
    request after request as they stand in `scheduled`."""
    sampling = [s for s in scheduled if s.samples]
    first = np.cumsum([0, *(1 + s.num_verified for s in sampling)])  # each one's first row
    ordinary = [
        (row, request)
        for row, s in zip(first, sampling, strict=False)
        if not s.num_drafts
        for request in s.request.family
    ]
    sampled: Sampled = {}
    for some in _pieces(ordinary, MAX_SAMPLED_ROWS):
        requests, rows = [request for _, request in some], [row for row, _ in some]
        sampled |= _draw(requests, _take(logits, rows), ledger)
    drafted = [(row, s) for row, s in zip(first, sampling, strict=False) if s.num_drafts]
    if one is not None and speculator is not None:
        depth = 1 + speculator.speculation.num_drafts
        for group in _pieces(drafted, max(1, MAX_SAMPLED_ROWS // depth)):
            rows = [row + i for row, s in group for i in range(1 + s.num_verified)]
            some_scheduled = [s for _, s in group]
            sampled |= _verify(some_scheduled, _take(logits, rows), speculator, one, ledger)
    return sampled


def _draw(requests: list[Request], logits: torch.Tensor, ledger: Ledger | None) -> Sampled:
    """One token for each of `requests` (R,) from its row of logits (R, V)."""
    size = logits.shape[1]
    mask = as_mask(bitmask([request.grammar for request in requests], size), size)
    tokens = sample(logits, batch_of(requests, size), mask, ledger=ledger)
    asked = [request.params.logprobs for request in requests]
    pairs = zip(tokens.tolist(), token_logprobs(logits, tokens, asked), strict=True)
    return {request.sequence_id: [pair] for request, pair in zip(requests, pairs, strict=True)}


def _verify(
    scheduled: list[Scheduled],
    logits: torch.Tensor,
    speculator: Speculator,
    one: Round,
    ledger: Ledger | None,
) -> Sampled:
    """The drafts that stand and the token after them, for each request with drafts."""
    verdict = speculator.verify(logits, scheduled, one, ledger)
    counts = (verdict.accepted + 1).tolist()
    tokens = [row[:count] for row, count in zip(verdict.tokens.tolist(), counts, strict=True)]
    rows: list[int] = []
    asked: list[int | None] = []
    first = 0
    for s, count in zip(scheduled, counts, strict=True):
        rows += range(first, first + count)
        asked += [s.request.params.logprobs] * count
        first += 1 + s.num_verified
    flat = torch.tensor([token for some in tokens for token in some])
    found: Iterator[TokenLogprobs | None] = iter([None] * len(rows))
    if any(k is not None for k in asked):
        found = iter(token_logprobs(_take(logits, rows), flat, asked))
    return {
        s.request.sequence_id: [(token, next(found)) for token in some]
        for s, some in zip(scheduled, tokens, strict=True)
    }


def _take(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of the logits; no copy where they are all."""
    if len(rows) == len(logits) and list(rows) == list(range(len(rows))):
        return logits
    return logits[torch.as_tensor(np.asarray(rows, dtype=np.int64), device=logits.device)]


def _pieces(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
