"""The engine: one step is schedule, forward, sample, process, for all requests at once.

This is the loop of the Brief's "The change of perspective". Requests join and leave between steps;
each step advances every running request by a token, or by a chunk of its prompt. The four phases
live in four folders and know nothing of each other; only this file ties them together.

Mirrors the engine core of DeepInfer (`csrc/engine`). Left out: forks, prefix hits, speculation,
grammars, overlap of the phases.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.process.tokenizer import Part
from g2c_serving.request import (
    FINISHED,
    Request,
    RequestOutput,
    SamplingParams,
    require_int,
    require_number,
)
from g2c_serving.sample.rng import sample_seed
from g2c_serving.sample.sampler import SamplingBatch, sample
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.scheduler import Scheduled, Scheduler

Prompt = str | Sequence[int] | Sequence[Part]  # a str is untrusted text through and through

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
HISTORY_STEPS = 4096  # the newest step records that an engine keeps


@dataclass(frozen=True)
class EngineConfig:
    """How much an engine may hold and do at a time. ValueError names the field and the range.

    num_blocks, block_size   the cache: blocks, and tokens in each
    max_num_batched_tokens   most tokens in a step, decode rows included; caps the running requests
    max_num_seqs             most requests that run at a time
    dtype, device            float32, float64 or bfloat16; cpu, mps or cuda (the latter two untested)
    step_time_budget_ms      aim of a step's time: prefill chunks shrink to fit (needs cost_model)
    cost_model               a fitted `CostModel`
    """

    num_blocks: int = 512
    block_size: int = 16
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    step_time_budget_ms: float | None = None
    cost_model: CostModel | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs"):
            require_int(name, getattr(self, name), 1)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {sorted(DTYPES)}")
        require_device(self.device)
        if self.step_time_budget_ms is None:
            return
        require_number("step_time_budget_ms", self.step_time_budget_ms)
        if self.step_time_budget_ms <= 0:
            raise ValueError(f"step_time_budget_ms={self.step_time_budget_ms} must be above 0")
        if self.cost_model is None:
            raise ValueError(
                f"step_time_budget_ms={self.step_time_budget_ms} needs a cost_model: "
                "fit one from an engine's history, CostModel.fit(...)"
            )


def require_device(device: str) -> None:
    """ValueError unless torch can compute on `device` here."""
    usable = {"cpu": True, "cuda": torch.cuda.is_available()}
    usable["mps"] = torch.backends.mps.is_available()
    if not usable.get(device, False):
        have = [name for name, there in usable.items() if there]
        raise ValueError(f"device={device!r} is not to be had here; choose one of {have}")


@dataclass
class EngineStats:
    """Totals since the engine was made. Tokens computed again after a preemption count again."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    peak_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: `kind` is prefill or decode."""

    request_id: int
    sample_index: int
    kind: str
    num_tokens: int
    num_cached: int


@dataclass(slots=True)
class StepRecord:
    """What one step did: phase times and start in ms (start counts from the engine's making),
    rows, requests that finished or were preempted, queues and free blocks after it."""

    start_ms: float
    schedule_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    process_ms: float = 0.0
    rows: list[Row] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0

    @property
    def total_ms(self) -> float:
        return self.schedule_ms + self.forward_ms + self.sample_ms + self.process_ms

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class Engine:
    """Serves one model. `history` holds one `StepRecord` a step, the newest 4,096."""

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        self.lm, self.config = lm, config or EngineConfig()
        dtype = DTYPES[self.config.dtype]
        self.model = lm.model
        if (dtype, self.config.device) != (torch.float32, "cpu"):
            self.model = Transformer(lm.config, lm.weights, dtype, self.config.device)
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
        self._next_request_id = self._next_sequence_id = 0
        self._made = time.perf_counter()

    # what a user calls

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue a prompt and return its request id. ValueError for what could never run."""
        params = params or SamplingParams()
        prompt_token_ids = self._encode(prompt)
        self._check_can_run(prompt_token_ids, params)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        stop_ids = set(params.stop_token_ids)
        if self.lm.eos_id is not None and not params.ignore_eos:
            stop_ids.add(self.lm.eos_id)
        request_id = self._next_request_id
        self._next_request_id += 1
        samples = self._requests[request_id] = []
        for i in range(params.n):
            request = Request(
                request_id,
                self._next_sequence_id,
                i,
                prompt_token_ids,
                params,
                sample_seed(seed, i),
                stop_ids=frozenset(stop_ids),
            )
            self._next_sequence_id += 1
            samples.append(request)
            self.scheduler.add(request)
        return request_id

    def abort(self, request_id: int) -> list[RequestOutput]:
        """End all samples of a request now; their outputs. KeyError for one that is not running."""
        if request_id not in self._requests:
            raise KeyError(f"request_id {request_id} is not waiting or running in this engine")
        samples = list(self._requests[request_id])
        for request in samples:
            request.finish("abort")
            self._drop(request)
        return [self._output(request) for request in samples]

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run all prompts to their end: params.n outputs a prompt, in the prompts' order.

        Requests that were added before go on beside them, and their outputs stay theirs.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is one str: pass a list, [prompt]")
        per_prompt = _one_each(params, len(prompts))
        added: list[int] = []
        finished: dict[tuple[int, int], RequestOutput] = {}
        try:
            added += (self.add(p, s) for p, s in zip(prompts, per_prompt, strict=True))
            while any(rid in self._requests for rid in added):
                for output in self.step():
                    if output.finish_reason is not None:
                        finished[output.request_id, output.sample_index] = output
        except BaseException:  # a bad prompt, or the learner's interrupt: leave nothing behind
            for rid in added:
                if rid in self._requests:
                    self.abort(rid)
            raise
        return [
            finished[rid, i] for rid, s in zip(added, per_prompt, strict=True) for i in range(s.n)
        ]

    def step(self) -> list[RequestOutput]:
        """Advance every running request; the outputs of those that advanced or ended."""
        clock = time.perf_counter
        times = [clock()]
        scheduled = self._schedule()
        failed = list(self.scheduler.failed)
        tokens: list[int] = []
        message = None
        if scheduled:
            try:
                batch = self._batch(scheduled)
                times.append(clock())
                logits = self.model.forward(batch, self.cache)
                times.append(clock())
                tokens = self._sample(scheduled, logits)
                times.append(clock())
            except Exception as err:  # it belongs to no row in particular: all of this step end
                message = f"{type(err).__name__} in the step: {err}"
        times += [clock()] * (4 - len(times))
        record = self._record(times, scheduled)
        outputs = self._process(scheduled, tokens, failed, message)
        record.finished = [o.request_id for o in outputs if o.finish_reason is not None]
        record.num_waiting, record.num_running = (
            len(self.scheduler.waiting),
            len(self.scheduler.running),
        )
        record.num_free_blocks = self.block_manager.num_free
        record.process_ms = 1e3 * (clock() - times[3])
        self.history.append(record)
        return outputs

    # the four phases

    def _schedule(self) -> list[Scheduled]:
        """The step's rows, those of like length side by side, as the attention groups want them."""
        return sorted(self.scheduler.schedule(), key=lambda s: (s.num_tokens, s.num_cached))

    def _batch(self, scheduled: list[Scheduled]) -> ForwardBatch:
        chunks = [
            (s.request.token_ids[s.num_cached : s.num_cached + s.num_tokens], s.num_cached)
            for s in scheduled
        ]
        tables = [self.block_manager.tables[s.request.sequence_id] for s in scheduled]
        wanted = [i for i, s in enumerate(scheduled) if s.samples]
        return build_batch(chunks, tables, self.config.block_size, wanted, self.config.device)

    def _sample(self, scheduled: list[Scheduled], logits: torch.Tensor) -> list[int]:
        """The next token of each request that samples in this step, in their order."""
        rows = [s.request for s in scheduled if s.samples]
        if not rows:
            return []
        batch = SamplingBatch(
            seeds=np.array([r.seed for r in rows], dtype=np.uint64),
            positions=np.array([len(r.token_ids) for r in rows]),
            temperature=np.array([r.params.temperature for r in rows], dtype=float),
            top_k=np.array([r.params.top_k for r in rows]),
            top_p=np.array([r.params.top_p for r in rows], dtype=float),
        )
        return sample(logits, batch).tolist()

    def _process(
        self,
        scheduled: list[Scheduled],
        tokens: list[int],
        failed: list[Request],
        message: str | None,
    ) -> list[RequestOutput]:
        """Append tokens, check what ends, give the outputs of all that moved."""
        next_tokens = iter(tokens)
        for s in scheduled:
            if message is not None:
                s.request.finish("error", message)
                continue
            s.request.num_computed_tokens += s.num_tokens
            if s.samples:
                self._append(s.request, next(next_tokens))
        moved = failed + [s.request for s in scheduled]
        for request in moved:
            if request.state == FINISHED:
                self._drop(request)
        return [self._output(request) for request in moved]

    # what they share

    def _append(self, request: Request, token: int) -> None:
        if token < 0:
            # its own keys and values may not be numbers either: they must not reach the next owner
            self.cache.clear(self.block_manager.tables[request.sequence_id])
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

    def _output(self, request: Request) -> RequestOutput:
        return RequestOutput(request, self.lm.tokenizer)

    def _record(self, times: list[float], scheduled: list[Scheduled]) -> StepRecord:
        ms = [1e3 * (b - a) for a, b in zip(times, times[1:], strict=False)]
        rows = [
            Row(
                s.request.request_id,
                s.request.sample_index,
                "decode" if s.is_decode else "prefill",
                s.num_tokens,
                s.num_cached,
            )
            for s in scheduled
        ]
        num_decode = sum(row.kind == "decode" for row in rows)
        num_tokens = sum(row.num_tokens for row in rows)
        self.stats.steps += 1
        self.stats.decode_tokens += num_decode
        self.stats.prefill_tokens += num_tokens - num_decode
        self.stats.preemptions += len(self.scheduler.preempted)
        self.stats.peak_blocks = self.block_manager.peak_used
        preempted = [r.request_id for r in self.scheduler.preempted]
        start_ms = 1e3 * (times[0] - self._made)
        return StepRecord(start_ms, *ms[:3], rows=rows, preempted=preempted)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.lm.tokenizer.encode(prompt)
        parts = list(prompt)
        if all(isinstance(p, int | np.integer) and not isinstance(p, bool) for p in parts):
            return [int(p) for p in parts]
        return self.lm.tokenizer.encode_parts(parts)

    def _check_can_run(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        num_tokens, limit = len(prompt_token_ids), self.lm.config.max_seq_len
        if num_tokens == 0:
            raise ValueError("prompt is empty: give it at least one token")
        for token_id in (*prompt_token_ids, *params.stop_token_ids):
            if not 0 <= token_id < self.lm.vocab_size:
                raise ValueError(
                    f"token id {token_id} is outside the vocabulary, 0 to {self.lm.vocab_size - 1}"
                )
        if num_tokens >= limit:
            raise ValueError(
                f"prompt has {num_tokens} tokens; the context limit of {self.lm.name} is {limit}, "
                f"so a prompt may have at most {limit - 1}"
            )
        if self.block_manager.blocks_for(num_tokens) > self.config.num_blocks:
            raise ValueError(
                f"prompt of {num_tokens} tokens needs more than all {self.config.num_blocks} blocks "
                f"of {self.config.block_size}: raise EngineConfig.num_blocks"
            )


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"params has {len(params)} entries for {count} prompts: one each, or one")
    return list(params)
