"""The scheduler: which requests run in this step, and how many tokens of each.

Every step it goes through three rules, in this order, until the step's tokens (or its time) are
spent:

1. A row for every request that decodes. Where a block is missing, the request that arrived last
   gives up its blocks (preemption) and will be computed again later; no token of it is lost.
2. The next chunk of every prompt that is on its way.
3. New requests in the order of their arrival, as soon as their whole context has blocks.

Mirrors `csrc/engine/scheduler.hpp` of DeepInfer (Brief, "The change of perspective" and section
1). Left out: priorities, prefix hits, speculation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from g2c_serving.request import RUNNING, WAITING, Request
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step: `num_tokens` new tokens on `num_computed` ones."""

    request: Request
    num_tokens: int
    num_computed: int

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1 and self.samples and self.request.num_generated > 0

    @property
    def samples(self) -> bool:
        """Whether these are the last known tokens, so that the next one is drawn after them."""
        return self.num_computed + self.num_tokens == len(self.request.token_ids)


class Scheduler:
    """Queues of waiting and running requests.

    Both are in order of arrival, and whoever runs arrived before all who wait: requests are
    admitted from the head of the one queue and preempted from the end of the other.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        step_time_budget_ms: float | None = None,
        cost_model: CostModel | None = None,
    ) -> None:
        self.block_manager = block_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_running = min(max_num_seqs, max_num_batched_tokens)  # each gets a row every step
        self.step_time_budget_ms, self.cost_model = step_time_budget_ms, cost_model
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted: list[Request] = []  # until the engine takes note of them
        self.failed: list[Request] = []  # finished with an error, likewise

    def add(self, requests: Iterable[Request]) -> None:
        self.waiting.extend(requests)

    def remove(self, request: Request) -> None:
        """Forget a request and take its blocks back."""
        if request.state == WAITING:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
        self.block_manager.free(request.sequence_id)

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step; their blocks are allocated. Adds to `preempted`, `failed`.

        Until the step is processed nothing else is changed, so a step whose forward or sampling
        was broken off is simply scheduled again.
        """
        step = [Scheduled(r, 1, r.num_computed_tokens) for r in self._decode_rows()]
        limits = self._limits(step)
        for request in self.running:
            if not request.is_decoding:
                self._take_chunk(request, step, limits)
        while self.waiting and limits.tokens > 0 and self._can_admit(self.waiting[0]):
            if not self._take_chunk(self.waiting[0], step, limits):
                break
            self._admit(self.waiting.popleft())
        return step

    def _decode_rows(self) -> list[Request]:
        """Running requests that decode, each with a block for its token."""
        for request in list(self.running):
            if request.is_decoding and request.state == RUNNING:
                self._make_room(request)
        return [request for request in self.running if request.is_decoding]

    def _make_room(self, request: Request) -> None:
        """Give `request` a block for its next token, taken from the last to arrive if need be."""
        manager = self.block_manager
        while not manager.can_allocate(request.sequence_id, len(request.token_ids)):
            victim = self.running[-1]
            if manager.blocks_for(len(request.token_ids)) > manager.num_blocks:
                return self._fail(request)
            self._preempt(victim)
            if victim is request:
                return
        manager.allocate(request.sequence_id, len(request.token_ids))

    def _preempt(self, request: Request) -> None:
        self.remove(request)
        request.state, request.num_computed_tokens = WAITING, 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)  # it arrived before all that wait
        self.preempted.append(request)

    def _fail(self, request: Request) -> None:
        self.remove(request)
        request.finish(
            "error",
            f"{len(request.token_ids)} tokens need more than all {self.block_manager.num_blocks} "
            f"blocks of {self.block_manager.block_size}: raise EngineConfig.num_blocks",
        )
        self.failed.append(request)

    def _can_admit(self, request: Request) -> bool:
        """Whether there is a place and blocks for the whole context. A preempted request also
        leaves each running one a block to grow into, or it would soon be preempted again."""
        spare = len(self.running) if request.num_preemptions else 0
        needed = self.block_manager.blocks_for(len(request.token_ids)) + spare
        return len(self.running) < self.max_running and needed <= self.block_manager.num_free

    def _admit(self, request: Request) -> None:
        self.block_manager.allocate(request.sequence_id, len(request.token_ids))
        request.state = RUNNING
        self.running.append(request)

    def _limits(self, step: list[Scheduled]) -> _Limits:
        """What the decode rows leave of the step's tokens and time."""
        tokens = self.max_num_batched_tokens - len(step)
        if self.step_time_budget_ms is None or self.cost_model is None:
            return _Limits(tokens, None)
        context = sum(s.num_computed + 1 for s in step)
        spent = self.cost_model.decode_cost(len(step), context)
        return _Limits(tokens, self.step_time_budget_ms - spent)

    def _take_chunk(self, request: Request, step: list[Scheduled], limits: _Limits) -> bool:
        """Add the largest chunk of `request` that fits to `step`; False if none does.

        A time budget that leaves nothing still lets one token through, so that prompts advance.
        """
        cached = request.num_computed_tokens
        num_tokens = min(request.num_uncomputed, limits.tokens)
        if limits.ms is not None and self.cost_model is not None:
            fits = self.cost_model.largest_chunk(cached, limits.ms)
            if not limits.any_chunk:
                fits = max(fits, 1)
            num_tokens = min(num_tokens, fits)
            limits.ms -= self.cost_model.cost(num_tokens, cached)
        if num_tokens <= 0:
            return False
        limits.tokens -= num_tokens
        limits.any_chunk = True
        step.append(Scheduled(request, num_tokens, cached))
        return True


@dataclass
class _Limits:
    """What is left of a step: tokens, ms (None: no time budget); whether it has a chunk yet."""

    tokens: int
    ms: float | None
    any_chunk: bool = False
