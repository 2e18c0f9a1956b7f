"""A request on a knife's edge: top_p between two sums that differ in their last bits.

Brief, section 3: a last-bit difference "occasionally flips which token crosses a top-p threshold".
Once in a million tokens is too seldom for a page, so here the threshold is put there on purpose:
`on_the_edge` looks where the logits of two runs first differ, sets top_p between the two cumulative
sums, and takes a seed whose draw tells the two apart. The prompt ends where the model is certain of
the next token, so that neither top_p nor the seed changes anything before the edge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.parting import Seen
from g2c_serving.lab.scoring import logits_of, next_logits
from g2c_serving.lab.watched_run import CROWD, Case
from g2c_serving.request import SamplingParams
from g2c_serving.sample.sampler import (
    TOP_P_SLACK,
    TOP_P_UNIT,
    SamplingBatch,
    integer_weights,
    sample,
)

LENGTH, NEW_TOKENS = 41, 10  # of the prompt, one more than whole blocks, and of the answer
EDGE = 1  # the new token at which the model is undecided; before it, it is certain
SEEDS = 200  # to choose from
CERTAIN = 0.99


def plain_case(lm: LanguageModel) -> Case:
    """A prompt of the model's own writing, after which it is certain of one token and undecided at
    the next, and as many other prompts as there may be strangers. Without filters, seed 7."""
    texts = _written(lm, 3 + CROWD // 3, 120)
    prompt = max(_windows(lm, texts[:3]), key=lambda ids: _undecided(lm, ids))
    spare = [tuple(t[k : k + LENGTH]) for t in texts[3:] for k in range(0, len(t) - LENGTH, 8)]
    assert len(spare) >= CROWD, len(spare)
    params = SamplingParams(max_tokens=NEW_TOKENS, seed=7, ignore_eos=True)
    return Case(lm, prompt, params, tuple(spare[:CROWD]))


def _written(lm: LanguageModel, count: int, tokens: int) -> list[tuple[int, ...]]:
    """Texts that the model writes."""
    first = lm.tokenizer.encode("Once upon a time")
    most = min(tokens, lm.config.max_seq_len - len(first) - 1)
    params = SamplingParams(max_tokens=most, temperature=0.7, n=count, seed=0)
    texts = [tuple(first + out.token_ids) for out in Engine(lm).generate([first], params)]
    return sorted(texts, key=len, reverse=True)


def _windows(lm: LanguageModel, texts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The eight pieces of LENGTH tokens that seem to end best, after all that stands before."""
    found = []
    for ids, logits in zip(texts, logits_of(lm.model, texts), strict=True):
        entropy = _entropy(logits)  # (T,)
        sure, token = torch.softmax(logits, -1).max(-1)
        for end in range(LENGTH, len(ids) - 1):
            certain = sure[end - 1] >= CERTAIN and token[end - 1] == ids[end]
            found.append((entropy[end].item() if certain else -1, ids[end - LENGTH : end]))
    return [ids for _, ids in sorted(found, reverse=True)[:8]]


def _undecided(lm: LanguageModel, ids: tuple[int, ...]) -> float:
    """The entropy of the token after the next one; below 0 where the next one is not certain."""
    sure, token = torch.softmax(next_logits(lm, ids), -1).max(-1)
    if sure < CERTAIN:
        return sure.item() - 1
    return _entropy(next_logits(lm, (*ids, int(token)))).item()


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits).entropy()


def on_the_edge(case: Case, one: Seen, other: Seen) -> Case:
    """The case with a top_p and a seed for which two such runs part, `one` and `other` being its
    runs with keyed draws. Unchanged where their bits are equal here, or no token crosses."""
    logits = torch.stack((one.logits[EDGE], other.logits[EDGE]))  # (2, V)
    if one.tokens[:EDGE] != other.tokens[:EDGE] or torch.equal(*logits):
        return case
    position = len(case.prompt) + EDGE
    for top_p in _between(logits):
        tokens = _draws(logits, position, top_p)  # (SEEDS, 2)
        (seeds,) = (tokens[:, 0] != tokens[:, 1]).nonzero()
        if len(seeds):
            params = dataclasses.replace(case.params, top_p=top_p, seed=int(seeds[0]))
            return dataclasses.replace(case, params=params)
    return case


def _between(logits: torch.Tensor) -> list[float]:
    """Thresholds that the sums of one row reach one token sooner than the other's, logits (2, V);
    those first that keep many tokens, and none that reaches what is certain."""
    weights = integer_weights(logits.clone(), _settings(np.zeros(2), 0, 1.0))
    sums = weights.sort(descending=True).values.cumsum(-1)  # (2, V)
    shares = sums.double() / sums[:, -1:].double() * TOP_P_UNIT
    low, high = shares.amin(0), shares.amax(0)  # (V,)
    found = []
    for middle in ((low + high) / 2)[(high - low > 2) & (high < CERTAIN * TOP_P_UNIT)].tolist():
        top_p = (round(middle) + TOP_P_SLACK) / TOP_P_UNIT
        kept = (integer_weights(logits.clone(), _settings(np.zeros(2), 0, top_p)) > 0).sum(-1)
        if kept[0] != kept[1]:
            found.append(top_p)
    return found[::-1]


def _draws(logits: torch.Tensor, position: int, top_p: float) -> np.ndarray:
    """The tokens (SEEDS, 2) that each seed draws from each of the two rows of logits."""
    seeds = np.arange(SEEDS, dtype=np.uint64)
    settings = _settings(seeds, position, top_p)
    drawn = [sample(row.expand(SEEDS, -1).clone(), settings) for row in logits]
    return torch.stack(drawn, 1).numpy()


def _settings(seeds: np.ndarray, position: int, top_p: float) -> SamplingBatch:
    count = len(seeds)
    return SamplingBatch(
        seeds=seeds.astype(np.uint64),
        positions=np.full(count, position),
        temperature=np.ones(count),
        top_k=np.zeros(count, dtype=int),
        top_p=np.full(count, top_p),
    )
