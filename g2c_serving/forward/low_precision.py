"""Four bits a number: NVFP4-like and MXFP4 blocks, packed two a byte.

An element is an E2M1 float: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. So small a range needs a
scale, shared by a block of neighbours along the last dimension: in NVFP4 a float of 8 bits (E4M3)
for each 16, in MXFP4 a power of two (E8M0) for each 32. A number is its element times its block's
scale, so the largest of a block decides how coarse all of it is: one outlier ruins its neighbours.

Brief, "The parts that are pure infrastructure": DeepInfer keeps the main KV cache in an NVFP4-like
format, the indexer's cache and the weights of the routed experts in MXFP4. Of these `tiny` has the
KV cache alone; it has neither indexer nor experts.

Encoding rounds to nearest, ties to even, and saturates at 6: bit for bit what `ml_dtypes` makes of
float4_e2m1fn, float8_e4m3fn and float8_e8m0fnu. (Its own cast to four bits is slower than this.)
MXFP4's scale is the one of the Open Compute Project's specification, 2^(floor(log2(largest)) - 2):
what lies between 6 and 8 times the scale is cut to 6.

Left out: arithmetic on the codes (hardware multiplies them as they are; here they are decoded), and
NVFP4's second scale, a float32 for the tensor, which brings the blocks' scales into E4M3's range: a
cache grows and does not know its largest number yet. What DeepInfer does there is not disclosed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_ELEMENT, MAX_E4M3 = 6.0, 448.0
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
PIECE = 1 << 16  # numbers encoded at a time: what stays in the processor's cache
ELEMENTS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # by code; bit 3 is the sign

_BYTES = torch.arange(256, dtype=torch.uint8)
_SIGNED = torch.cat([ELEMENTS, -ELEMENTS])
_PAIRS = torch.stack([_SIGNED[(_BYTES & 15).long()], _SIGNED[(_BYTES >> 4).long()]], 1)  # (256, 2)
_E4M3 = _BYTES.view(torch.float8_e4m3fn).float()  # (256,) what each byte stands for
_E8M0 = torch.ldexp(torch.ones(256, dtype=torch.float64), _BYTES.double() - 127).float()
_E8M0[255] = torch.nan


@dataclass(frozen=True)
class Format:
    """How many neighbours share a scale, and what kind of float that is: "E4M3" or "E8M0"."""

    name: str
    block: int
    scale: str

    @property
    def bits(self) -> float:
        """Bits a number, its share of the scale included: 4.5 or 4.25."""
        return 4 + 8 / self.block

    def scale_codes(self, largest: torch.Tensor) -> torch.Tensor:
        """The scales, as bytes, of blocks whose largest magnitudes these are; where one is inf or
        nan, the byte that stands for nan."""
        if self.scale == "E4M3":
            nearest = (largest / MAX_ELEMENT).clamp_(max=MAX_E4M3).to(torch.float8_e4m3fn)
            return nearest.view(torch.uint8).masked_fill(~largest.isfinite(), 0x7F)
        exponent = torch.frexp(largest).exponent - 1  # floor(log2(largest))
        codes = (exponent - 2 + 127).clamp_(0, 254).to(torch.uint8)
        return codes.masked_fill_(~largest.isfinite(), 255)

    def scale_values(self, codes: torch.Tensor) -> torch.Tensor:
        """What scales stand for, as float32."""
        return (_E4M3 if self.scale == "E4M3" else _E8M0)[codes.long()]


NVFP4 = Format("NVFP4-like", 16, "E4M3")
MXFP4 = Format("MXFP4", 32, "E8M0")
FORMATS = {format.name: format for format in (NVFP4, MXFP4)}


@dataclass(frozen=True)
class Packed:
    """A tensor (..., n) in four bits."""

    format: Format
    codes: torch.Tensor  # (..., n / 2) uint8, the first of two elements in the low bits
    scales: torch.Tensor  # (..., n / block) uint8

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together."""
        return self.codes.numel() + self.scales.numel()


def element_codes(values: torch.Tensor) -> torch.Tensor:
    """The E2M1 codes (uint8, 0 to 15) nearest to float32 `values`, which the scale has divided.

    The codes 0 to 7 count the steps of 0.5 up to 2, of 1 up to 4, of 2 up to 6: along three lines,
    of which the lowest holds. Rounding half to even along each gives ties to the even code.
    """
    size = values.abs()
    codes = (2 * size).round_()
    codes = torch.minimum(codes, size.round().add_(2))
    codes = torch.minimum(codes, size.mul_(0.5).round_().add_(4)).clamp_(max=7).to(torch.uint8)
    return codes | (torch.signbit(values).to(torch.uint8) << 3)


def encode(values: torch.Tensor, format: Format) -> Packed:
    """`values` (..., n), of one of `FLOATS`, in four bits. Blocks lie along the last dimension.

    Raises TypeError for what is no such tensor; ValueError where n is no multiple of the block, and
    for values that float32 does not have, or that are infinite or missing (four bits have neither).
    """
    _require_floats(values)
    if values.numel() and not all(end.float().isfinite() for end in values.aminmax()):
        raise ValueError(
            "values hold inf, nan or what is too large for float32: mask or scale them first"
        )
    return _encode(values, format)


def _encode(values: torch.Tensor, format: Format) -> Packed:
    """As `encode`, without a look at the values: that would make the host wait for a device."""
    _require_floats(values)
    blocks = _in_blocks(values, format)  # (M, block)
    some = blocks.split(PIECE // format.block)
    pieces = [_encode_blocks(piece.float(), format) for piece in some]
    codes, scales = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    *rows, last = values.shape
    return Packed(format, codes.view(*rows, last // 2), scales.view(*rows, -1))


def _encode_blocks(blocks: torch.Tensor, format: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (M, block / 2) and scales (M,) of blocks (M, block)."""
    scales = format.scale_codes(blocks.abs().amax(1))
    divisor = format.scale_values(scales)
    divisor.masked_fill_(divisor == 0, 1)  # where the scale is 0, so are all elements
    codes = element_codes(blocks / divisor[:, None])
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales


def decode(packed: Packed) -> torch.Tensor:
    """The numbers (..., n) that `packed` stands for, as float32."""
    pairs = _PAIRS.index_select(0, packed.codes.int().flatten())  # (m, 2)
    scales = packed.format.scale_values(packed.scales)
    blocks = pairs.view(*scales.shape, packed.format.block) * scales[..., None]
    return blocks.flatten(-2)


def rounded(values: torch.Tensor, format: Format) -> torch.Tensor:
    """`values` as they come back from four bits, in their own type.

    It does not look for inf or nan: a block that holds one comes back as nan, and logits tell."""
    return decode(_encode(values, format)).to(values.dtype)


def _require_floats(values: torch.Tensor) -> None:
    dtype = getattr(values, "dtype", type(values).__name__)
    if dtype not in FLOATS:
        names = ", ".join(str(one) for one in FLOATS)
        raise TypeError(f"values of {dtype} must be a tensor of one of {names}: use .float()")


def _in_blocks(values: torch.Tensor, format: Format) -> torch.Tensor:
    if values.ndim == 0 or values.numel() == 0 or values.shape[-1] % format.block:
        raise ValueError(
            f"values of shape {tuple(values.shape)}: there must be some, and the last dimension a "
            f"multiple of {format.block}, the block of {format.name}; pad it with zeros"
        )
    return values.reshape(-1, format.block)
