"""Attention over pages: the batch in groups, each gathered, masked and attended at once.

Requests with the same number of new tokens are attended together, a few at a time, so that what
is gathered stays in the processor's cache. A decode row is the case of one new token, a prefill
chunk that of many. Inside a group the contexts may differ in length: the mask hides what lies
beyond each token's own position. Groups and masks are planned once a step and shared by all
layers.

Plays the part of FlashMLA in DeepInfer. Left out: reading pages without a copy; sliding windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache

MASK_BYTES = 4 << 20  # a group's mask may take this much


@dataclass(frozen=True)
class Group:
    """`size` requests with `query_len` new tokens each: the rows `start` to `stop` of the batch."""

    start: int
    stop: int
    size: int
    query_len: int
    context_len: int  # of the longest among them
    blocks: torch.Tensor  # (size * blocks per request,)
    mask: torch.Tensor | None  # (size, 1, query_len, context_len), 0 or minus infinity


def plan_groups(batch: ForwardBatch, cache: KVCache) -> list[Group]:
    """Cut the batch into groups; its order decides them, so sort it by new tokens and context."""
    dtype = cache.keys.dtype
    return [
        _group(batch, first, last, cache.block_size, dtype) for first, last in _cuts(batch, cache)
    ]


def attend(q: torch.Tensor, layer: int, cache: KVCache, groups: list[Group]) -> torch.Tensor:
    """Softmax attention of queries (N, H, d) over the pages of `layer`; gives (N, H * d).

    Scores are scaled by 1 / sqrt(d). The new tokens' keys and values are written before.
    """
    outputs = [_attend_group(q[g.start : g.stop], layer, cache, g) for g in groups]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_group(q: torch.Tensor, layer: int, cache: KVCache, g: Group) -> torch.Tensor:
    keys, values = cache.read(layer, g.blocks)
    _, _, heads, d = keys.shape
    keys = keys.view(g.size, -1, heads, d)[:, : g.context_len].transpose(1, 2)  # (S, H, T, d)
    values = values.view(g.size, -1, heads, d)[:, : g.context_len].transpose(1, 2)
    q = q.view(g.size, g.query_len, heads, d).transpose(1, 2)  # (S, H, Q, d)
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=g.mask)  # (S, H, Q, d)
    return out.transpose(1, 2).reshape(g.size * g.query_len, heads * d)  # (N of this group, H*d)


def _cuts(batch: ForwardBatch, cache: KVCache) -> Iterator[tuple[int, int]]:
    """Runs of requests (first, last) of one query length that fit the buffers and the mask."""
    starts, lens = batch.query_start, batch.context_lens
    first, longest = 0, 0
    for r in range(len(lens)):
        query_len, first_len = starts[r + 1] - starts[r], starts[first + 1] - starts[first]
        longest, size = max(longest, lens[r]), r - first + 1
        blocks = size * -(-longest // cache.block_size)
        mask_bytes = size * query_len * longest * cache.keys.element_size()
        too_big = blocks > cache.gather_blocks or mask_bytes > MASK_BYTES
        if r > first and (query_len != first_len or too_big):
            yield first, r
            first, longest = r, lens[r]
    yield first, len(lens)


def _group(
    batch: ForwardBatch, first: int, last: int, block_size: int, dtype: torch.dtype
) -> Group:
    start, stop = batch.query_start[first], batch.query_start[last]
    lens = batch.context_lens[first:last]
    size, longest = last - first, max(lens)
    query_len = (stop - start) // size
    mask = None
    if query_len > 1 or min(lens) < longest:
        positions = batch.positions[start:stop].view(size, 1, query_len, 1)
        hidden = torch.arange(longest, device=positions.device) > positions  # (S, 1, Q, T)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
        mask.masked_fill_(hidden, -math.inf)
    blocks = batch.block_tables[first:last, : -(-longest // block_size)].flatten()
    return Group(start, stop, size, query_len, longest, blocks, mask)
