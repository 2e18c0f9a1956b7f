"""A total from the step before is fixed before drafting, unless the drafts use old random words.

A draft that does not stand was drawn all the same, and the confidences after it have seen it. In
the next step another draft is drawn at its position. If a draft's random word is keyed by its
position alone, it is the same word: a total chosen by the last step's confidences then depends on
the drafts that it is for, and is not fixed before them at all. Keyed by the position and by which
draft of its step it is, no word comes twice, since the first position moves on with every step.
Both are counted out here over two steps, in fractions. Brief, sections 3 (keyed draws), 4 and 6;
how DeepInfer keys its drafter's draws is not disclosed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

from g2c_serving.lab.exact_budget import (
    Joint,
    TinyRequest,
    Tokens,
    accept_chance,
    chances,
    request,
    residual,
    written,
)
from g2c_serving.sample.verify_budget import plan

KEYS = ("position", "position and draft")
Total = Callable[[list[float]], int]  # confidences of a step's drafts -> drafts to verify next


def two_steps(tiny: TinyRequest, num_drafts: int, first: int, total: Total, key: str) -> Joint:
    """What comes out of two steps of `num_drafts` drafts each, completed by the target.

    first   how many drafts the first step verifies; the second verifies total(confidences of the
            first's drafts)
    key     what a draft's random word belongs to, one of KEYS

    A word is a token here, so the drafter's q must be the same for all tokens, after any. `tiny`
    needs tables for at least first + 1 + num_drafts tokens. ValueError where that does not hold.
    """
    _check(tiny, num_drafts, first, key)
    found: dict[Tokens, Fraction] = defaultdict(Fraction)
    for drafts, drawn in _words(tiny, num_drafts):
        verified = total(tiny.confidences(drafts))
        for tokens, chance in _step(tiny, (), drafts, first):
            old = drafts[len(tokens) :] if key == KEYS[0] else ()
            for new, new_drawn in _words(tiny, num_drafts - len(old)):
                for longer, then in _step(tiny, tokens, old + new, verified):
                    found[longer] += drawn * chance * new_drawn * then
    return {(s,): _completed(tiny, found, s) for s in tiny.sequences()}


def _words(tiny: TinyRequest, count: int) -> Iterator[tuple[Tokens, Fraction]]:
    """All words for `count` drafts, equally likely."""
    for words in itertools.product(range(tiny.vocab_size), repeat=count):
        yield words, Fraction(1, tiny.vocab_size**count)


def _step(
    tiny: TinyRequest, before: Tokens, drafts: Tokens, verified: int
) -> Iterator[tuple[Tokens, Fraction]]:
    """The texts that a step after `before` may leave, each with its chance."""
    standing, text = Fraction(1), before
    for token in drafts[:verified]:
        p, q = tiny.target[text], tiny.drafter[text]
        accepted = accept_chance(p, q, token)
        if accepted < 1:
            for other, chance in enumerate(residual(p, q)):
                yield (*text, other), standing * (1 - accepted) * chance
        standing, text = standing * accepted, (*text, token)
    for token, chance in enumerate(tiny.target[text]):
        yield (*text, token), standing * chance


def _completed(tiny: TinyRequest, found: dict[Tokens, Fraction], sequence: Tokens) -> Fraction:
    return sum(
        (
            found[sequence[:n]] * written(tiny.target, sequence, n)
            for n in range(len(sequence) + 1)
            if sequence[:n] in found
        ),
        Fraction(0),
    )


def _check(tiny: TinyRequest, num_drafts: int, first: int, key: str) -> None:
    if key not in KEYS:
        raise ValueError(f"key={key!r} must be one of {KEYS}")
    if not 0 <= first <= num_drafts or tiny.drafts < first + 1 + num_drafts + 1:
        raise ValueError(
            f"first={first} of num_drafts={num_drafts}: tables of {tiny.drafts} tokens are too "
            f"short; make them for {first + num_drafts + 2}"
        )
    if any(len(set(q)) > 1 for q in tiny.drafter.values()):
        raise ValueError("drafter: all tokens must be equally likely, after any tokens")


def example() -> tuple[TinyRequest, int, int, Total]:
    """A request, three drafts a step, all verified in the first step, and a total by the planner.

    Every confidence is exactly right. The planner's step takes 10 ms for one row and 22 for up to
    four, which pays only if the third draft is sure; and the third is sure after a second draft of
    token 0. If the first draft is rejected, the second one's position comes again in the next step.
    """
    even, sure, unsure = chances(5, 5), chances(6, 4), chances(10, 0)

    def target(tokens: Tokens) -> tuple[Fraction, ...]:
        if len(tokens) != 2:
            return chances(9, 1)
        return sure if tokens[-1] == 0 else unsure

    def total(confidences: list[float]) -> int:
        return plan([confidences], lambda rows: 10.0 if rows == 1 else 22.0).rows - 1

    return request(target, lambda tokens: even, drafts=8), 3, 3, total
