"""An engine whose keys and values are four bits: what is stored, and what still holds."""

from __future__ import annotations

import pytest
import torch

import g2c_serving as g
from g2c_serving.forward.low_precision import MXFP4, NVFP4, decode, encode, rounded
from g2c_serving.forward.low_precision_cache import LowPrecisionCache

PROMPT = list(range(300, 345))
GREEDY = g.SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def lm():
    return g.load("tiny")


def engine(lm, **config):
    return g.Engine(lm, g.EngineConfig(num_blocks=64, **config))


def test_what_is_written_reads_as_packed_pages_would():
    keys, values = torch.randn(2, 5, 3, 32)
    for format in (NVFP4, MXFP4):
        cache = LowPrecisionCache(2, 4, 4, 3, 32, 2, format=format)
        cache.write(1, torch.tensor([0, 1, 2, 3, 9]), keys, values)
        read = cache.read(1, torch.tensor([0, 2]))
        for stored, whole in zip(read, (keys, values), strict=True):
            stored = stored.flatten(0, 1)[[0, 1, 2, 3, 5]]
            assert torch.equal(stored, decode(encode(whole, format)))


def test_bytes_of_a_token(lm):
    """tiny: 2 x 4 x 256 numbers of 4.5 bits, or 4.25, instead of 32."""
    for name, packed in (("nvfp4", 1152), ("mxfp4", 1088)):
        cache = engine(lm, kv_cache_dtype=name).cache
        assert (cache.bytes_per_token, cache.packed_bytes_per_token) == (8192, packed)


def test_pages_that_move_are_not_rounded_again():
    """Numbers so small that E4M3 has no exact scale for them would change at a second rounding."""
    cache = LowPrecisionCache(1, 4, 4, 1, 16, 2, format=NVFP4)
    cache.write(0, torch.arange(4), *(0.02 * torch.randn(2, 4, 1, 16)))
    before = cache.export_blocks([0], [0])
    cache.import_blocks([3], [0], before)
    assert cache.export_blocks([3], [0]) == before


def test_small_blocks_move_as_they_are():
    """A block of 0.006 gets the smallest scale, 2^-9, and comes back as 3 of it. A sixth of that is
    a tie of 2^-9 and 0: rounded again, it would be gone."""
    cache = LowPrecisionCache(1, 2, 4, 1, 16, 2, format=NVFP4)
    cache.write(0, torch.arange(4), *torch.full((2, 4, 1, 16), 6e-3))
    once = cache.export_slots(torch.arange(4), [0])
    assert once.eq(3 * 2.0**-9).all() and rounded(once, NVFP4).eq(0).all()
    cache.import_slots(torch.arange(4, 8), [0], once)
    assert torch.equal(cache.export_slots(torch.arange(4, 8), [0]), once)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_the_same_tokens_in_any_company_and_chunking(lm, name):
    """Each token's keys are rounded by themselves: what held without rounding holds with it."""
    config = {"kv_cache_dtype": name, "batch_invariant": True}
    (alone,) = engine(lm, **config).generate([PROMPT], GREEDY)
    others = [PROMPT[:k] for k in (3, 17, 30)]
    together = engine(lm, max_num_batched_tokens=16, **config).generate([PROMPT, *others], GREEDY)
    assert together[0].token_ids == alone.token_ids
    cached = engine(lm, enable_prefix_caching=True, **config)
    cached.generate([PROMPT], GREEDY)
    (hit,) = cached.generate([PROMPT], GREEDY)
    assert hit.num_cached_tokens == 32 and hit.token_ids == alone.token_ids


def test_rounding_shows_in_the_logits_and_is_small(lm):
    params = g.SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    exact, four = (
        engine(lm, kv_cache_dtype=name).generate([PROMPT], params)[0].logprobs[0].logprob
        for name in ("auto", "nvfp4")
    )
    assert 0 < abs(exact - four) < 0.5


def test_blocks_of_another_format_are_never_found(lm, tmp_path):
    """A disk that several engines share: what one wrote unrounded is no hit for the other."""
    disk = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 26}
    engine(lm, **disk).generate([PROMPT], GREEDY)
    (other,) = engine(lm, kv_cache_dtype="nvfp4", **disk).generate([PROMPT], GREEDY)
    assert other.num_cached_tokens == 0
    (same,) = engine(lm, **disk).generate([PROMPT], GREEDY)
    assert same.num_cached_tokens == 32


def test_bad_input(lm):
    with pytest.raises(ValueError, match="kv_cache_dtype='fp8' must be one of .*nvfp4"):
        g.EngineConfig(kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match="a head of 24 numbers is no multiple of 16.*NVFP4"):
        LowPrecisionCache(1, 4, 4, 1, 24, 2, format=NVFP4)
