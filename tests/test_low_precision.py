"""NVFP4-like and MXFP4 against ml_dtypes, against blocks worked by hand, and what must hold."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.forward import low_precision
from g2c_serving.forward.low_precision import (
    ELEMENTS,
    FORMATS,
    MXFP4,
    NVFP4,
    PIECE,
    decode,
    element_codes,
    encode,
    rounded,
)

both = pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))


def by_ml_dtypes(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """E2M1 codes of float32 values, as ml_dtypes rounds them; scales one a value."""
    return (values / scales).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


# ---- elements and scales ----


def test_elements_are_rounded_as_ml_dtypes_rounds_them():
    """At every code, at every middle of two, and at the floats next to them; far beyond; zeros."""
    codes = ELEMENTS.numpy()
    special = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2, [0, 7, 8, 448, 1e30, 1e-40]])
    special = special.astype(np.float32)
    near = np.concatenate([np.nextafter(special, to).astype(np.float32) for to in (-9, 9)])
    random = np.random.default_rng(0).normal(0, 3, 100_000).astype(np.float32)
    values = np.concatenate([special, near, random])
    values = np.concatenate([values, -values])
    right = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert (element_codes(torch.from_numpy(values)).numpy() == right).all()


def test_all_bytes_stand_for_what_ml_dtypes_says():
    every = np.arange(256, dtype=np.uint8)
    for format, kind in ((NVFP4, ml_dtypes.float8_e4m3fn), (MXFP4, ml_dtypes.float8_e8m0fnu)):
        ours = format.scale_values(torch.from_numpy(every)).numpy()
        assert np.array_equal(ours, every.view(kind).astype(np.float32), equal_nan=True)
    elements = every[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    packed = encode(torch.ones(16), NVFP4)
    for low in range(16):  # a byte is two elements, the first in its low bits
        for high in range(16):
            packed.codes[:], packed.scales[:] = low | high << 4, 0x38  # a scale of 1
            assert decode(packed)[:2].tolist() == [elements[low], elements[high]]


@both
def test_every_code_and_scale_of_random_tensors(format):
    """Magnitudes from 1e-6 to 1e3, so that E4M3 scales are ordinary, tiny, 0 and at their end."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(600, 8, format.block)) * 10 ** rng.uniform(-6, 3.7, (600, 8, 1))
    values = values.astype(np.float32)
    packed = encode(torch.from_numpy(values).flatten(1), format)
    largest = np.abs(values).max(-1)
    if format is NVFP4:
        right = np.minimum(largest / np.float32(6), 448).astype(ml_dtypes.float8_e4m3fn)
    else:  # ml_dtypes rounds to the nearest power of two, so it gets an exact one
        power = 2.0 ** (np.floor(np.log2(largest.astype(np.float64))) - 2)
        right = power.astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    assert (packed.scales.numpy() == right.view(np.uint8)).all()
    scales = right.astype(np.float32)[..., None]
    codes = by_ml_dtypes(values, np.where(scales == 0, 1, scales)).reshape(600, -1, 2)
    assert (packed.codes.numpy() == codes[..., 0] + 16 * codes[..., 1]).all()
    if format is NVFP4:
        assert (scales == 0).any() and (scales == 448).any() and (largest > 448 * 6).any()


# ---- blocks worked by hand ----


def test_an_nvfp4_block_by_hand():
    """The largest is 3, so the scale is 3 / 6 = 0.5 (E4M3 0x30), and in halves the block reads
    6, -2, 0.5, 0.25 (a tie, to 0), 5 (a tie, to 4), 2.5 (a tie, to 2), -3.2 (to -3), 0 ..."""
    values = torch.tensor([3, -1, 0.25, 0.125, 2.5, 1.25, -1.6, 0.0] + [0.0] * 8)
    packed = encode(values, NVFP4)
    assert packed.scales.tolist() == [0x30]
    #                              6 7   -2 12   0.5 1  0 0   4 6  2 4   -3 13  0 0
    assert packed.codes[:4].tolist() == [7 | 12 << 4, 1 | 0 << 4, 6 | 4 << 4, 13 | 0 << 4]
    assert decode(packed)[:8].tolist() == [3, -1, 0.25, 0, 2, 1, -1.5, 0]


def test_mxfp4_blocks_by_hand():
    """The scale is the power of two that brings the largest to 4 or more and below 8."""
    for largest, scale, back in (
        (4.0, 127, 4.0),
        (5.0, 127, 4.0),  # a tie of 4 and 6, to the even code
        (7.9, 127, 6.0),  # beyond 6 it is cut
        (8.0, 128, 8.0),
        (0.75, 124, 0.75),  # 6 times an eighth
        (2.0**-125, 0, 2.0**-125),
    ):
        values = torch.zeros(32)
        values[5] = -largest
        packed = encode(values, MXFP4)
        assert (packed.scales.tolist(), decode(packed)[5].item()) == ([scale], -back)


def test_what_a_number_costs():
    values = torch.randn(3, 64)
    for format, bits in ((NVFP4, 4.5), (MXFP4, 4.25)):
        packed = encode(values, format)
        assert format.bits == bits and packed.nbytes * 8 == bits * values.numel()
        assert packed.codes.shape == (3, 32) and packed.scales.shape == (3, 64 / format.block)


# ---- what must hold ----


@both
@given(data=st.data())
def test_each_value_goes_to_the_nearest_that_its_block_can_say(format, data):
    floats = st.floats(-1000, 1000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
    values = torch.tensor(data.draw(st.lists(floats, min_size=32, max_size=32)))
    packed = encode(values, format)
    scales = format.scale_values(packed.scales).repeat_interleave(format.block)
    choices = torch.cat([ELEMENTS, -ELEMENTS]).double()[None] * scales.double()[:, None]
    best = (choices - values.double()[:, None]).abs().min(1).values
    error = (decode(packed) - values).abs().double()
    assert (error <= best * (1 + 1e-6) + 1e-12).all()


@both
def test_scaling_by_a_power_of_two_scales_what_comes_back(format):
    values = torch.randn(50, 64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(rounded(8 * values, format), 8 * rounded(values, format))
    assert torch.equal(rounded(-values, format), -rounded(values, format))


@both
def test_what_four_bits_say_they_say_again(format):
    """Encoding what was decoded changes nothing, where scales are not below E4M3's normal ones."""
    once = rounded(torch.randn(500, 64), format)
    assert torch.equal(rounded(once, format), once)


def test_one_outlier_ruins_its_block_and_no_other():
    values = torch.full((64,), 0.75)  # 6 times an eighth: exact in both
    values[20] = 100.0
    for format in FORMATS.values():
        same = rounded(values, format) == values
        block = torch.arange(64) // format.block == 20 // format.block
        assert same[~block].all() and not same[block & (values < 1)].any()
        assert (rounded(values, format)[block & (values < 1)] == 0).all()


def test_small_and_large_tensors_are_lost_to_nvfp4():
    """E4M3 ends at 448 and at 2^-9: beyond, the blocks' scales would need one of their own."""
    values = torch.randn(200, 64, generator=torch.Generator().manual_seed(3))
    assert (rounded(values, NVFP4) - values).norm() / values.norm() < 0.1
    for factor in (1e-6, 1e6):
        scaled = factor * values
        assert (rounded(scaled, NVFP4) - scaled).norm() / scaled.norm() > 0.9


@both
def test_pieces_shapes_and_types(format):
    """Longer than a piece is the same as row by row; strides and half precision do not matter."""
    values = torch.randn(2 * PIECE // 64 + 3, 64)
    row = decode(encode(values[-1], format))
    assert torch.equal(decode(encode(values, format))[-1], row)
    turned = values[:64].T
    assert torch.equal(decode(encode(turned, format)), decode(encode(turned.contiguous(), format)))
    half = values[:2].bfloat16()
    assert rounded(half, format).dtype == torch.bfloat16
    assert torch.equal(decode(encode(half, format)), decode(encode(half.float(), format)))
    assert (decode(encode(torch.zeros(2, 3, 64), format)) == torch.zeros(2, 3, 64)).all()


def test_bad_input():
    with pytest.raises(ValueError, match=r"shape \(3, 24\).* multiple of 16, the block of NVFP4"):
        encode(torch.zeros(3, 24), NVFP4)
    with pytest.raises(ValueError, match=r"shape \(48,\).* multiple of 32, the block of MXFP4"):
        encode(torch.zeros(48), MXFP4)
    for shape in ((), (0, 32)):
        with pytest.raises(ValueError, match="there must be some"):
            encode(torch.zeros(shape), MXFP4)
    for value in (torch.inf, torch.nan):
        with pytest.raises(ValueError, match="hold inf, nan"):
            encode(torch.full((32,), value), NVFP4)


@pytest.mark.parametrize("call", [encode, rounded])
def test_what_is_no_float_is_refused(call):
    """Integers would come back cut to integers, truth values as truth values."""
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(TypeError, match=rf"values of {dtype} .*torch.float16: use .float\(\)"):
            call(torch.ones(32).to(dtype), NVFP4)
    with pytest.raises(TypeError, match="values of list must be a tensor"):
        call([1.0] * 32, NVFP4)
    for dtype in low_precision.FLOATS:
        packed = encode(torch.full((32,), 6.0, dtype=dtype), NVFP4)
        assert decode(packed).eq(6).all()


@pytest.mark.parametrize("format", [low_precision.NVFP4, low_precision.MXFP4])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rounded_does_not_hide_what_is_not_finite(format, bad):
    """The block that holds it comes back as nan, its neighbour as ever."""
    values = torch.full((2, format.block), 6.0)  # a scale of 1 and an element
    values[0, 3] = bad
    back = low_precision.rounded(values, format)
    assert back[0].isnan().all() and back[1].eq(6).all()


def test_what_float32_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="too large for float32"):
        encode(torch.full((16,), 1e300, dtype=torch.float64), NVFP4)
    assert rounded(torch.full((16,), 1e-44), NVFP4).isfinite().all()
