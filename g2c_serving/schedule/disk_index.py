"""The index of the disk tier: which blocks there are, how large, for whom, and last used when.

SQLite, one row a block. Journal mode WAL, because looking a prompt up must not wait for another
process that writes: a reader sees the last finished transaction. Two writers wait for each other,
half a second at most. `synchronous=NORMAL`, because a commit then costs no flush of the disk: a
killed process loses nothing, a power cut may lose the last rows but never the index. WAL needs
shared memory, so the folder must lie on a disk of this machine, not on a network drive.

    turn     the order of use, counted here and not by a clock: the smallest is evicted first
    owner    who is still writing the block; NULL once its file is whole

The sum of the bytes is kept by triggers, inside the transaction that changes it, so it costs the
same for ten blocks and for a million. This file knows SQL and no files; disk_store.py knows both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

INDEX = "index.sqlite3"
BUSY_SECONDS = 0.5
GRACE_SECONDS = 60.0  # who has been writing a block for longer is gone, or its clock was wrong
YEAR_9999 = 253_370_764_800.0  # its begin, in seconds since 1970: what a date can be made of
_AT_ONCE = 500  # hashes in one query

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS blocks (
    hash BLOB PRIMARY KEY, bytes INTEGER NOT NULL, traffic TEXT NOT NULL, lifetime REAL NOT NULL,
    stored REAL NOT NULL, last_use REAL NOT NULL, turn INTEGER NOT NULL, owner TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_turn ON blocks (turn);
CREATE INDEX IF NOT EXISTS by_end ON blocks (last_use + lifetime);
CREATE INDEX IF NOT EXISTS being_written ON blocks (stored) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS folder (bytes INTEGER, swept REAL);
INSERT INTO folder SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM folder);
CREATE TRIGGER IF NOT EXISTS count_in AFTER INSERT ON blocks BEGIN
    UPDATE folder SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER IF NOT EXISTS count_out AFTER DELETE ON blocks BEGIN
    UPDATE folder SET bytes = bytes - old.bytes;
END;
PRAGMA user_version = 1;
COMMIT;
"""
# The plus keeps SQLite from walking by_end where it should look the hashes up.
_WHOLE = "owner IS NULL AND +last_use + lifetime > ?"
_SETTLED = f"({_WHOLE} OR owner IS NOT NULL AND stored BETWEEN ? AND ?)"


class DiskIndex:
    """One connection. Every change belongs inside `with index.transaction():`. Raises
    sqlite3.Error as SQLite gives it, and ValueError for a file that is no index of ours. Not to be
    taken through a fork."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if _tables(self._db) - _our_tables():  # before a trigger of theirs can run
                raise ValueError(f"{path} has tables that are not ours")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            if self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                self._db.executescript(_SCHEMA)
            if _tables(self._db) != _our_tables():
                raise ValueError(f"{path} has not the tables of this layout")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, and no other process changes the index meanwhile."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # Looking up needs no transaction and waits for nobody.

    def whole(self, hashes: Sequence[bytes], now: float) -> set[bytes]:
        """Those that can be read: whole, and not at the end of their lifetime."""
        return self._which(hashes, _WHOLE, now)

    def settled(self, hashes: Sequence[bytes], now: float) -> set[bytes]:
        """Those that need no writing: whole, or being written by someone at this moment."""
        return self._which(hashes, _SETTLED, now, now - GRACE_SECONDS, now + GRACE_SECONDS)

    def present(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Those that have a row, whatever it says."""
        return self._which(hashes, "TRUE")

    def _which(self, hashes: Sequence[bytes], condition: str, *values: float) -> set[bytes]:
        found: set[bytes] = set()
        for start in range(0, len(hashes), _AT_ONCE):
            some = hashes[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT hash FROM blocks WHERE hash IN ({marks}) AND {condition}"
            found.update(row[0] for row in self._db.execute(query, (*some, *values)))
        return found

    def num_bytes(self) -> int:
        return self._db.execute("SELECT bytes FROM folder").fetchone()[0]

    def dead(self, now: float, limit: int) -> list[tuple[bytes, str | None]]:
        """(hash, owner) of blocks that nobody will read again: their writer is gone, or their
        lifetime is over."""
        query = """SELECT hash, owner FROM blocks WHERE owner IS NOT NULL
            AND stored NOT BETWEEN ? AND ?
            UNION ALL SELECT hash, owner FROM blocks WHERE last_use + lifetime <= ? LIMIT ?"""
        values = (now - GRACE_SECONDS, now + GRACE_SECONDS, now, limit)
        return self._db.execute(query, values).fetchall()

    def least_recent(self) -> Iterator[tuple[bytes, int]]:
        """(hash, bytes) of whole blocks, the one whose last use is longest ago first. Read only
        as far as it is asked for."""
        yield from self._db.execute(
            "SELECT hash, bytes FROM blocks WHERE owner IS NULL ORDER BY turn"
        )

    # Changes, inside a transaction.

    def reserve(
        self, sizes: Mapping[bytes, int], traffic: str, lifetime: float, owner: str, now: float
    ) -> None:
        """A row for each block that `owner` is about to write; its bytes count from here on."""
        self._db.executemany(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
            [(h, size, traffic, lifetime, now, now, owner) for h, size in sizes.items()],
        )

    def owned(self, owner: str) -> set[bytes]:
        """Blocks that `owner` reserved and nobody has taken back."""
        query = "SELECT hash FROM blocks WHERE owner IS NOT NULL AND owner = ?"
        return {row[0] for row in self._db.execute(query, (owner,))}

    def publish(self, hashes: Iterable[bytes]) -> None:
        """Their files are whole."""
        query = "UPDATE blocks SET owner = NULL WHERE hash = ?"
        self._db.executemany(query, [(h,) for h in hashes])

    def forget(self, hashes: Iterable[bytes]) -> None:
        self._db.executemany("DELETE FROM blocks WHERE hash = ?", [(h,) for h in hashes])

    def use(
        self, hashes: Sequence[bytes], now: float, traffic: str = "", lifetime: float = 0.0
    ) -> None:
        """Mark the blocks of one prompt as used now, its first block as the most recent: the
        rest of a prompt is worth nothing without its beginning. The longer lifetime stays."""
        last = self._db.execute("SELECT max(turn) FROM blocks").fetchone()[0] or 0
        self._db.executemany(
            """UPDATE blocks SET last_use = ?, turn = ?, lifetime = max(lifetime, ?),
            traffic = CASE WHEN ? > lifetime THEN ? ELSE traffic END WHERE hash = ?""",
            [
                (now, turn, lifetime, lifetime, traffic, h)
                for turn, h in enumerate(reversed(hashes), last + 1)
            ],
        )

    # For the command line and the daily look at the folder.

    def swept(self) -> float:
        """When the folder was last compared with the index."""
        return self._db.execute("SELECT swept FROM folder").fetchone()[0]

    def set_swept(self, now: float) -> None:
        self._db.execute("UPDATE folder SET swept = ?", (now,))

    def rows(self) -> list[tuple[bytes, str | None]]:
        """(hash, owner) of every block."""
        return self._db.execute("SELECT hash, owner FROM blocks").fetchall()

    def check(self) -> None:
        """ValueError if SQLite finds its file damaged. Reads all of it."""
        verdict = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if verdict != "ok":
            raise ValueError(verdict)

    def by_traffic(self) -> dict[str, tuple[int, int]]:
        """Traffic class -> (blocks, bytes). ValueError for what is no name, no number of bytes."""
        query = "SELECT traffic, count(*), sum(bytes) FROM blocks GROUP BY traffic ORDER BY traffic"
        found = {traffic: (blocks, size) for traffic, blocks, size in self._db.execute(query)}
        for traffic, (_, size) in found.items():
            if not (isinstance(traffic, str) and traffic.isprintable() and isinstance(size, int)):
                raise ValueError(f"a row has the traffic class {traffic!r:.80}, {size!r:.80} bytes")
        return found

    def uses(self) -> tuple[float | None, float | None]:
        """The oldest and the newest last use; None where there is no block. ValueError for what is
        no time from 1970 to the year 9999."""
        query = "SELECT min(last_use), max(last_use) FROM blocks"
        found = self._db.execute(query).fetchone()
        for use in found:
            if use is not None and not (isinstance(use, float) and 0 <= use < YEAR_9999):
                raise ValueError(f"a row has the last use {use!r:.80}")
        return found


def _tables(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """All tables, indexes and triggers, with the text that made them."""
    return set(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


@cache
def _our_tables() -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(_SCHEMA)
        return _tables(db)
