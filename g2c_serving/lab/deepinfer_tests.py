"""DeepInfer's two tests of reproducibility, on our engine.

Brief, section 3. `shuffled_and_alone` is what `test_random_sampling_batch_invariant` asserts in
`random_sampling.py`: a batch is sampled, its rows are shuffled and sampled again, each row is
sampled alone. `replayed_alone` is the test of the batch-invariant mode: prompts are answered as a
batch, each answer is replayed alone along the same tokens, and tokens, log-probabilities and lists
of the five best must be equal, exactly. Written from the Brief's description.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.cold_open import prompts
from g2c_serving.lab.table import Table
from g2c_serving.launches import Step
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams
from g2c_serving.sample.logprobs import token_logprobs
from g2c_serving.sample.sampler import SamplingBatch, sample
from g2c_serving.sampling import Sampled

PROMPTS, TOKENS, TOP = 64, 4, 5


def shuffled_and_alone(rows: int = 64, vocab_size: int = 1024) -> tuple[bool, bool]:
    """Whether the tokens are identical after a shuffle, and row by row. The settings differ from
    row to row: seed, position, temperature, top_k, top_p."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, vocab_size, generator=generator)
    batch = mixed_settings(rows)
    together = sample(logits.clone(), batch)
    order = torch.randperm(rows, generator=generator)
    shuffled = sample(logits[order], take(batch, order.numpy()))
    alone = [sample(logits[i : i + 1].clone(), take(batch, np.array([i]))) for i in range(rows)]
    return torch.equal(shuffled, together[order]), torch.equal(torch.cat(alone), together)


def mixed_settings(rows: int) -> SamplingBatch:
    i = np.arange(rows)
    return SamplingBatch(
        seeds=np.random.default_rng(0).integers(0, 2**64, rows, dtype=np.uint64),
        positions=5 + i % 7,
        temperature=np.array([0.0, 0.5, 0.8, 1.0, 1.5])[i % 5],
        top_k=np.array([0, 3, 40])[i % 3],
        top_p=np.array([1.0, 0.9, 0.5, 0.95])[i % 4],
    )


def take(batch: SamplingBatch, order: np.ndarray) -> SamplingBatch:
    """The settings of some rows."""
    names = ("seeds", "positions", "temperature", "top_k", "top_p")
    return dataclasses.replace(batch, **{name: getattr(batch, name)[order] for name in names})


class ForcedEngine(Engine):
    """One request along given tokens, whatever it draws; `drawn` keeps what it would have drawn."""

    def force(self, tokens: Sequence[int]) -> None:
        self.forced, self.drawn = list(tokens), []

    def _sample(self, step: Step, logits: torch.Tensor | None) -> Sampled:
        sampled = super()._sample(step, logits)
        if logits is None:
            return sampled
        for sequence_id, [(drawn, _)] in sampled.items():
            token = self.forced[len(self.drawn)]
            self.drawn.append(drawn)
            logprobs = token_logprobs(logits, torch.tensor([token]), [TOP])[0]
            sampled[sequence_id] = [(token, logprobs)]
        return sampled

    forced: list[int]
    drawn: list[int]


@dataclasses.dataclass(frozen=True)
class Replayed:
    """How many of the answers were equal, exactly, in each respect."""

    answers: int
    tokens: int
    logprobs: int
    top: int


def replayed_alone(
    lm: LanguageModel, batch_invariant: bool, count: int = PROMPTS, tokens: int = TOKENS
) -> Replayed:
    """`count` prompts as a batch, each answer replayed alone along its tokens."""
    config = EngineConfig(batch_invariant=batch_invariant)
    asked = prompts(lm, count)
    params = [
        SamplingParams(max_tokens=tokens, seed=i, logprobs=TOP, ignore_eos=True)
        for i in range(count)
    ]
    alone, same = ForcedEngine(lm, config), np.zeros(3, dtype=int)
    for out, one in zip(Engine(lm, config).generate(asked, params), params, strict=True):
        alone.force(out.token_ids)
        (again,) = alone.generate([out.prompt_token_ids], one)
        same += _equal(out, again, alone.drawn)
    return Replayed(count, *same.tolist())


def _equal(out: RequestOutput, again: RequestOutput, drawn: list[int]) -> tuple[bool, bool, bool]:
    pairs = list(zip(out.logprobs or [], again.logprobs or [], strict=True))
    return (
        out.token_ids == drawn,
        all(a.logprob == b.logprob for a, b in pairs),
        all(a.top == b.top for a, b in pairs),
    )


def table(lm: LanguageModel, count: int = PROMPTS) -> Table:
    """The second test in both modes."""
    rows = []
    for name, mode in (("ordinary", False), ("batch_invariant=True", True)):
        found = replayed_alone(lm, mode, count)
        equal = (found.tokens, found.logprobs, found.top)
        rows.append((name, *(f"{n} of {found.answers}" for n in equal)))
    return Table(("Measured here: equal alone", "tokens", "log-probabilities", "top 5"), rows)
