"""10+2 shards: a known answer of another implementation, all losses, real cache blocks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import g2c_serving as g
from g2c_serving.cluster.storage_code import StorageCode, inverse, multiply, weights

CODE = StorageCode()
BYTES = np.random.default_rng(3)


def test_the_field_by_division_of_polynomials():
    """Long multiplication over {0, 1}, then the remainder: every pair of bytes."""
    for a in range(256):
        for b in range(a, 256):
            product = 0
            for bit in range(8):
                product ^= (a << bit) * (b >> bit & 1)
            for degree in range(14, 7, -1):
                product ^= (0x11D << degree - 8) * (product >> degree & 1)
            assert multiply(a, b) == multiply(b, a) == product
    assert all(multiply(a, inverse(a)) == 1 for a in range(1, 256))


def test_a_tiny_block_as_backblaze_s_java_library_encodes_it():
    """Its test testOneEncode, 5 + 5 shards of two bytes (JavaReedSolomon, and its port to Go)."""
    shards = StorageCode(5, 5).split(bytes([0, 1, 4, 5, 2, 3, 6, 7, 8, 9]))
    parity = [[12, 13], [10, 11], [14, 15], [90, 91], [94, 95]]
    assert [list(shard) for shard in shards[5:]] == parity


def test_with_one_parity_shard_any_one_may_be_lost():
    shards = StorageCode(3, 1).split(b"abcdef")
    for lost in range(4):
        left = {i: shard for i, shard in enumerate(shards) if i != lost}
        assert StorageCode(3, 1).join(left, 6) == b"abcdef"
        assert StorageCode(3, 1).rebuild(left, lost) == shards[lost]


def cache_blocks(count: int) -> list[bytes]:
    """Blocks of real keys and values: a prompt of tiny's, prefilled by the engine."""
    engine = g.Engine(g.load("tiny"), g.EngineConfig(num_blocks=16))
    engine.add(list(range(300, 300 + 16 * count)), g.SamplingParams(max_tokens=8, seed=1))
    engine.step()
    layers = range(engine.cache.num_layers)
    used = engine.cache.keys.abs().sum((0, 2, 3, 4)).nonzero().flatten().tolist()[:count]
    return engine.cache.export_blocks(used, layers)


def test_all_66_losses_of_two_shards_of_a_real_cache_block():
    """Every pair lost, and then the engine's pages come back bit for bit."""
    (block,) = cache_blocks(1)
    shards = CODE.split(block)
    assert len(shards) == 12 and len(set(map(len, shards))) == 1 and any(block)
    assert b"".join(shards)[: len(block)] == block  # the data shards are the block itself
    losses = list(combinations(range(12), 2))
    assert len(losses) == 66
    for pair in losses:
        left = {i: shard for i, shard in enumerate(shards) if i not in pair}
        assert CODE.join(left, len(block)) == block
        assert [CODE.rebuild(left, i) for i in pair] == [shards[i] for i in pair]


def test_rebuilt_blocks_can_be_imported_again():
    blocks = cache_blocks(3)
    lm = g.load("tiny")
    cache = lm.model.new_cache(8, 16)
    back = [CODE.join(dict(list(enumerate(CODE.split(block)))[2:]), len(block)) for block in blocks]
    cache.import_blocks([5, 1, 2], range(cache.num_layers), back)
    assert cache.export_blocks([5, 1, 2], range(cache.num_layers)) == blocks
    assert torch.isfinite(cache.keys).all()


@given(st.binary(min_size=1, max_size=64), st.integers(1, 12), st.integers(0, 5), st.data())
def test_any_enough_shards_of_any_code(block, data, parity, draw):
    code = StorageCode(data, parity)
    shards = code.split(block)
    kept = draw.draw(st.sets(st.integers(0, code.shards - 1), min_size=data))
    assert code.join({i: shards[i] for i in kept}, len(block)) == block


def test_the_code_is_linear():
    """XOR of two blocks has the XOR of their shards: a byte can be changed without its nine
    neighbours being read."""
    a, b = BYTES.integers(0, 256, (2, 200), np.uint8)
    mixed = CODE.split((a ^ b).tobytes())
    for x, y, z in zip(CODE.split(a.tobytes()), CODE.split(b.tobytes()), mixed, strict=True):
        assert bytes(np.frombuffer(x, np.uint8) ^ np.frombuffer(y, np.uint8)) == z


def test_weights_at_a_known_point_pick_that_point():
    assert weights((4, 7, 9), 7) == (0, 1, 0)


def test_what_it_costs():
    assert CODE.overhead == 1.2 and CODE.shards == 12
    assert CODE.shard_size(16_384) == 1639
    assert StorageCode(1, 2).split(b"copy") == [b"copy"] * 3  # one data shard: plain copies


def test_bad_input():
    shards = dict(enumerate(CODE.split(b"x" * 100)))
    with pytest.raises(ValueError, match="9 shards are too few: any 10 of 12"):
        CODE.join({i: shards[i] for i in range(9)}, 100)
    with pytest.raises(ValueError, match="9 shards are too few"):
        StorageCode().rebuild({i: bytes(4) for i in range(9)}, 11)
    with pytest.raises(ValueError, match=r"shards of \[1, 4\] bytes"):
        StorageCode().rebuild({i: bytes(4 if i else 1) for i in range(10)}, 11)
    with pytest.raises(ValueError, match="shard 0 has 10 bytes.*size=120.*of 12"):
        CODE.join(shards, 120)
    with pytest.raises(ValueError, match="shard index=12"):
        CODE.join({**shards, 12: shards[0]}, 100)
    with pytest.raises(ValueError, match="index=-1"):
        CODE.rebuild(shards, -1)
    with pytest.raises(ValueError, match="size=0"):
        CODE.split(b"")
    with pytest.raises(ValueError, match="parity=250 .* from 0 to 246"):
        StorageCode(10, 250)
    with pytest.raises(ValueError, match="a=0 has no inverse"):
        inverse(0)
