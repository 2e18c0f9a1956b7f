"""The exercises of notebooks 00 and 01, each with the function that computes its right value."""

from __future__ import annotations

from g2c_serving.lab import charts, reservation
from g2c_serving.lab.exercises import exercise
from g2c_serving.request import Request, SamplingParams
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.scheduler import Scheduler


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
