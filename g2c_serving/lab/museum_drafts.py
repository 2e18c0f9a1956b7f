"""The museum's exhibits on speculation. Drafts may make a text quicker; they must not make it
another one. What is right here is in drafting.py and sample/speculation.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

import g2c_serving as g
from g2c_serving.drafting import Drafter
from g2c_serving.lab import museum_dice as dice
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.on_device import on_device
from g2c_serving.sample import speculation
from g2c_serving.sample.sampler import SamplingBatch, weigh
from g2c_serving.sample.speculation import Drafts, Rows

accept = speculation._accept


# ---- drawn by other numbers than it says ----


class HalfPrecisionDrafter(Drafter):
    """Draws in half precision, which is quicker."""

    def _draw(
        self, logits: Tensor, settings: SamplingBatch, i: int, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Draft i of each request, (S,), and the weights that it is drawn by, (S, V)."""
        tokens, _ = super()._draw(logits.bfloat16(), settings, i, mask)
        weights, _ = weigh(logits, settings, mask)
        return tokens, weights


class HonestDrafter(Drafter):
    """As quick, and says by which weights it has drawn."""

    def _draw(
        self, logits: Tensor, settings: SamplingBatch, i: int, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return super()._draw(logits.bfloat16(), settings, i, mask)


@dice.steady()
def tosses() -> dict[str, Any]:
    """A bent coin that drafts for itself. Its logits are so large that bfloat16, which has eight
    binary digits, rounds both to 300."""
    coin = dice.die({"H": 0.75, "T": 0.25}, level=301.2)
    params = g.SamplingParams(max_tokens=21, n=12, seed=1)
    seen = {}
    for label, e in (("without", dice.engine(coin, 256)), ("with", dice.speculating(coin, coin))):
        seen[f"heads in 240 tosses, {label} speculation"] = sum(
            text[1:].count("H") for text in dice.texts(e, params)
        )
    return seen


def chi_square(heads: int, tosses: int = 240) -> float:
    expected = 0.75 * tosses
    return (heads - expected) ** 2 / expected + (heads - expected) ** 2 / (tosses - expected)


def bent(seen: dict[str, Any]) -> str:
    for label, heads in seen.items():
        if (far := chi_square(heads)) > 10.83:  # once in a thousand, with one degree of freedom
            return (
                f"{label}: {heads}, where 180 are right. A chi-square of {far:.0f}; an honest coin "
                "is above 10.8 once in a thousand"
            )
    return ""


register(
    Exhibit(
        name="rounded_drafts",
        title="Speculation that changes how likely the words are",
        reports=("DeepSpec 31", "transformers 47932"),
        room="speculation",
        place="g2c_serving.parts.Drafter",
        fault=HalfPrecisionDrafter,
        scene=tosses,
        wrong=bent,
        story=(
            "A drafter drew its tokens from probabilities in half precision, and the verifier "
            "compared them with the same probabilities in single precision. The rule that makes "
            "speculation exact divides by the probability that the draft was drawn with; here it "
            "divided by another. Every text looked fine, but their statistics were off."
        ),
        hint="The weights that are returned must be the very ones that the token was drawn by.",
        solution=HonestDrafter,
    )
)

# ---- zeroed in place ----


def refuse_for_good(
    weights: Tensor, broken: Tensor, batch: Any, drafts: Drafts, rows: Rows, ledger: Any
) -> Tensor:
    """(S, n), True where the coin of a draft that is checked falls for it."""
    standing = accept(weights, broken, batch, drafts, rows, ledger)
    (checked,) = rows.is_checked.nonzero()
    places = checked, rows.request[checked], rows.draft[checked]
    here, r, i = (on_device(a, weights.device) for a in places)
    weights[here, drafts.tokens[r, i]] = 0  # what is refused is not to come again
    return standing


def refuse_once(
    weights: Tensor, broken: Tensor, batch: Any, drafts: Drafts, rows: Rows, ledger: Any
) -> Tensor:
    return accept(weights, broken, batch, drafts, rows, ledger)  # and leave the weights alone


@dice.steady()
def after_a_refusal() -> dict[str, Any]:
    """The drafter offers a too often, b as often as is right, c never."""
    target, drafter = dice.die({"a": 0.6, "b": 0.2, "c": 0.2}), dice.die({"a": 0.8, "b": 0.2})
    e = dice.speculating(target, drafter)
    samples = dice.texts(e, g.SamplingParams(max_tokens=21, n=12, seed=1))
    drafted = [d for record in e.history for d in record.drafts]
    instead = Counter(chr(d.token) for d in drafted if d.accepted < d.verified)
    return {
        "letters written": dice.counts("".join(samples)),
        "written in place of a refused a": dice.counts("".join(instead.elements())),
    }


def not_what_was_missing(seen: dict[str, Any]) -> str:
    instead = seen["written in place of a refused a"]
    if instead.startswith("c ") and "," not in instead:
        return ""
    return (
        f"in place of a refused a came {instead or 'nothing'}. The drafts bring as many b as the "
        "target wants, so what is missing is c alone"
    )


register(
    Exhibit(
        name="zeroed_in_place",
        title="A letter that comes too often, but only after a refused draft",
        reports=("vllm-ascend 2881", "vLLM 16952"),
        room="speculation",
        place="g2c_serving.sample.speculation._accept",
        fault=refuse_for_good,
        scene=after_a_refusal,
        wrong=not_what_was_missing,
        story=(
            "To draw what follows a refused draft, a rejection sampler set the draft's probability "
            "to zero, in the tensor of the target's probabilities itself and not in a copy. "
            "Whoever read the tensor after that read another distribution. In another engine the "
            "drafter's probabilities were divided in place, before the verifier looked at them."
        ),
        hint=(
            "`weights` is read again after this function: its sum is what the target's weights are "
            "divided by. What follows is drawn from max(p - q, 0), where a refused draft has none "
            "anyway."
        ),
        solution=refuse_once,
    )
)
