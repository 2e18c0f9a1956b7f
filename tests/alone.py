"""What a request of the fakes must get, worked out alone: a loop with no batch, no cache and no
scheduler, that draws with the request's own number for each position in Python's integers.

With fixed drafts what is drawn at a temperature above 0 goes another way; it is taken from an
engine where the request has no company. So much is left to the engine there: the path.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fakes import VOCAB_SIZE, FakeLM, new_engine
from grammars import END, EOS, Words, regex

import g2c_serving as g
from g2c_serving.sample import rng

# words that a request is held to, what triggers that, what ends it
LANGUAGES = {
    "words": (["ab", "abc", "cab", "de" * 5], (), EOS),
    "after a": (["b", "ac", "dd" * 3], (ord("a"),), END),
}


@dataclass(frozen=True)
class Wish:
    """What a request asks for. stop: strings; language: one of LANGUAGES."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    language: str | None = None

    def params(self, seed: int, n: int = 1) -> g.SamplingParams:
        grammar = None
        if self.language is not None:
            words, trigger, end = LANGUAGES[self.language]
            grammar = regex(words, trigger, end if trigger else None)
        return g.SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature,
                                seed=seed, n=n, stop=self.stop, grammar=grammar)  # fmt: skip

    def state(self, given: Sequence[int]) -> Words | None:
        """How far its grammar is after what it was given."""
        if self.language is None:
            return None
        words, trigger, end = LANGUAGES[self.language]
        state = Words(words, trigger, end)
        for token in given:
            state.advance(token)
        return state


def story(lm: FakeLM, wish: Wish, seed: int, given: Sequence[int] = ()) -> tuple[list[int], str]:
    """The generated tokens, the `given` first ones among them, and why they end."""
    tokens, state = [*wish.prompt, *given], wish.state(given)
    while True:
        allowed = None if state is None else state.allowed()
        tokens.append(pick(lm, tokens, wish.temperature, seed, allowed))
        written = tokens[len(wish.prompt) :]
        if state is not None:
            state.advance(tokens[-1])
        over = state is not None and state.is_over
        if tokens[-1] == lm.eos_id or over or any(s in text(written) for s in wish.stop):
            return written, "stop"
        if len(written) == wish.max_tokens or len(tokens) == lm.max_seq_len:
            return written, "length"


def text(written: Sequence[int], stop: Sequence[str] = ()) -> str:
    """What a user sees of it: no reserved id, and nothing from a stop string on."""
    whole = bytes(token for token in written if token < 256).decode()
    return whole[: min([whole.find(s) for s in stop if s in whole], default=None)]


def pick(
    lm: FakeLM, tokens: list[int], temperature: float, seed: int, allowed: set[int] | None
) -> int:
    logits = lm.model.logits_after(tokens).tolist()
    ids = sorted(range(VOCAB_SIZE) if allowed is None else allowed)
    best = max(logits[i] for i in ids)
    if temperature == 0:
        return next(i for i in ids if logits[i] == best)
    weights = [round(2**32 * math.exp((logits[i] - best) / temperature)) for i in ids]
    place = np.array([len(tokens)])
    low, high, *_ = rng.philox(np.array([seed], dtype=np.uint64), rng.counters(place))[0].tolist()
    target = ((low << 32 | high) >> 2) * sum(weights) >> 62
    for i, weight in zip(ids, weights, strict=True):
        if target < weight:
            return i
        target -= weight
    raise AssertionError("the weights do not add up")


@functools.lru_cache(maxsize=4096)
def drafted_story(
    key: tuple[int, int, int], wish: Wish, seed: int, given: tuple[int, ...] = ()
) -> tuple[list[int], str]:
    """The same with fixed drafts. key: the model's window, the drafts, and the tokens of the pool,
    near whose end it goes on without any. What it was given goes to the prompt: from there on it
    is a request like any other."""
    window, drafts, most = key
    lm = new_lm(window)
    speculation = g.Speculation("fixed", drafts, new_lm())
    config = g.EngineConfig(most, 1, speculation=speculation, forbid_sync=False)
    how = Wish((*wish.prompt, *given), wish.max_tokens - len(given), wish.temperature, wish.stop,
               wish.language)  # fmt: skip
    (output,) = new_engine(g.Engine, lm, config).generate([list(how.prompt)], how.params(seed))
    return [*given, *output.token_ids], str(output.finish_reason)


def new_lm(window: int = 0) -> FakeLM:
    """It writes in 16 letters, the likeliest of which is far from certain."""
    return FakeLM(40, window, b"abcdefghijklmnop", height=3.0, dull=-20.0, eos_id=EOS)
