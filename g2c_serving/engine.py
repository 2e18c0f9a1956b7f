"""The engine: one step is schedule, forward, sample, process, for all requests at once.

This is the loop of the Brief's "The change of perspective". Requests join and leave between steps;
each step advances every running request by a token, or by a chunk of its prompt. The four phases
live in four folders and do not call each other; this file ties them together.

Mirrors the engine core of DeepInfer (`csrc/engine`). Left out: speculation, grammars, overlap of
the phases.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

import torch

from g2c_serving.checks import as_int
from g2c_serving.config import EngineConfig
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.history import HISTORY_STEPS, EngineStats, StepRecord, Stopwatch, rows_of
from g2c_serving.intake import (
    Prompt,
    check_cache_options,
    check_can_run,
    encode_prompt,
    make_samples,
    one_each,
)
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.parts import make_model, make_prefix_cache
from g2c_serving.request import (
    EXPECTED,
    FINISHED,
    MAX_SAMPLES,
    Request,
    RequestOutput,
    SamplingParams,
)
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import TokenLogprobs, token_logprobs
from g2c_serving.sample.rng import sample_seed
from g2c_serving.sample.sampler import FAULTS, batch_of, sample
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.scheduler import Scheduled, Scheduler

MAX_SAMPLED_ROWS = 1024  # at a time: each takes a few times the vocabulary's size in memory

logger = logging.getLogger(__name__)
Sampled = tuple[int, TokenLogprobs | None]  # a token, negative for none, and what was asked of it


class Engine:
    """Serves one model. `history` holds one `StepRecord` a step, the newest 4,096; a `Ledger` that
    is put in `ledger` notes each draw."""

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        self.lm, self.config = lm, EngineConfig() if config is None else config
        self.model = make_model(lm, self.config)
        self.cache = self.model.new_cache(self.config.num_blocks, self.config.block_size)
        self.block_manager = BlockManager(self.config.num_blocks, self.config.block_size)
        self.prefix_cache = make_prefix_cache(lm, self.model, self.config, self.block_manager)
        self.scheduler = Scheduler(
            self.prefix_cache,
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
            self.config.step_time_budget_ms,
            self.config.cost_model,
        )
        self.stats = EngineStats()
        self.history: deque[StepRecord] = deque(maxlen=HISTORY_STEPS)
        self.ledger: Ledger | None = None
        self._requests: dict[int, list[Request]] = {}  # unfinished samples by request id
        self._unreported: list[RequestOutput] = []  # of a step that an interrupt cut short
        self._next_request_id = self._next_sequence_id = 0
        self._made = time.perf_counter()

    # what a user calls

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has something to do, or to tell of a step that was interrupted."""
        return bool(self._requests or self._unreported)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        cache_salt: str = "",
        traffic: str = "chat",
    ) -> int:
        """Queue a prompt and return its request id. ValueError for what could never run.

        cache_salt  cached blocks are shared among requests of one salt only: one for each tenant
        traffic     chat or agent: decides how long the disk keeps its blocks
        """
        params = SamplingParams() if params is None else params
        prompt_token_ids = encode_prompt(self.lm.tokenizer, prompt)
        check_can_run(prompt_token_ids, params, self.lm, self.config)
        check_cache_options(cache_salt, traffic)
        ids = self._next_request_id, self._next_sequence_id
        samples = make_samples(prompt_token_ids, params, self.lm.eos_id, *ids)
        for request in samples:
            request.cache_salt, request.traffic = cache_salt, traffic
        with deferred_interrupt():
            self._next_sequence_id += params.n
            self._next_request_id += 1
            self._requests[samples[0].request_id] = samples
            self.scheduler.add(samples[0])
        return samples[0].request_id

    def fork(self, request_id: int, seed: int | None = None) -> int:
        """Copy an unfinished request as it stands: a new request that shares its blocks, with its
        own draws from here on. Returns the copy's request id.

        seed    None: worked out from the parent's seed and the number of this fork
        KeyError for a request that is not waiting or running, ValueError for one with several
        unfinished samples.
        """
        samples = self._unfinished(request_id)
        if len(samples) > 1:
            raise ValueError(f"request_id {request_id} has {len(samples)} unfinished samples: "
                             "fork a request of one")  # fmt: skip
        (parent,) = samples
        if seed is None:
            seed = sample_seed(parent.seed, MAX_SAMPLES + parent.num_forks)
        seed = as_int("seed", seed, 0, 2**64 - 1)
        with deferred_interrupt():
            child = parent.fork(self._next_request_id, self._next_sequence_id, seed)
            self._next_request_id += 1
            self._next_sequence_id += 1
            self._requests[child.request_id] = [child]
            self.scheduler.fork(parent, child)
        return child.request_id

    def abort(self, request_id: int) -> list[RequestOutput]:
        """End all samples of a request now; their outputs. KeyError for one that is not running."""
        samples = self._unfinished(request_id)
        with deferred_interrupt():
            for request in samples:
                self._drop(request)
                request.finish("abort")
            others = [o for o in self._unreported if o.request_id != request_id or o.finish_reason]
            outputs = [RequestOutput(request, self.lm.tokenizer) for request in samples]
            self._unreported = others + outputs  # for the next step, if an interrupt came
        self._unreported = others
        return outputs

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        cache_salt: str = "",
        traffic: str = "chat",
    ) -> list[RequestOutput]:
        """Run all prompts to their end: params.n outputs a prompt, in the prompts' order.

        RuntimeError while requests that were added before are unfinished: their outputs would be
        lost here.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is one str: pass a list, [prompt]")
        prompts = list(prompts)
        if self.has_unfinished:
            raise RuntimeError(
                f"{len(self._requests)} requests are unfinished: call step() until has_unfinished "
                "is False, or abort them, before generate()"
            )
        finished: dict[tuple[int, int], RequestOutput] = {}
        try:
            for prompt, one in zip(prompts, one_each(params, len(prompts)), strict=True):
                self.add(prompt, one, cache_salt, traffic)
            while self.has_unfinished:
                for output in self.step():
                    if output.finish_reason is not None:
                        finished[output.request_id, output.sample_index] = output
        except BaseException:  # a bad prompt, or the learner's interrupt: leave nothing behind
            for request_id in list(self._requests):
                self.abort(request_id)
            self._unreported.clear()
            raise
        return [finished[key] for key in sorted(finished)]

    def step(self) -> list[RequestOutput]:
        """Advance every running request; the outputs of those that advanced or ended.

        An interrupt ends the step between its phases, not within the bookkeeping of one: the next
        step goes on from there. Without unfinished requests nothing is done or recorded.
        """
        if self._requests:
            self._step()
        outputs, self._unreported = self._unreported, []
        return outputs

    def _step(self) -> None:
        watch = Stopwatch()
        record = StepRecord(start_ms=1e3 * (time.perf_counter() - self._made))
        with deferred_interrupt():
            scheduled, batch = self._schedule()
        record.rows = rows_of(scheduled)
        record.schedule_ms = watch.lap()
        sampled: list[Sampled] = []
        error = None
        try:
            logits = self._forward(batch)
            record.forward_ms = watch.lap()
            sampled = self._sample(scheduled, logits)
            record.sample_ms = watch.lap()
        except Exception as err:  # it belongs to no row in particular: all rows of the step end
            logger.exception("a step failed; its %d requests end with an error", len(scheduled))
            error = f"{type(err).__name__} in the step: {err}"
            record.forward_ms += watch.lap()
        with deferred_interrupt():
            self._process(scheduled, sampled, error)
            self._remember(record)
            record.process_ms = watch.lap()

    # the four phases

    def _schedule(self) -> tuple[list[Scheduled], ForwardBatch | None]:
        """The step's rows and their flat batch. Rows of like length stand side by side, as the
        attention groups want them."""
        scheduled = self.scheduler.schedule()
        self._report(self.scheduler.failed)
        self.scheduler.failed = []
        self.block_manager.prepare(self.cache)
        self.prefix_cache.load(self.cache)
        if not scheduled:
            return [], None
        scheduled.sort(key=lambda s: (s.num_tokens, s.num_computed))
        chunks = [
            (s.request.token_ids[s.num_computed : s.num_computed + s.num_tokens], s.num_computed)
            for s in scheduled
        ]
        tables = [self.block_manager.tables[s.request.sequence_id] for s in scheduled]
        wanted = [i for i, s in enumerate(scheduled) if s.samples]
        window: dict[str, list[int]] = {}
        if self.prefix_cache.window:
            window["window_start"] = [s.request.window_start for s in scheduled]
            window["first_new"] = [max(s.num_computed, s.request.replay_until) for s in scheduled]
        block_size, device = self.config.block_size, self.config.device
        return scheduled, build_batch(chunks, tables, block_size, wanted, device, **window)

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        """Logits (M, V) of the requests that sample in this step."""
        return None if batch is None else self.model.forward(batch, self.cache)

    def _sample(self, scheduled: list[Scheduled], logits: torch.Tensor | None) -> list[Sampled]:
        """The next token of each request that samples in this step, in their order, with its
        log-probabilities. A prompt's last logits serve all samples of it."""
        families = [s.request.family for s in scheduled if s.samples]
        if logits is None:
            return []
        rows = [(i, request) for i, family in enumerate(families) for request in family]
        sampled: list[Sampled] = []
        for start in range(0, len(rows), MAX_SAMPLED_ROWS):
            some = rows[start : start + MAX_SAMPLED_ROWS]
            whole = len(some) == len(families)  # no prompt with several samples
            sampled += self._draw(
                [r for _, r in some], logits if whole else logits[[i for i, _ in some]]
            )
        return sampled

    def _draw(self, requests: list[Request], logits: torch.Tensor) -> list[Sampled]:
        """The next token of each of `requests` (R,) from its row of logits (R, V)."""
        batch = batch_of(requests, self.lm.vocab_size)
        tokens = sample(logits, batch, ledger=self.ledger)
        asked = [request.params.logprobs for request in requests]
        return list(zip(tokens.tolist(), token_logprobs(logits, tokens, asked), strict=True))

    def _process(
        self, scheduled: list[Scheduled], sampled: list[Sampled], error: str | None
    ) -> None:
        """Append tokens, check what ends, report all that moved."""
        next_sampled = iter(sampled)
        moved = [request for s in scheduled for request in s.request.family]
        for s in scheduled:
            if error is not None:
                for request in s.request.family:
                    request.finish("error", error)
                continue
            s.request.num_computed_tokens += s.num_tokens
            self.prefix_cache.commit(s.request, s.num_tokens)
            if s.request.num_uncomputed == 0:
                for request in s.request.family:
                    self._append(request, *next(next_sampled))
                self._fork_siblings(s.request)
        self._report([request for request in moved if request.state != EXPECTED])

    def _remember(self, record: StepRecord) -> None:
        record.finished = [o.request_id for o in self._unreported if o.finish_reason is not None]
        record.preempted = [r.request_id for r in self.scheduler.preempted]
        self.scheduler.preempted = []
        record.num_waiting = len(self.scheduler.waiting)
        record.num_running = len(self.scheduler.running)
        record.num_free_blocks = self.block_manager.num_free
        self.stats.count(record, self.block_manager.peak_used)
        self.stats.cached_tokens = self.prefix_cache.cached_tokens
        self.history.append(record)

    # what they share

    def _report(self, moved: list[Request]) -> None:
        """Note the outputs of requests that went on or ended, and drop those that ended."""
        for request in moved:
            if request.state == FINISHED:
                self._drop(request)
            self._unreported.append(RequestOutput(request, self.lm.tokenizer))

    def _append(self, request: Request, token: int, logprobs: TokenLogprobs | None) -> None:
        if token < 0:
            return request.finish("error", FAULTS[token])
        request.token_ids.append(token)
        if logprobs is not None:
            request.logprobs.append(logprobs)
        if token in request.stop_ids:
            request.finish("stop")
        elif request.num_generated >= request.params.max_tokens:
            request.finish("length")
        elif len(request.token_ids) >= self.lm.config.max_seq_len:
            request.finish("length", f"the context limit of {self.lm.config.max_seq_len} tokens")

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
        samples = self._requests[request.request_id]
        samples.remove(request)
        if not samples:
            del self._requests[request.request_id]

    def _keep(self, request: Request) -> None:
        try:
            self.prefix_cache.keep(request, self.cache)
        except Exception:  # no memory for a copy, say: the tiers lose it, and nobody else does
            logger.exception("the blocks of request %d were not kept", request.request_id)

    def _unfinished(self, request_id: int) -> list[Request]:
        if as_int("request_id", request_id, 0) not in self._requests:
            raise KeyError(
                f"request_id {request_id} is not waiting or running in this engine: it has ended, "
                "or add() never gave that id"
            )
        return list(self._requests[request_id])
