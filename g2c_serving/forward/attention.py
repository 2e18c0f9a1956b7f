"""Attention over pages: the batch in groups, each gathered, masked and attended at once.

Requests with the same number of new tokens are attended together, a few at a time, so that what
is gathered stays in the processor's cache. A decode row is the case of one new token, a prefill
chunk that of many. Inside a group the contexts may differ in length: the mask hides what lies
beyond each token's own position. Groups and masks are planned once a step and shared by all
layers.

Window layers have a plan of their own, in which a request gathers only the blocks that its new
tokens can see: for a decode row two or three of them, however long the context is.

Plays the part of FlashMLA in DeepInfer. Left out: reading pages without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.on_device import on_device

MASK_BYTES = 4 << 20  # a group's mask may take this much


@dataclass(frozen=True)
class Group:
    """`size` requests with `query_len` new tokens each: the rows `start` to `stop` of the batch."""

    start: int
    stop: int
    size: int
    query_len: int
    num_keys: int  # of the longest context among them; gathered keys after these are cut off
    blocks: torch.Tensor  # (size * blocks per request,)
    mask: torch.Tensor | None  # (size, 1, query_len, num_keys), 0 or what hides a key


def plan_groups(batch: ForwardBatch, cache: KVCache) -> list[Group]:
    """Cut the batch into groups; its order decides them, so sort it by new tokens and context."""
    dtype, cuts = cache.read_dtype, _cuts(batch, cache, batch.context_lens)
    return [_group(batch, first, last, cache.block_size, dtype) for first, last in cuts]


def plan_window_groups(batch: ForwardBatch, cache: KVCache, window: int) -> list[Group]:
    """The same for window layers: position p sees max(p - window + 1, window_start) to p."""
    starts = batch.window_start or [0] * len(batch.context_lens)
    seen = _seen_blocks(batch, cache.block_size, window, starts)
    groups = []
    for first, last in _cuts(batch, cache, [blocks * cache.block_size for blocks in seen]):
        count = max(seen[first:last])
        groups.append(_window_group(batch, first, last, cache, window, starts[first:last], count))
    return groups


def attend(q: torch.Tensor, layer: int, cache: KVCache, groups: list[Group]) -> torch.Tensor:
    """Softmax attention of queries (N, H, d) over the pages of `layer`; gives (N, H * d).

    Scores are scaled by 1 / sqrt(d). The new tokens' keys and values are written before. The pages
    may have fewer heads, H / G: then G queries in a row share each (grouped-query attention).
    """
    wide = q.to(cache.read_dtype)
    outputs = [_attend_group(wide[g.start : g.stop], layer, cache, g) for g in groups]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).to(q.dtype)


def _attend_group(q: torch.Tensor, layer: int, cache: KVCache, g: Group) -> torch.Tensor:
    keys, values = cache.read(layer, g.blocks)
    heads, d = keys.shape[2:]
    keys = keys.view(g.size, -1, heads, d)[:, : g.num_keys].transpose(1, 2)  # (S, H / G, T, d)
    values = values.view(g.size, -1, heads, d)[:, : g.num_keys].transpose(1, 2)
    if g.query_len == 1:  # the queries that share a head become its rows, and read its keys once
        q = q.view(g.size, heads, -1, d)  # (S, H / G, G, d)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=g.mask)
        return out.reshape(g.size, -1)  # (N of this group, H * d)
    q = q.view(g.size, g.query_len, -1, d).transpose(1, 2)  # (S, H, Q, d)
    shared = q.shape[1] != heads
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=g.mask, enable_gqa=shared)
    return out.transpose(1, 2).reshape(g.size * g.query_len, -1)  # (N of this group, H * d)


def _cuts(batch: ForwardBatch, cache: KVCache, lens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of requests (first, last) of one query length that fit the buffers and the mask, when
    request r gathers `lens[r]` keys."""
    starts, key_bytes = batch.query_start, cache.keys.element_size()
    first, longest = 0, 0
    for r in range(len(lens)):
        query_len, first_len = starts[r + 1] - starts[r], starts[first + 1] - starts[first]
        longest, size = max(longest, lens[r]), r - first + 1
        blocks = size * -(-longest // cache.block_size)
        mask_bytes = size * query_len * longest * key_bytes
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


def _seen_blocks(
    batch: ForwardBatch, block_size: int, window: int, starts: Sequence[int]
) -> list[int]:
    """How many blocks each request's new tokens see, from its first token's window to its end."""
    counts = []
    for r, (length, start) in enumerate(zip(batch.context_lens, starts, strict=True)):
        position = length - (batch.query_start[r + 1] - batch.query_start[r])  # of its first token
        first = max(position - window + 1, start)
        counts.append((length - 1) // block_size - first // block_size + 1)
    return counts


def _window_group(
    batch: ForwardBatch,
    first: int,
    last: int,
    cache: KVCache,
    window: int,
    starts: Sequence[int],
    count: int,
) -> Group:
    """The last `count` blocks of each request. Where it has fewer, its first one stands in for
    those before it, at negative positions, and is masked."""
    start, stop, size = batch.query_start[first], batch.query_start[last], last - first
    query_len, num_keys = (stop - start) // size, count * cache.block_size
    positions = batch.positions[start:stop].view(size, 1, query_len, 1)
    last_block = positions[:, 0, -1] // cache.block_size  # (S, 1)
    columns = last_block + torch.arange(1 - count, 1, device=positions.device)  # (S, count)
    blocks = batch.block_tables[first:last].gather(1, columns.clamp(min=0)).flatten()
    offsets = torch.arange(cache.block_size, device=positions.device)
    keys = (columns[:, :, None] * cache.block_size + offsets).view(size, 1, 1, num_keys)
    first_key = on_device(starts, positions.device).view(size, 1, 1, 1)
    hidden = (keys > positions) | (keys < torch.maximum(positions - window + 1, first_key))
    mask = torch.zeros(hidden.shape, dtype=cache.read_dtype, device=hidden.device)
    # A kernel may take the keys tile by tile, and here a whole tile can be hidden: minus infinity
    # less itself is no number, so the mask is finite.
    mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)
    return Group(start, stop, size, query_len, num_keys, blocks, mask)
