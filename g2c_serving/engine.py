"""The engine: one step is schedule, forward, sample, process, for all requests at once.

This is the loop of the Brief's "The change of perspective". Requests join and leave between steps;
each step advances every running request by a token, or by a chunk of its prompt. The four phases
live in four folders and do not call each other; this file ties them together.

Mirrors the engine core of DeepInfer (`csrc/engine`). Left out: forks, prefix hits, speculation,
grammars, overlap of the phases.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from g2c_serving.config import DTYPES, EngineConfig
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.history import HISTORY_STEPS, EngineStats, StepRecord, Stopwatch, rows_of
from g2c_serving.intake import Prompt, check_can_run, encode_prompt, one_each
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.request import FINISHED, Request, RequestOutput, SamplingParams
from g2c_serving.sample.rng import sample_seed
from g2c_serving.sample.sampler import SamplingBatch, sample
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.scheduler import Scheduled, Scheduler

logger = logging.getLogger(__name__)


class Engine:
    """Serves one model. `history` holds one `StepRecord` a step, the newest 4,096."""

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        self.lm, self.config = lm, EngineConfig() if config is None else config
        self.model = _model(lm, self.config)
        self.cache = self.model.new_cache(self.config.num_blocks, self.config.block_size)
        self.block_manager = BlockManager(self.config.num_blocks, self.config.block_size)
        self.scheduler = Scheduler(
            self.block_manager,
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
            self.config.step_time_budget_ms,
            self.config.cost_model,
        )
        self.stats = EngineStats()
        self.history: deque[StepRecord] = deque(maxlen=HISTORY_STEPS)
        self._requests: dict[int, list[Request]] = {}  # unfinished samples by request id
        self._unreported: list[RequestOutput] = []  # of a step that an interrupt cut short
        self._next_request_id = self._next_sequence_id = 0
        self._made = time.perf_counter()

    # what a user calls

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue a prompt and return its request id. ValueError for what could never run."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params is {params!r}: pass SamplingParams(...)")
        prompt_token_ids = encode_prompt(self.lm.tokenizer, prompt)
        check_can_run(prompt_token_ids, params, self.lm, self.config)
        samples = self._samples(prompt_token_ids, params)
        with deferred_interrupt():
            self._next_sequence_id += params.n
            self._next_request_id += 1
            self._requests[samples[0].request_id] = samples
            self.scheduler.add(samples)
        return samples[0].request_id

    def abort(self, request_id: int) -> list[RequestOutput]:
        """End all samples of a request now; their outputs. KeyError for one that is not running."""
        if request_id not in self._requests:
            raise KeyError(f"request_id {request_id} is not waiting or running in this engine")
        samples = list(self._requests[request_id])
        with deferred_interrupt():
            for request in samples:
                self._drop(request)
                request.finish("abort")
        return [RequestOutput(request, self.lm.tokenizer) for request in samples]

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
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
                self.add(prompt, one)
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
        if self.has_unfinished:
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
        tokens, error = [], None
        try:
            logits = self._forward(batch)
            record.forward_ms = watch.lap()
            tokens = self._sample(scheduled, logits)
            record.sample_ms = watch.lap()
        except Exception as err:  # it belongs to no row in particular: all rows of the step end
            logger.exception("a step failed; its %d requests end with an error", len(scheduled))
            error = f"{type(err).__name__} in the step: {err}"
            record.forward_ms += watch.lap()
        with deferred_interrupt():
            outputs = self._process(scheduled, tokens, error)
            self._unreported += outputs
            self._remember(record, outputs)
            record.process_ms = watch.lap()

    # the four phases

    def _schedule(self) -> tuple[list[Scheduled], ForwardBatch | None]:
        """The step's rows and their flat batch. Rows of like length stand side by side, as the
        attention groups want them."""
        scheduled = self.scheduler.schedule()
        self.cache.clear(self.block_manager.take_fresh())
        if not scheduled:
            return [], None
        scheduled.sort(key=lambda s: (s.num_tokens, s.num_computed))
        chunks = [
            (s.request.token_ids[s.num_computed : s.num_computed + s.num_tokens], s.num_computed)
            for s in scheduled
        ]
        tables = [self.block_manager.tables[s.request.sequence_id] for s in scheduled]
        wanted = [i for i, s in enumerate(scheduled) if s.samples]
        block_size, device = self.config.block_size, self.config.device
        return scheduled, build_batch(chunks, tables, block_size, wanted, device)

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        """Logits (M, V) of the requests that sample in this step."""
        return None if batch is None else self.model.forward(batch, self.cache)

    def _sample(self, scheduled: list[Scheduled], logits: torch.Tensor | None) -> list[int]:
        """The next token of each request that samples in this step, in their order."""
        rows = [s.request for s in scheduled if s.samples]
        if not rows or logits is None:
            return []
        batch = SamplingBatch(
            seeds=np.array([r.seed for r in rows], dtype=np.uint64),
            positions=np.array([len(r.token_ids) for r in rows]),
            temperature=np.array([r.params.temperature for r in rows], dtype=float),
            top_k=np.array([min(r.params.top_k, self.lm.vocab_size) for r in rows]),
            top_p=np.array([r.params.top_p for r in rows], dtype=float),
        )
        return sample(logits, batch).tolist()

    def _process(
        self, scheduled: list[Scheduled], tokens: list[int], error: str | None
    ) -> list[RequestOutput]:
        """Append tokens, check what ends, give the outputs of all that moved."""
        next_tokens = iter(tokens)
        for s in scheduled:
            if error is not None:
                s.request.finish("error", error)
                continue
            s.request.num_computed_tokens += s.num_tokens
            if s.request.num_uncomputed == 0:
                self._append(s.request, next(next_tokens))
        moved = self.scheduler.failed + [s.request for s in scheduled]
        self.scheduler.failed = []
        for request in moved:
            if request.state == FINISHED:
                self._drop(request)
        return [RequestOutput(request, self.lm.tokenizer) for request in moved]

    def _remember(self, record: StepRecord, outputs: list[RequestOutput]) -> None:
        record.finished = [o.request_id for o in outputs if o.finish_reason is not None]
        record.preempted = [r.request_id for r in self.scheduler.preempted]
        self.scheduler.preempted = []
        record.num_waiting = len(self.scheduler.waiting)
        record.num_running = len(self.scheduler.running)
        record.num_free_blocks = self.block_manager.num_free
        self.stats.count(record, self.block_manager.peak_used)
        self.history.append(record)

    # what they share

    def _append(self, request: Request, token: int) -> None:
        if token < 0:
            return request.finish("error", "the model gave logits that are not numbers")
        request.token_ids.append(token)
        if token in request.stop_ids:
            request.finish("stop")
        elif request.num_generated >= request.params.max_tokens:
            request.finish("length")
        elif len(request.token_ids) >= self.lm.config.max_seq_len:
            request.finish("length", f"the context limit of {self.lm.config.max_seq_len} tokens")

    def _drop(self, request: Request) -> None:
        """Give back all that a finished request held."""
        self.scheduler.remove(request)
        samples = self._requests[request.request_id]
        samples.remove(request)
        if not samples:
            del self._requests[request.request_id]

    def _samples(self, prompt_token_ids: list[int], params: SamplingParams) -> list[Request]:
        """One request for each sample of the prompt, not queued yet."""
        seed = secrets.randbits(64) if params.seed is None else params.seed
        stop_ids = set(params.stop_token_ids)
        if self.lm.eos_id is not None and not params.ignore_eos:
            stop_ids.add(self.lm.eos_id)
        return [
            Request(
                self._next_request_id,
                self._next_sequence_id + i,
                i,
                prompt_token_ids,
                params,
                sample_seed(seed, i),
                stop_ids=frozenset(stop_ids),
            )
            for i in range(params.n)
        ]


def _model(lm: LanguageModel, config: EngineConfig) -> Transformer:
    """The model at the precision and on the device of `config`. TypeError for other objects."""
    if not hasattr(lm, "weights"):
        raise TypeError(f"lm is {lm!r}: pass a loaded model, for example g2c_serving.load('tiny')")
    if not isinstance(config, EngineConfig):
        raise TypeError(f"config is {config!r}: pass an EngineConfig(...)")
    if (config.dtype, config.device) == ("float32", "cpu"):
        return lm.model
    return Transformer(lm.config, lm.weights, DTYPES[config.dtype], config.device)
