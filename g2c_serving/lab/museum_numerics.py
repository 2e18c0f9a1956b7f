"""The museum's exhibit on the bits of sums: in the batch-invariant mode they must not hang on who
else is computed. What is right here is in forward/tiled_attention.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import g2c_serving as g
from g2c_serving.forward import tiled_attention
from g2c_serving.lab import museum_dice as dice
from g2c_serving.lab.museum import Exhibit, register


def add_up(seen: torch.Tensor, log_weight: torch.Tensor) -> torch.Tensor:
    """Attention to all tiles (S, H, Q, d) from that to each (S, T, H, Q, d), (S, T, H, Q)."""
    if seen.shape[1] == 1:
        return seen[:, 0]
    weight = (log_weight - log_weight.amax()).exp().unsqueeze(-1)
    parts, weights = (seen * weight).unbind(1), weight.unbind(1)
    mixed, total = parts[0], weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        mixed, total = mixed + part, total + weight
    return mixed / total


@cache
def _network() -> g.LanguageModel:
    return dice.network(sharpness=0.3)


@dice.steady()
def in_company() -> dict[str, Any]:
    """Ann's numbers alone, and beside Bob's: same prompt length, so that they share a kernel. And
    in the ordinary mode, which computes attention in another way."""
    seen: dict[str, Any] = {}
    for label, others, mode in (
        ("alone", [], True),
        ("beside Bob", ["Bob" * 27], True),
        ("in the ordinary mode", [], False),
    ):
        digits = ".9g" if mode else ".3f"  # nine tell all float32 apart
        numbers = _log_probabilities(others, mode)
        seen[f"Ann's log-probabilities, {label}"] = [f"{n:{digits}}" for n in numbers]
    return seen


def _log_probabilities(others: list[str], batch_invariant: bool) -> list[float]:
    """Of Ann's first tokens, with others beside her."""
    params = g.SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    e = dice.engine(_network(), batch_invariant=batch_invariant)
    ann = e.generate(["Ann" * 27, *others], params)[0]
    assert ann.logprobs is not None
    return [one.logprob for one in ann.logprobs]


def other_bits(seen: dict[str, Any]) -> str:
    alone, beside, ordinary = seen.values()
    for one, other in zip(alone, ordinary, strict=True):
        if abs(float(one) - float(other)) > 0.01:
            return f"Ann's number alone is {one}, and in the ordinary mode {other}: not rounding"
    differ = [pair for pair in zip(alone, beside, strict=True) if pair[0] != pair[1]]
    if not differ:
        return ""
    return (
        f"in the batch-invariant mode {len(differ)} of Ann's {len(alone)} numbers have other bits "
        f"beside Bob: {differ[0][0]} became {differ[0][1]}"
    )


register(
    Exhibit(
        name="company_in_the_sum",
        title="Last digits that hang on the neighbour, in the mode that rules it out",
        reports=("batch_invariant_ops 7", "pegainfer 688", "vLLM 46592"),
        room="numerics",
        place="g2c_serving.forward.tiled_attention.add_up",
        fault=add_up,
        scene=in_company,
        wrong=other_bits,
        story=(
            "Engines have a mode in which a request's numbers are the same bits in any company, "
            "for training that has to compute them again. In several of them one path was left "
            "out: a reduction with another shape, a chunk whose border the neighbours decide. The "
            "tokens were mostly the same, so only a comparison of bits could tell."
        ),
        hint=(
            "Mathematically the number that is subtracted before exp() cancels; its rounding does "
            "not. Ask over which of the dimensions S, T, H, Q the largest is taken."
        ),
        solution=tiled_attention.add_up,
    )
)
