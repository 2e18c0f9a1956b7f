"""Where two runs of one request part, and why: another random number, other bits of the logits, or
another path.

Brief, section 3: a seed fixes the draws and not the logits. Section 4: with speculation a token may
be an accepted draft, a resample or an ordinary draw, and each takes another number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from g2c_serving.lab.shared_draws import first_difference

SAME_NUMBER = 1e-8  # a number is known as the target's share of a total, which is 2^32 or more


@dataclass
class Seen:
    """One run of the request: its new tokens; for each, the logits (V,) it was sampled from, the
    random number in [0, 1) that decided it, and what that was for (sample, resample or accept)."""

    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)  # none where all are ordinary draws


@dataclass(frozen=True)
class Parting:
    """Where two runs of one request part, counted in new tokens from 0; None: they never do.

    token   the first token that differs
    bit     the first logits that differ, in any bit; looked for as long as the tokens agree
    draw    the first random number that differs though it is for the same use
    gap     the largest difference of those logits
    length  of the runs
    path    the first number that is for another use
    """

    token: int | None
    bit: int | None
    draw: int | None
    gap: float
    length: int
    path: int | None = None

    @property
    def same(self) -> bool:
        return (self.token, self.bit, self.draw, self.path) == (None, None, None, None)

    @property
    def reason(self) -> str:
        """Of the first token that differs: "path" where a number is for another use, or where
        neither number nor logits differ; "draw"; or "bit". A number of its own would have moved it
        in any case."""
        if self.token is None:
            return ""
        if self.path is not None and self.path <= self.token:
            return "path"
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
    paths = [a == b for a, b in zip(one.uses[:agree], other.uses[:agree], strict=True)]
    numbers = zip(one.numbers[:agree], other.numbers[:agree], strict=True)
    draws = [abs(a - b) < SAME_NUMBER for a, b in numbers]
    draws = [equal or not path for equal, path in zip(draws, paths or [True] * agree, strict=True)]
    bit = bits.index(False) if False in bits else None
    gap = 0.0 if bit is None else (one.logits[bit] - other.logits[bit]).abs().max().item()
    return Parting(
        token=None if token == len(one.tokens) else token,
        bit=bit,
        draw=draws.index(False) if False in draws else None,
        gap=gap,
        length=len(one.tokens),
        path=paths.index(False) if False in paths else None,
    )
