"""Models for the museum's exhibits on chance: dice, and a small network of random weights.

A die is a language model whose next token is one of a few letters, each as likely as the scene
says, whatever stands before it. So its text is nothing but the draws of the sampler. It is a real
`LanguageModel`, all of whose weights are zero but for the head's bias; it runs through the same
layers and pages as any other, and can draft for another die.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

import g2c_serving as g
from g2c_serving.forward.language_model import param_shapes
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.lab.machine import num_threads
from g2c_serving.lab.museum_model import MOST_STEPS

VOCAB_SIZE = 266  # bytes and reserved tokens
NEVER = -1e4
SEED = 0  # of the random weights
PROMPT = "Roll: "
FAIR = dict.fromkeys("123456", 1 / 6)


def die(chances: Mapping[str, float], level: float = 0.0) -> g.LanguageModel:
    """A model that writes these letters with these chances. level: of its logits; what is added to
    all of them changes no chance."""
    config = ModelConfig(VOCAB_SIZE, 8, 1, 1, 2048, 8)
    weights = {name: torch.zeros(shape) for name, shape in param_shapes(config)}
    weights["head_bias"] += NEVER
    for letter, chance in chances.items():
        weights["head_bias"][ord(letter)] = level + math.log(chance)
    return g.LanguageModel("die", config, weights, g.Tokenizer(), None)


def network(sharpness: float = 1.0, context: int = 256) -> g.LanguageModel:
    """A model of two layers with random weights, so wide that each token hangs on all before it.
    sharpness: how far its logits lie apart."""
    config = ModelConfig(VOCAB_SIZE, 32, 2, 2, context, 64)
    generator = torch.Generator().manual_seed(SEED)
    weights = {}
    for name, shape in param_shapes(config):
        spread = 1.0 if "embed" in name else 2 * shape[0] ** -0.5 if len(shape) > 1 else 0.3
        weights[name] = spread * torch.randn(shape, generator=generator) + ("gamma" in name)
    weights["ln_final.gamma"] *= sharpness
    weights["ln_final.beta"] *= sharpness
    return g.LanguageModel("network", config, weights, g.Tokenizer(), None)


def engine(lm: g.LanguageModel, num_blocks: int = 64, block_size: int = 4, **more: Any) -> g.Engine:
    return g.Engine(lm, g.EngineConfig(num_blocks=num_blocks, block_size=block_size, **more))


def speculating(target: g.LanguageModel, drafter: g.LanguageModel) -> g.Engine:
    """An engine that speculates by the exact rule, without a guard."""
    plan = g.Speculation(num_drafts=4, drafter=drafter, guard=0)
    return engine(target, 256, speculation=plan)


def answers(e: g.Engine, *asked: g.SamplingParams, prompt: str = PROMPT) -> list[g.RequestOutput]:
    """What comes of the same prompt asked in these ways at the same time, n outputs for each, in
    their order. RuntimeError if it does not end."""
    for params in asked:
        e.add(prompt, params)
    ended: dict[tuple[int, int], g.RequestOutput] = {}
    for _ in range(MOST_STEPS):
        if not e.has_unfinished:
            return [ended[key] for key in sorted(ended)]
        for output in e.step():
            if output.finish_reason is not None:
                ended[output.request_id, output.sample_index] = output
    raise RuntimeError(f"still waiting after {MOST_STEPS} steps")


def texts(e: g.Engine, *asked: g.SamplingParams) -> list[str]:
    """The same, as texts. RuntimeError where one ends with an error."""
    outputs = answers(e, *asked)
    for output in outputs:
        if output.finish_reason == "error":
            raise RuntimeError(output.message)
    return [output.text for output in outputs]


def counts(text: str) -> str:
    """How often each letter is there: "a 12, b 3"."""
    return ", ".join(f"{letter} {count}" for letter, count in sorted(Counter(text).items()))


@contextmanager
def steady() -> Iterator[None]:
    """A scene of chance is the same whenever and wherever it is run: the generators that all of a
    process share begin as they do each time, torch computes in one thread, and all of it goes on
    afterwards as if nothing had been drawn."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]), num_threads(1):
        try:
            torch.manual_seed(0)
            random.seed(0)
            yield
        finally:
            random.setstate(state)
