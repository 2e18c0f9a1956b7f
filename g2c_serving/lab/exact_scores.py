"""What equal bits are good for when a kernel changes: scores compared one by one, exactly.

Brief, section 3: DeepInfer's tests compare perplexity baselines "exactly, sample by sample", so
that a real regression can be told from reordering noise. A score here is the perplexity of one text
under the model. Four things are changed, one at a time: the company, in each mode; the kernel of
the linear layers; and, as a regression, one weight in a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes

from g2c_serving.engine import Engine
from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.numerics import Numerics
from g2c_serving.lab.plots import Picture, line, new_figure, picture, source_note, style
from g2c_serving.lab.scoring import decoded_logits, token_logprobs
from g2c_serving.request import SamplingParams

TEXTS, TOKENS = 16, 24
EQUAL = 1e-9  # where the picture draws a difference of exactly zero
COMPANY = "ordinary: other company"
INVARIANT = "invariant: other company"
KERNEL = "invariant: other kernel"
FAULT = "invariant: a fault"


@dataclass(frozen=True)
class Change:
    """A change, and for each text by what share its perplexity moved."""

    name: str
    moved: tuple[float, ...]

    @property
    def equal(self) -> int:
        """Texts with exactly the same perplexity."""
        return sum(share == 0 for share in self.moved)


def written(lm: LanguageModel, count: int = TEXTS, tokens: int = TOKENS) -> list[list[int]]:
    """Texts to score: the model's own, of different lengths."""
    first = lm.tokenizer.encode("Once upon a time")
    params = [
        SamplingParams(max_tokens=tokens // 2 + i, temperature=0.8, seed=i) for i in range(count)
    ]
    return [first + out.token_ids for out in Engine(lm).generate([first] * count, params)]


def perplexities(model: Transformer, texts: Sequence[Sequence[int]], company: int) -> list[float]:
    """The perplexity of each text, scored token by token, `company` texts at a time."""
    found = []
    for first in range(0, len(texts), company):
        part = texts[first : first + company]
        for ids, logits in zip(part, decoded_logits(model, part), strict=True):
            found.append(float((-token_logprobs(logits.double(), ids).mean()).exp()))
    return found


def other_kernel(lm: LanguageModel) -> Transformer:
    """The same weights through torch's own linear layer, never the packed one."""
    return Transformer(lm.config, lm.weights, pack=False)


def with_a_fault(lm: LanguageModel, share: float = 1e-6) -> Transformer:
    """A model with one weight in a million (at least one) set to zero, as a bad kernel might."""
    weight = lm.weights["blocks.0.ffn.fc1.W"]
    zeros = max(1, round(weight.numel() * share))
    faulty = weight.clone()
    faulty.view(-1)[weight.abs().view(-1).topk(zeros).indices] = 0
    return Transformer(lm.config, {**lm.weights, "blocks.0.ffn.fc1.W": faulty})


def linears(model: Transformer) -> list[Linear]:
    """All linear layers of a model."""
    found = [model.head]
    for block in model.blocks:
        found += [block.up, block.down, *([] if block.gate is None else [block.gate])]
        if block.attention is not None:
            found += [block.attention.qkv, block.attention.out]
    return found


def changes(lm: LanguageModel, texts: Sequence[Sequence[int]] | None = None) -> list[Change]:
    """Each change against its baseline, in which all texts are scored together."""
    texts = written(lm) if texts is None else texts
    ordinary, invariant = (lm.model.with_numerics(n) for n in (Numerics(), BatchInvariant()))
    kernel, faulty = (
        m.with_numerics(BatchInvariant()) for m in (other_kernel(lm), with_a_fault(lm))
    )
    base = {m: perplexities(m, texts, len(texts)) for m in (ordinary, invariant)}

    def change(name: str, model: Transformer, baseline: Transformer, company: int) -> Change:
        pairs = zip(perplexities(model, texts, company), base[baseline], strict=True)
        return Change(name, tuple(abs(now - before) / before for now, before in pairs))

    return [
        change(COMPANY, ordinary, ordinary, 1),
        change(INVARIANT, invariant, invariant, 1),
        change(KERNEL, kernel, invariant, len(texts)),
        change(FAULT, faulty, invariant, len(texts)),
    ]


def compare(found: list[Change]) -> Picture:
    """The texts' differences, each change a row of points."""
    figure = new_figure()
    with style():
        axes = figure.subplots()
        for k, change in enumerate(found):
            _points(axes, k, change)
        axes.set_xscale("log")
        axes.set(xlim=(EQUAL / 2, 2e-2), ylim=(len(found) - 0.4, -0.6))
        axes.set_yticks(range(len(found)), [change.name for change in found])
        ticks = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
        axes.set_xticks([EQUAL, *ticks], ["equal", *(f"{tick:.0e}" for tick in ticks)])
        axes.minorticks_off()
        axes.set_xlabel("by what share a text's perplexity moved")
        source_note(axes, "Measured here", f"{len(found[0].moved)} texts")
    words = [f"{c.name}, {c.equal} of {len(c.moved)}" for c in found]
    largest = [f"{max(c.moved):.1e}" for c in found]
    return picture(
        figure,
        f"Texts with exactly the same perplexity: {'; '.join(words)}. The largest move, in the "
        f"same order: {', '.join(largest)}.",
    )


def _points(axes: Axes, k: int, change: Change) -> None:
    """One point a text, spread a little so that all can be seen."""
    spread = torch.linspace(-0.28, 0.28, len(change.moved)).tolist()
    x = [max(share, 2 * EQUAL) if share else EQUAL for share in change.moved]
    axes.plot(x, [k + up for up in spread], **{**line(k), "linestyle": ""})
