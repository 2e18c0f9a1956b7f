"""A cache block as ten shards and two more: any ten of the twelve give it back.

Brief, "The parts that are pure infrastructure": 3FS keeps cache blocks with 10+2 erasure coding.
Two whole copies more would also survive any two losses, at 3 times the bytes; here it is 1.2 times.

The idea is Reed's and Solomon's. Byte i of the ten data shards are the values of a polynomial of
degree nine or less at the points 0 to 9; the parity shards hold its values at 10 and 11. Ten values
fix such a polynomial, whichever ten they are, so the same interpolation encodes and decodes.
Numbers are bytes: to add is to XOR, to multiply is to multiply polynomials over {0, 1} modulo
x^8+x^4+x^3+x^2+1, so every division but by zero comes out even and nothing is ever rounded.

Why own arithmetic: `reedsolo` does 1 MB/s in pure Python, `pyeclib` has no Windows wheel, `zfec` is
GPL. One `bytes.translate` multiplies a whole shard by a constant, at about the speed of memory.

Left out: checksums. A shard that lies is not found here; a block's hash (schedule/block_hash.py)
would tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from g2c_serving.checks import as_int

POLYNOMIAL = 0x11D  # x^8 + x^4 + x^3 + x^2 + 1
DATA, PARITY = 10, 2  # as reported


# ---- bytes as numbers of a field ----


def multiply(a: int, b: int) -> int:
    """The product of two bytes in the field: shift and XOR, then reduce."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= POLYNOMIAL
        b >>= 1
    return product


@cache
def times(factor: int) -> bytes:
    """The table of `factor` times every byte, for `bytes.translate`."""
    return bytes(multiply(factor, byte) for byte in range(256))


@cache
def inverse(a: int) -> int:
    """The byte whose product with `a` is 1. ValueError for 0, which has none."""
    if a == 0:
        raise ValueError("a=0 has no inverse: divide by 1 to 255")
    return times(a).index(1)


@lru_cache(maxsize=4096)
def weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange: the factor of each point's value in the polynomial's value at the point `at`."""
    found = []
    for point in points:
        weight = 1
        for other in points:
            if other != point:  # (at - other) / (point - other), and minus is XOR
                weight = multiply(weight, multiply(at ^ other, inverse(point ^ other)))
        found.append(weight)
    return tuple(found)


def combine(factors: Sequence[int], shards: Sequence[bytes]) -> bytes:
    """The sum of `factors[i]` times `shards[i]`, byte by byte."""
    total = np.zeros(len(shards[0]), np.uint8)
    for factor, shard in zip(factors, shards, strict=True):
        total ^= np.frombuffer(shard.translate(times(factor)), np.uint8)
    return total.tobytes()


# ---- blocks ----


@dataclass(frozen=True)
class StorageCode:
    """A code of `data` + `parity` shards, at most 256 in all: a byte has no more points."""

    data: int = DATA
    parity: int = PARITY

    def __post_init__(self) -> None:
        as_int("data", self.data, 1, 256)
        as_int("parity", self.parity, 0, 256 - self.data)

    @property
    def shards(self) -> int:
        return self.data + self.parity

    @property
    def overhead(self) -> float:
        """Bytes stored for each byte of a block (padding aside)."""
        return self.shards / self.data

    def shard_size(self, size: int) -> int:
        """Bytes of each shard of a block of `size` bytes; the last data shard may end in zeros."""
        return -(-as_int("size", size, 1) // self.data)

    def split(self, block: bytes) -> list[bytes]:
        """The shards of `block` in order: the block itself cut in `data`, then the parity."""
        size = self.shard_size(len(block))
        padded = block.ljust(size * self.data, b"\0")
        cut = [padded[i * size : (i + 1) * size] for i in range(self.data)]
        points = tuple(range(self.data))
        return cut + [combine(weights(points, i), cut) for i in range(self.data, self.shards)]

    def rebuild(self, shards: Mapping[int, bytes], index: int) -> bytes:
        """Shard `index` from any `data` of the others: data or parity, it is the same sum.

        ValueError for too few shards, an index that is none, or shards of unlike lengths."""
        as_int("index", index, 0, self.shards - 1)
        if index in shards:
            return shards[index]
        points = self._enough(shards)
        if len(lengths := {len(shard) for shard in shards.values()}) > 1:
            raise ValueError(f"shards of {sorted(lengths)} bytes: a block's are of one length")
        return combine(weights(points, index), [shards[i] for i in points])

    def join(self, shards: Mapping[int, bytes], size: int) -> bytes:
        """The block of `size` bytes from any `data` shards, given by their index.

        Data shards are used as they are; only missing ones are computed. Raises ValueError for too
        few shards, an index that is none, or shards of another length.
        """
        self._enough(shards)
        length = self.shard_size(size)
        for index, shard in shards.items():
            if len(shard) != length:
                raise ValueError(
                    f"shard {index} has {len(shard)} bytes, and a block of size={size} has shards "
                    f"of {length}: give the block's own shards and size"
                )
        return b"".join(self.rebuild(shards, i) for i in range(self.data))[:size]

    def _enough(self, shards: Mapping[int, bytes]) -> tuple[int, ...]:
        """The shards to compute with: the first `data` of those there are."""
        for index in shards:
            as_int("shard index", index, 0, self.shards - 1)
        if len(shards) < self.data:
            raise ValueError(
                f"{len(shards)} shards are too few: any {self.data} of {self.shards} are needed"
            )
        return tuple(sorted(shards)[: self.data])
