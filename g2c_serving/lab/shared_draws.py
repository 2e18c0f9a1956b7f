"""An engine that draws as the course does: one torch.Generator for everybody in the batch.

Brief, section 3, "Whose random numbers?". Only the random numbers differ from the engine's: the
weights, the integer sums and the rejection are its own. `tell` runs one request alone and then in
company and compares its stories. It runs in float64, so that the company changes nothing but who
draws which number; what it changes in float32 is the second half of notebook 03.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.launches import Step
from g2c_serving.request import SamplingParams
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import batch_of, below, integer_weights
from g2c_serving.sampling import Sampled

OPENING = "Once upon a time"
STRANGER = "This is the story of"


class SharedDrawEngine(Engine):
    """Each step draws for all its rows, in their order, from one generator. `words_of` keeps the
    first number that each request got for the token at each position. Without log-probabilities."""

    def __init__(
        self, lm: LanguageModel, config: EngineConfig | None = None, seed: int = 0
    ) -> None:
        super().__init__(lm, config)
        self.generator = torch.Generator().manual_seed(seed)
        self.words_of: dict[tuple[int, int], int] = {}  # (request id, position) -> number

    def _sample(self, step: Step, logits: torch.Tensor | None) -> Sampled:
        rows = [s.request for s in step.scheduled if s.samples]
        if not rows or logits is None:
            return {}
        assert all(request.params.n == 1 for request in rows)
        weights = integer_weights(logits.clone(), batch_of(rows, self.lm.vocab_size))
        cumulative = weights.cumsum(-1)  # (M, V)
        words = torch.randint(
            2**rng.TARGET_BITS, (rng.ATTEMPTS, len(rows)), generator=self.generator
        )
        for request, word in zip(rows, words[0].tolist(), strict=True):
            self.words_of[request.request_id, len(request.token_ids)] = word
        target, _ = below(words, cumulative[:, -1])
        tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]  # (M,)
        pairs = zip(rows, tokens.tolist(), strict=True)
        return {request.sequence_id: [(token, None)] for request, token in pairs}


@dataclass(frozen=True)
class Tale:
    """One request's text, alone and in company, and how many tokens of them agree."""

    alone: str
    in_company: str
    same: int
    length: int

    def __repr__(self) -> str:
        lines = [_wrapped("alone", self.alone), _wrapped("in company", self.in_company)]
        if self.same == self.length:
            return "\n".join((*lines, f"All {self.length} tokens are the same."))
        same = "first token is" if self.same == 1 else f"first {self.same} tokens are"
        return "\n".join((*lines, f"Only the {same} the same."))


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(
        f"{text} ...", 100, initial_indent=f"{name + ':':13}", subsequent_indent=" " * 13
    )


def tell(
    lm: LanguageModel,
    shared: bool,
    prompt: str = OPENING,
    stranger: str = STRANGER,
    seed: int = 7,
    tokens: int = 40,
) -> Tale:
    """The request alone, and when the stranger's has arrived before it; the same seeds each time.

    shared   all draws from one generator with this seed; else each request has a seed of its own
    """
    mine = SamplingParams(max_tokens=tokens, temperature=0.8, seed=seed, ignore_eos=True)
    theirs = SamplingParams(max_tokens=tokens, temperature=0.8, seed=seed + 1, ignore_eos=True)
    config = EngineConfig(dtype="float64")

    def run(prompts: Sequence[str], params: Sequence[SamplingParams]) -> list[int]:
        engine = SharedDrawEngine(lm, config, seed) if shared else Engine(lm, config)
        return engine.generate(prompts, params)[-1].token_ids

    alone, company = run([prompt], [mine]), run([stranger, prompt], [theirs, mine])
    one, other = (prompt + lm.tokenizer.visible_text(ids) for ids in (alone, company))
    return Tale(one, other, first_difference(alone, company), tokens)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place at which two sequences differ, or the length of the shorter."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
