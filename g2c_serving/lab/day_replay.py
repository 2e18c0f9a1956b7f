"""A day of traffic, served by a real engine on a clock of its own: what every visitor saw.

The clock jumps over idle time, as `workload.run` does, and a step takes what it took here: of the
processor's time (`cpu`), so that other programs on the machine matter less; of the wall clock
(`wall`), which alone shows what two threads win; or 1 (`steps`), the same on every machine. A
visitor who comes back does so some time after the last answer has ended, with what was really
written: a slow engine is not asked again before it has answered.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Sequence

from g2c_serving.engine import Engine
from g2c_serving.lab.day import Visit, new_tokens, params, starts
from g2c_serving.lab.day_result import Day, Mark, Served, Stream
from g2c_serving.output import RequestOutput

CLOCKS = ("cpu", "wall", "steps")
COUNTED = (
    "steps", "prefill_tokens", "decode_tokens", "cached_tokens", "preemptions", "verified",
    "accepted",
)  # fmt: skip


def replay(
    engine: Engine,
    visits: Sequence[Visit],
    hour: float,
    *,
    clock: str = "cpu",
    static: bool = False,
    after_step: Callable[[Engine], None] | None = None,
) -> Day:
    """Serve the whole day; an hour takes `hour` units of the clock.

    static      admit into an empty engine only, at most max_num_seqs requests
    after_step  called after every step
    RuntimeError for a request that ended with an error, or one that is lost.
    """
    return _Replay(engine, visits, hour, clock, static).run(after_step)


class _Replay:
    def __init__(
        self, engine: Engine, visits: Sequence[Visit], hour: float, clock: str, static: bool
    ) -> None:
        if clock not in CLOCKS:
            raise ValueError(f"clock={clock!r} must be one of {', '.join(CLOCKS)}")
        self.engine, self.visits, self.hour = engine, visits, hour
        self.clock, self.static, self.now = clock, static, 0.0
        self.busy, self.marks = 0.0, list[Mark]()
        self.coming = [(hour * at, k) for at, k in starts(visits)]  # sorted, so a heap
        self.followers: dict[int, int] = {}
        for k, visit in enumerate(visits):
            if visit.follows is not None:
                self.followers[visit.follows] = k
        self.served: dict[int, Served] = {}
        self.streams: dict[tuple[int, int], tuple[int, Stream]] = {}  # by request and sample
        self.unfinished: dict[int, int] = {}  # streams that are not at their end, by visit

    def run(self, after_step: Callable[[Engine], None] | None) -> Day:
        before = {name: getattr(self.engine.stats, name) for name in COUNTED}
        self.now = began = self.coming[0][0]
        while self.coming or self.engine.has_unfinished:
            if not self.engine.has_unfinished:
                self.now = max(self.now, self.coming[0][0])
            self._admit()
            for output in self._step():
                self._note(output)
            if after_step is not None:
                after_step(self.engine)
        if len(self.served) < len(self.visits) or self.streams:
            raise RuntimeError(
                f"{len(self.visits) - len(self.served)} of {len(self.visits)} visits were never "
                f"served, {len(self.streams)} answers have no end"
            )
        return self._day(began, before)

    def _admit(self) -> None:
        if self.static and self.engine.has_unfinished:
            return
        seats = self.engine.config.max_num_seqs if self.static else sys.maxsize
        while self.coming and self.coming[0][0] <= self.now and seats > 0:
            arrived, k = heapq.heappop(self.coming)
            visit, history = self.visits[k], list[int]()
            if visit.follows is not None:
                former = self.served[visit.follows]
                history = former.prompt + former.streams[0].ids
            prompt = history + list(visit.asks)
            how = params(self.engine.lm, visit)
            rid = self.engine.add(prompt, how, visit.tenant, visit.traffic)
            self.served[k] = Served(visit, arrived, prompt)
            for sample in range(visit.n):
                self._open(k, rid, sample)
            seats -= visit.n

    def _open(self, k: int, request_id: int, sample: int, given: int = 0) -> None:
        stream = Stream(given=given)
        self.served[k].streams.append(stream)
        self.streams[request_id, sample] = k, stream
        self.unfinished[k] = self.unfinished.get(k, 0) + 1

    def _step(self) -> list[RequestOutput]:
        start = self._time()
        outputs = self.engine.step()
        took = 1 if self.clock == "steps" else self._time() - start
        self.now, self.busy = self.now + took, self.busy + took
        queues, manager = self.engine.scheduler, self.engine.block_manager
        self.marks.append(
            Mark(self.now, len(queues.waiting), len(queues.running), manager.num_used)
        )
        return outputs

    def _time(self) -> float:
        """ms. Windows counts a thread's time in pieces of 16 ms: there it is the wall clock."""
        if self.clock == "cpu" and sys.platform != "win32":
            return 1e3 * time.thread_time()
        return 1e3 * time.perf_counter()

    def _note(self, output: RequestOutput) -> None:
        if output.finish_reason == "error":
            raise RuntimeError(f"request {output.request_id} ended with: {output.message}")
        k, stream = self.streams[output.request_id, output.sample_index]
        ids = output.token_ids
        if len(ids) > len(stream.ids):
            stream.times.append(self.now)
            stream.ids = ids
        self.served[k].num_cached = max(self.served[k].num_cached, output.num_cached_tokens)
        if output.finish_reason is not None:
            self._end(k, output)
        elif self.visits[k].fork_at is not None and len(self.served[k].streams) == 1:
            self._fork(k, output.request_id)

    def _fork(self, k: int, request_id: int) -> None:
        (request,) = self.engine.unfinished(request_id)
        if request.num_generated >= (self.visits[k].fork_at or 0):
            child = self.engine.fork(request_id)
            self._open(k, child, 0, request.num_generated)

    def _end(self, k: int, output: RequestOutput) -> None:
        """One of a visit's streams has ended; with the last, whoever follows starts to think."""
        _, stream = self.streams.pop((output.request_id, output.sample_index))
        stream.reason = output.finish_reason
        self.unfinished[k] -= 1
        if not self.unfinished[k] and k in self.followers:
            follower = self.followers[k]
            heapq.heappush(
                self.coming, (self.now + self.hour * self.visits[follower].time, follower)
            )

    def _day(self, began: float, before: dict[str, int]) -> Day:
        stats = self.engine.stats
        found = {name: getattr(stats, name) - before[name] for name in COUNTED}
        # the last token of an answer is computed only if somebody follows
        needed = new_tokens(self.visits) + len(self.followers)
        served = [self.served[k] for k in range(len(self.visits))]
        return Day(
            served,
            self.marks,
            duration=self.now - began,
            busy=self.busy,
            peak_blocks=stats.peak_blocks,
            rebuilt=found["prefill_tokens"] - needed,
            **found,
        )
