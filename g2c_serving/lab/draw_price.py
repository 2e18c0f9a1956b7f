"""What keyed draws cost: decode steps with a number for each request against one generator for all.

Brief, section 3, "Whose random numbers?". Two engines serve the same prompts in one process, step
by step in turn: the engine with its keyed draws, and `SharedDrawEngine` with one torch generator.
They differ in more than their numbers: the engine also looks for logits that nothing can be drawn
from. So the numbers are timed by themselves as well, right after each step, when the processor's
caches hold what a sampler finds there. Temperature 0.8, no filters. Measured here: a property of
our sampler on this processor, which says nothing about DeepInfer's kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch

from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import StepRecord
from g2c_serving.lab.contestants import fill, room_for
from g2c_serving.lab.shared_draws import SharedDrawEngine
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams
from g2c_serving.sample import rng

BATCHES = (1, 8, 64)
PROMPT, WARM, STEPS = 16, 2, 30  # tokens; steps that are not timed, and that are
SHARED, KEYED = "one generator", "keyed"
SEED = 0  # of the generator


@dataclass(frozen=True)
class DrawPrice:
    """Median ms of a decode step of `batch` requests: the whole step, its sampling phase, and the
    making of its random numbers."""

    batch: int
    draws: str  # SHARED or KEYED
    step: float
    sampling: float
    numbers: float

    @property
    def share(self) -> float:
        """Of the whole step, what its random numbers take."""
        return self.numbers / self.step


@dataclass
class Contender:
    """An engine whose requests all decode, what makes its random numbers for the tokens at a
    position, (ATTEMPTS, batch) int64, and what was measured of both."""

    draws: str
    engine: Engine
    numbers: Callable[[int], torch.Tensor]
    records: list[StepRecord] = field(default_factory=list)
    numbers_ms: list[float] = field(default_factory=list)

    def step(self) -> None:
        """One step, noted; then its numbers once more, alone."""
        self.engine.step()
        record = self.engine.history[-1]
        assert record.num_decode_rows == record.num_tokens == len(record.rows)
        position = record.rows[0].num_computed + 1
        start = time.perf_counter()
        self.numbers(position)
        self.numbers_ms.append(1e3 * (time.perf_counter() - start))
        self.records.append(record)


def measure(
    lm: LanguageModel, batches: Sequence[int] = BATCHES, steps: int = STEPS
) -> list[DrawPrice]:
    """Both ways to draw at each number of requests, medians of `steps` steps in turn."""
    prices = []
    for batch in batches:
        pair = contenders(lm, batch, steps)
        take_turns(pair, steps)
        prices += [price_of(contender, batch) for contender in pair]
    return prices


def contenders(lm: LanguageModel, batch: int, steps: int) -> list[Contender]:
    """Both engines with the same `batch` requests, their prompts done, warm."""
    generator, seeds = torch.Generator().manual_seed(SEED), np.arange(batch, dtype=np.uint64)

    def shared(position: int) -> torch.Tensor:
        return torch.randint(2**rng.TARGET_BITS, (rng.ATTEMPTS, batch), generator=generator)

    def keyed(position: int) -> torch.Tensor:
        return torch.from_numpy(rng.target_words(seeds, np.full(batch, position)))

    tokens = 1 + WARM + steps
    config = room_for(batch, PROMPT, tokens)
    params = SamplingParams(tokens, temperature=0.8, ignore_eos=True)
    pair = [
        Contender(SHARED, SharedDrawEngine(lm, config, SEED), shared),
        Contender(KEYED, Engine(lm, config), keyed),
    ]
    for contender in pair:
        fill(contender.engine, batch, PROMPT, params, 1 + WARM)
    return pair


def take_turns(pair: Sequence[Contender], steps: int) -> None:
    """A B, B A, A B, ...: a slow moment of the machine hits both, and neither is always first."""
    for turn in range(steps):
        for contender in pair if turn % 2 == 0 else reversed(pair):
            contender.step()


def price_of(contender: Contender, batch: int) -> DrawPrice:
    return DrawPrice(
        batch,
        contender.draws,
        median(record.total_ms for record in contender.records),
        median(record.sample_ms for record in contender.records),
        median(contender.numbers_ms),
    )


def table(prices: Sequence[DrawPrice]) -> Table:
    """One line for each number of requests and way to draw."""
    head = ["draws", "requests", "whole step", "sampling phase", "numbers alone", "of the step"]
    rows = []
    for p in prices:
        times = f"{p.step:.2f} ms", f"{p.sampling:.3f} ms", f"{p.numbers:.3f} ms"
        rows.append((p.draws, str(p.batch), *times, f"{p.share:.1%}"))
    return Table(head, rows)
