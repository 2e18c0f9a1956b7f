"""The museum's exhibits on the sampler: which tokens stay in the game, and what greedy means. What
is right here is in sample/sampler.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import g2c_serving as g
from g2c_serving.lab import museum_dice as dice
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.on_device import on_device
from g2c_serving.sample import sampler
from g2c_serving.sample.sampler import MIN_TEMPERATURE, TOP_P_UNIT, SamplingBatch

integer_weights = sampler.integer_weights

# ---- one token too many ----


def crossing(ordered: torch.Tensor, count: torch.Tensor, top_p: np.ndarray) -> torch.Tensor:
    """How many tokens (R, 1) it takes to reach top_p, a share in units of 1e-9.

    ordered (R, K) weights, largest first, of which the first `count` are in the game.
    """
    sums = ordered.cumsum_(-1)  # (R, K)
    shares = sums / sums.gather(1, count - 1)  # of the total
    p = on_device(top_p, sums.device)[:, None] / TOP_P_UNIT  # (R, 1)
    short = (shares <= p).sum(-1, keepdim=True)
    return torch.minimum(short + 1, count)  # the token that crosses stays


@dice.steady()
def a_die_of_four() -> dict[str, Any]:
    seen = {}
    for top_p in (0.25, 0.5, 0.75, 1.0):
        e = dice.engine(dice.die(dict.fromkeys("1234", 0.25)))
        params = g.SamplingParams(max_tokens=2, n=16, seed=1, top_p=top_p)
        seen[f"top_p={top_p}: faces seen"] = "".join(sorted(set("".join(dice.texts(e, params)))))
    return seen


def other_faces(seen: dict[str, Any]) -> str:
    right = "1", "12", "123", "1234"
    for (label, faces), wanted in zip(seen.items(), right, strict=True):
        if faces != wanted:
            return (
                f"each of the four faces has 1/4, so that {label.split(':')[0]} keeps {wanted}; "
                f"rolled were {faces}"
            )
    return ""


register(
    Exhibit(
        name="one_too_many",
        title="A word that top_p should have cut off",
        reports=("transformers 18976",),
        room="sampler",
        place="g2c_serving.sample.sampler._reaching",
        fault=crossing,
        scene=a_die_of_four,
        wrong=other_faces,
        story=(
            "Top-p keeps the likeliest tokens until their sum reaches p. Where a sum was p on the "
            "dot, one implementation kept one token more; those for two other frameworks, in the "
            "same library, did not. Few would notice: the text is a little wilder than was asked "
            "for, and only where probabilities are round."
        ),
        hint="Of two equal faces the first has a share of 0.5. Has it reached top_p=0.5, or not?",
        solution=sampler._reaching,
    )
)

# ---- nothing left ----


def from_the_tail(ordered: torch.Tensor, count: torch.Tensor, top_p: np.ndarray) -> torch.Tensor:
    """How many tokens (R, 1) stay when the unlikely ones go that make up 1 - top_p, a share in
    units of 1e-9.

    ordered (R, K) weights, largest first, of which the first `count` are in the game.
    """
    tail = ordered.flip(-1).cumsum(-1)  # (R, K), from the least likely on
    shares = (tail / tail[:, -1:]).float()
    p = on_device(top_p, tail.device)[:, None].float() / TOP_P_UNIT  # (R, 1)
    return count - (shares <= 1 - p).sum(-1, keepdim=True)


@dice.steady()
def a_tiny_share() -> dict[str, Any]:
    """Ann wants the likeliest face and nothing else; Bob does not care."""
    e = dice.engine(dice.die({"1": 0.2, "2": 0.3, "6": 0.5}))
    ann = g.SamplingParams(max_tokens=6, seed=1, top_p=1e-8)
    bob = g.SamplingParams(max_tokens=6, seed=2)
    seen = {}
    for name, output in zip(("Ann, top_p=1e-8", "Bob"), dice.answers(e, ann, bob), strict=True):
        failed = output.finish_reason == "error"
        seen[name] = f"error: {output.message}" if failed else output.text
    return seen


def not_the_likeliest(seen: dict[str, Any]) -> str:
    ann, bob = seen.values()
    if bob.startswith("error"):
        return f"Ann's top_p ends Bob's answer too, with an {bob}"
    if ann != "666666":
        return f"Ann's top_p leaves the likeliest face alone, 6; she got {ann}"
    return ""


register(
    Exhibit(
        name="nothing_left",
        title="A small top_p that ends everybody's answer",
        reports=("transformers 19839", "mlx-lm 1912"),
        room="sampler",
        place="g2c_serving.sample.sampler._reaching",
        fault=from_the_tail,
        scene=a_tiny_share,
        wrong=not_the_likeliest,
        story=(
            "Who sets top_p to next to nothing wants the likeliest token. One library cut off all "
            "tokens then, and ended with an error about probabilities that are not numbers; "
            "another drew from what was left, which was noise. One minus a small number is rounded "
            "to one, in half precision from a ten-thousandth on. In a server such an error comes "
            "out of a step that others share."
        ),
        hint="Work out 1 - 1e-8 in float32. One token has to stay, whatever is cut off.",
        solution=sampler._reaching,
    )
)

# ---- nearly greedy ----


def nearly_greedy(
    scores: torch.Tensor, batch: SamplingBatch, best: torch.Tensor | None = None
) -> torch.Tensor:
    """The weight of each token, (M, V) int64, 0 for those that are filtered out."""
    temperature = batch.temperature.clip(MIN_TEMPERATURE)  # 0 cannot be divided by
    return integer_weights(scores, replace(batch, temperature=temperature), best)


def greedy_by_rule(
    scores: torch.Tensor, batch: SamplingBatch, best: torch.Tensor | None = None
) -> torch.Tensor:
    """At temperature 0 a row keeps one token: its best, of equals the lowest id."""
    top_k = np.where(batch.temperature == 0, 1, batch.top_k)
    return integer_weights(scores, replace(batch, top_k=top_k), best)


@dice.steady()
def a_close_call() -> dict[str, Any]:
    """Of "n" and "y" each is as likely as the other: at temperature 0 the lower id is right."""
    lm = dice.die({"n": 0.49, "y": 0.49, "?": 0.02})
    ann = [g.SamplingParams(temperature=0, max_tokens=8, seed=seed) for seed in (1, 2)]
    bob = g.SamplingParams(temperature=1, max_tokens=8, seed=3)
    return {
        "Ann, temperature 0, seed 1": dice.texts(dice.engine(lm), ann[0])[0],
        "Ann, temperature 0, seed 2": dice.texts(dice.engine(lm), ann[1])[0],
        "Ann beside Bob, who samples": dice.texts(dice.engine(lm), ann[0], bob)[0],
    }


def not_the_argmax(seen: dict[str, Any]) -> str:
    for label, text in seen.items():
        if text != "n" * 8:
            return (
                f"{label}: {text}. At temperature 0 nothing is drawn: of two equal logits the "
                "lower id wins each time, n"
            )
    return ""


register(
    Exhibit(
        name="nearly_greedy",
        title="Temperature 0 that still rolls dice",
        reports=("nano-vllm 249",),
        room="sampler",
        place="g2c_serving.sample.sampler.integer_weights",
        fault=nearly_greedy,
        scene=a_close_call,
        wrong=not_the_argmax,
        story=(
            "A small engine drew every row in one way and refused temperature 0: whoever wanted "
            "greedy text had to pass a tiny temperature. That is nearly the same. Where two logits "
            "are equal, as happens often in bfloat16, a tiny temperature draws between them, so "
            "that the text hangs on the seed."
        ),
        hint=(
            "No temperature above 0 tells equal logits apart. A greedy row needs a rule of its "
            "own, row by row: others in the batch may sample."
        ),
        solution=greedy_by_rule,
    )
)
