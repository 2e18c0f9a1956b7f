"""A folder of blocks and its index, kept in step: for several processes, killed at any moment.

    folder/index.sqlite3           what there is                 disk_index.py
    folder/<hash>.kv               one block, with a checksum    block_files.py
    folder/<hash>.<owner>.part     a block that is being written

Three rules:

1. A file has a row first. Its bytes count from then on, so what a killed writer leaves is known,
   stays within the capacity, and is removed by the first write that comes a minute later.
2. Files get and lose the name `.kv` inside a transaction of the index, and lose it before their
   row. A kill in between leaves a row without a file: a miss, and the row goes.
3. No reader trusts a file. What fails its checksum is a miss, and is removed.

A power cut may lose the last rows, which rule 1 does not cover: once a day, when it is opened, the
folder is compared with the index (disk_upkeep.py). All faults of the disk and of SQLite come out of
here as they are; disk_tier.py keeps them from the engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

from g2c_serving.schedule.block_files import HEADER_BYTES, BlockFiles
from g2c_serving.schedule.disk_index import INDEX, DiskIndex

DEAD_AT_ONCE = 1000  # removed by one write; more than it adds, so none stay for good


class DiskStore:
    """Blocks by hash in `folder`, which is made if need be: at most `capacity` bytes of files.
    `now` is in seconds since 1970 everywhere."""

    def __init__(self, folder: Path, capacity: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # keys and values are their texts
        self.files, self.index = BlockFiles(folder), DiskIndex(folder / INDEX)
        self.capacity = capacity

    def close(self) -> None:
        self.index.close()

    def match(self, hashes: Sequence[bytes], now: float) -> list[bytes]:
        """The leading hashes that can be read, by the index alone."""
        return list(takewhile(self.index.whole(hashes, now).__contains__, hashes))

    def read(
        self,
        hashes: Sequence[bytes],
        now: float,
        payloads: list[bytes],
        num_bytes: int | None = None,
    ) -> None:
        """Append the leading blocks' payloads, verified, and mark them as used."""
        for block_hash in self.match(hashes, now):
            payload = self._payload(block_hash, num_bytes)
            if payload is None:
                self._discard(block_hash, now, num_bytes)
                break
            payloads.append(payload)
        if payloads:
            with self.index.transaction():
                self.index.use(hashes[: len(payloads)], now)

    def write(
        self,
        blocks: Mapping[bytes, memoryview],
        used: Sequence[bytes],
        traffic: str,
        lifetime: float,
        now: float,
    ) -> int:
        """Store what is not there and fits, and mark `used` as used."""
        sizes = {h: HEADER_BYTES + len(payload) for h, payload in blocks.items()}
        owner = secrets.token_hex(4)
        with self.index.transaction():
            mine = self._make_room(sizes, used, now)
            self.index.reserve(mine, traffic, lifetime, owner, now)
            self.index.use(used, now, traffic, lifetime)
        whole: set[bytes] = set()
        try:
            for block_hash in mine:
                self.files.write_part(block_hash, owner, blocks[block_hash])
                whole.add(block_hash)
        finally:  # the disk is full, or a learner interrupts: keep what is whole
            stored = self._settle(mine, whole, owner)
        return stored

    def _make_room(
        self, sizes: Mapping[bytes, int], used: Sequence[bytes], now: float
    ) -> dict[bytes, int]:
        """The blocks that are not there, as many of the first as now fit."""
        dead = self.index.dead(now, DEAD_AT_ONCE)
        self.index.forget(h for h, owner in dead if self.files.remove(h, owner))
        there = self.index.present(list(sizes))
        missing = {h: size for h, size in sizes.items() if h not in there}
        self._evict(sum(missing.values()), set(used))
        room = self.capacity - self.index.num_bytes()
        ends = accumulate(missing.values())
        return {h: missing[h] for h, end in zip(missing, ends, strict=True) if end <= room}

    def _evict(self, needed: int, keep: Container[bytes]) -> None:
        """Remove least recently used blocks, except `keep`, until `needed` bytes fit."""
        excess = self.index.num_bytes() + min(needed, self.capacity) - self.capacity
        gone = []
        for block_hash, size in self.index.least_recent():
            if excess <= 0:
                break
            if block_hash not in keep and self.files.remove(block_hash):
                gone.append(block_hash)
                excess -= size
        self.index.forget(gone)

    def _settle(self, mine: Mapping[bytes, int], whole: set[bytes], owner: str) -> int:
        """Give whole blocks their names and take the others back; the number of the former."""
        with self.index.transaction():
            still_mine = self.index.owned(owner)
            done = {h for h in whole & still_mine if self.files.publish(h, owner)}
            self.files.delete(self.files.path(h, owner).name for h in mine if h not in done)
            self.index.publish(done)
            self.index.forget(still_mine - done)
        return len(done)

    def _payload(self, block_hash: bytes, num_bytes: int | None) -> bytes | None:
        """What the block's file holds; None for what is damaged, or has another length."""
        payload = self.files.read(block_hash, self.capacity)
        if payload is not None and num_bytes not in (None, len(payload)):
            return None
        return payload

    def _discard(self, block_hash: bytes, now: float, num_bytes: int | None) -> None:
        """Remove a block that is not what its row says, unless somebody has just replaced it."""
        with self.index.transaction():
            there = self.index.whole([block_hash], now)
            if not there or self._payload(block_hash, num_bytes) is not None:
                return
            if self.files.remove(block_hash):
                self.index.forget(there)
