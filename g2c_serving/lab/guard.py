"""What the guard of the resampling step does to the output, counted out.

Exact speculation draws the token after a rejection from max(p - q, 0). DeepInfer shrinks q by
exp(-5e-5) there, so that the remainder never comes up empty, and so leaves a little too much of
every token that q has. `guard_effect` says how far the token that comes out is then from p (Brief,
section 4: "strictly speaking it isn't zero").

Why it is at most the guard: shrinking q adds at most 1 - exp(-guard) to the remainder, and no more
than what is added can lie on wrong tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from g2c_serving.sample.speculation import GUARD

Chance = Fraction | float | int


@dataclass(frozen=True)
class GuardEffect:
    """The distribution of one token that comes of a draft: `exact` without the guard, which is p
    itself, `guarded` with it, and how far apart they are: half the sum of their differences."""

    exact: tuple[Fraction, ...]
    guarded: tuple[Fraction, ...]
    total_variation: Fraction


def guard_effect(p: Sequence[Chance], q: Sequence[Chance], guard: float = GUARD) -> GuardEffect:
    """The output's distribution for one draft drawn by q and checked against p, in fractions.

    p, q    chances of each token; they are normalised, so that floats may be given
    guard   0 or more. ValueError for another one, and for p and q that are no distributions
    """
    if not guard >= 0 or math.isinf(guard):
        raise ValueError(f"guard={guard} must be 0 (exact) or more")
    if len(p) != len(q):
        raise ValueError(f"p has {len(p)} tokens and q {len(q)}: give both the same vocabulary")
    ps, qs = _normalised("p", p), _normalised("q", q)
    exact, guarded = _output(ps, qs, Fraction(1)), _output(ps, qs, Fraction(math.exp(-guard)))
    apart = sum((abs(a - b) for a, b in zip(exact, guarded, strict=True)), Fraction(0)) / 2
    return GuardEffect(exact, guarded, apart)


def _output(p: Sequence[Fraction], q: Sequence[Fraction], shrink: Fraction) -> tuple[Fraction, ...]:
    """Accepted drafts, and after a rejection the remainder of p over `shrink` times q."""
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    left = [max(a - b * shrink, Fraction(0)) for a, b in zip(p, q, strict=True)]
    rejected, total = 1 - sum(accepted), sum(left) or Fraction(1)
    return tuple(a + rejected * r / total for a, r in zip(accepted, left, strict=True))


def _normalised(name: str, chances: Sequence[Chance]) -> list[Fraction]:
    try:
        found = [Fraction(chance) for chance in chances]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={chances!r} must be chances, one number for each token") from None
    if not found or min(found) < 0 or sum(found) == 0:
        raise ValueError(f"{name}={chances!r} must be chances of 0 or more that are not all 0")
    total = sum(found)
    return [chance / total for chance in found]
