"""What a grammar costs a step: decode steps with all requests inside one against none of them.

Brief, section 5: the mask is applied inside the sampler. Two engines serve the same prompts in one
process, a step each in turn: one writes freely, in the other every request writes a list of calls
that its schema does not let it end. What the second takes longer to sample and to process is the
price. Where it goes is timed once more by itself, right after the step: a bit for each token from
XGrammar, the bits as a tensor, and what the weights cost more under it. Measured here: a property
of our sampler on this processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import StepRecord
from g2c_serving.lab.contestants import fill, room_for
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams
from g2c_serving.sample.grammar import Grammar, as_mask, bitmask
from g2c_serving.sample.sampler import batch_of, weigh

BATCH, PROMPT, WARM, STEPS = 64, 4, 3, 40  # steps that are not timed, and that are
CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["timer", "lamp", "door"]},
        "minutes": {"type": "integer"},
        "note": {"type": "string"},
    },
    "required": ["name", "minutes", "note"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "items": CALL, "minItems": 1000}  # nobody gets to the end of it


class Stopwatch:
    """Laps in ms."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return 1e3 * elapsed


@dataclass(frozen=True)
class MaskPrice:
    """Median ms of a decode step of `batch` requests: without a grammar the whole step, its
    sampling phase and what is after it; with one the same two; and the parts of the difference, by
    themselves."""

    model: str
    vocab_size: int
    batch: int
    step: float
    free: float  # sampling and processing
    held: float
    bits: float
    unpack: float
    apply: float

    @property
    def extra(self) -> float:
        return self.held - self.free

    @property
    def share(self) -> float:
        """Of a step without a grammar, what the grammar adds."""
        return self.extra / self.step


@dataclass
class Contender:
    """An engine whose requests all decode, and what was measured of it."""

    engine: Engine
    records: list[StepRecord] = field(default_factory=list)
    parts: list[tuple[float, float, float]] = field(default_factory=list)

    def step(self) -> None:
        self.engine.step()
        record = self.engine.history[-1]
        assert record.num_decode_rows == record.num_tokens == len(record.rows)
        self.records.append(record)

    def take_apart(self, logits: torch.Tensor) -> None:
        """The mask of the next step once more, by itself; logits (R, V)."""
        requests, size = self.engine.scheduler.running, logits.shape[1]
        settings = batch_of(requests, size)
        watch = Stopwatch()
        bits = bitmask([request.grammar for request in requests], size)
        made = watch.lap()
        mask = as_mask(bits, size)
        unpacked = watch.lap()
        weigh(logits, settings, mask)
        masked = watch.lap()
        weigh(logits, settings)
        self.parts.append((made, unpacked, masked - watch.lap()))

    @property
    def after_forward(self) -> float:
        return median(r.sample_ms + r.process_ms for r in self.records)


def measure(
    models: Sequence[LanguageModel], batch: int = BATCH, steps: int = STEPS
) -> list[MaskPrice]:
    """With each model both engines, a step each in turn; medians of `steps` steps."""
    return [_measure(lm, batch, steps) for lm in models]


def _measure(lm: LanguageModel, batch: int, steps: int) -> MaskPrice:
    free, held = (contender(lm, g, batch, steps) for g in (None, Grammar.json_schema(ENDLESS)))
    logits = torch.randn(batch, lm.vocab_size)
    for turn in range(steps):  # A B, B A, ...: a slow moment of the machine hits both
        for one in (free, held) if turn % 2 == 0 else (held, free):
            one.step()
        held.take_apart(logits)
    parts = [median(times) for times in zip(*held.parts, strict=True)]
    step = median(record.total_ms for record in free.records)
    times = step, free.after_forward, held.after_forward, *parts
    return MaskPrice(lm.name, lm.vocab_size, batch, *times)


def contender(lm: LanguageModel, grammar: Grammar | None, batch: int, steps: int) -> Contender:
    """An engine with `batch` requests under `grammar`, their prompts done, warm."""
    tokens = 1 + WARM + steps
    engine = Engine(lm, room_for(batch, PROMPT, tokens))
    params = SamplingParams(tokens + 1, ignore_eos=True, grammar=grammar)
    fill(engine, batch, PROMPT, params, 1 + WARM)
    return Contender(engine)


def table(prices: Sequence[MaskPrice]) -> Table:
    """A line for each model."""
    head = ["model", "vocabulary", "requests", "step without", "mask and apply", "of the step",
            "bits", "as a tensor", "weights under it"]  # fmt: skip
    rows = []
    for p in prices:
        parts = [f"{ms:.2f} ms" for ms in (p.bits, p.unpack, p.apply)]
        counts = f"{p.vocab_size:,}", str(p.batch), f"{p.step:.1f} ms", f"{p.extra:.2f} ms"
        rows.append((p.model, *counts, f"{p.share:.1%}", *parts))
    return Table(head, rows)
