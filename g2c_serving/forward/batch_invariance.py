"""Batch invariance: a request's logits are the same bits, whoever it is computed with.

Floating-point sums depend on their order, and a kernel chooses its order by the shape of what it is
given: by how many rows a product has, and how many keys an attention. So in this mode the shapes
are fixed, and the company cannot change them:

    rows       all that is computed row by row (linear layers, activations, norms, the head) runs on
               tiles of 64 rows, or of one of a few smaller sizes, the last one filled up
    attention  a query meets its keys in tiles of 64, see `tiled_attention.py`

A smaller size is there for speed, and is used only where its kernels have given the bits of the
largest one, in every place of the tile. That is tried at load, on random numbers: two orders of
summation cannot hide from those. Which sizes agree is a property of the machine, its libraries and
the number of threads, and the promise is for one of each. The last resort is one row alone, which
has no company by construction.

DeepInfer's switch is DEEPINFER_BATCH_INVARIANT=1 (NVIDIA only), ours
`EngineConfig(batch_invariant=True)` (CPU only). Brief: section 3, "Batch invariance".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.numerics import Numerics, RowFunction
from g2c_serving.forward.tile_kernels import (
    TileKernel,
    aligned,
    attend_tiles,
    flash,
    one_by_one,
)
from g2c_serving.forward.tiled_attention import (
    KEYS,
    QUERIES,
    TiledAttention,
    plan_pieces,
    precision_of,
)

if TYPE_CHECKING:
    from g2c_serving.forward.model import Transformer

ROWS = (64, 32, 16, 8, 4, 2, 1)  # sizes that a tile of rows may have
# Results to compare at load: half of them show another order of summation, or one in 30,000 once
# they are rounded to bfloat16.
ENOUGH = {torch.float32: 1, torch.float64: 1, torch.bfloat16: 1 << 20}
VECTOR = 64  # numbers: a multiple of all vectors
SHARE = 32768  # numbers from which on torch asks a second thread
FILL = 3  # rows that may always be filled up; above that, a quarter of the tile


class BatchInvariant(Numerics):
    """`rows` and `attention` switch the two halves on. The promise needs both; a page that shows
    the two causes by themselves takes one.

    row_sizes, query_sizes   what the trial on this machine has left of ROWS and QUERIES
    """

    def __init__(self, rows: bool = True, attention: bool = True) -> None:
        self._fix_rows, self._fix_attention = rows, attention
        self._attend = TiledAttention()

    def prepare(self, model: Transformer) -> None:
        """Try the sizes, once for each number of threads; all with the same weights share it."""
        threads = torch.get_num_threads()
        if threads not in model.trials:
            model.trials[threads] = (try_rows(model), *try_queries(model))
        self.row_sizes, self._attend.kernel, self.query_sizes = model.trials[threads]

    def rows(self, function: RowFunction, *tensors: torch.Tensor) -> torch.Tensor:
        if not self._fix_rows:
            return super().rows(function, *tensors)
        return by_tiles(function, tensors, cut(len(tensors[0]), self.row_sizes))

    def plan(self, batch: ForwardBatch, cache: KVCache, window: int = 0) -> list:
        if not self._fix_attention:
            return super().plan(batch, cache, window)
        return plan_pieces(batch, cache, window, self.query_sizes)

    def attend(self, q: torch.Tensor, layer: int, cache: KVCache, plan: list) -> torch.Tensor:
        if not self._fix_attention:
            return super().attend(q, layer, cache, plan)
        return self._attend(q, layer, cache, plan)


def cut(count: int, sizes: Sequence[int]) -> list[int]:
    """The tiles that hold `count` rows, largest first. A tile is filled up rather than followed by
    smaller ones if it lacks no more than `FILL` rows or a quarter."""
    tiles = []
    while count > 0:
        filled = [size for size in sizes if count <= size <= count + max(FILL, size // 4)]
        below = [size for size in sizes if size < count]
        tiles.append(filled[-1] if filled else below[0] if below else sizes[-1])
        count -= tiles[-1]
    return tiles


def by_tiles(
    function: RowFunction, tensors: Sequence[torch.Tensor], tiles: Sequence[int]
) -> torch.Tensor:
    """`function` of all rows of `tensors`, tile by tile, the last tile filled up with zeros."""
    count, start, parts = len(tensors[0]), 0, []
    if sum(tiles) == count and len(tiles) < 2:
        return function(*tensors)
    for size in tiles:
        parts.append(function(*(_tile(t, start, size) for t in tensors)))
        start += size
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]


def _tile(rows: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """A tile in memory of its own, so that all begin at the same alignment."""
    tile = rows[start : start + size]
    return F.pad(tile, (0, 0) * (tile.dim() - 1) + (0, size - len(tile)))


# the trial at load


def try_rows(model: Transformer) -> list[int]:
    """The sizes of `ROWS` at which all that the model does row by row gives the same bits."""

    def run(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return torch.cat([f(*(x, seen)[: len(w)]) for f, w in model.row_functions()], 1)

    widths = model.config.embedding_dim, model.config.attention_dim
    sizes, seed, results = [size for size in ROWS if _in_vectors(model, size)], 0, 0
    while sizes and results < ENOUGH[model.dtype]:
        both = _random(seed, 2, ROWS[0], max(widths)).to(model.dtype)
        inputs = [x[:, :width].contiguous() for x, width in zip(both, widths, strict=True)]
        sizes = agreeing(run, inputs, sizes)
        seed, results = seed + 1, results + run(*inputs).numel()
    return sizes or [1]


def _in_vectors(model: Transformer, size: int) -> bool:
    """Whether the activations of a tile fill whole vectors of one thread. torch computes what is
    left over at the end of a thread's share by another formula, for a few numbers only, on which
    a trial might not hit. A packed linear layer has its activation built in."""
    layers = [block.activated for block in model.blocks]
    widths = [layer.shape[0] for layer in layers if layer.packed is None]
    return all(size * width % VECTOR == 0 and size * width < SHARE for width in widths)


def try_queries(model: Transformer) -> tuple[TileKernel, list[int]]:
    """A kernel to which it is the same whether a tile of keys comes alone or among others, and the
    sizes of `QUERIES` at which it gives the same bits."""
    d, dtype = model.config.head_dim, precision_of(model.dtype)
    queries = _random(0, QUERIES[0], model.config.num_heads, d).to(dtype)
    keys, values = _random(1, 2, 5, KEYS, model.config.num_kv_heads, d).to(dtype).transpose(2, 3)

    def attend(q: torch.Tensor, kernel: TileKernel, first: int, last: int) -> torch.Tensor:
        """What queries (Q, H, d) see in these tiles, (Q, last - first, H, d + 1)."""
        q = aligned(q).repeat(last - first, 1, 1, 1)
        mask = q.new_zeros(len(q), 1, q.shape[1], KEYS)
        seen, weight = attend_tiles(kernel, q, keys[first:last], values[first:last], mask)
        return torch.cat((seen, weight.unsqueeze(-1)), -1).permute(2, 0, 1, 3)

    for kernel in (flash, one_by_one):

        def both(q: torch.Tensor, kernel: TileKernel = kernel) -> torch.Tensor:
            alone = [attend(q, kernel, i, i + 1) for i in range(len(keys))]
            return torch.stack((torch.cat(alone, 1), attend(q, kernel, 0, len(keys))), 1)

        try:
            sizes = agreeing(both, (queries,), QUERIES)
        except (AttributeError, RuntimeError, TypeError):
            continue  # this torch has no such kernel
        alone, among = by_tiles(both, (queries,), cut(QUERIES[0], sizes)).unbind(1)
        if torch.equal(alone, among):
            break
    return kernel, sizes


def agreeing(
    function: RowFunction, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[int]:
    """Those of `sizes`, largest first, whose tiles give the same bits, in whatever place of the
    tile a row stands. The largest size that agrees with itself is the measure for the others; one
    row alone always does."""
    tensors = [t[: sizes[0]] for t in tensors]
    moved = [t.roll(1, 0) for t in tensors]  # each row one place further

    def run(tensors: Sequence[torch.Tensor], size: int) -> torch.Tensor:
        return by_tiles(function, tensors, [size] * (sizes[0] // size))

    for measure in sizes:
        expected = run(tensors, measure)
        if torch.equal(run(moved, measure), expected.roll(1, 0)):
            return [size for size in sizes if torch.equal(run(tensors, size), expected)]
    return []


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
