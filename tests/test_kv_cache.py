"""Pages leave the pool and come back bit for bit, and copies read before they write."""

import pytest
import torch

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
