"""The exercises of notebook 09: the eight outcomes of the Brief, each on numbers of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from g2c_serving.lab import charts, hit_calculator
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.published import value
from g2c_serving.lab.speed_chart import CHANCE, FIXED, MEASURED, Point
from g2c_serving.lab.whole_tries import judge_draw, judge_prompt, keyed_draw
from g2c_serving.process.chat import chat
from g2c_serving.sample.verify_budget import plan
from g2c_serving.schedule.block_manager import BlockManager


@exercise(
    "09.phases",
    "Two charts of DeepInfer. Decode: from 64 to 256 requests per GPU a step goes from 13.2 to "
    "31.6 ms. Prefill: 16 times the tokens in a step take about 10.7 times as long (call the first "
    "step 1). In each, what does an added request or token cost, as a share of what one cost "
    "before? Give [decode, prefill], as fractions of 1.",
    hint="Decode: 18.4 ms for 192 more requests, against 13.2 ms for 64. Prefill: 9.7 for 15 more, "
    "against 1 for 1.",
    rel=0.035,
    why="An added request costs under half of what a request cost, even this far up the curve; "
    "from 8 to 64 it was a twentieth. An added token of a prompt costs two thirds from the start. "
    "So decode wants many requests on as many GPUs as share the weights, and prefill wants "
    "arithmetic.",
)
def _phases() -> list[float]:
    few = charts.decode_point(64)
    added = charts.marginal_ms(64, 256) / (few.step_ms / few.requests)
    tokens = value("prefill.tokens_ratio")
    return [added, (charts.prefill_latency_ratio() - 1) / (tokens - 1)]


@exercise(
    "09.fork",
    "A prompt of 1,000 tokens in blocks of 128 becomes 24 samples of 100 tokens each. Give [blocks"
    " in use at the end, shared ones counted once; blocks that are copied on the way].",
    hint="Seven blocks are full; the eighth has 104 tokens. Who writes last into a shared block?",
    rel=0,
    why="7 shared, and 2 of its own for each sample. 23 copy the eighth block before they write "
    "into it; the last one has it for itself by then. Without sharing it would be 24 times 9 "
    "blocks.",
)
def _fork() -> list[int]:
    """The block manager's own answer."""
    manager, copies = BlockManager(400, 128), 0
    manager.allocate(0, 1000)
    for sample in range(1, 24):
        manager.fork(0, sample, 1000)
    for sample in range(24):
        manager.allocate(sample, 1100, 1000)
        copies = len(manager.copies)
    manager.check()
    return [manager.num_used, copies]


@exercise(
    "09.returning",
    "An agent comes back with 23,456 tokens. V4.1-Flash's rule: blocks of 128, and a window of 128"
    " and 6 tokens of slack that never come from the cache. The global blocks hold the first "
    "20,000 tokens; the window state is gone. How many tokens does the server compute?",
    hint="What do the blocks hold in whole blocks? One back, then replay the last 128 of the hit.",
    unit="tokens",
    rel=0,
    why="20,000 are 156 blocks, below the cap; one back leaves 155, 19,840 tokens. 3,616 are new, "
    "and 128 are replayed.",
)
def _returning() -> int:
    return hit_calculator.FLASH.hit(23_456, state_held=False, cached=20_000).computed


@exercise(
    "09.draw",
    "Write draw(batch): batch is a list of (weights, seed, position), a row for each request; "
    "return the list of tokens drawn, each with a chance in proportion to its weight. A request's "
    "token must not depend on who else is in the batch, or in which order. (Plain Python: "
    "random.Random(...) takes a string.)",
    hint="One generator for all rows goes on counting. Make one for each row, of its seed and its "
    "position.",
    judge=judge_draw,
    why="A generator keyed by request and position has no memory that a stranger could move.",
)
def _draw() -> Callable:
    return keyed_draw


ORDER = (16_777_216.0, 1.0, 1.0, -16_777_216.0)


@exercise(
    "09.order",
    "Four float32 numbers: 16777216 (2 to the 24th), 1, 1, -16777216. Give [their sum from left to"
    " right; the first pair plus the second pair; the sum with the two ones added first; the "
    "absolute tolerance with which Module 16's test compares the cached path with the full one].",
    hint="Between 2^24 and 2^25 float32 has the even numbers alone, and a tie goes to the multiple"
    " of four: 16777216 + 1 is 16777216. Below 2^24 it has them all.",
    rel=0,
    why="0, 1 and 2: three orders, three sums. A kernel chooses its order by the shape of the "
    "batch, so the same request gets other last bits in other company, and torch.allclose with "
    "atol=1e-5 is where the course has allowed for it all along.",
)
def _order() -> list[float]:
    a, b, c, d = (np.float32(x) for x in ORDER)
    return [float(x) for x in (((a + b) + c) + d, (a + b) + (c + d), a + (b + c) + d, 1e-5)]


CONFIDENCES = [[0.8, 0.8, 0.8], [0.9, 0.9, 0.9], [0.4]]
TRUE_B = 0.5


def _step_ms(rows: int) -> float:
    return 8.0 if rows <= 4 else 11.0 if rows <= 7 else 15.0


@exercise(
    "09.budget",
    "Three requests share a step. A's drafts have confidence 0.8 each, B's three 0.9 each, C's "
    "only one 0.4. A step takes 8 ms for up to 4 rows, 11 ms for up to 7, 15 ms beyond. Give "
    "[drafts of A to verify, of B, of C, percent of the tokens per ms that are lost, against the "
    "best choice, if B's head is overconfident: its drafts stand with 0.5 each].",
    hint="Survivals of A: 0.8, 0.64, 0.512; of B: 0.9, 0.81, 0.729. Three rows are there anyway. "
    "For the last number: what really comes of your choice, against the best choice of somebody "
    "who knows.",
    rel=0.02,
    why="7 rows promise 6.24 tokens in 11 ms, and bring 4.68. Who knows B's 0.5 checks all of A's "
    "drafts and one of B's: 5.45. The planner multiplies the 0.9, so it has to mean 90 %.",
)
def _budget() -> list[float]:
    believed = plan(CONFIDENCES, _step_ms)
    truth = [CONFIDENCES[0], [TRUE_B] * 3, CONFIDENCES[2]]
    survival = [np.cumprod(row) for row in truth]
    real = 3 + sum(row[:n].sum() for row, n in zip(survival, believed.drafts, strict=True))
    lost = 1 - real / _step_ms(believed.rows) / plan(truth, _step_ms).tokens_per_ms
    return [*(float(n) for n in believed.drafts), 100 * float(lost)]


@exercise(
    "09.prompt",
    "Write render(messages): messages are dicts with role system or user, and content. Return the "
    "parts of the prompt, g.Reserved('<|user|>') and plain strings: for each message its marker, "
    "then a newline, the content and a newline; at the end <|assistant|> and a newline. No "
    "content, whatever it spells, may become a marker.",
    hint="A marker is a part of its own, and never inside an f-string with somebody's text.",
    judge=judge_prompt,
    why="Reserved ids come from your program alone, so the content cannot forge a role.",
)
def _prompt() -> Callable:
    return lambda messages: chat(messages)


VENDOR = Point("a vendor", 96, 187.5, 5, 0.7, FIXED, MEASURED)


@exercise(
    "09.chart",
    "A chart says 18,000 tokens a second per GPU at 96 requests. Its subtitle: 5 drafts, fixed, "
    "acceptance 70 %, tau = 1 + n * a. Give [engine steps a second, tokens a second per GPU if the"
    " 70 % are each draft's chance given the ones before it].",
    hint="18,000 / 96 is a user's speed. Divide by tau; then multiply by 1 + 0.7 + 0.49 + ...",
    rel=0.005,
    why="41.7 steps a second were measured. The assumption sets the axis: 18,000, or 11,765.",
)
def _chart() -> list[float]:
    return [VENDOR.steps_per_s or 0.0, VENDOR.requests * VENDOR.read_with(0.7, CHANCE)]
