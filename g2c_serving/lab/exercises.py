"""The exercises of the notebooks, and `check`, which a learner calls with an answer.

    step_time = ...
    check("01.step_time", step_time)

Each exercise is registered with the function that computes its right value through the package, so
that no answer is written down here. A wrong answer is told how it is wrong; see grading.py.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from g2c_serving.lab import (
    charts,
    hit_calculator,
    remainders,
    reservation,
    sampling_pitfalls,
    whose_numbers,
)
from g2c_serving.lab.grading import Exercise, Verdict, grade
from g2c_serving.lab.parting import Parting
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import MIN_TEMPERATURE
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.scheduler import Scheduler

EXERCISES: dict[str, Exercise] = {}
_misses: Counter[str] = Counter()


def exercise(
    name: str, question: str, *, hint: str, **how: Any
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the decorated function as the one that computes the right value of `name`.

    `how`: unit, rel, abs_, why, cases, as in grading.Exercise. Raises ValueError for a name twice.
    """

    def register(right: Callable[[], Any]) -> Callable[[], Any]:
        if name in EXERCISES:
            raise ValueError(f"name {name!r}: this exercise is registered twice")
        EXERCISES[name] = Exercise(name, question, right, hint, **how)
        return right

    return register


def check(name: str, answer: Any) -> Verdict:
    """Say whether the answer is right. End a cell with it. Raises ValueError for no such name."""
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(EXERCISES)}"
        raise ValueError(f"name {name!r} is no exercise{guess}")
    verdict = grade(EXERCISES[name], answer, _misses[name])
    if verdict.right is not None:
        _misses[name] = 0 if verdict.right else _misses[name] + 1
    return verdict


# ---- 00 ----


@exercise(
    "00.blocks",
    "How many blocks of 128 tokens does a request of 1,000 tokens hold?",
    hint="A block that is only partly filled is held all the same.",
    unit="blocks",
    rel=0,
    why="Seven blocks hold 896 tokens, and the other 104 need one more.",
)
def _blocks() -> int:
    return reservation.use(1000, block_size=128).blocks


# ---- 01 ----


@exercise(
    "01.step_time",
    "At 64 requests per GPU a user sees 246 tokens per second, at 3.25 tokens per step. "
    "How long is a step?",
    hint="Tokens per second over tokens per step are steps per second. Invert that.",
    unit="ms",
    why="246 / 3.25 is about 76 steps per second.",
)
def _step_time() -> float:
    return charts.decode_point(64).step_ms


@exercise(
    "01.one_more_request",
    "Between 8 and 64 requests per GPU, what does one more request add to a step, on average?",
    hint="Two step times, 56 requests apart.",
    unit="ms",
    rel=0.05,
    why="Some 0.06 ms on a step of 10 ms: the weights are read once, whoever uses them.",
)
def _one_more_request() -> float:
    return charts.marginal_ms(8, 64)


@exercise(
    "01.largest_chunk",
    "A step may take 10 ms. The step itself costs 2 ms and each of 20 decoding requests 0.1 ms; "
    "cost(q, c) = 0.05 q + 0.0001 q c + 0.0001 q^2 ms. 300 tokens of a prompt are cached. How many "
    "tokens has its next chunk at most?",
    hint="Take off what the decode rows cost. What is left is a quadratic equation for q.",
    unit="tokens",
    rel=0,
    why="6 ms are left: 0.0001 q^2 + 0.08 q = 6 at q = 69.04, and a chunk is a whole number.",
)
def _largest_chunk() -> int:
    model = CostModel(2.0, 0.1, 0.0, 0.05, 1e-4, 1e-4)
    return model.largest_chunk(300, 10.0 - model.decode_cost(20, 0))


@exercise(
    "01.long_prompt",
    "A prompt of 200,000 tokens arrives while 64 requests decode. max_num_batched_tokens is 8,192. "
    "In how many steps is the prompt computed?",
    hint="The decode rows come first: each takes one of a step's tokens.",
    unit="steps",
    rel=0,
    why="Each step has 8,128 tokens left for it: 24 full chunks, and a last one of 4,928.",
)
def _long_prompt() -> int:
    """The scheduler's own answer: it cuts the prompt, nothing is computed."""
    scheduler = Scheduler(PrefixCache(BlockManager(14_000, 16)), 8192, 65)
    for i in range(64):  # a prompt of one token, so that all decode from the second step on
        scheduler.add(Request(i, i, 0, [0], SamplingParams(), seed=0))
    _step(scheduler)
    long = Request(64, 64, 0, [0] * 200_000, SamplingParams(), seed=0)
    scheduler.add(long)
    steps = 0
    while long.num_generated == 0:
        _step(scheduler)
        steps += 1
    return steps


def _step(scheduler: Scheduler) -> None:
    """Schedule, and take the tokens as computed; who has no more of them gets a new one."""
    for s in scheduler.schedule():
        s.request.num_computed_tokens += s.num_tokens
        if s.request.num_uncomputed == 0:
            s.request.token_ids.append(0)


# ---- 02 ----


@exercise(
    "02.blocks_for",
    "Write blocks_for(tokens, block_size): the blocks that a request of so many tokens holds.",
    hint="Whole numbers only. What should 128 tokens give, and what 129?",
    cases=[(300, 128), (384, 128), (385, 128), (1, 16), (448, 16)],
    rel=0,
)
def _blocks_for() -> Callable[[int, int], int]:
    return lambda tokens, block_size: BlockManager(1, block_size).blocks_for(tokens)


@exercise(
    "02.fork_copies",
    "A request of 300 tokens, in blocks of 128, is forked once, and both go on writing. The keys "
    "and values of how many tokens are copied?",
    hint="A full block is never written again, so nobody needs an own one.",
    unit="tokens",
    rel=0,
    why="Two blocks are full and shared; the third holds the other 44.",
)
def _fork_copies() -> int:
    return 300 - 300 // 128 * 128


@exercise(
    "02.samples",
    "A prompt of 300 tokens is forked into 32 samples, in blocks of 128, and each sample has "
    "written one token. How many blocks do all 32 hold together?",
    hint="Count the blocks that all share once, then those that each sample writes into.",
    unit="blocks",
    rel=0,
    why="Two full blocks for all, and a tail for each. Without sharing it would be 96.",
)
def _samples() -> int:
    shared, last = divmod(300, 128)
    return shared + 32 * BlockManager(1, 128).blocks_for(last + 1)


@exercise(
    "02.returning",
    "An agent comes back with 50,000 tokens. All global blocks are there, the window state is "
    "gone. How many tokens does V4.1-Flash's rule compute?",
    hint="First the cap, then whole blocks, then one block back. Who replays, computes.",
    unit="tokens",
    rel=0,
    why="The cap of 49,866 is 389 blocks; one back leaves 49,664 reused: 336 new, 128 replayed.",
)
def _returning() -> int:
    return hit_calculator.FLASH.hit(50_000, state_held=False).computed


@exercise(
    "02.whole_blocks",
    "tiny's engine has blocks of 16. A prompt of 320 tokens comes a second time, and every block "
    "of it is still cached. How many tokens are computed?",
    hint="The next token is drawn from logits, and those of the last token come from computing it.",
    unit="tokens",
    rel=0,
    why="Not 0, and not 1: a hit is a number of whole blocks, so the last one is computed again.",
)
def _whole_blocks() -> int:
    return hit_calculator.TINY.hit(320).computed


@exercise(
    "02.context_bytes",
    "V4.1-Flash keeps 890 bytes a token of global cache, and window state for 134 tokens in 20 "
    "layers at 528 bytes. How many MB (10^6 bytes) does a conversation of 30,000 tokens leave?",
    hint="One part grows with the conversation, the other does not.",
    unit="MB",
    rel=0.005,
    why="26.7 MB of global cache and 1.4 MB of window state.",
)
def _context_bytes() -> float:
    return (hit_calculator.global_bytes(30_000) + hit_calculator.window_bytes()) / 1e6


# ---- 03 ----


@exercise(
    "03.seat",
    "One generator draws for a batch of 8, row by row, and nobody joins or leaves. You sit in the "
    "last seat. The how many-th number of the generator draws your fifth token?",
    hint="Every step takes one number for each row.",
    rel=0,
    why="Four steps of 8 numbers, and then the eighth. With 9 in the batch it would be another.",
)
def _seat() -> int:
    numbers, others = whose_numbers.shared(0, strangers=7, tokens=5)
    return numbers.size + others.size


@exercise(
    "03.counter",
    "Write counter(position, use): the first word of the random generator's counter, for positions "
    "below a thousand million.",
    hint="Three uses share one position: 0 sample, 1 resample, 2 accept coin.",
    cases=[(7, 2), (0, 0), (0, 1), (1, 0), (511, 1)],
    rel=0,
)
def _counter() -> Callable[[int, int], int]:
    return lambda position, use: int(rng.counters(np.array([position]), use)[0, 0])


@exercise(
    "03.bias",
    "A word of 8 bits becomes one of 100 targets by its remainder. How many times as likely is the "
    "likeliest target as the least likely one?",
    hint="Count the words: 256 of them, dealt out to 100 targets in turn.",
    unit="x",
    rel=0.001,
    why="56 targets get three words, 44 get two.",
)
def _bias() -> float:
    counts = remainders.counts(100, 8, "remainder")
    return float(counts.max() / counts.min())


@exercise(
    "03.top_p",
    "The probabilities of tokens 0 to 3 are 0.3, 0.1, 0.1 and 0.5, and top_p is 0.9. Which ids "
    "does the engine keep, in rising order?",
    hint="Sort, and add until the sum reaches 0.9. Of two equals the lower id comes first.",
    rel=0,
    why="0.5, 0.3 and 0.1 reach it, and of the two tokens of 0.1 the one with the lower id.",
)
def _top_p() -> list[int]:
    logits = np.log([0.3, 0.1, 0.1, 0.5]).tolist()
    return sampling_pitfalls.our_top_p(logits, 0.9)


@exercise(
    "03.near_tie",
    "Two logits are 1e-5 apart, all others far below. Temperature 0 is clamped to 1e-5 and nothing "
    "else is done. How often does the smaller of the two win?",
    hint="Divide the difference by the temperature. The odds are e to that power.",
    unit="%",
    rel=0.01,
    why="1 to e: 26.9 %. The engine keeps one token at temperature 0, so there it never wins.",
)
def _near_tie() -> float:
    return 100 / (1 + math.exp(1e-5 / MIN_TEMPERATURE))


@exercise(
    "03.reason",
    "Two runs of one request: the first logits that differ are those of token 5, the first random "
    "number that differs is that of token 9, the first token that differs is token 5. Which "
    "contract was broken first: draws, logits or path?",
    hint="Which of the three could have changed token 5?",
    why="The numbers were still equal at token 5. That they differ later is a consequence, or a "
    "second fault.",
)
def _reason() -> str:
    part = Parting(token=4, bit=4, draw=8, gap=1e-6, length=12)
    return {"bit": "logits", "draw": "draws"}[part.reason]
