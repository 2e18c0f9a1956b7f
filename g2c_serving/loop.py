"""What a step does: schedule, forward, sample, process, for all requests at once.

This is the loop of the Brief's "The change of perspective". Each step advances every running
request by a token, by what stands of its drafts, or by a chunk of its prompt. The four phases live
in four folders and do not call each other; this file ties them together.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from g2c_serving.config import EngineConfig
from g2c_serving.forward.language_model import LanguageModel, eos_ids, odd_weight
from g2c_serving.history import CPU, HISTORY_STEPS, EngineStats, Event, StepRecord, rows_of
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.launches import Launches, Step
from g2c_serving.output import RequestOutput
from g2c_serving.parts import make_guards, make_model, make_prefix_cache, make_speculator
from g2c_serving.request import EXPECTED, FINISHED, Request
from g2c_serving.sample.grammar_compiler import GrammarCompiler
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import TokenLogprobs
from g2c_serving.sample.sampler import FAULTS
from g2c_serving.sampling import Sampled
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.scheduled import Scheduled
from g2c_serving.schedule.scheduler import Scheduler
from g2c_serving.speculating import StepBudget
from g2c_serving.waiting_room import WaitingRoom

logger = logging.getLogger(__name__)


class Loop(Launches):
    """The parts of an engine, and the step that they take together."""

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        self.lm, self.config = lm, EngineConfig() if config is None else config
        self.model = make_model(lm, self.config)
        self.cache = self.model.new_cache(self.config.num_blocks, self.config.block_size)
        self.block_manager = BlockManager(self.config.num_blocks, self.config.block_size)
        self.speculator = make_speculator(self.config, self.lm, self.model, self.cache)
        self.pages = self.cache if self.speculator is None else self.speculator.pages
        self.page_work: Any = self.pages  # what the pages of new owners are prepared through
        self.prefix_cache = make_prefix_cache(lm, self.model, self.config, self.block_manager)
        if self.prefix_cache.disk is not None:
            self.prefix_cache.block_bytes = self.pages.block_bytes(self.prefix_cache.global_layers)
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
        self._next_request_id = self._next_sequence_id = self._next_step = 0
        self._made = time.perf_counter()
        vocabulary = lm.tokenizer, lm.vocab_size, eos_ids(lm)
        self.compiler = GrammarCompiler(*vocabulary, origin=self._made)
        self.waiting_room = WaitingRoom(self.compiler)
        self.events: deque[Event] = deque(maxlen=8 * HISTORY_STEPS)
        self.guards = make_guards(self.config)

    def _step(self) -> None:
        """One step, from its first phase to its last."""
        self._wait_for_grammars()
        with deferred_interrupt():
            step = self._begin()  # schedule
        self._compute(step)  # forward, sample
        with deferred_interrupt():
            self._depart(step.scheduled)
            self._finish(step)  # process

    def _wait_for_grammars(self, for_long: bool = True) -> None:
        """If there is nothing else to do."""
        if len(self.waiting_room) and not (self.scheduler.running or self.scheduler.waiting):
            self.waiting_room.wait(for_long)

    def _begin(self) -> Step:
        record = StepRecord(start_ms=self._now())
        step = Step(self._next_step, [], self.block_manager.tables, record)
        with self._phase(CPU, "schedule", step):
            step.scheduled = self._schedule()
            if self.speculator is not None:
                total = self.scheduler.drafting.num_rows
                step.budget = StepBudget(total, self.speculator.budget.reader())
        self._next_step += 1
        return step

    @staticmethod
    def _depart(scheduled: Sequence[Scheduled]) -> None:
        """From here on what a step computes counts as computed, and as on its way."""
        for s in scheduled:
            request, most = s.request, s.num_tokens + s.num_drafts
            request.num_computed_tokens += most
            request.num_in_flight += most
            request.num_pending += s.samples * (1 + s.num_drafts)
            request.drafter_lag = s.drafter_lag

    def _finish(self, step: Step) -> None:
        record = step.record
        record.rows = rows_of(step.scheduled)
        with self._phase(CPU, "process", step):
            step.scheduled = [s for s in step.scheduled if not s.is_void]
            self._process(step)
            if step.drafted is not None and step.error is None and self.speculator is not None:
                record.drafts = self.speculator.settle(step.drafted, step.scheduled, step.sampled)
            self._remember(record)
        if self.speculator is not None and step.error is None:
            self.speculator.budget.record(record)

    # the four phases

    def _schedule(self) -> list[Scheduled]:
        """The step's rows. Those of like length stand side by side, as the attention groups want
        them."""
        self._join()
        scheduled = self.scheduler.schedule()
        self.scheduler.write_pages(self.page_work)
        self._report(self.scheduler.failed)
        self.scheduler.failed = []
        scheduled = [s for s in scheduled if s.request.state != FINISHED]
        scheduled.sort(key=lambda s: (s.num_tokens, s.num_computed))
        return scheduled if self.speculator is None else self.speculator.mirror(scheduled)

    def _process(self, step: Step) -> None:
        """Append tokens, check what ends, report all that moved."""
        moved = [request for s in step.scheduled for request in s.request.family]
        for s in step.scheduled:
            error, family = step.error, s.request.family
            try:
                if error is None:
                    self._take_in(s, step.sampled)
            except Exception as err:  # it is this one's own affair
                logger.error("request %d ends with an error", s.request.request_id, exc_info=err)
                error = f"{type(err).__name__} when its tokens were taken in: {err}"
            if error is not None:
                for request in family:
                    if request.state != FINISHED:
                        request.finish("error", error)
        self._report([request for request in moved if request.state != EXPECTED])

    def _take_in(self, s: Scheduled, sampled: Sampled) -> None:
        """What a step has computed of one request."""
        request = s.request
        before, request.num_ready = request.num_ready, s.num_ready
        request.num_in_flight -= s.num_tokens + s.num_drafts
        request.was_computed = True
        self.prefix_cache.commit(request, before)
        if s.samples:
            request.num_pending -= 1 + s.num_drafts
            for one in request.family:
                self._append(one, sampled[one.sequence_id])
            self._roll_back(s, len(sampled[request.sequence_id]) - 1)
            self._fork_siblings(request)

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
                return request.finish("error", problem or FAULTS[token] + odd_weight(self.lm))
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

    def _roll_back(self, s: Scheduled, accepted: int) -> None:
        """Keep what the caches hold of the `accepted` drafts, as far as the request has them, and
        give back the blocks that the others needed."""
        request = s.request
        kept = min(accepted, len(request.token_ids) - s.num_computed - s.num_tokens)
        request.num_computed_tokens -= s.num_drafts - kept
        request.num_ready += kept
        if kept:
            self.prefix_cache.commit(request, s.num_ready)
        self.block_manager.trim(request.sequence_id, request.num_tokens)

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
