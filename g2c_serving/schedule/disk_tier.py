"""The disk tier: blocks of the KV cache that outlive the request, the engine and the process.

DeepInfer keeps its global blocks on a cluster of SSDs (3FS, about 100 PiB), 3 days for agents and 7
for chats, least recently used out first (Reported; Brief, section 2). Its code is not released, so
this one is ours: a folder of files with an index in SQLite, which several processes may share and
which survives a kill at any moment (disk_store.py says how).

This file is its face to the engine. No fault of the disk or the index passes it. A fault is logged
once, with its remedy, and kept in `problem`; the tier answers "nothing here" for ten seconds and
then opens the folder anew.

Left out: the cluster, reading ahead, compression. A forked child makes its own tier; threads may
share one. The index file itself, about 250 bytes a block, does not count in the capacity.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from g2c_serving.checks import as_int
from g2c_serving.schedule.block_files import HEADER_BYTES, LAYOUT, flat
from g2c_serving.schedule.disk_faults import CLEAR, FAULTS, RAISE, fault_and_remedy, is_broken
from g2c_serving.schedule.disk_store import DiskStore
from g2c_serving.schedule.disk_upkeep import clear, demolish, other_layouts, sweep

if TYPE_CHECKING:
    from typing_extensions import Buffer

LIFETIMES = {"agent": 3 * 86_400, "chat": 7 * 86_400}  # seconds since the last use
REST_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiskInfo:
    """What a folder holds. `by_traffic`: class -> (blocks, bytes); uses in seconds since 1970."""

    folder: Path
    blocks: int = 0
    bytes: int = 0
    by_traffic: dict[str, tuple[int, int]] = field(default_factory=dict)
    oldest_use: float | None = None
    newest_use: float | None = None


class _Resting(Exception):
    """The tier does not try again yet."""


class DiskTier:
    """Blocks by hash (32 bytes each) in a folder, at most `capacity_bytes` of files. A block lives
    for the lifetime of the traffic class it was stored with; one that two use keeps the longer.

    clock       seconds since 1970, the same for all who share the folder

    ValueError for a negative capacity, a hash of another length, an unknown traffic class. Nothing
    is raised for what the disk or the index does: `problem` says why the tier is off, or what last
    hampered it.
    """

    def __init__(
        self, folder: str | Path, capacity_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self.capacity = Path(folder), as_int("capacity_bytes", capacity_bytes, 0)
        self.clock = clock
        self.problem: str | None = None
        self._store: DiskStore | None = None
        self._resume_at = 0.0
        self._said: set[str] = set()
        self._lock = threading.RLock()
        with self._tolerant():
            self._opened()

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks the index has. Reads no file: what a router asks."""
        with self._tolerant():
            return len(self._opened().match(hashes, self.clock()))
        return 0

    def has(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Which of them need no writing."""
        with self._tolerant():
            return self._opened().index.settled(hashes, self.clock())
        return set()

    def read(self, hashes: Sequence[bytes], num_bytes: int | None = None) -> list[bytes]:
        """The payloads of the leading blocks, each one verified; marks them as used. With
        `num_bytes`, a block of another length counts as damaged."""
        payloads: list[bytes] = []
        with self._tolerant():
            self._opened().read(hashes, self.clock(), payloads, num_bytes)
        return payloads

    def write(
        self,
        blocks: Sequence[tuple[bytes, Buffer]],
        traffic: str,
        *,
        prompt: Sequence[bytes] = (),
    ) -> int:
        """Store (hash, payload) pairs, blocks of one prompt in order; how many were stored.

        A block that is there is not written again, only marked as used. So are those of `prompt`,
        all hashes of that prompt, which a caller who leaves out what `has` knows should give.
        Others make room, least recently used first. Where all do not fit, the first are stored.
        """
        lifetime = _lifetime(traffic)
        payloads = {block_hash: flat(payload) for block_hash, payload in blocks}
        if any(len(block_hash) != 32 for block_hash in payloads):
            raise ValueError("every block's hash must have 32 bytes, as hash_chain gives them")
        with self._tolerant():
            largest = HEADER_BYTES + max(map(len, payloads.values()), default=0)
            if payloads and largest > self.capacity:
                self._report(f"a block of {largest:,} bytes is larger than the capacity of "
                             f"{self.capacity:,} bytes", RAISE)  # fmt: skip
            used = prompt or list(payloads)
            return self._opened().write(payloads, used, traffic, lifetime, self.clock())
        return 0

    def info(self) -> DiskInfo:
        """What the folder holds now, blocks that are being written included."""
        with self._tolerant():
            index = self._opened().index
            classes, (oldest, newest) = index.by_traffic(), index.uses()
            blocks, size = map(sum, zip((0, 0), *classes.values(), strict=True))
            return DiskInfo(self.folder, blocks, size, classes, oldest, newest)
        return DiskInfo(self.folder)

    def clear(self) -> int:
        """Remove every block, and whatever other layouts left; how many blocks went. A broken
        index is replaced by a new one."""
        removed, self._resume_at = 0, 0.0
        with self._tolerant():
            try:
                removed = clear(self._opened())
            except FAULTS as fault:
                if not is_broken(fault):
                    raise
                self.close()
                removed = demolish(self._place)
                self._opened()
            removed += sum(demolish(folder) for folder in other_layouts(self.folder))
            self.problem = None
        return removed

    def close(self) -> None:
        """Let go of the index. The next call opens it again."""
        with self._lock, suppress(sqlite3.Error):
            store, self._store = self._store, None
            if store is not None:
                store.close()

    @property
    def _place(self) -> Path:
        return self.folder / f"v{LAYOUT}"

    def _opened(self) -> DiskStore:
        """The store; opened, if need be, unless the tier rests."""
        if self._store is None:
            if time.monotonic() < self._resume_at:
                raise _Resting
            self._store = DiskStore(self._place, self.capacity)
            if other_layouts(self.folder):
                self._report("it also holds blocks of another layout, which are not read", CLEAR)
            sweep(self._store, self.clock())
        return self._store

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """One thread at a time; a fault in here costs the cache, never the engine."""
        with self._lock:
            try:
                yield
            except _Resting:
                pass
            except FAULTS as fault:
                self._report(*fault_and_remedy(fault))
                self.close()
                self._resume_at = time.monotonic() + REST_SECONDS

    def _report(self, fault: str, remedy: str) -> None:
        """Say it once, with the folder, the fault and the remedy."""
        remedy = remedy.format(folder=self.folder)
        self.problem = f"disk cache {self.folder}: {fault}. The engine goes on; {remedy}."
        if self.problem not in self._said:
            self._said.add(self.problem)
            logger.warning("%s", self.problem)


def _lifetime(traffic: str) -> float:
    if traffic not in LIFETIMES:
        raise ValueError(f"traffic={traffic!r} must be one of {', '.join(map(repr, LIFETIMES))}")
    return LIFETIMES[traffic]
