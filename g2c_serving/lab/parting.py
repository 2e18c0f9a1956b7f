"""Where two runs of one request part, and why: another random number, or other bits of the logits.

Brief, section 3: a seed fixes the draws and not the logits. The third cause, another sampling path,
comes with speculation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from g2c_serving.lab.shared_draws import first_difference

SAME_NUMBER = 1e-8  # a number is known as the target's share of a total, which is 2^32 or more


@dataclass
class Seen:
    """One run of the request: its new tokens; for each, the logits (V,) it was sampled from and the
    random number in [0, 1) it was drawn with."""

    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Parting:
    """Where two runs of one request part, counted in new tokens from 0; None: they never do.

    token   the first token that differs
    bit     the first logits that differ, in any bit; looked for as long as the tokens agree
    draw    the first random number that differs, the same
    gap     the largest difference of those logits
    length  of the runs
    """

    token: int | None
    bit: int | None
    draw: int | None
    gap: float
    length: int

    @property
    def same(self) -> bool:
        return (self.token, self.bit, self.draw) == (None, None, None)

    @property
    def reason(self) -> str:
        """Of the first token that differs: "draw", "bit", or "path" where neither number nor logits
        differ. A number of its own would have moved it in any case."""
        if self.token is None:
            return ""
        if self.draw is not None and self.draw <= self.token:
            return "draw"
        return "path" if self.bit is None or self.bit > self.token else "bit"


def compare(one: Seen, other: Seen) -> Parting:
    """Where two runs of the same request part."""
    token = first_difference(one.tokens, other.tokens)
    agree = min(token + 1, len(one.tokens))  # logits after another token are another matter
    bits = [
        torch.equal(*pair) for pair in zip(one.logits[:agree], other.logits[:agree], strict=True)
    ]
    numbers = zip(one.numbers[:agree], other.numbers[:agree], strict=True)
    draws = [abs(a - b) < SAME_NUMBER for a, b in numbers]
    bit = bits.index(False) if False in bits else None
    gap = 0.0 if bit is None else (one.logits[bit] - other.logits[bit]).abs().max().item()
    return Parting(
        token=None if token == len(one.tokens) else token,
        bit=bit,
        draw=draws.index(False) if False in draws else None,
        gap=gap,
        length=len(one.tokens),
    )
