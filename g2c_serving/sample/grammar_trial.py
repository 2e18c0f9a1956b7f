"""A compiled grammar is tried out before it meets other people's requests.

XGrammar keeps every way to read what was written. A grammar that can be read in many ways, such as
`(((a{0,10}){0,10}){0,10}){0,10}`, compiles in a millisecond, and then one token may take seconds
to accept, in the step that all requests share. So a few random texts are written with it, in the
compiler's thread. A heuristic: what hides behind a rare beginning is not found. Brief, section 5.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from g2c_serving.sample.grammar import GrammarState

TEXTS, TOKENS = 3, 48
MAX_MS = 200.0  # of the thread's own time for one such text; an ordinary grammar takes 1 to 15


def check_pace(state: GrammarState, vocab_size: int, end: Sequence[int]) -> None:
    """Write `TEXTS` random texts of `TOKENS` tokens from `state`, which stays where it is, without
    their end where they may go on. ValueError if one takes too long, or comes to where no token may
    follow. `end` are the ids that end the grammar."""
    rng = np.random.default_rng(0)
    bits = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)
    for _ in range(TEXTS):
        one, began = state.fork(), time.thread_time()
        for token in range(TOKENS):
            one.fill(bits, 0)
            flat = np.unpackbits(bits[0].view(np.uint8), bitorder="little")[:vocab_size]
            allowed = np.flatnonzero(flat)
            if one.problem:
                raise ValueError(one.problem)
            if not len(allowed):
                raise ValueError(
                    f"admits nothing after {token} tokens of a text: look for a rule without a way "
                    "out, or bounds that exclude each other"
                )
            goes_on = allowed[~np.isin(allowed, end)]
            if not len(goes_on):
                break
            one.advance(int(rng.choice(goes_on)))
            took = 1e3 * (time.thread_time() - began)
            if took > MAX_MS:
                raise ValueError(
                    f"can be read in too many ways: {token + 1} tokens of a random text took "
                    f"{took:.0f} ms, {MAX_MS:g} on this machine is the limit; take "
                    "repetition inside repetition out"
                )
