"""Wide expert parallelism: what a GPU must read per decode step, by how many share the experts.

Brief, section 1. Reported: decode runs on 64 to 128 GPUs with as much parallelism as possible,
because the more of them share the expert weights, the less each has to stream per step. Each GPU
has requests of its own (attention is not shared out), and holds 1 / G of every layer's experts for
the tokens of all G. A step reads the experts that some token chose, and all weights beside them:

    read by a GPU  =  others  +  layers * bytes of an expert * (experts here) * P(someone chose it)
    P              =  1 - (1 - chosen / experts) ^ tokens of all GPUs

Simulated: tokens choose independently and evenly, `MADE_UP` is a model of our own (V4.1-Flash's
sizes are not in the Brief). Left out: reading the cache, and the exchange between GPUs, which grows
with G and is what wide parallelism pays.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.checks import as_int, as_number


@dataclass(frozen=True)
class MixtureOfExperts:
    """A model's weights: `layers` of `experts`, of which a token uses `chosen`; bytes of one expert
    and of all weights that every GPU holds whole (attention, shared experts, embeddings)."""

    layers: int
    experts: int
    chosen: int
    expert_bytes: float
    other_bytes: float

    def __post_init__(self) -> None:
        as_int("layers", self.layers, 1)
        as_int("chosen", self.chosen, 1, as_int("experts", self.experts, 1))
        for name in ("expert_bytes", "other_bytes"):
            if as_number(name, getattr(self, name)) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")

    @property
    def routed_bytes(self) -> float:
        """All routed experts of all layers."""
        return self.layers * self.experts * self.expert_bytes

    def held(self, gpus: int, copies: int = 0) -> float:
        """Bytes that each of `gpus` holds, with `copies` redundant experts a layer on each."""
        here = self.experts / as_int("gpus", gpus, 1) + as_int("copies", copies, 0)
        return self.other_bytes + self.layers * here * self.expert_bytes

    def streamed(self, gpus: int, tokens: int, copies: int = 0) -> float:
        """Bytes that each of `gpus` reads per step, each with `tokens` tokens of its own.

        A copied expert shares its tokens with its original; with copies, P is that of an expert
        without any, so this is slightly too much where few tokens choose. ValueError for a number
        out of range.
        """
        here = self.experts / as_int("gpus", gpus, 1) + as_int("copies", copies, 0)
        missed = (1 - self.chosen / self.experts) ** (as_int("tokens", tokens, 0) * gpus)
        return self.other_bytes + self.layers * (here * (1 - missed)) * self.expert_bytes


# An expert is three matrices of 4,096 x 2,048 in MXFP4: 4 bits a weight, 8 more for every 32.
MADE_UP = MixtureOfExperts(
    layers=40, experts=256, chosen=8, expert_bytes=3 * 4096 * 2048 * 4.25 / 8, other_bytes=6e9
)
