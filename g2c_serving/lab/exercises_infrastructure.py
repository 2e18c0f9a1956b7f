"""The exercises of notebook 07, each with the function that computes its right value.

Those on storage and four bits are in exercises_storage.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from g2c_serving.cluster import experts
from g2c_serving.cluster.decode_pool import DecodeRun
from g2c_serving.cluster.failover import GRACE_S
from g2c_serving.cluster.layer_transfer import shown_ms
from g2c_serving.cluster.parcel import Handover, Sample
from g2c_serving.cluster.wide_ep import MixtureOfExperts
from g2c_serving.lab import combine_panel
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.published import value
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.hit_rule import hit

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


def _copies(load: list[float], copies: int) -> list[int]:
    return experts.copies_for(np.array(load), copies).tolist()


def _to_the_most_popular(load: list[float], copies: int) -> list[int]:
    counts = [1] * len(load)
    counts[load.index(max(load))] += copies
    return counts


def _one_each(load: list[float], copies: int) -> list[int]:
    ranks = sorted(range(len(load)), key=lambda e: -load[e])
    return [1 + (e in ranks[:copies]) for e in range(len(load))]


def _halved(load: list[float], copies: int) -> list[int]:
    return _one_by_one(load, copies, lambda tokens, count: tokens / 2 ** (count - 1))


def _after(load: list[float], copies: int) -> list[int]:
    return _one_by_one(load, copies, lambda tokens, count: tokens / (count + 1))


def _one_by_one(load: list[float], copies: int, rank: Callable[[float, int], float]) -> list[int]:
    counts = [1] * len(load)
    for _ in range(copies):
        ranks = [rank(*one) for one in zip(load, counts, strict=True)]
        counts[ranks.index(max(ranks))] += 1
    return counts


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
        ([60, 40], 2),
        ([100, 30], 3),
    ),
    slips=(
        (_to_the_most_popular, "A second copy halves an expert's load: who is the busiest then?"),
        (_one_each, "An expert that has a copy may still be the busiest."),
        (_halved, "The third copy leaves each a third of the expert's tokens, not a quarter."),
        (_after, "Ask who is the busiest now, not who would be after one more copy."),
    ),
)
def _copies_right() -> Callable[[list[float], int], list[int]]:
    return _copies


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
    return [combine_panel.both(rule, 8, "float32").all_equal for rule in combine_panel.RULES]


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


TURN, KNOWN, MACHINES = 50_000, 49_000, 8


@exercise(
    "07.prefix",
    "An agent returns with 50,000 tokens, of which 49,000 were computed on one of 8 machines. Each "
    "machine can use only its own cache (blocks of 128 tokens, the last 134 tokens never from the "
    "cache), and the router chooses a machine at random. How many tokens are computed on average?",
    hint="One time in 8 it is the right machine: how many whole blocks lie in 49,000 tokens?",
    unit="tokens",
    rel=0,
    why="1,104 tokens one time in 8, all 50,000 else. Where a prefix is found before routing, it "
    "is 1,104 every time.",
)
def _prefix() -> float:
    found = hit(TURN, 128, 128, 6, cached=KNOWN).new
    return (found + (MACHINES - 1) * TURN) / MACHINES


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
