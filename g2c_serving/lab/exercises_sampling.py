"""The exercises of notebook 03, each with the function that computes its right value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from g2c_serving.lab import remainders, sampling_pitfalls, whose_numbers
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.parting import Parting
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import MIN_TEMPERATURE


@exercise(
    "03.seat",
    "One generator draws for a batch of 8, row by row, and nobody joins or leaves. You sit in the "
    "last seat. Counted from 1, which number of the generator draws your fifth token?",
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
