"""The parent course's automaton by hand, beside XGrammar's: the same mask, bit by bit.

Brief, section 5: the course's Module 18 holds text to a grammar with `advance` and
`allowed_token_mask`; XGrammar compiles any schema into the same thing. The notebook's cell writes
`step` anew; the one here is its reference, for a timer's call: fixed text but for 1 to 3 digits.
A state counts what has been written. Kept by state, as in the course, a mask is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from g2c_serving.forward.language_model import LanguageModel, eos_ids
from g2c_serving.lab.allowed_tokens import mask_of
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample.grammar import Grammar
from g2c_serving.sample.grammar_compiler import GrammarCompiler

MINUTES = {"type": "integer", "minimum": 1, "maximum": 999}
ARGUMENTS = {"type": "object", "properties": {"minutes": MINUTES}, "required": ["minutes"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"const": "timer"}, "arguments": ARGUMENTS},
    "required": ["name", "arguments"],
}
BEFORE, AFTER = b'{"name": "timer", "arguments": {"minutes": ', b"}}"
DIGITS = len(BEFORE)  # the state in which the number begins
CLOSING = DIGITS + 3  # at most three digits, then AFTER
DONE = CLOSING + len(AFTER)

Step = Callable[[int, int], int | None]


def step(state: int, byte: int) -> int | None:
    """The state after one more byte, None if the byte may not come. It begins in 0."""
    if state < DIGITS:
        return state + 1 if byte == BEFORE[state] else None
    if state < CLOSING and byte in b"0123456789" and (state > DIGITS or byte != ord("0")):
        return state + 1
    if DIGITS < state <= CLOSING and byte == AFTER[0]:
        return CLOSING + 1
    return DONE if state == CLOSING + 1 and byte == AFTER[1] else None


def advance(state: int | None, piece: bytes, step: Step = step) -> int | None:
    """The state after a token's bytes."""
    for byte in piece:
        state = None if state is None else step(state, byte)
    return state


def allowed_token_mask(state: int, pieces: Sequence[bytes], step: Step) -> np.ndarray:
    """(V,) bool: the tokens that may follow. One without bytes, a reserved one, never may."""
    return np.array([bool(piece) and advance(state, piece, step) is not None for piece in pieces])


def pieces_of(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of each token; none for a reserved id."""
    reserved = set(tokenizer.reserved.values())
    return [b"" if i in reserved else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]


@dataclass(frozen=True)
class Comparison:
    """Both masks along many random texts of the grammar."""

    texts: int
    steps: int
    states: int  # of the automaton by hand that came up
    vocab_size: int
    differing: int  # bits
    where: str  # the text before the first of them

    def __repr__(self) -> str:
        bits = self.steps * self.vocab_size
        said = (
            f"{self.texts:,} random texts, {self.steps:,} steps, {self.vocab_size:,} tokens at "
            f"each: of {bits:,} bits {self.differing:,} differ"
        )
        if self.differing:
            return f"{said}, the first after {self.where!r}."
        return f"{said}. {self.states} states came up, a mask was worked out for each."


def compare(
    lm: LanguageModel, step: Step = step, done: int = DONE, texts: int = 200, seed: int = 0
) -> Comparison:
    """Draw texts token by token from XGrammar's mask for `SCHEMA`, and look at both masks before
    each draw. `done` is the state in which the text is complete: only the end may follow."""
    pieces, rng = pieces_of(lm.tokenizer), np.random.default_rng(seed)
    compiler = GrammarCompiler(lm.tokenizer, lm.vocab_size, eos_ids(lm))
    grammar = Grammar.json_schema(SCHEMA)
    compiled, end = compiler.submit(grammar).result(), compiler.end_of(grammar)

    @lru_cache
    def mask(state: int) -> np.ndarray:
        found = allowed_token_mask(state, pieces, step)
        found[list(end)] = state == done
        return found

    steps, differing, where, seen = 0, 0, "", set()
    for _ in range(texts):
        theirs, ours, text = compiler.state_of(grammar, compiled), 0, b""
        while not theirs.is_over:
            allowed = mask_of(theirs, lm.vocab_size)
            wrong = int((allowed != mask(ours)).sum())
            where = text.decode() if wrong and not differing else where
            steps, differing = steps + 1, differing + wrong
            seen.add(ours)
            token = int(rng.choice(np.flatnonzero(allowed)))
            theirs.advance(token)
            after = advance(ours, pieces[token], step)
            if after is None:  # the automaton by hand is wrong: nothing to compare from here on
                break
            ours, text = after, text + pieces[token]
    return Comparison(texts, steps, len(seen), lm.vocab_size, differing, where)
