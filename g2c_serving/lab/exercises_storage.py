"""Notebook 07's exercises on storage and four bits, each with what computes its right value."""

from __future__ import annotations

from collections.abc import Callable

import torch

from g2c_serving.cluster.storage_code import StorageCode
from g2c_serving.cluster.storage_reads import kth_of, under_load
from g2c_serving.forward.low_precision import MXFP4, NVFP4, encode, rounded
from g2c_serving.lab.exercises import exercise


@exercise(
    "07.shards",
    "100 TB of cache blocks must survive the loss of any two disks. How many TB does that take as "
    "ten data shards and two of parity, and how many as whole copies? Answer with two numbers.",
    hint="Twelve shards hold what ten hold. After two losses one copy must be left.",
    unit="TB",
    rel=0.001,
    why="120 against 300. What it costs: a lost shard is rebuilt from ten others, not from one.",
)
def _shards() -> list[float]:
    return [100 * code.overhead for code in (StorageCode(10, 2), StorageCode(1, 2))]


@exercise(
    "07.ten_of_eleven",
    "Write there(p): eleven shards are asked for, each is back in time with chance p, independent "
    "of the others. Return the chance that a block can be put together, which takes ten.",
    hint="Either all eleven are back, or exactly one is missing: in how many ways?",
    rel=1e-6,
    abs_=1e-12,
    cases=((0.9,), (0.99,), (0.5,), (1.0,)),
    slips=(
        (lambda p: p**10, "That is ten of ten: the eleventh read changes nothing."),
        (lambda p: p**11, "That waits for all eleven. One of them may be missing."),
        (lambda p: 11 * p**10 * (1 - p), "That is exactly ten. All eleven will do too."),
        (lambda p: p**11 + p**10 * (1 - p), "Any of the eleven may be the missing one."),
    ),
    why="p^11 + 11 p^10 (1 - p). With p = 0.99, 90.4 % of the blocks become 99.5 %.",
)
def _ten_of_eleven() -> Callable[[float], float]:
    return lambda p: float(kth_of(p, 10, 11))


@exercise(
    "07.busy_disks",
    "Reads wait for each other at busy disks: one that is busy for a share r of the time takes "
    "1 / (1 - r) times as long on average as an idle one, exponentially distributed. All ten of "
    "ten take 2.929 such averages, the first ten of eleven 2.020, but eleven keep the disks busy "
    "for 1.1 r. At which r, in %, does the eleventh read stop paying?",
    hint="2.929 / (1 - r) = 2.020 / (1 - 1.1 r): solve for r.",
    unit="%",
    rel=0.005,
    why="At 75.6 %. An extra read is paid by those who wait behind it.",
)
def _busy_disks() -> float:
    ten, eleven = (float(under_load(0, issued)) for issued in (10, 11))
    return 100 * (ten - eleven) / (1.1 * ten - eleven)


TALL = (22.0, 6.5, -2.5, 0.9)


@exercise(
    "07.mxfp4",
    "A block of MXFP4 holds 22, 6.5, -2.5, 0.9 and 28 zeros. What comes back of the first four?",
    hint="The scale is 2^(floor(log2(largest)) - 2). Divide by it, round to one of 0, 0.5, 1, 1.5, "
    "2, 3, 4, 6, multiply.",
    rel=1e-6,
    abs_=1e-9,
    why="The scale is 4, so the smallest step is 2: what 22 needs, 0.9 pays for.",
)
def _mxfp4() -> list[float]:
    return rounded(torch.tensor(TALL + (0.0,) * 28), MXFP4)[:4].tolist()


@exercise(
    "07.four_bits",
    "tiny keeps 2 x 4 x 256 numbers of keys and values for each token. How many bytes are that in "
    "an NVFP4-like format: 4 bits a number, and for each 16 numbers a scale of 8 bits?",
    hint="How many bits is a number, its share of the scale included?",
    unit="bytes",
    rel=0.001,
    why="4.5 bits a number: 1,152 bytes. In float32 they are 8,192, in half precision 4,096.",
)
def _four_bits() -> float:
    return encode(torch.ones(2, 4, 256), NVFP4).nbytes
