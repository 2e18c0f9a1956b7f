"""The scheduler: which requests run in this step, and how many tokens of each.

Every step it goes through three rules, in this order, until the step's tokens (or its time) are
spent:

1. A row for every request that decodes, and with speculation one more for each of its drafts.
   Where a block is missing, a fork that waits gives up what it shares, or else the request that
   arrived last its blocks (preemption); it will be computed again later, and no token of it is
   lost.
2. The next chunk of every prompt that is on its way; under a time budget a cost model cuts it.
3. New requests in the order of their arrival, as soon as their whole context has blocks. What the
   cache holds of it is taken first, so that the chunk is cut from what is left to compute.

Mirrors `csrc/engine/scheduler.hpp` of DeepInfer (Brief, "The change of perspective" and section
1). Who waits and who holds what is in `schedule/queues.py`, how many drafts a request may have in
`schedule/draft_rows.py`. Left out: priorities.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.request import RUNNING, Request
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.draft_rows import DraftRows
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.queues import Queues
from g2c_serving.schedule.scheduled import Scheduled


@dataclass
class StepLimits:
    """What is left of a step for chunks of prompts: tokens, and under a time budget ms (else there
    is no cost model either); and whether the step has a chunk yet."""

    tokens: int
    ms: float | None = None
    cost_model: CostModel | None = None
    any_chunk: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether the time is used up, so that no further chunk can be had."""
        return self.any_chunk and self.ms is not None and self.ms <= 0

    def take(self, wanted: int, cached: int) -> int:
        """The largest chunk that fits, of at most `wanted` tokens after `cached` ones; 0 if none
        does. A time budget that leaves nothing still lets one token through, so that prompts
        advance."""
        num_tokens = min(wanted, self.tokens)
        if self.ms is not None and self.cost_model is not None:
            fits = self.cost_model.largest_chunk(cached, self.ms)
            if not self.any_chunk:
                fits = max(fits, 1)
            num_tokens = min(num_tokens, fits)
            self.ms -= self.cost_model.cost(num_tokens, cached)
        if num_tokens <= 0:
            return 0
        self.tokens -= num_tokens
        self.any_chunk = True
        return num_tokens


class Scheduler(Queues):
    """Gives out the rows of each step, and seats and blocks by them."""

    def __init__(
        self,
        prefix_cache: PrefixCache,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        step_time_budget_ms: float | None = None,
        cost_model: CostModel | None = None,
        drafting: DraftRows | None = None,
    ) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.drafting = DraftRows() if drafting is None else drafting
        most = max_num_batched_tokens // self.drafting.rows_each  # each gets its rows every step
        super().__init__(prefix_cache, min(max_num_seqs, most))
        self.step_time_budget_ms, self.cost_model = step_time_budget_ms, cost_model

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step; their blocks are allocated. Adds to `preempted`, `failed`.

        Until the step is processed nothing else is changed, so a step whose forward or sampling
        was broken off is simply scheduled again.
        """
        step = self._decode_rows()
        limits = self._limits(step)
        for request in self.running:
            if not request.is_decoding:
                self._take_chunk(request, step, limits)
        while self.waiting and limits.tokens > 0 and not limits.is_spent:
            request = self.waiting[0]
            if not self._admit(request):
                break
            if request.state == RUNNING:
                self._take_chunk(request, step, limits)
        return step

    def _decode_rows(self) -> list[Scheduled]:
        """Running requests that decode; every running one has blocks of its own to write into."""
        for request in self.running:  # drafts of a step that was broken off have blocks yet
            num_tokens = request.num_tokens + self.drafting.due(request)
            self.block_manager.trim(request.sequence_id, num_tokens)
        able = [r for r in list(self.running) if r.state == RUNNING and self._make_room(r)]
        decoding = [r for r in able if r.state == RUNNING and r.is_decoding]
        room = self._room_for_drafts(len(decoding))
        drafts = self.drafting.share_out(decoding, room, self._blocks_of_the_next())
        return [
            Scheduled.of(request, 1, count) for request, count in zip(decoding, drafts, strict=True)
        ]

    def _room_for_drafts(self, num_decoding: int) -> int:
        """Rows that are left to drafts: half of them only where prompts wait for theirs."""
        room = self.max_num_batched_tokens - num_decoding
        any_prompt = self.waiting or not all(request.is_decoding for request in self.running)
        return room // 2 if any_prompt else room

    def _blocks_of_the_next(self) -> int:
        """Blocks that drafts leave to the first in the queue, where it can run in this step."""
        if not self.waiting or len(self.running) >= self.max_running:
            return 0
        needed = self.block_manager.blocks_for(len(self.waiting[0].token_ids))
        needed += self._spare(self.waiting[0])
        return needed if needed <= self.block_manager.num_free else 0

    def _make_room(self, request: Request) -> bool:
        """Give `request` the block for what it writes next: a new one, or a copy of one that it
        shares. Taken from the last to arrive if need be. False where it has no part in the step.

        A step that is on its way may end it, or bring fewer tokens than it may: what hangs on that
        waits for the next step, and takes nothing from others.
        """
        manager = self.block_manager
        if request.is_ending or self.drafting.is_open(request):
            return False
        num_tokens = request.num_tokens + self.drafting.due(request)
        needs = request.sequence_id, num_tokens, request.num_computed_tokens
        while not manager.can_allocate(*needs):
            if request.num_pending:
                return False
            if manager.blocks_for(num_tokens) > manager.num_blocks:
                self._fail(request)
                return False
            victim = self.running[-1]
            if self._unpark(useless_too=victim is request):
                continue
            self._preempt(victim)
            if victim is request:
                return False
        manager.allocate(*needs)
        return True

    def _admit(self, request: Request) -> bool:
        """Let the first of the waiting run, if there is a place and blocks for its whole context.
        A parked one goes on with what it holds, one from elsewhere with its pages. True when the
        queue has moved on."""
        if len(self.running) >= self.max_running:
            return False
        manager = self.block_manager
        if manager.blocks_for(request.num_tokens) > manager.num_blocks:
            self._fail(request)
            return True
        is_parked = request.sequence_id in self._parked
        has_pages = self.arrivals.of(request) is not None
        shared = [] if is_parked or has_pages else self.prefix_cache.find(request)
        needs = request.sequence_id, len(request.token_ids), request.num_computed_tokens
        missing = manager.num_missing(*needs) - len(shared) + manager.num_unused(shared)
        if missing + self._spare(request) > manager.num_free:
            return self._make_way()
        if is_parked:
            manager.allocate(*needs)
            del self._parked[request.sequence_id]
        elif has_pages:
            self.arrivals.admit(request)
        else:
            self.prefix_cache.admit(request, shared)
        self._run(self.waiting.popleft())
        return True

    def _spare(self, request: Request) -> int:
        """Blocks that a preempted request leaves for the running ones to grow into, or it would
        soon be preempted again."""
        return len(self.running) if request.num_preemptions else 0

    def _make_way(self) -> bool:
        """The first in the queue has no room. Running requests will end and give it some; if there
        are none, those that are parked hold it."""
        return not self.running and self._unpark(useless_too=True)

    def _limits(self, step: list[Scheduled]) -> StepLimits:
        """What the decode rows leave of the step's tokens and time."""
        rows = len(step) + self.drafting.num_rows
        tokens = self.max_num_batched_tokens - rows
        if self.step_time_budget_ms is None or self.cost_model is None:
            return StepLimits(tokens)
        context = sum(s.num_computed + 1 for s in step)
        spent = self.cost_model.decode_cost(rows, context)
        return StepLimits(tokens, self.step_time_budget_ms - spent, self.cost_model)

    def _take_chunk(self, request: Request, step: list[Scheduled], limits: StepLimits) -> bool:
        """Add the largest chunk of `request` that fits to `step`; False if none does."""
        cached = request.num_computed_tokens
        wanted = request.num_uncomputed - self.drafting.held_back(request)
        num_tokens = limits.take(wanted, cached)
        if num_tokens:
            step.append(Scheduled.of(request, num_tokens))
        return num_tokens > 0
