"""The museum's exhibits on the drafter: what it has to compute although nobody reads it, and whose
random numbers it draws by. What is right here is in drafting.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import g2c_serving as g
from g2c_serving.drafting import Drafter
from g2c_serving.lab import museum_dice as dice
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import SamplingBatch, draw, weigh

# ---- the last draft is not sent through ----


class ThriftyDrafter(Drafter):
    """Spares the pass after the last draft."""

    def _advance(self, tokens: Tensor, positions: np.ndarray, tables: np.ndarray, i: int) -> Tensor:
        """Send draft i through the model; logits after it, none after the last."""
        if i == self.num_drafts - 1:
            return torch.empty(0, self.vocab_size, device=tokens.device)
        return super()._advance(tokens, positions, tables, i)


class ThoroughDrafter(Drafter):
    """The last pass leaves the keys and values of the last draft behind."""

    def _advance(self, tokens: Tensor, positions: np.ndarray, tables: np.ndarray, i: int) -> Tensor:
        return super()._advance(tokens, positions, tables, i)


@cache
def _network() -> g.LanguageModel:
    return dice.network()


@dice.steady()
def drafting_for_itself() -> dict[str, Any]:
    """The drafter is the target itself, so it guesses right each time."""
    params = g.SamplingParams(temperature=0, max_tokens=26)
    plain = dice.engine(_network())
    quick = dice.speculating(_network(), _network())
    both = [dice.answers(e, params)[0].token_ids for e in (plain, quick)]
    return {
        "the same text as without speculation": "yes" if both[0] == both[1] else "no",
        "drafts that stood, of 4 in each step": [
            d.accepted for r in quick.history for d in r.drafts
        ],
        "steps for 26 tokens": quick.stats.steps,
    }


def guessed_wrong(seen: dict[str, Any]) -> str:
    same, accepted, steps = seen.values()
    if same != "yes":
        return "speculation has changed a greedy text"
    if set(accepted) != {4}:
        return (
            "the drafter is the target itself, so that all 4 drafts stand in each step. Here so "
            f"many did: {', '.join(map(str, accepted))}; it took {steps} steps in place of 6"
        )
    return ""


register(
    Exhibit(
        name="missing_last_draft",
        title="A drafter that gets worse the more often it is right",
        reports=("vLLM 3951", "vLLM 4212"),
        room="speculation",
        place="g2c_serving.parts.Drafter",
        fault=ThriftyDrafter,
        scene=drafting_for_itself,
        wrong=guessed_wrong,
        story=(
            "Where all drafts of a step stood, one more token followed, and the drafter's cache "
            "had no keys and values of the last draft: it had not been computed, since nothing is "
            "drawn after it. The texts stayed right, the target sees to that. But the next drafts "
            "were guessed from a cache with a hole, and fewer of them stood. For a while the "
            "engine threw the additional token away instead."
        ),
        hint=(
            "The pass after the last draft gives no logits that anybody wants. What else does a "
            "pass leave behind?"
        ),
        solution=ThoroughDrafter,
    )
)

# ---- drafts without a key ----


class UnkeyedDrafter(Drafter):
    """Draws its drafts by torch's own sampler."""

    def _draw(
        self, logits: Tensor, settings: SamplingBatch, i: int, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Draft i of each request, (S,), and the weights that it is drawn by, (S, V)."""
        weights, _ = weigh(logits, settings, mask)
        return torch.multinomial(weights.double(), 1)[:, 0], weights


class KeyedDrafter(Drafter):
    """Draws on the drafter's lane of each request's own key."""

    def _draw(
        self, logits: Tensor, settings: SamplingBatch, i: int, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        weights, _ = weigh(logits, settings, mask)
        lane = rng.DRAFTER_LANE
        words = rng.target_words(settings.seeds, settings.positions, lane=lane, draft=i)
        return draw(weights.clone(), words).tokens, weights


@dice.steady()
def twelve_times() -> dict[str, Any]:
    fair, params = dice.die(dice.FAIR), g.SamplingParams(max_tokens=13, seed=7)
    runs = dice.texts(dice.speculating(fair, fair), *[params] * 12)
    return {"first": runs[0], "second": runs[1], "different texts of 12": len(set(runs))}


def not_one_text(seen: dict[str, Any]) -> str:
    first, second, count = seen.values()
    if count == 1:
        return ""
    return (
        f"sent twelve times with the seed 7, one request had {count} texts: {first}, then {second}"
    )


register(
    Exhibit(
        name="unkeyed_drafts",
        title="One seed, sent twelve times, twelve texts",
        reports=("SGLang 33395", "vLLM 6038"),
        room="speculation",
        place="g2c_serving.parts.Drafter",
        fault=UnkeyedDrafter,
        scene=twelve_times,
        wrong=not_one_text,
        story=(
            "With speculation on, a request with a seed had another text each time it was sent. "
            "The target's draws were keyed by the seed, the drafter's came from the generator of "
            "the process. A draft that stands is a token of the text, so the drafter's numbers "
            "count as much as the target's."
        ),
        hint=(
            "sample/rng.py has a lane of its own for the drafter, keyed by seed, position and the "
            "number of the draft."
        ),
        solution=KeyedDrafter,
    )
)
