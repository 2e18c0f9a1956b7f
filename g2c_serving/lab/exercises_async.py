"""The exercises of notebook 06, each with the function that computes its right value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from g2c_serving.lab import stray_sync
from g2c_serving.lab.answers import read_number
from g2c_serving.lab.exercises import exercise
from g2c_serving.lab.overlap_model import alike, least
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample import rng

DEVICE_MS, CPU_MS = 18.0, 4.5


@exercise(
    "06.ideal",
    "A step takes the device 18 ms; scheduling it and finishing it take the CPU 4.5 ms. How many "
    "times as many steps a second can a loop make at best, if it overlaps the two?",
    hint="One after the other: how long is a step? Overlapped it is as long as the busier of both. "
    "And not how long a step is, against before: how many more are there a second?",
    unit="x",
    rel=0.005,
    why="22.5 ms against 18 ms. The CPU has less to do than the device, so all of it is hidden.",
)
def _ideal() -> float:
    steps = 1000
    return steps * (DEVICE_MS + CPU_MS) / float(least(alike(steps, DEVICE_MS, CPU_MS)))


MASK = (
    "tokens[~sure] has as many rows as there are True in a mask: the host waits for that "
    "number. The line after it reads only the shape. (~sure).sum() would stay on the device."
)
# What a line has in it, and why it does not wait.
NO_WAIT = {
    "len(drawn)": "it reads a shape, which is known by then. Which line had to find it out?",
    "tuple(": "it stands under an `if` that is false, and reads a shape, which Python knows.",
    "len(best)": "it reads a shape and a type. Python knows both without the device.",
    ".shape": "it reads a shape. Python knows that without the device.",
    "return tokens": "what it gives back stays on the device, and `share` is Python's own by then.",
}


def _names_the_wait(answer: Any) -> tuple[bool, str]:
    line = read_number(answer.removeprefix("line ") if isinstance(answer, str) else answer, "")
    lines = dict(enumerate(stray_sync.HIDDEN.splitlines(), start=1))
    if line == stray_sync.hidden_line():
        return True, MASK
    if line not in lines:
        return False, f"the function has the lines 1 to {len(lines)}."
    words = "what it makes stays on the device, of a shape that Python knows in advance."
    known = (why for part, why in NO_WAIT.items() if part in lines[int(line)])
    return False, f"line {line:g} does not wait: {next(known, words)}"


@exercise(
    "06.find_sync",
    "In which line of the function above does the host wait for the device?",
    hint="In each line: does Python need a number that only the device knows? Shapes, types and "
    "devices it knows by itself, unless a shape depends on values.",
    why=MASK,
    judge=_names_the_wait,
)
def _find_sync() -> int:
    return stray_sync.hidden_line()


END, WORD, OTHER, BLOCK = 256, 70, 71, 16
FORMS = ([65, 66, WORD, 67], [65, 66, OTHER, 68])  # the texts that a grammar admits


def _ends(request: Request) -> bool:
    return request.token_ids[-1] in request.stop_ids


def _is_full(request: Request) -> bool:
    return request.num_missing <= 0


def _stops(request: Request) -> bool:
    return request.token_ids[-2:] == [66, WORD]  # a stop string of two tokens


def _blocks(request: Request) -> int:
    return -(-(len(request.token_ids) + 1) // BLOCK)


def _words(request: Request) -> list[list[int]]:
    seeds = np.array([request.seed], dtype=np.uint64)
    return rng.target_words(seeds, np.array([len(request.token_ids)])).tolist()


def _admitted(request: Request) -> list[int]:
    said = request.token_ids
    return [form[len(said)] for form in FORMS if form[: len(said)] == said]


NEWS = (_ends, _is_full, _stops, _blocks, _words, _admitted)


def _needs_token(question: Callable[[Request], Any]) -> bool:
    """Whether the answer depends on which token comes."""
    answers = []
    for token in (WORD, OTHER, END):
        params = SamplingParams(max_tokens=1)
        request = Request(0, 0, 0, [65, 66], params, seed=7, stop_ids=frozenset([END]))
        request.token_ids.append(token)
        answers.append(question(request))
    return any(answer != answers[0] for answer in answers)


@exercise(
    "06.late",
    "While the device computes token N of a request, the CPU plans the step of token N + 1. Which "
    "of these can it not know before token N has come? Answer with six True or False: [that token "
    "N is the end of the text, that max_tokens is reached with it, that a stop string is complete, "
    "that a new block is needed, the random number of token N + 1, what the grammar admits as "
    "token N + 1].",
    hint="What would be the same whichever token comes? How many tokens there are is known now.",
    why="Counts and positions are known in advance: max_tokens, the block, the random number. What "
    "the token says is not: the end is recognised one step late, and a token too many thrown "
    "away; a row under a grammar has to wait for its mask.",
)
def _late() -> list[bool]:
    return [_needs_token(question) for question in NEWS]
