"""What one forward pass works on: a flat, ragged batch of prefill chunks and decode rows.

All requests' new tokens lie one after the other in one row of tokens, without padding. A decoding
request has one token in it, a prefill chunk has many; the model does not care which is which. This
is the layout of vLLM's and DeepInfer's input batches. Brief: "The change of perspective".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from g2c_serving.on_device import on_device


@dataclass(frozen=True)
class ForwardBatch:
    """N tokens of R requests. All tensors are int64 on the model's device.

    token_ids (N,)            the new tokens of all requests, request after request
    positions (N,)            the absolute position of each token in its own request
    query_start (R+1,)        request r has the tokens query_start[r] to query_start[r+1]
    context_lens (R,)         tokens of r in the cache once this pass has run, new ones included
    block_tables (R, B)       block ids of r in order, padded with its last one
    host_tables (R, B)        the same on the host, for who plans by them
    slots (N,)                where each new token's keys and values go: block * block_size + offset
    logit_rows (M,)           the tokens (indices into N) whose logits are wanted
    window_start (R,)         the first position whose keys the window layers have; None: 0 for all
    new_rows (K,)             the tokens (indices into N) that are not replayed; None: all
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    query_start: Sequence[int]
    context_lens: Sequence[int]
    block_tables: torch.Tensor
    host_tables: np.ndarray
    slots: torch.Tensor
    logit_rows: torch.Tensor
    window_start: Sequence[int] | None = None
    new_rows: torch.Tensor | None = None


def build_batch(
    chunks: Sequence[tuple[Sequence[int], int]],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    logits_of: Sequence[int],
    device: str = "cpu",
    *,
    window_start: Sequence[int] | None = None,
    first_new: Sequence[int] | None = None,
    logits_each: Sequence[int] | None = None,
) -> ForwardBatch:
    """Lay `chunks` out flat.

    chunks       per request: its new token ids, and how many of its tokens are cached already
    block_tables per request: block ids that hold all its tokens, the new ones included
    logits_of    the requests (indices) whose last token's logits are wanted
    window_start per request: the first position whose keys and values the window layers have, at
                 most the chunk's own first one; None: they have all
    first_new    per request: the first position that is not replayed. Tokens before it write keys
                 and values in the window layers alone: the other layers have theirs. None: all new
    logits_each  per request in `logits_of`: how many of its last tokens' logits; None: one
    """
    lengths = np.array([len(tokens) for tokens, _ in chunks])  # (R,)
    cached = np.array([num_computed for _, num_computed in chunks])  # (R,)
    query_start = np.concatenate(([0], np.cumsum(lengths)))  # (R+1,)
    tables = _padded(block_tables)  # (R, B)
    request_of = np.repeat(np.arange(len(chunks)), lengths)  # (N,)
    positions = np.arange(query_start[-1]) + np.repeat(cached - query_start[:-1], lengths)  # (N,)
    slots = tables[request_of, positions // block_size] * block_size + positions % block_size
    token_ids = np.fromiter((t for tokens, _ in chunks for t in tokens), np.int64)  # (N,)
    assert window_start is None or (cached >= np.asarray(window_start)).all(), window_start
    is_new = True if first_new is None else positions >= np.asarray(first_new)[request_of]  # (N,)

    def tensor(array: np.ndarray) -> torch.Tensor:
        return on_device(array.astype(np.int64, copy=False), device)

    return ForwardBatch(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        query_start=query_start.tolist(),
        context_lens=(cached + lengths).tolist(),
        block_tables=tensor(tables),
        host_tables=tables,
        slots=tensor(slots),
        logit_rows=tensor(_last_rows(query_start, logits_of, logits_each)),
        window_start=window_start,
        new_rows=None if np.all(is_new) else tensor(np.flatnonzero(is_new)),
    )


def _padded(block_tables: Sequence[Sequence[int]]) -> np.ndarray:
    """The tables as (R, B), each filled up with its own last block: nothing of others is read, not
    even to be masked."""
    tables = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int64)
    for row, table in zip(tables, block_tables, strict=True):
        row[: len(table)] = table
        row[len(table) :] = table[-1]
    return tables


def _last_rows(
    query_start: np.ndarray, requests: Sequence[int], counts: Sequence[int] | None
) -> np.ndarray:
    """The last `counts` rows (one each, if None) of each of `requests`, one after the other."""
    last = query_start[1:][np.asarray(requests, dtype=np.int64)]
    if counts is None:
        return last - 1
    each = np.asarray(counts, dtype=np.int64)
    return np.arange(each.sum()) + np.repeat(last - np.cumsum(each), each)


def one_token_each(
    token_ids: torch.Tensor, positions: np.ndarray, tables: np.ndarray, block_size: int
) -> ForwardBatch:
    """A batch of one token for each of S requests, all logits wanted. The tokens (S,) may still be
    on their way: only the host's own numbers are looked at.

    positions (S,), tables (S, B)
    """
    device, size = token_ids.device, len(positions)
    blocks = tables[np.arange(size), positions // block_size]  # (S,)
    return ForwardBatch(
        token_ids=token_ids,
        positions=on_device(positions, device),
        query_start=range(size + 1),
        context_lens=(positions + 1).tolist(),
        block_tables=on_device(tables, device),
        host_tables=tables,
        slots=on_device(blocks * block_size + positions % block_size, device),
        logit_rows=torch.arange(size, device=device),
    )
