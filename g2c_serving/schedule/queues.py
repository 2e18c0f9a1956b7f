"""Who runs, who waits, and who holds blocks meanwhile: the queues that the scheduler fills.

Both are in order of arrival: requests are admitted from the head of the one and preempted from the
end of the other. Whoever waits holds no block, but for a fork that found no seat or was preempted:
it is parked, and keeps what it shares until somebody needs the room. Brief, section 1.
"""

from __future__ import annotations

import logging
from bisect import bisect, insort
from collections import deque
from operator import attrgetter
from typing import Any

from g2c_serving.request import RUNNING, WAITING, Request
from g2c_serving.schedule.arrivals import Arrivals
from g2c_serving.schedule.prefix_tiers import PrefixCache

logger = logging.getLogger(__name__)

ARRIVAL = attrgetter("sequence_id")


class Queues:
    """Waiting and running requests, at most `max_running` of them."""

    def __init__(self, prefix_cache: PrefixCache, max_running: int) -> None:
        self.prefix_cache, self.block_manager = prefix_cache, prefix_cache.block_manager
        self.max_running = max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted: list[Request] = []  # until the engine takes note of them
        self.failed: list[Request] = []  # finished with an error, likewise
        self._parked: dict[int, Request] = {}  # waiting with blocks, by sequence id
        self.arrivals = Arrivals(prefix_cache)  # waiting with pages in host memory

    def add(self, request: Request) -> None:
        """Queue a request at the place of its arrival: one whose grammar had to be compiled comes
        late, one that was preempted comes back."""
        request.state = WAITING
        if not self.waiting or self.waiting[-1].sequence_id < request.sequence_id:
            return self.waiting.append(request)
        self.waiting.insert(bisect(self.waiting, request.sequence_id, key=ARRIVAL), request)

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` go on from where `parent` is, on the same blocks. It runs if there is a seat
        and nobody waits who came before it; else it is parked. The child of one that waits, that
        replays its window, or whose pages are not written yet waits like a new request."""
        if parent.is_replaying or not self.is_written(parent):
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
            self.add(child)

    def remove(self, request: Request) -> None:
        """Forget a request and take its blocks back."""
        if request.state == WAITING:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
        self._take_blocks(request)
        self.arrivals.forget(request, has_ended=True)

    def is_written(self, request: Request) -> bool:
        """Whether the request has blocks, and they hold what it counts as computed: after an error
        or an interrupt they may wait for a copy, or for what comes from disk or another engine."""
        table = self.block_manager.tables.get(request.sequence_id)
        return (
            table is not None
            and self.block_manager.copies.keys().isdisjoint(table)
            and all(load.request is not request for load in self.prefix_cache.loads)
            and self.arrivals.is_written(request)
        )

    def write_pages(self, pages: Any) -> None:
        """What the blocks of new owners need before a step: copies, wipes, what comes from disk or
        from another engine. Where that raises an Exception twice, all whose blocks the call was for
        end with an error, and nobody else. The asynchronous engine only notes the calls here; on
        its device one that fails twice ends the rows of its step."""
        failed: list[Request] = []
        while True:
            try:
                self.block_manager.prepare(pages)
                self.prefix_cache.load(pages)
                return self.arrivals.load(pages)
            except Exception as err:
                owners = self._waiting_for_pages()
                if not owners:
                    raise
                if owners != failed:
                    failed = owners
                    continue
                logger.error("%d requests end: their pages fail", len(owners), exc_info=err)
                for request in owners:
                    self._end(request, f"{type(err).__name__} when its pages were written: {err}")

    def _waiting_for_pages(self) -> list[Request]:
        """Whose pages the call is for that `write_pages` comes to next."""
        blocks = set(self.block_manager.copies or self.block_manager.fresh)
        if blocks:
            tables = self.block_manager.tables
            users = [*self.running, *self._parked.values()]
            return [r for r in users if blocks.intersection(tables.get(r.sequence_id, ()))]
        if self.prefix_cache.loads:
            return [self.prefix_cache.loads[0].request]
        return self.arrivals.next_written()

    def lose_all_blocks(self) -> None:
        """Nobody knows any more what the pages hold: everything is computed again."""
        self.block_manager.forget_names()
        for request in list(self.running):
            self._preempt(request)
        for request in self.waiting:
            self._take_blocks(request)

    def _run(self, request: Request) -> None:
        request.state = RUNNING
        insort(self.running, request, key=ARRIVAL)

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
        self.add(request)
        self.preempted.append(request)

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

    def _fail(self, request: Request) -> None:
        """It is longer than the pool."""
        self._end(
            request,
            f"{len(request.token_ids)} tokens need more than all {self.block_manager.num_blocks} "
            f"blocks of {self.block_manager.block_size}: raise EngineConfig.num_blocks",
        )

    def _end(self, request: Request, error: str) -> None:
        self.remove(request)
        for one in request.family:
            one.finish("error", error)
        self.failed += request.family
