"""Attention whose result for a query does not depend on what else is computed.

The ordinary attention (`attention.py`) cuts a batch into groups and pads each to its longest
context, so the company decides over which shape a query's softmax runs, and in which order it is
summed. Here a query meets its keys in tiles of 64 that count from position 0, whatever the size of
a block. Each tile is attended by itself, and the tiles are added up one after the other:

    weight_t = exp(log of tile t's denominator), relative to the largest
    result   = (weight_0 * seen_0 + weight_1 * seen_1 + ...) / (weight_0 + weight_1 + ...)

A tile that is hidden whole gets weight 0 and adds exactly nothing, so how many of them stand before
or after a query's own tiles makes no difference. This is FlashDecoding's split over keys, with a
split that nothing but the position decides. What attends a tile is in `tile_kernels.py`. Left out:
reading pages without a copy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import GATHER_BYTES, KVCache
from g2c_serving.forward.tile_kernels import TileKernel, aligned, attend_tiles, flash

KEYS = 64  # in a tile
QUERIES = (32, 16, 8, 4, 2, 1)  # sizes that a tile of queries may have
RESULTS = 1 << 14  # of one query and one tile, kept at a time before they are added up


class Piece(NamedTuple):
    """Up to Q queries of a request: the rows `first` to `last` of the batch."""

    request: int
    first: int
    last: int
    position: int  # of the first row
    first_tile: int  # of the keys that they see


@dataclass(frozen=True)
class Gather:
    """What is gathered at a time: B tiles of keys, with Q queries each."""

    queries: torch.Tensor  # (B, Q) rows of the batch
    units: torch.Tensor  # (B * KEYS / unit,) of the pool, in units of `unit` tokens
    mask: torch.Tensor  # (B, 1, Q, KEYS), 0 or what hides a key

    @classmethod
    def of(cls, rows: np.ndarray, units: np.ndarray, mask: torch.Tensor) -> Gather:
        """For pieces with queries (S, Q), units (S, U) and masks (S, T, Q, KEYS)."""
        queries = np.repeat(rows, mask.shape[1], axis=0)
        flat = mask.flatten(0, 1).unsqueeze(1)
        return cls(torch.from_numpy(queries), torch.from_numpy(units.flatten()), flat)


@dataclass(frozen=True)
class Pieces:
    """S pieces of one shape: Q queries each, and `tiles` tiles of keys that hold all they see. One
    of fewer than Q queries repeats its last."""

    gathers: list[Gather]
    unit: int
    tiles: int
    count: int  # queries of the fullest piece
    rows: torch.Tensor  # (K,) the rows of the batch that are answered
    real: torch.Tensor | None  # (K,) where they are among S * count; None: they are all of them


def plan_pieces(
    batch: ForwardBatch, cache: KVCache, window: int, sizes: Sequence[int]
) -> list[Pieces]:
    """Cut the batch into pieces; those of one shape go together.

    window  tokens that a query sees, 0: all before it
    sizes   the numbers of queries that a piece may have, largest first
    """
    oldest = (window and batch.window_start) or [0] * len(batch.context_lens)
    fitting = [min(s for s in sizes if s >= n) for n in range(1, sizes[0] + 1)]
    alike = defaultdict(list)
    for r, (start, stop) in enumerate(zip(batch.query_start, batch.query_start[1:], strict=False)):
        offset = batch.context_lens[r] - stop  # from row to position
        for first in range(start, stop, sizes[0]):
            last = min(first + sizes[0], stop) - 1
            seen = max(first + offset - window + 1, oldest[r]) if window else 0
            tiles = (last + offset) // KEYS - seen // KEYS + 1
            alike[fitting[last - first], tiles].append(
                Piece(r, first, last, first + offset, seen // KEYS)
            )
    plan = []
    for (size, tiles), pieces in alike.items():
        most = max(1, RESULTS // (size * tiles))
        for i in range(0, len(pieces), most):
            plan.append(_lay_out(batch, cache, window, oldest, size, tiles, pieces[i : i + most]))
    return plan


def _lay_out(
    batch: ForwardBatch,
    cache: KVCache,
    window: int,
    oldest: Sequence[int],
    size: int,
    tiles: int,
    pieces: Sequence[Piece],
) -> Pieces:
    request, first, last, position, first_tile = np.array(pieces).T[:, :, None]  # (S, 1) each
    rows = np.minimum(first + np.arange(size), last)  # (S, Q)
    places = position + rows - first  # (S, Q)
    begins = np.maximum(places - window + 1, np.array(oldest)[request]) if window else 0 * places
    keys = first_tile * KEYS + np.arange(tiles * KEYS)  # (S, T * KEYS)
    mask = _mask(keys, begins, places, precision_of(cache.keys.dtype))
    unit = math.gcd(KEYS, cache.block_size)  # tokens that lie together in tile and block alike
    at = np.minimum(keys[:, ::unit], places[:, -1:])  # behind the last place: that one again
    blocks = batch.host_tables[request, at // cache.block_size]
    units = (blocks * cache.block_size + at % cache.block_size) // unit  # (S, T * KEYS / unit)
    few = max(1, GATHER_BYTES // (tiles * KEYS * cache.keys[0, 0, 0].nbytes))
    parts = [slice(i, i + few) for i in range(0, len(pieces), few)]
    gathers = [Gather.of(rows[part], units[part], mask[part]) for part in parts]
    count = int((last - first).max()) + 1
    real = np.arange(count) <= last - first  # (S, count)
    answered = torch.from_numpy(rows[:, :count][real])
    among = None if real.all() else torch.from_numpy(np.flatnonzero(real))
    return Pieces(gathers, unit, tiles, count, answered, among)


def _mask(
    keys: np.ndarray, begins: np.ndarray, places: np.ndarray, dtype: torch.dtype
) -> torch.Tensor:
    """(S, T, Q, KEYS) for keys (S, T * KEYS) and queries (S, Q) that see `begins` to `places`."""
    keys = keys.reshape(len(keys), -1, 1, KEYS)  # (S, T, 1, KEYS)
    hidden = (keys < begins[:, None, :, None]) | (keys > places[:, None, :, None])
    # Finite, because a whole tile may be hidden: minus infinity less itself is no number.
    lowest = torch.tensor(torch.finfo(dtype).min, dtype=dtype).numpy()
    return torch.from_numpy(np.where(hidden, lowest, np.zeros_like(lowest)))


def precision_of(dtype: torch.dtype) -> torch.dtype:
    """Tiles are attended in float32 at least: their results are rounded once, when added up."""
    return torch.promote_types(dtype, torch.float32)


class TiledAttention:
    """Attends pieces, a few at a time, so that the keys gathered stay in the processor's cache."""

    def __init__(self) -> None:
        self.kernel: TileKernel = flash
        self._buffers = torch.empty(2, 0)

    def __call__(
        self, q: torch.Tensor, layer: int, cache: KVCache, plan: Sequence[Pieces]
    ) -> torch.Tensor:
        """Attention of queries (N, H, d) over the pages of `layer`; gives (N, H * d)."""
        n, heads, d = q.shape
        wide = aligned(q.to(precision_of(q.dtype)))
        out = wide.new_empty(n, heads * d)
        for p in plan:
            seen, log_weight = self._attend(wide, layer, cache, p)
            mixed = add_up(seen, log_weight).transpose(1, 2).reshape(-1, heads * d)  # (S * count,)
            if len(p.rows) == n and p.real is None:  # all rows, in their order
                out = mixed
            else:
                out.index_copy_(0, p.rows, mixed if p.real is None else mixed[p.real])
        return out.to(q.dtype)

    def _attend(
        self, q: torch.Tensor, layer: int, cache: KVCache, p: Pieces
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What each query sees in each tile, (S, T, H, count, d), and the tile's weight."""
        seen, log_weight = [], []
        for some in p.gathers:
            keys = self._read(0, cache.keys[layer], some.units, p.unit).to(q.dtype)
            values = self._read(1, cache.values[layer], some.units, p.unit).to(q.dtype)
            found = attend_tiles(self.kernel, q[some.queries], keys, values, some.mask)
            seen.append(found[0][:, :, : p.count])
            log_weight.append(found[1][:, :, : p.count])
        tiles = (-1, p.tiles)
        return torch.cat(seen).unflatten(0, tiles), torch.cat(log_weight).unflatten(0, tiles)

    def _read(self, which: int, pool: torch.Tensor, units: torch.Tensor, unit: int) -> torch.Tensor:
        """Tiles (B, K, KEYS, d) of a pool (blocks, block_size, K, d), good until the next call."""
        heads, d = pool.shape[2:]
        size = len(units) * unit * heads * d
        if self._buffers.shape[1] < size or self._buffers.dtype != pool.dtype:
            self._buffers = pool.new_empty(2, size)
        gathered = self._buffers[which, :size].view(-1, unit, heads, d)
        torch.index_select(pool.view(-1, unit, heads, d), 0, units, out=gathered)
        return gathered.view(-1, KEYS, heads, d).transpose(1, 2)


def add_up(seen: torch.Tensor, log_weight: torch.Tensor) -> torch.Tensor:
    """Attention to all tiles (S, H, Q, d) from that to each (S, T, H, Q, d), (S, T, H, Q)."""
    if seen.shape[1] == 1:
        return seen[:, 0]
    weight = (log_weight - log_weight.amax(1, keepdim=True)).exp().unsqueeze(-1)
    parts, weights = (seen * weight).unbind(1), weight.unbind(1)
    mixed, total = parts[0], weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        mixed, total = mixed + part, total + weight  # sum() would choose an order
    return mixed / total
