"""What the device does of a step: draft, forward, sample.

Two of the four phases, and with speculation the drafter before them. They work on what the step
brings along and on the pages, and on nothing that the other two phases change, so they may run in a
thread of their own, on snapshots of the requests (`async_engine.py`). Around both launches stands
the guard of `forbid_sync.py`: whoever waits for the device there is told so (Brief, section 6).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from g2c_serving.config import EngineConfig
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.model import Transformer
from g2c_serving.history import DEVICE, Event, StepRecord
from g2c_serving.request import Request
from g2c_serving.sample.grammar import GrammarState
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sampling import Draws, Sampled, next_tokens
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.scheduled import Scheduled
from g2c_serving.speculating import Round, Speculator, StepBudget

logger = logging.getLogger(__name__)

PENDING = 2**62  # stands where a token is yet to come; no embedding has so many rows


@dataclass
class Step:
    """A step on its way through the phases.

    tables       block ids of each request's tokens, by sequence id
    budget       of drafts
    """

    number: int
    scheduled: list[Scheduled]
    tables: Mapping[int, Sequence[int]]
    record: StepRecord
    budget: StepBudget | None = None
    drafted: Round | None = None
    sampled: Sampled = field(default_factory=dict)
    error: str | None = None


class Launches:
    """The device's part of the loop, on the parts that `Loop` makes."""

    config: EngineConfig
    model: Transformer
    cache: KVCache
    speculator: Speculator | None
    prefix_cache: PrefixCache
    ledger: Ledger | None
    guards: dict[str, AbstractContextManager]
    events: deque[Event]
    _made: float

    def _compute(self, step: Step) -> None:
        """What the device does of a step: forward and sample."""
        try:
            if self.speculator is not None:
                with self._phase(DEVICE, "draft", step), self.guards["draft"]:
                    self._draft(step)
            with self._phase(DEVICE, "forward", step), self.guards["forward"]:
                logits = self._forward(self._batch(step))
            with self._phase(DEVICE, "sample", step):
                step.sampled = self._sample(step, logits)
        except Exception as err:
            self._note_failure(step, err)

    @staticmethod
    def _note_failure(step: Step, err: Exception) -> None:
        """It belongs to no row in particular: all rows of the step end."""
        if count := len(step.scheduled):
            logger.error("a step failed; its %d requests end with an error", count, exc_info=err)
        step.error = f"{type(err).__name__} in the step: {err}"

    def _batch(self, step: Step) -> ForwardBatch | None:
        """The flat batch of a step, with the drafts that are checked; None without any row. A token
        that is still on its way has a stand-in."""
        scheduled = step.scheduled
        if not scheduled:
            return None
        chunks = []
        for s in scheduled:
            known = s.request.token_ids[s.num_computed : s.num_computed + s.num_tokens]
            known += [PENDING] * (s.num_tokens - len(known))
            chunks.append((known + [PENDING] * s.num_verified, s.num_computed))
        tables = [step.tables[s.request.sequence_id] for s in scheduled]
        wanted = [i for i, s in enumerate(scheduled) if s.samples]
        window: dict[str, list[int]] = {}
        if self.prefix_cache.window:
            window["window_start"] = [s.request.window_start for s in scheduled]
            window["first_new"] = [max(s.num_computed, s.request.replay_until) for s in scheduled]
        block_size, device = self.config.block_size, self.config.device
        each = [1 + scheduled[i].num_verified for i in wanted]
        batch = build_batch(chunks, tables, block_size, wanted, device, logits_each=each, **window)
        if step.drafted is None or self.speculator is None:
            return batch
        return self.speculator.fill(batch, scheduled, step.drafted)

    def _draft(self, step: Step) -> None:
        """With speculation: the drafter's part of the forward phase, and which of its drafts the
        target is to check."""
        if self.speculator is None or step.budget is None or not step.scheduled:
            return
        tables = [step.tables[s.request.sequence_id] for s in step.scheduled]
        step.scheduled, step.drafted = self.speculator.draft(
            step.scheduled, tables, step.budget, self._grammars
        )
        step.scheduled.sort(key=lambda s: (s.num_tokens + s.num_verified, s.num_computed))

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        """Logits (M, V) of the requests that sample in this step: a row for each, and one for each
        draft that is checked."""
        if batch is None:
            return None
        return self.model.forward(batch, self.cache)

    def _sample(self, step: Step, logits: torch.Tensor | None) -> Sampled:
        """The next tokens of each request that samples in this step. What overrides this lies
        outside of the guard, and may read; what overrides `_draw` may not."""
        with self.guards["sample"]:
            draws = self._draw(step, logits)
        return draws.read()

    def _draw(self, step: Step, logits: torch.Tensor | None) -> Draws:
        """The same, not read yet: they are on the device."""
        if logits is None:
            return Draws([])
        drafts = self.speculator, step.drafted
        return next_tokens(step.scheduled, logits, self._grammars, *drafts, self.ledger)

    def _grammars(self, requests: Sequence[Request]) -> list[GrammarState | None]:
        """How far each request is in its grammar."""
        return [request.grammar for request in requests]

    @contextmanager
    def _phase(self, lane: str, name: str, step: Step) -> Iterator[None]:
        """Note when a phase of a step began and ended."""
        start = self._now()
        try:
            yield
        finally:
            event = Event(lane, name, step.number, start, self._now())
            self.events.append(event)
            step.record.note(event)

    def _now(self) -> float:
        """ms since the engine was made."""
        return 1e3 * (time.perf_counter() - self._made)
