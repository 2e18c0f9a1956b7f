"""What a step does: schedule, forward, sample, process, for all requests at once.

This is the loop of the Brief's "The change of perspective". Each step advances every running
request by a token, by what stands of its drafts, or by a chunk of its prompt. The four phases live
in four folders and do not call each other; this file ties them together.
"""

from __future__ import annotations

import logging
import time
from collections import deque

import torch

from g2c_serving.config import EngineConfig
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.history import HISTORY_STEPS, EngineStats, StepRecord, Stopwatch, rows_of
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.parts import make_model, make_prefix_cache, make_speculator
from g2c_serving.request import EXPECTED, FINISHED, Request, RequestOutput
from g2c_serving.sample.grammar_compiler import GrammarCompiler
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import TokenLogprobs
from g2c_serving.sample.sampler import FAULTS
from g2c_serving.sampling import Sampled, next_tokens
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.scheduler import Scheduled, Scheduler
from g2c_serving.speculating import Round
from g2c_serving.waiting_room import WaitingRoom

logger = logging.getLogger(__name__)


class Loop:
    """The parts of an engine, and the step that they take together."""

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        self.lm, self.config = lm, EngineConfig() if config is None else config
        self.model = make_model(lm, self.config)
        self.cache = self.model.new_cache(self.config.num_blocks, self.config.block_size)
        self.block_manager = BlockManager(self.config.num_blocks, self.config.block_size)
        self.speculator = make_speculator(self.config, self.lm, self.model, self.cache)
        self.pages = self.cache if self.speculator is None else self.speculator.pages
        self.prefix_cache = make_prefix_cache(lm, self.model, self.config, self.block_manager)
        self.scheduler = Scheduler(
            self.prefix_cache,
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
            self.config.step_time_budget_ms,
            self.config.cost_model,
            None if self.speculator is None else self.speculator.draft_rows(self.block_manager),
        )
        self.stats = EngineStats()
        self.history: deque[StepRecord] = deque(maxlen=HISTORY_STEPS)
        self.ledger: Ledger | None = None
        self._requests: dict[int, list[Request]] = {}  # unfinished samples by request id
        self._unreported: list[RequestOutput] = []  # of a step that an interrupt cut short
        self._next_request_id = self._next_sequence_id = 0
        self._made = time.perf_counter()
        vocabulary = lm.tokenizer, lm.vocab_size, lm.eos_id
        self.compiler = GrammarCompiler(*vocabulary, origin=self._made)
        self.waiting_room = WaitingRoom(self.compiler)

    def _step(self) -> None:
        if len(self.waiting_room) and not (self.scheduler.running or self.scheduler.waiting):
            self.waiting_room.wait()  # there is nothing else to do
        watch = Stopwatch()
        record = StepRecord(start_ms=1e3 * (time.perf_counter() - self._made))
        with deferred_interrupt():
            scheduled = self._schedule()
        record.schedule_ms = watch.lap()
        sampled: Sampled = {}
        drafted: Round | None = None
        error = None
        try:
            scheduled, drafted = self._draft(scheduled)
            if self.speculator is not None:
                record.draft_ms = record.forward_ms = watch.lap()
            logits = self._forward(self._batch(scheduled, drafted))
            record.forward_ms += watch.lap()
            sampled = self._sample(scheduled, logits, drafted)
            record.sample_ms = watch.lap()
        except Exception as err:  # it belongs to no row in particular: all rows of the step end
            logger.exception("a step failed; its %d requests end with an error", len(scheduled))
            error = f"{type(err).__name__} in the step: {err}"
            record.forward_ms += watch.lap()
        record.rows = rows_of(scheduled)
        with deferred_interrupt():
            self._process(scheduled, sampled, error)
            if drafted is not None and error is None and self.speculator is not None:
                record.drafts = self.speculator.settle(drafted, scheduled, sampled)
            self._remember(record)
            record.process_ms = watch.lap()
            if self.speculator is not None and error is None:
                self.speculator.budget.record(record)

    # the four phases

    def _schedule(self) -> list[Scheduled]:
        """The step's rows. Those of like length stand side by side, as the attention groups want
        them."""
        self._join()
        scheduled = self.scheduler.schedule()
        self._report(self.scheduler.failed)
        self.scheduler.failed = []
        self.block_manager.prepare(self.pages)
        self.prefix_cache.load(self.pages)
        scheduled.sort(key=lambda s: (s.num_tokens, s.num_computed))
        return scheduled

    def _batch(self, scheduled: list[Scheduled], drafted: Round | None) -> ForwardBatch | None:
        """The flat batch of a step, with the drafts that are checked; None without any row."""
        if not scheduled:
            return None
        chunks = []
        for s in scheduled:
            known = s.request.token_ids[s.num_computed : s.num_computed + s.num_tokens]
            chunks.append((known + [0] * s.num_verified, s.num_computed))
        tables = [self.block_manager.tables[s.request.sequence_id] for s in scheduled]
        wanted = [i for i, s in enumerate(scheduled) if s.samples]
        window: dict[str, list[int]] = {}
        if self.prefix_cache.window:
            window["window_start"] = [s.request.window_start for s in scheduled]
            window["first_new"] = [max(s.num_computed, s.request.replay_until) for s in scheduled]
        block_size, device = self.config.block_size, self.config.device
        each = [1 + scheduled[i].num_verified for i in wanted]
        batch = build_batch(chunks, tables, block_size, wanted, device, logits_each=each, **window)
        if drafted is None or self.speculator is None:
            return batch
        return self.speculator.fill(batch, scheduled, drafted)

    def _draft(self, scheduled: list[Scheduled]) -> tuple[list[Scheduled], Round | None]:
        """With speculation: the drafter's part of the forward phase, and the step with its rows for
        the drafts that the target is to check."""
        if self.speculator is None or not scheduled:
            return scheduled, None
        total = self.scheduler.drafting.num_rows
        tables = [self.block_manager.tables[s.request.sequence_id] for s in scheduled]
        scheduled, drafted = self.speculator.draft(scheduled, tables, total)
        scheduled.sort(key=lambda s: (s.num_tokens + s.num_verified, s.num_computed))
        return scheduled, drafted

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        """Logits (M, V) of the requests that sample in this step: a row for each, and one for each
        draft that is checked."""
        return None if batch is None else self.model.forward(batch, self.cache)

    def _sample(
        self,
        scheduled: list[Scheduled],
        logits: torch.Tensor | None,
        drafted: Round | None = None,
    ) -> Sampled:
        """The next tokens of each request that samples in this step."""
        if logits is None:
            return {}
        return next_tokens(scheduled, logits, self.speculator, drafted, self.ledger)

    def _process(self, scheduled: list[Scheduled], sampled: Sampled, error: str | None) -> None:
        """Append tokens, check what ends, report all that moved."""
        moved = [request for s in scheduled for request in s.request.family]
        for s in scheduled:
            if error is not None:
                for request in s.request.family:
                    request.finish("error", error)
                continue
            ready = s.request.num_ready
            s.request.num_computed_tokens += s.num_tokens
            if self.speculator is not None:
                self.speculator.note(s)
            self.prefix_cache.commit(s.request, ready)
            if s.request.num_uncomputed == 0:
                for request in s.request.family:
                    self._append(request, sampled[request.sequence_id])
                self._roll_back(s.request, len(sampled[s.request.sequence_id]) - 1)
                self._fork_siblings(s.request)
        self._report([request for request in moved if request.state != EXPECTED])

    def _remember(self, record: StepRecord) -> None:
        record.finished = [o.request_id for o in self._unreported if o.finish_reason is not None]
        record.preempted = [r.request_id for r in self.scheduler.preempted]
        self.scheduler.preempted = []
        record.num_compiling = len(self.waiting_room)
        record.num_waiting = len(self.scheduler.waiting)
        record.num_running = len(self.scheduler.running)
        record.num_free_blocks = self.block_manager.num_free
        self.stats.count(record, self.block_manager.peak_used)
        self.stats.cached_tokens = self.prefix_cache.cached_tokens
        self.history.append(record)

    # what they share

    def _join(self) -> None:
        """Let those in whose grammar is compiled."""
        for request in self.waiting_room.ready():
            if request.state == FINISHED:
                self._report(request.family)
            else:
                self.scheduler.add(request)

    def _report(self, moved: list[Request]) -> None:
        """Note the outputs of requests that went on or ended, and drop those that ended."""
        for request in moved:
            if request.state == FINISHED:
                self._drop(request)
            self._unreported.append(RequestOutput(request, self.lm.tokenizer))

    def _append(self, request: Request, sampled: list[tuple[int, TokenLogprobs | None]]) -> None:
        """Add a step's tokens, up to the one that ends the request."""
        limit = self.lm.config.max_seq_len
        for token, logprobs in sampled:
            if token < 0:
                problem = request.grammar and request.grammar.problem
                return request.finish("error", problem or FAULTS[token])
            request.token_ids.append(token)
            if request.grammar is not None:
                request.grammar.advance(token)
            if logprobs is not None:
                request.logprobs.append(logprobs)
            if token in request.stop_ids or (request.grammar and request.grammar.is_over):
                return request.finish("stop")
            if request.params.stop and (found := request.read(self.lm.tokenizer).stopped_by):
                return request.finish("stop", f"the stop string {found!r}")
            if request.num_generated >= request.params.max_tokens:
                return request.finish("length")
            if len(request.token_ids) >= limit:
                return request.finish("length", f"the context limit of {limit} tokens")

    def _roll_back(self, request: Request, accepted: int) -> None:
        """Keep what the caches hold of the `accepted` drafts, as far as the request has them, and
        give back the blocks that the others needed."""
        kept = min(accepted, request.num_uncomputed)
        request.num_computed_tokens += kept
        if kept:
            self.prefix_cache.commit(request, request.num_ready - kept)
        self.block_manager.trim(request.sequence_id, len(request.token_ids))

    def _fork_siblings(self, request: Request) -> None:
        """The prompt is computed, and each sample of it has its first token: from here on they are
        ordinary requests."""
        siblings, request.siblings = request.siblings, []
        for sibling in siblings:
            if sibling.state == EXPECTED:
                self.scheduler.fork(request, sibling)

    def _drop(self, request: Request) -> None:
        """Give back all that a finished request held, and keep what may be of use to others. Not
        after an error: nobody knows what it wrote."""
        if request.finish_reason == "error":
            self.block_manager.unname(request.sequence_id)
        else:
            self._keep(request)
        self.scheduler.remove(request)
        self.waiting_room.leave(request)
        samples = self._requests[request.request_id]
        samples.remove(request)
        if not samples:
            del self._requests[request.request_id]

    def _keep(self, request: Request) -> None:
        try:
            self.prefix_cache.keep(request, self.pages)
        except Exception:  # no memory for a copy, say: the tiers lose it, and nobody else does
            logger.exception("the blocks of request %d were not kept", request.request_id)
