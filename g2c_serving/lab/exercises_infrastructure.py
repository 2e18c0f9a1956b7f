"""The exercises of notebook 07, each with the function that computes its right value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch

from g2c_serving.cluster import combine, experts
from g2c_serving.cluster.decode_pool import DecodeRun
from g2c_serving.cluster.failover import GRACE_S
from g2c_serving.cluster.handover import Handover, Sample
from g2c_serving.cluster.layer_transfer import shown_ms
from g2c_serving.cluster.storage_code import StorageCode
from g2c_serving.cluster.storage_reads import kth_of, under_load
from g2c_serving.cluster.wide_ep import MixtureOfExperts
from g2c_serving.forward.low_precision import MXFP4, NVFP4, encode, rounded
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.published import value
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.hit_rule import hit

# ---- 07.balance ----

LOAD, GPUS = (60, 30, 20, 10), 2


@exercise(
    "07.balance",
    "In one step four experts get 60, 30, 20 and 10 tokens. Two GPUs hold two of them each, no "
    "copies. How large is the balance, busiest GPU over average, if they are placed as well as can "
    "be?",
    hint="The largest goes with the smallest. The average GPU gets half of the 120 tokens.",
    unit="x",
    rel=0.005,
    why="70 tokens against an average of 60. One copy of the expert with 60 would make it 1.",
)
def _balance() -> float:
    return float(experts.place(np.array(LOAD), GPUS).balance(np.array(LOAD)))


# ---- 07.copies ----


def _copies(load: list[float], copies: int) -> list[int]:
    return experts.copies_for(np.array(load), copies).tolist()


def _to_the_most_popular(load: list[float], copies: int) -> list[int]:
    counts = [1] * len(load)
    counts[load.index(max(load))] += copies
    return counts


def _one_each(load: list[float], copies: int) -> list[int]:
    ranks = sorted(range(len(load)), key=lambda e: -load[e])
    return [1 + (e in ranks[:copies]) for e in range(len(load))]


@exercise(
    "07.copies",
    "Write copies(load, extra): load is a list of the tokens that each expert gets, extra how many "
    "redundant copies there is room for. Give the copies out one after the other, each where it "
    "relieves the busiest copy, ties to the lower number. Return how many of each there are.",
    hint="An expert's tokens are shared equally by its copies. Whose copies have most, now?",
    rel=0,
    cases=(
        ([60, 30, 20, 10], 1),
        ([60, 30, 20, 10], 2),
        ([90, 50, 10], 3),
        ([8, 8, 8], 2),
        ([100, 1], 3),
    ),
    slips=(
        (_to_the_most_popular, "A second copy halves an expert's load: who is the busiest then?"),
        (_one_each, "An expert that has a copy may still be the busiest."),
    ),
)
def _copies_right() -> Callable[[list[float], int], list[int]]:
    return _copies


# ---- 07.wide ----

WIDE = MixtureOfExperts(layers=40, experts=256, chosen=8, expert_bytes=12.5e6, other_bytes=6e9)


@exercise(
    "07.wide",
    "A model has 128 GB of routed experts and 6 GB of other weights. 64 GPUs share the experts, "
    "and each holds the other weights whole. With so many tokens that every expert is chosen in "
    "every step, how many GB of weights does each GPU read per step?",
    hint="Its own experts once, and the other weights once.",
    unit="GB",
    rel=0.005,
    why="2 GB of experts and 6 GB beside them. With 128 GPUs it would be 7: what is not shared out "
    "decides.",
)
def _wide() -> float:
    return WIDE.streamed(64, tokens=10_000) / 1e9


# ---- 07.orders ----

RULES = (combine.by_arrival, combine.by_gpu, combine.by_expert)


@exercise(
    "07.orders",
    "Each token's eight partial results are added up before and after a reassignment, which moved "
    "one of its experts to another GPU; they also come in at other times. Which sums are "
    "torch.equal, over many tokens? Answer with three True or False: [added as they arrive, each "
    "GPU adds its own and then GPU after GPU, in the order of the experts' numbers].",
    hint="What does each rule have to know? Does the reassignment change that?",
    why="Adding on each GPU first makes groups, and the groups change with the placement. The "
    "experts' numbers stay.",
)
def _orders() -> list[bool]:
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(64, 8, 64, generator=draw)
    gpus = torch.randint(0, 8, (64, 8), generator=draw)
    moved = gpus.clone()
    moved[:, 3] = (moved[:, 3] + 1) % 8
    early, late = torch.rand(2, 64, 8, generator=draw)
    return [torch.equal(rule(parts, gpus, early), rule(parts, moved, late)) for rule in RULES]


# ---- 07.in_step ----

OWN_MS = (12.0, 12.0, 13.0, 19.0)


@exercise(
    "07.in_step",
    "Four GPUs decode in step. For its own requests each would need 12, 12, 13 and 19 ms. At what "
    "share of perfect balance does the pool run?",
    hint="How long is a step now? How long would it be with the work spread evenly?",
    unit="%",
    rel=0.005,
    why="14 ms of work on average, and all four wait 19 ms.",
)
def _in_step() -> float:
    ms = np.array([OWN_MS])  # a step of four GPUs, in ms by requests of 1 ms
    return 100 * DecodeRun(ms, 0 * ms, CostModel(0, 1, 0, 0, 0, 0), [], []).efficiency()


# ---- 07.prefix ----

TURN, KNOWN, MACHINES = 50_000, 49_000, 8


@exercise(
    "07.prefix",
    "An agent returns with 50,000 tokens, of which 49,000 were computed on one of 8 machines. Each "
    "machine can use only its own cache (blocks of 128 tokens, the last 134 tokens never from the "
    "cache), and the router chooses a machine at random. How many tokens are computed on average?",
    hint="One time in 8 it is the right machine: how many whole blocks lie in 49,000 tokens?",
    unit="tokens",
    rel=0.002,
    why="1,104 tokens one time in 8, all 50,000 else. Where a prefix is found before routing, it "
    "is 1,104 every time.",
)
def _prefix() -> float:
    found = hit(TURN, 128, 128, 6, cached=KNOWN).new
    return (found + (MACHINES - 1) * TURN) / MACHINES


# ---- 07.shards ----


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


# ---- 07.ten_of_eleven ----


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


# ---- 07.busy_disks ----


@exercise(
    "07.busy_disks",
    "Reads wait for each other at busy disks: a disk busy for a share r of the time answers in "
    "1 / (1 - r) of what it would take idle, exponential about that mean. All ten of ten take "
    "2.929 such means, the first ten of eleven 2.020, but eleven keep the disks busy for 1.1 r. At "
    "which r, in %, does the eleventh read stop paying?",
    hint="2.929 / (1 - r) = 2.020 / (1 - 1.1 r): solve for r.",
    unit="%",
    rel=0.005,
    why="At 75.6 %. An extra read is paid by those who wait behind it.",
)
def _busy_disks() -> float:
    ten, eleven = (float(under_load(0, issued)) for issued in (10, 11))
    return 100 * (ten - eleven) / (1.1 * ten - eleven)


# ---- 07.mxfp4 ----

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


# ---- 07.four_bits ----


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


# ---- 07.hidden ----

CACHE_GB, LINK_GB_S, PROMPT_MS, PROMPT_LAYERS = 4.2, 20.0, 400.0, 40


@exercise(
    "07.hidden",
    "A prompt takes 400 ms to compute, in 40 layers. Its cache of 4.2 GB is shipped over a link of "
    "20 GB/s, each layer's part as soon as that layer is done. How many ms does a user wait for "
    "the link, between the first token and the second?",
    hint="How long is one layer's part on the link? Is that longer than a layer takes to compute?",
    unit="ms",
    rel=0.01,
    why="210 ms in all, 5.25 for each layer, and a layer takes 10: only the last part shows. All "
    "at the end it would be 210.",
)
def _hidden() -> float:
    return float(shown_ms(PROMPT_LAYERS, PROMPT_MS, 1e3 * CACHE_GB / LINK_GB_S))


# ---- 07.parcel ----

PARCEL = ("token_ids", "seed", "params", "pages", "generator", "grammar", "row")


@exercise(
    "07.parcel",
    "An engine dies, and another is to go on with its requests, in batch-invariant mode, so that "
    "no token differs. What must somebody outside the engine know of a request? Answer with seven "
    "True or False: [the tokens so far, its seed, its sampling parameters, the pages of its cache, "
    "the state of a random generator, the state of its grammar's automaton, its row in the batch].",
    hint="What can be worked out again from the rest, and what was there never?",
    rel=0,
    why="Tokens, seed and parameters are the request. Pages and automaton can be computed again "
    "from the tokens, which only takes time. Draws are keyed by seed and position: there is no "
    "generator, and no row matters.",
)
def _parcel() -> list[bool]:
    carried = {field.name for kind in (Handover, Sample) for field in fields(kind)}
    needed = carried - {"pages"}  # which Handover.without_pages leaves out
    return [name in needed for name in PARCEL]


# ---- 07.grace ----


@exercise(
    "07.grace",
    "A decode engine is asked to stop and has one minute of grace. By the decode chart a user gets "
    "246 tokens a second with 64 requests on a GPU. How many tokens may an answer lack, at most, "
    "when the minute begins, to end before it is over?",
    hint="A minute is 60 seconds.",
    unit="tokens",
    rel=0.005,
    why="60 s at 246 tokens a second. Only longer answers are ever forwarded with their caches.",
)
def _grace() -> float:
    return GRACE_S * value("decode.user_speed.64")
