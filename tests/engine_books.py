"""What must be true of an engine of the fakes between any two calls: its queues, its blocks, what
the pages hold, and what the names of blocks say of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from fakes import FakeCache

import g2c_serving as g
from g2c_serving.request import COMPILING, EXPECTED, RUNNING, WAITING, Request
from g2c_serving.schedule.block_hash import hash_chain

# of what examples must hold to say something
LEAST = {
    "preemptions": 15, "cached": 8, "accepted": 50, "rejected": 50, "stop": 40, "length": 150,
    "abort": 60, "error": 25, "Engine steps": 400, "AsyncEngine steps": 400,
}  # fmt: skip


class Books:
    """Kept over the engines of one folder, one after the other. `seen`: what came about, with all
    engines of all."""

    seen: Counter[str] = Counter()

    def __init__(self) -> None:
        self.meaning: dict[bytes, list[int]] = {}  # of every name that may be given: the tokens
        self.texts: dict[tuple[int, int], tuple[str, list[int]]] = {}  # by engine and sequence
        self.engines = self.steps = 0

    def open(self) -> None:
        """Another engine begins."""
        self.engines, self.steps = self.engines + 1, 0

    def close(self, engine: Any) -> None:
        """An engine has ended."""
        stats = engine.stats
        self.seen.update(preemptions=stats.preemptions, cached=stats.cached_tokens > 0)
        self.seen.update(accepted=stats.accepted, rejected=stats.verified - stats.accepted)
        self.seen[f"{type(engine).__name__} steps"] += stats.steps

    def check(self, engine: Any) -> None:
        engine.block_manager.check()
        requests = [one for samples in engine._requests.values() for one in samples]
        check_queues(engine, requests)
        self.check_steps(engine)
        for one in requests:
            self.learn(engine, one)
        if engine.is_settled:
            for one in requests:
                check_pages(engine, one)
            self.check_names(engine)

    def learn(self, engine: Any, one: Request) -> None:
        """A request as it stands: the names of its blocks, worked out anew."""
        key = self.engines, one.sequence_id
        if key in self.texts and self.texts[key][1] == one.token_ids:
            return
        self.texts[key] = one.cache_salt, list(one.token_ids)
        size = engine.config.block_size
        fingerprint = engine.prefix_cache.fingerprint
        for i, name in enumerate(hash_chain(one.token_ids, size, one.cache_salt, fingerprint)):
            self.meaning[name] = one.token_ids[i * size : (i + 1) * size]

    def most_cached(self, output: g.RequestOutput) -> int:
        """As many of its prompt's tokens can have been found: what others of its tenant had."""
        mine, tenant = output._request.sequence_id, output._request.cache_salt
        others = [
            tokens
            for (engine, sequence_id), (salt, tokens) in self.texts.items()
            if salt == tenant and (engine, sequence_id) != (self.engines, mine)
        ]
        return max([common(output.prompt_token_ids, tokens) for tokens in others], default=0)

    def check_steps(self, engine: Any) -> None:
        """No step has more tokens than it may, or two rows of one request."""
        for record in list(engine.history)[self.steps :]:
            assert record.num_tokens <= engine.config.max_num_batched_tokens, record
            rows = [(row.request_id, row.sample_index) for row in record.rows]
            assert len(set(rows)) == len(rows) <= engine.config.max_num_seqs, record
        self.steps = len(engine.history)

    def check_names(self, engine: Any) -> None:
        """Each says what the block holds, for the drafter, too."""
        for block, name in engine.block_manager.hash_of.items():
            for cache in caches(engine):
                assert cache.tokens[block].tolist() == self.meaning[name], f"block {block}"


def caches(engine: Any) -> list[FakeCache]:
    return [engine.cache] + ([] if engine.speculator is None else [engine.speculator.drafter.cache])


def common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def check_queues(engine: Any, requests: list[Request]) -> None:
    """Each request stands in one place, in order of arrival; who waits holds nothing unparked."""
    scheduler, tables = engine.scheduler, engine.block_manager.tables
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    assert len(running) <= engine.config.max_num_seqs
    for queue, state in ((running, RUNNING), (waiting, WAITING)):
        ids = [one.sequence_id for one in queue]
        assert ids == sorted(set(ids)), f"{state} out of order: {ids}"
        assert sorted(ids) == sorted(r.sequence_id for r in requests if r.state == state), state
    places = [one for one in requests if one.state in (RUNNING, WAITING)]
    places += [request for request, _ in engine.waiting_room._waiting.values()]
    expected = [sibling for one in places for sibling in one.siblings]
    assert all(one.state == EXPECTED for one in expected)
    assert all(one.state == COMPILING for one in places if one not in running + waiting)
    everybody = sorted(one.sequence_id for one in places + expected)
    assert everybody == sorted(one.sequence_id for one in requests), "a request in no queue"
    holders = {one.sequence_id for one in running} | scheduler._parked.keys()
    assert tables.keys() == holders, f"{sorted(holders)} should hold blocks: {tables}"
    assert scheduler._parked.keys() <= {one.sequence_id for one in waiting}
    assert not scheduler.failed


def check_pages(engine: Any, one: Request) -> None:
    """What counts as computed is in its blocks, in those of the drafter and of the window too."""
    table = engine.block_manager.tables.get(one.sequence_id)
    count, ready = one.num_settled, one.num_ready
    if table is None:
        assert count == ready == 0, f"{one.sequence_id} has computed {count} in no block"
        return
    known = one.token_ids
    assert engine.cache.tokens[table].flatten()[:count].tolist() == known[:count]
    window = engine.lm.config.window
    if window:
        first = max(count - window, one.window_start)
        assert engine.cache.window[table].flatten()[first:count].tolist() == known[first:count]
    if engine.speculator is not None:
        drafted = engine.speculator.drafter.cache.tokens
        assert drafted[table].flatten()[:ready].tolist() == known[:ready]
