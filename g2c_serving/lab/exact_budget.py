"""Is speculation under a budget still exact? A tiny world in which every outcome can be counted.

A few requests, a vocabulary of two or three tokens, up to two drafts each, all in fractions. A rule
says how many drafts of each request are verified; `joint` is what then comes out, of all requests
together, each completed by its target's own distribution. The rules are those of the Brief, section
4: `fixed`; `fresh`, the planner on the confidences of the very drafts that it judges; `stale`, a
total that was settled before they were drawn, handed out by those confidences. The latter is what
DeepInfer's asynchronous engine does, to hide latency (Reported, section 6).

Why `stale` is exact. Look at the drafts one at a time, in falling order of survival, whoever's they
are. A confidence sees only the tokens before its draft, so which draft is next, and whether any of
the total is left for it, is known before it is looked at; whatever was seen so far, it is still a
draw from the drafter's q. If it is verified, accepting or replacing it leaves a token of the
target's p: q min(1, p/q) + (1 - sum min(p, q)) * residual = p. If the total is used up, an ordinary
draw leaves one of p too. So, draft after draft, each request's tokens follow its target whatever
the others' are, and all of them together are independent. (The number of drafts that are looked at
is a stopping time.)

Why `fresh` is not. The confidence of draft 2 sees draft 1, and may be what makes draft 1 worth its
row. Then draft 1 decides whether it is verified. With q = (.5, .5), p = (.9, .1), verified only
when it is token 0: P(token 0) = .5 * 1 + .5 * .9 = .95. A calibrated head does not help:
`on_stairs` is that case, out of the Brief's own step times.

When `fresh` is exact all the same. If each further row takes at least as long as the one before it
(a convex step time), tokens per ms rise to one peak, and the best total is the first after which
one more row does not pay: known before its draft is looked at. `first_peak` stops there on any step
time: exact always, but on stairs it may stop too soon.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

from g2c_serving.lab import toy_budget
from g2c_serving.sample.verify_budget import StepTime, plan, split

Tokens = tuple[int, ...]
Chances = tuple[Fraction, ...]  # of each token of the vocabulary
Drafts = tuple[Tokens, ...]  # of each request
Rule = Callable[[Drafts], Sequence[int]]  # how many drafts of each request are verified
Joint = dict[Drafts, Fraction]  # how likely each request's tokens are, of all together


@dataclass(frozen=True, eq=False)
class TinyRequest:
    """What target, drafter and confidence head say after each of a request's possible new tokens,
    from none, (), to `drafts` - 1 of them."""

    target: Mapping[Tokens, Chances]
    drafter: Mapping[Tokens, Chances]
    confidence: Mapping[Tokens, Fraction]
    drafts: int

    @property
    def vocab_size(self) -> int:
        return len(self.target[()])

    def sequences(self, length: int | None = None) -> list[Tokens]:
        """All token sequences of a length, of as many tokens as there are drafts without one."""
        length = self.drafts if length is None else length
        return list(itertools.product(range(self.vocab_size), repeat=length))

    def confidences(self, drafts: Tokens) -> list[float]:
        """Those of drafts 1, 2, ...: each sees the drafts before its own."""
        return [float(self.confidence[drafts[:i]]) for i in range(len(drafts))]


def request(
    target: Callable[[Tokens], Chances],
    drafter: Callable[[Tokens], Chances],
    drafts: int,
    confidence: Callable[[Tokens], Fraction] | None = None,
) -> TinyRequest:
    """A request from functions of the tokens so far. Without `confidence` it is the exact one: how
    likely a draft after these tokens is accepted."""
    vocab = range(len(target(())))
    prefixes = [p for n in range(drafts) for p in itertools.product(vocab, repeat=n)]
    sure = confidence or (lambda tokens: overlap(target(tokens), drafter(tokens)))
    return TinyRequest(
        {tokens: target(tokens) for tokens in prefixes},
        {tokens: drafter(tokens) for tokens in prefixes},
        {tokens: sure(tokens) for tokens in prefixes},
        drafts,
    )


# ---- one draft ----


def accept_chance(p: Chances, q: Chances, token: int) -> Fraction:
    """How likely the draft `token`, drawn by q, is accepted under p: min(1, p / q)."""
    return min(Fraction(1), p[token] / q[token])


def overlap(p: Chances, q: Chances) -> Fraction:
    """How likely a draft is accepted before it is known: sum min(p, q)."""
    return sum((min(a, b) for a, b in zip(p, q, strict=True)), Fraction(0))


def residual(p: Chances, q: Chances) -> Chances:
    """What a rejected draft is replaced by: max(p - q, 0), normalised. p and q differ."""
    left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return tuple(chance / sum(left) for chance in left)


# ---- what comes out ----


def emitted(tiny: TinyRequest, drafts: Tokens, verified: int) -> dict[Tokens, Fraction]:
    """How likely each sequence of `tiny.drafts` tokens comes out, when these drafts were drawn and
    the first `verified` are checked: the accepted ones, a replacement after a rejection, and then
    as the target goes on by itself."""
    found = dict.fromkeys(tiny.sequences(), Fraction(0))

    def complete(tokens: Tokens, chance: Fraction) -> None:
        for sequence in found:
            if chance and sequence[: len(tokens)] == tokens:
                found[sequence] += chance * written(tiny.target, sequence, len(tokens))

    standing = Fraction(1)  # the chance that all drafts so far are accepted
    for i in range(verified):
        before, p, q = drafts[:i], tiny.target[drafts[:i]], tiny.drafter[drafts[:i]]
        accepted = accept_chance(p, q, drafts[i])
        if accepted < 1:
            for token, chance in enumerate(residual(p, q)):
                complete((*before, token), standing * (1 - accepted) * chance)
        standing *= accepted
    complete(drafts[:verified], standing)
    return found


def written(by: Mapping[Tokens, Chances], tokens: Tokens, after: int = 0) -> Fraction:
    """How likely a model writes tokens[after:], having written those before."""
    return prod((by[tokens[:i]][tokens[i]] for i in range(after, len(tokens))), start=Fraction(1))


def joint(requests: Sequence[TinyRequest], rule: Rule) -> Joint:
    """What comes out of all requests together under a rule, over all drafts that may be drawn."""

    @cache
    def one(k: int, drafts: Tokens, verified: int) -> dict[Tokens, Fraction]:
        return emitted(requests[k], drafts, verified)

    found = dict.fromkeys(_all_together(requests), Fraction(0))
    for drafts in _all_together(requests):
        drawn = prod(written(r.drafter, d) for r, d in zip(requests, drafts, strict=True))
        if drawn:
            each = [one(k, d, v) for k, (d, v) in enumerate(zip(drafts, rule(drafts), strict=True))]
            for together in found:
                found[together] += drawn * prod(e[t] for e, t in zip(each, together, strict=True))
    return found


def wanted(requests: Sequence[TinyRequest]) -> Joint:
    """What the targets write by themselves, each independent of the others."""
    found = dict.fromkeys(_all_together(requests), Fraction(1))
    for together in found:
        for tiny, tokens in zip(requests, together, strict=True):
            found[together] *= written(tiny.target, tokens)
    return found


def distance(one: Joint, other: Joint) -> Fraction:
    """Total variation: the share of outcomes that would have to change."""
    return sum((abs(one[key] - other[key]) for key in other), Fraction(0)) / 2


def first_token(found: Joint, k: int, token: int) -> Fraction:
    """How likely request k's first token is `token`."""
    return sum((c for together, c in found.items() if together[k][0] == token), Fraction(0))


def _all_together(requests: Sequence[TinyRequest]) -> list[Drafts]:
    return list(itertools.product(*(r.sequences() for r in requests)))


# ---- rules ----


def fixed(requests: Sequence[TinyRequest], count: int) -> Rule:
    """So many drafts of every request."""
    return lambda drafts: [count] * len(requests)


def stale(requests: Sequence[TinyRequest], total: int) -> Rule:
    """A total that is settled before drafting, split by the drafts' own confidences."""
    return lambda drafts: split(total, _confidences(requests, drafts)).tolist()


def fresh(requests: Sequence[TinyRequest], step_time: StepTime) -> Rule:
    """The planner on the drafts' own confidences: total and split."""
    return lambda drafts: plan(_confidences(requests, drafts), step_time).drafts.tolist()


def first_peak(requests: Sequence[TinyRequest], step_time: StepTime) -> Rule:
    """Rows as long as the next one raises tokens per ms, in order of survival."""

    def rule(drafts: Drafts) -> list[int]:
        confidences = _confidences(requests, drafts)
        rates = np.array([c.tokens_per_ms for c in plan(confidences, step_time).table])
        falls = np.flatnonzero(np.diff(rates) <= 0)
        return split(int(falls[0]) if falls.size else len(rates) - 1, confidences).tolist()

    return rule


def _confidences(requests: Sequence[TinyRequest], drafts: Drafts) -> list[list[float]]:
    return [r.confidences(d) for r, d in zip(requests, drafts, strict=True)]


# ---- worlds ----


def chances(*tenths: int) -> Chances:
    """(9, 1) is (9/10, 1/10): shares of their sum."""
    return tuple(Fraction(n, sum(tenths)) for n in tenths)


def on_stairs() -> tuple[tuple[TinyRequest, TinyRequest], StepTime]:
    """The counterexample: the Brief's step times, a request A whose drafts are 0.9 sure, and B.

    Every confidence is exactly right. B's first draft is 0.6 sure; its second one 0.9 after token
    0, so that both are worth the step from 10 to 13 ms, and 0.1 after token 1, so that neither is.
    """
    even = chances(5, 5)
    a = request(lambda tokens: chances(6, 4), lambda tokens: even, drafts=2)
    b_target = {(): chances(9, 1), (0,): chances(6, 4), (1,): chances(95, 5)}
    b_drafter = {(): even, (0,): even, (1,): chances(5, 95)}
    return (a, request(b_target.__getitem__, b_drafter.__getitem__, drafts=2)), toy_budget.step_ms
