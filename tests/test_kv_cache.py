"""Pages leave the pool and come back bit for bit, and copies read before they write."""

import pytest
import torch

from g2c_serving.forward.attention import attend, plan_groups
from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.kv_cache import KVCache

LAYERS, BLOCKS, SIZE, HEADS, DIM = 3, 6, 4, 2, 8


def filled(dtype: torch.dtype = torch.float32) -> KVCache:
    cache = KVCache(LAYERS, BLOCKS, SIZE, HEADS, DIM, max_blocks_per_request=4, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for pool in (cache.keys, cache.values):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layers", [[0, 1, 2], [2, 0]])
def test_exported_blocks_come_back_in_other_places_with_the_same_bits(dtype, layers):
    cache, other = filled(dtype), filled(dtype)
    for pool in (other.keys, other.values):
        pool.zero_()
    pages = cache.export_blocks([4, 1], layers)
    assert {len(page) for page in pages} == {SIZE * 2 * len(layers) * HEADS * DIM * dtype.itemsize}
    other.import_blocks([0, 5], layers, pages)
    for source, destination in ((4, 0), (1, 5)):
        for layer in range(LAYERS):
            for before, after in ((cache.keys, other.keys), (cache.values, other.values)):
                expected = before[layer, source] if layer in layers else 0 * before[layer, source]
                assert torch.equal(after[layer, destination], expected)
    assert not other.keys[:, 1:5].any() and not other.values[:, 1:5].any()
    assert cache.export_blocks([], layers) == []


def test_single_tokens_come_back_too():
    cache, other = filled(), filled()
    slots = cache.slots([5, 2], 3, 6)  # the last token of block 5, the first two of block 2
    assert slots.tolist() == [5 * SIZE + 3, 2 * SIZE, 2 * SIZE + 1]
    state = cache.export_slots(slots, [1])
    assert state.shape == (3, 2, 1, HEADS, DIM)
    other.import_slots(torch.tensor([0, 1, 2]), [1], state)
    assert torch.equal(other.keys[1, 0, :3], cache.keys[1].flatten(0, 1)[slots])
    assert torch.equal(other.values[1, 0, :3], cache.values[1].flatten(0, 1)[slots])


def test_all_sources_are_read_before_anything_is_written():
    """A block that is the source of one copy may be the destination of another in the same step."""
    cache, before = filled(), filled()
    cache.copy([(0, 1), (1, 2)])
    assert torch.equal(cache.keys[:, 1], before.keys[:, 0])
    assert torch.equal(cache.values[:, 2], before.values[:, 1])
    cache.copy([])


def test_half_precision_pages_are_attended_in_float32():
    """The result is that of float64, rounded once: within one step of bfloat16."""
    cache, generator = filled(torch.bfloat16), torch.Generator().manual_seed(1)
    keys, values = cache.read(1, torch.tensor([4, 1]))
    assert keys.dtype == values.dtype == torch.float32
    assert torch.equal(keys, cache.keys[1, [4, 1]].float())
    assert torch.equal(values, cache.values[1, [4, 1]].float())
    lengths, tables = (7, 3, 6), ([4, 1], [0], [5, 2])
    chunks = [([1], length - 1) for length in lengths]
    q = torch.randn(len(lengths), HEADS, DIM, generator=generator).bfloat16()
    batch = build_batch(chunks, tables, SIZE, range(len(lengths)))
    got = attend(q, 1, cache, plan_groups(batch, cache))
    assert got.dtype == torch.bfloat16
    for row, length, table in zip(range(len(lengths)), lengths, tables, strict=True):
        pages = [
            pool[1, table].flatten(0, 1)[:length].double() for pool in (cache.keys, cache.values)
        ]
        k, v = (page.transpose(0, 1) for page in pages)  # (H, T, d)
        weights = (k @ q[row].double()[..., None] / DIM**0.5).softmax(1)  # (H, T, 1)
        exact = (weights * v).sum(1).flatten()
        assert ((got[row].double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all()
