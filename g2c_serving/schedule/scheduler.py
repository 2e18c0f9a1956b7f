"""The scheduler: which requests run in this step, and how many tokens of each.

Every step it goes through three rules, in this order, until the step's tokens (or its time) are
spent:

1. A row for every request that decodes, and with speculation one more for each of its drafts.
   Where a block is missing, a fork that waits gives up what it shares, or else the request that
   arrived last its blocks (preemption); it will be computed again later, and no token of it is
   lost.
2. The next chunk of every prompt that is on its way.
3. New requests in the order of their arrival, as soon as their whole context has blocks. What the
   cache holds of it is taken first, so that the chunk is cut from what is left to compute.

Mirrors `csrc/engine/scheduler.hpp` of DeepInfer (Brief, "The change of perspective" and section
1). How many drafts a request may have is the business of `schedule/draft_rows.py`. Left out:
priorities.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from operator import attrgetter

from g2c_serving.request import RUNNING, WAITING, Request
from g2c_serving.schedule.arrivals import Arrivals
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.draft_rows import DraftRows
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.scheduled import Scheduled
from g2c_serving.schedule.step_limits import StepLimits

ARRIVAL = attrgetter("sequence_id")


class Scheduler:
    """Queues of waiting and running requests, both in order of arrival: requests are admitted from
    the head of the one and preempted from the end of the other.

    Whoever waits holds no block, but for a fork that found no seat or was preempted: it is parked,
    and keeps what it shares until somebody needs the room.
    """

    def __init__(
        self,
        prefix_cache: PrefixCache,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        step_time_budget_ms: float | None = None,
        cost_model: CostModel | None = None,
        drafting: DraftRows | None = None,
    ) -> None:
        self.prefix_cache, self.block_manager = prefix_cache, prefix_cache.block_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.drafting = DraftRows() if drafting is None else drafting
        most = max_num_batched_tokens // self.drafting.rows_each
        self.max_running = min(max_num_seqs, most)  # each gets its rows every step
        self.step_time_budget_ms, self.cost_model = step_time_budget_ms, cost_model
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted: list[Request] = []  # until the engine takes note of them
        self.failed: list[Request] = []  # finished with an error, likewise
        self._parked: dict[int, Request] = {}  # waiting with blocks, by sequence id
        self.arrivals = Arrivals(prefix_cache)  # waiting with pages in host memory

    def add(self, request: Request) -> None:
        """Queue a request. One that comes late, since its grammar had to be compiled, stands where
        its arrival puts it."""
        self._wait(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` go on from where `parent` is, on the same blocks. It runs if there is a seat
        and nobody waits who came before it; else it is parked. The child of one that waits, or that
        replays its window, waits like a new request."""
        if parent.sequence_id not in self.block_manager.tables or parent.is_replaying:
            return self.add(child)
        child.num_computed_tokens = parent.num_settled  # in time what is on its way is there, too,
        child.num_ready = parent.num_ready  # but nobody knows whether it will fail
        child.was_computed = parent.was_computed
        child.drafter_lag = child.num_computed_tokens - child.num_ready
        child.window_start, child.replay_until = parent.window_start, parent.replay_until
        child.block_hashes = list(parent.block_hashes)
        child.was_admitted = True  # it did not find them: they are shared
        self.block_manager.fork(parent.sequence_id, child.sequence_id, child.num_computed_tokens)
        first = not self.waiting or child.sequence_id < self.waiting[0].sequence_id
        if first and len(self.running) < self.max_running:
            self._run(child)
        else:
            self._parked[child.sequence_id] = child
            self._wait(child)

    def remove(self, request: Request) -> None:
        """Forget a request and take its blocks back."""
        if request.state == WAITING:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
        self._take_blocks(request)
        self.arrivals.forget(request, has_ended=True)

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
                return self._fail(request)
            victim = self.running[-1]
            if self._unpark(useless_too=victim is request):
                continue
            self._preempt(victim)
            if victim is request:
                return False
        manager.allocate(*needs)
        return True

    def _unpark(self, useless_too: bool) -> bool:
        """Take the blocks of the request that was parked last. Not where that frees none, since
        running ones use them too, unless `useless_too`. False if nothing was taken."""
        if not self._parked:
            return False
        last = next(reversed(self._parked))
        if not useless_too and not self.block_manager.frees(last):
            return False
        self._take_blocks(self._parked[last])
        return True

    def _take_blocks(self, request: Request) -> None:
        self._parked.pop(request.sequence_id, None)
        self.prefix_cache.forget(request)
        self.arrivals.forget(request)
        self.block_manager.free(request.sequence_id)
        request.lose_blocks()

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        request.num_preemptions += 1
        kept = self.block_manager.keep_shared(request.sequence_id) * self.block_manager.block_size
        if kept and request.window_start == 0:
            request.num_computed_tokens = min(kept, request.num_settled)
            request.num_ready = min(request.num_ready, request.num_computed_tokens)
            request.drafter_lag = request.num_computed_tokens - request.num_ready
            request.call_back()
            self._parked[request.sequence_id] = request
        else:
            self._take_blocks(request)
        self._wait(request)
        self.preempted.append(request)

    def lose_all_blocks(self) -> None:
        """Nobody knows any more what the pages hold: everything is computed again."""
        self.block_manager.forget_names()
        for request in list(self.running):
            self.running.remove(request)
            request.num_preemptions += 1
            self._wait(request)
            self.preempted.append(request)
        for request in self.waiting:
            self._take_blocks(request)

    def _fail(self, request: Request) -> bool:
        self.remove(request)
        for one in request.family:
            one.finish(
                "error",
                f"{len(one.token_ids)} tokens need more than all {self.block_manager.num_blocks} "
                f"blocks of {self.block_manager.block_size}: raise EngineConfig.num_blocks",
            )
        self.failed += request.family
        return False

    def _admit(self, request: Request) -> bool:
        """Let the first of the waiting run, if there is a place and blocks for its whole context.
        A parked one goes on with what it holds, one from elsewhere with its pages. True when the
        queue has moved on."""
        manager = self.block_manager
        if len(self.running) >= self.max_running:
            return False
        if manager.blocks_for(request.num_tokens) > manager.num_blocks:
            self._fail(request)
        elif request.sequence_id in self._parked:
            needs = request.sequence_id, len(request.token_ids), request.num_computed_tokens
            if not self._has_room(request, manager.num_missing(*needs)):
                return self._make_way(request)
            manager.allocate(*needs)
            del self._parked[request.sequence_id]
            self._run(self.waiting.popleft())
        elif self.arrivals.of(request) is not None:
            if not self._has_room(request, manager.blocks_for(len(request.token_ids))):
                return self._make_way(request)
            self.arrivals.admit(request)
            self._run(self.waiting.popleft())
        else:
            shared = self.prefix_cache.find(request)
            missing = manager.blocks_for(len(request.token_ids)) - len(shared)
            if not self._has_room(request, missing + manager.num_unused(shared)):
                return self._make_way(request)
            self.prefix_cache.admit(request, shared)
            self._run(self.waiting.popleft())
        return True

    def _has_room(self, request: Request, needed: int) -> bool:
        """Whether the blocks that the whole context needs are free."""
        return needed + self._spare(request) <= self.block_manager.num_free

    def _spare(self, request: Request) -> int:
        """Blocks that a preempted request leaves for the running ones to grow into, or it would
        soon be preempted again."""
        return len(self.running) if request.num_preemptions else 0

    def _make_way(self, request: Request) -> bool:
        """The first in the queue has no room. Running requests will end and give it some; if there
        are none, those that are parked hold it."""
        return not self.running and self._unpark(useless_too=True)

    def _run(self, request: Request) -> None:
        request.state = RUNNING
        insort(self.running, request, key=ARRIVAL)

    def _wait(self, request: Request) -> None:
        request.state = WAITING
        if not self.waiting or self.waiting[-1].sequence_id < request.sequence_id:
            return self.waiting.append(request)
        self.waiting.insert(bisect(self.waiting, request.sequence_id, key=ARRIVAL), request)

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
