"""A disk tier on a disk or an index that fails: the engine goes on, one message says what to do.

In every case: nothing is raised, a match finds nothing, and no wrong byte is ever read.
"""

import errno
import random
import sqlite3
import sys
import threading
import time

import pytest
from disk_writer import HASHES, payload

from g2c_serving.__main__ import main
from g2c_serving.schedule import disk_tier
from g2c_serving.schedule.block_files import BlockFiles
from g2c_serving.schedule.disk_index import INDEX, DiskIndex
from g2c_serving.schedule.disk_store import DiskStore
from g2c_serving.schedule.disk_tier import DiskTier

BLOCKS = [(h, payload(h)) for h in HASHES[:4]]
CHAIN = [h for h, _ in BLOCKS]
PAYLOADS = [p for _, p in BLOCKS]


class Clock:
    now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def made():
    """Makes tiers, and closes them."""
    tiers = []

    def make(folder, capacity=10**6, **options):
        tiers.append(DiskTier(folder, capacity, **options))
        return tiers[-1]

    def close():
        while tiers:
            tiers.pop().close()

    make.close = close
    yield make
    close()


def does_nothing(tier):
    return (
        tier.match(CHAIN) == 0
        and tier.read(CHAIN) == []
        and tier.write(BLOCKS, "chat") == 0
        and tier.has(CHAIN) == set()
        and tier.info().blocks == 0
    )


def says(tier, caplog, *words):
    """One warning, with the folder and these words; `problem` says the same."""
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [tier.problem]
    return str(tier.folder) in tier.problem and all(word in tier.problem for word in words)


def break_writing(monkeypatch, fault, after=0):
    """The disk takes `after` blocks whole, half of the next, and then gives an OSError."""
    write_part, count = BlockFiles.write_part, iter(range(1000))

    def write(self, block_hash, owner, payload):
        whole = next(count) < after
        write_part(self, block_hash, owner, payload if whole else payload[: len(payload) // 2])
        if not whole:
            raise OSError(fault, "the disk's own words")

    monkeypatch.setattr(BlockFiles, "write_part", write)


def test_a_folder_below_a_file(tmp_path, made, caplog):
    (tmp_path / "file").write_text("")
    tier = made(tmp_path / "file" / "kv")
    assert tier.problem is not None and does_nothing(tier)
    assert says(tier, caplog, "cache_dir")


def test_a_folder_that_may_not_be_made(tmp_path, made, caplog, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    tier = made(tmp_path / "kv")
    assert does_nothing(tier) and says(tier, caplog, "Permission denied", "cache_dir")


def test_a_read_only_index(tmp_path, made, caplog, monkeypatch):
    """As on a disk that was mounted read-only. A block that is there can still be read, once."""
    made(tmp_path).write(BLOCKS, "chat")
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options),
    )
    tier = made(tmp_path)
    assert tier.write(BLOCKS, "chat") == 0 and does_nothing(tier)
    assert says(tier, caplog, "readonly", "may write")


def test_a_full_disk_keeps_what_is_whole(tmp_path, made, caplog, monkeypatch):
    tier = made(tmp_path)
    break_writing(monkeypatch, errno.ENOSPC, after=2)
    assert tier.write(BLOCKS, "chat") == 0
    assert tier.match(CHAIN) == 0 and tier.read(CHAIN) == [] and tier.has(CHAIN) == set()
    assert says(tier, caplog, "the disk's own words", "free some space", "cache_bytes")
    monkeypatch.undo()
    other = made(tmp_path)
    assert other.read(CHAIN) == PAYLOADS[:2]
    assert other.info().bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.kv"))
    assert not list(tmp_path.rglob("*.part"))
    assert other.write(BLOCKS, "chat") == 2


def test_a_full_disk_under_the_index(tmp_path, made, caplog):
    """SQLite itself finds no room: here a limit on its pages."""
    tier = made(tmp_path)
    tier._opened().index._db.execute("PRAGMA max_page_count = 1")
    many = [(h, b"x") for h in HASHES]
    assert tier.write(many, "chat") == 0 and tier.match(HASHES) == 0
    assert says(tier, caplog, "full", "free some space")
    assert not list(tmp_path.rglob("*.part"))


def test_it_tries_again_after_a_while(tmp_path, made, caplog, monkeypatch):
    tier = made(tmp_path)
    break_writing(monkeypatch, errno.EIO)
    assert tier.write(BLOCKS, "chat") == 0
    monkeypatch.undo()
    assert tier.write(BLOCKS, "chat") == 0, "it rests"
    moment = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: moment + disk_tier.REST_SECONDS)
    assert tier.write(BLOCKS, "chat") == 4 and tier.read(CHAIN) == PAYLOADS
    assert tier.problem is not None, "what last hampered it"


def test_the_same_fault_is_said_once(tmp_path, made, caplog, monkeypatch):
    monkeypatch.setattr(disk_tier, "REST_SECONDS", 0.0)
    tier = made(tmp_path)
    break_writing(monkeypatch, errno.EIO)
    assert [tier.write(BLOCKS, "chat") for _ in range(3)] == [0, 0, 0]
    assert says(tier, caplog)


def test_a_locked_index(tmp_path, made, caplog):
    """Another process holds it for long: half a second is lost, then nothing for ten."""
    tier = made(tmp_path)
    tier.write(BLOCKS, "chat")
    other = sqlite3.connect(tmp_path / "v1" / INDEX, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert tier.match(CHAIN) == 4, "looking up waits for nobody"
    start = time.monotonic()
    assert tier.write([(HASHES[9], b"x")], "chat") == 0
    assert does_nothing(tier)
    assert time.monotonic() - start < 5
    assert tier.clear() == 0, "asked for by hand, so it does try again"
    other.close()
    assert says(tier, caplog, "locked", "other process")
    tier._resume_at = 0.0
    assert tier.read(CHAIN) == PAYLOADS


def test_a_read_under_a_lock_still_gives_its_bytes(tmp_path, made):
    """Only the mark of use is lost."""
    tier = made(tmp_path)
    tier.write(BLOCKS, "chat")
    other = sqlite3.connect(tmp_path / "v1" / INDEX, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert tier.read(CHAIN) == PAYLOADS and "locked" in tier.problem
    other.close()


@pytest.mark.parametrize("content", [b"no database" * 500, "cut", "torn"])
def test_a_broken_index(tmp_path, made, caplog, content):
    tier = made(tmp_path)
    tier.write(BLOCKS, "chat")
    tier.close()
    path = tmp_path / "v1" / INDEX
    whole = path.read_bytes()
    if content == "cut":
        content = whole[: len(whole) // 2]
    elif content == "torn":
        content = whole[:4096] + b"\x55" * (len(whole) - 4096)
    path.write_bytes(content)
    tier = made(tmp_path)
    assert tier.match(CHAIN) == 0 and tier.read(CHAIN) == [] and tier.write(BLOCKS, "chat") == 0
    assert says(tier, caplog, "cache clear")
    assert tier.clear() == 4 and tier.problem is None
    assert tier.write(BLOCKS, "chat") == 4 and tier.read(CHAIN) == PAYLOADS


def test_an_index_damaged_anywhere(tmp_path, made, monkeypatch):
    """Bytes of it at random: no exception, no wrong payload, and clearing heals it."""
    monkeypatch.setattr(disk_tier, "REST_SECONDS", 0.0)
    made(tmp_path).write(BLOCKS, "chat")
    path, rng = tmp_path / "v1" / INDEX, random.Random(5)
    for _ in range(20):
        made.close()
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 10, 100])):
            data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(data)
        tier = made(tmp_path)
        for _ in range(2):
            assert tier.match(CHAIN) <= 4 and tier.has(CHAIN) <= set(CHAIN)
            got = tier.read(CHAIN)
            assert got == PAYLOADS[: len(got)]
            tier.write(BLOCKS, "agent")
            tier.info()
        tier.clear()
        assert tier.write(BLOCKS, "chat") == 4 and tier.read(CHAIN) == PAYLOADS


@pytest.mark.parametrize("content", [b"", b"x"])
def test_an_empty_index_file_is_a_new_index(tmp_path, made, content):
    """SQLite takes it so. Files without rows go."""
    tier = made(tmp_path)
    tier.write(BLOCKS, "chat")
    tier.close()
    (tmp_path / "v1" / INDEX).write_bytes(content)
    tier = made(tmp_path)
    assert tier.problem is None and tier.match(CHAIN) == 0
    assert not list(tmp_path.rglob("*.kv"))


def test_an_index_with_other_tables(tmp_path, made, caplog):
    """Say, of a version that changed the tables and forgot to count the layout up."""
    tier = made(tmp_path)
    tier.write(BLOCKS, "chat")
    tier.close()
    db = sqlite3.connect(tmp_path / "v1" / INDEX)
    db.execute("ALTER TABLE blocks RENAME COLUMN traffic TO kind")
    db.close()
    tier = made(tmp_path)
    assert does_nothing(tier) and says(tier, caplog, "damaged", "cache clear")
    assert tier.clear() == 4 and tier.write(BLOCKS, "chat") == 4 and tier.problem is None


def test_an_older_layout_is_not_read_and_can_be_cleared(tmp_path, made, caplog):
    old = made(tmp_path)
    old.write(BLOCKS, "chat")
    old.close()
    (tmp_path / "v1").rename(tmp_path / "v0")
    (tmp_path / "v0" / "notes.txt").write_text("somebody's own")
    tier = made(tmp_path)
    assert tier.match(CHAIN) == 0 and tier.read(CHAIN) == []
    assert says(tier, caplog, "another layout", "cache clear")
    assert tier.write(BLOCKS[:1], "chat") == 1, "it works beside them"
    assert tier.clear() == 5 and tier.problem is None
    assert [path.name for path in (tmp_path / "v0").iterdir()] == ["notes.txt"]
    assert made(tmp_path).problem is None


def test_a_capacity_smaller_than_a_block(tmp_path, made, caplog):
    tier = made(tmp_path, 500)
    assert does_nothing(tier) and does_nothing(tier)
    assert says(tier, caplog, "capacity of 500 bytes", "cache_bytes")
    assert not list(tmp_path.rglob("*.kv"))


def test_no_capacity_at_all(tmp_path, made, caplog):
    tier = made(tmp_path, 0)
    assert tier.write(BLOCKS, "chat") == 0 and tier.match(CHAIN) == 0
    assert says(tier, caplog, "capacity of 0 bytes")


def test_a_block_that_fits_is_stored_beside_one_that_does_not(tmp_path, made):
    tier = made(tmp_path, 2000)
    assert tier.write([(HASHES[0], bytes(500)), (HASHES[1], bytes(5000))], "chat") == 1
    assert tier.match(HASHES[:2]) == 1


def test_the_folder_goes_away_under_a_running_tier(tmp_path, made):
    tier = made(tmp_path / "kv")
    tier.write(BLOCKS, "chat")
    (tmp_path / "kv").rename(tmp_path / "elsewhere")
    assert tier.read(CHAIN) == [] and tier.write(BLOCKS, "chat") == 0
    tier._resume_at = 0.0
    assert tier.write(BLOCKS, "chat") == 4 and tier.read(CHAIN) == PAYLOADS


# A writer that dies, or sleeps.


def dying(monkeypatch, tier):
    """`tier` writes, and is gone before it can say that the blocks are whole."""

    def killed(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "_settle", killed)
        with pytest.raises(SystemExit):
            tier.write(BLOCKS, "chat")
    tier.close()


def test_what_a_dead_writer_left_goes_after_a_minute(tmp_path, made, monkeypatch):
    clock = Clock()
    dying(monkeypatch, made(tmp_path, clock=clock))
    tier = made(tmp_path, clock=clock)
    assert tier.match(CHAIN) == 0 and tier.has(CHAIN) == set(CHAIN), "somebody may be at it"
    assert tier.write(BLOCKS, "chat") == 0 and len(list(tmp_path.rglob("*.part"))) == 4
    assert tier.info().bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.part"))
    clock.now += 61
    assert tier.has(CHAIN) == set()
    assert tier.write(BLOCKS, "chat") == 4 and tier.read(CHAIN) == PAYLOADS
    assert not list(tmp_path.rglob("*.part"))


def test_what_a_writer_with_a_wrong_clock_left_goes_too(tmp_path, made, monkeypatch):
    clock, wrong = Clock(), Clock()
    wrong.now += 10**9
    dying(monkeypatch, made(tmp_path, clock=wrong))
    tier = made(tmp_path, clock=clock)
    assert tier.has(CHAIN) == set() and tier.write(BLOCKS, "chat") == 4


def test_a_writer_that_wakes_up_late_harms_nobody(tmp_path, made, monkeypatch):
    """It slept for an hour in the middle of a write, as a closed laptop does. Meanwhile another
    one took its blocks over."""
    clock = Clock()
    sleeper, other = made(tmp_path, clock=clock), made(tmp_path, clock=clock)
    write_part, slept = BlockFiles.write_part, []

    def sleep_once(self, block_hash, owner, payload):
        write_part(self, block_hash, owner, payload)
        if not slept:
            slept.append(True)
            clock.now += 3600
            assert other.write(BLOCKS, "chat") == 4

    monkeypatch.setattr(BlockFiles, "write_part", sleep_once)
    assert sleeper.write(BLOCKS, "chat") == 0
    assert sleeper.read(CHAIN) == other.read(CHAIN) == PAYLOADS
    assert not list(tmp_path.rglob("*.part")) and sleeper.problem is None


def test_an_interrupt_keeps_what_is_whole(tmp_path, made, monkeypatch):
    """The stop button of the notebook, in the middle of a write."""
    tier, write_part, count = made(tmp_path), BlockFiles.write_part, iter(range(9))

    def interrupted(self, block_hash, owner, payload):
        if next(count) == 2:
            raise KeyboardInterrupt
        write_part(self, block_hash, owner, payload)

    monkeypatch.setattr(BlockFiles, "write_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tier.write(BLOCKS, "chat")
    monkeypatch.undo()
    assert tier.read(CHAIN) == PAYLOADS[:2] and tier.write(BLOCKS, "chat") == 2
    assert not list(tmp_path.rglob("*.part"))


def test_once_a_day_the_folder_is_compared_with_the_index(tmp_path, made):
    """As after a power cut that took the last rows, or the last files."""
    clock = Clock()
    tier = made(tmp_path, clock=clock)
    tier.write(BLOCKS, "chat")
    place = tmp_path / "v1"
    orphan = place / f"{HASHES[20].hex()}.kv"
    part = place / f"{HASHES[21].hex()}.0badcafe.part"
    stranger = place / "notes.kv"
    for path in (orphan, part, stranger):
        path.write_bytes(b"?")
    (place / f"{CHAIN[1].hex()}.kv").unlink()
    tier.close()
    clock.now += 86_399
    assert tier.match(CHAIN) == 4 and orphan.exists()
    tier.close()
    clock.now += 1
    assert tier.match(CHAIN) == 1 and tier.info().blocks == 3
    assert not orphan.exists() and not part.exists() and stranger.exists()


# Windows neither removes nor replaces a file that somebody has open.


@pytest.mark.skipif(sys.platform == "win32", reason="plays Windows")
def test_a_file_that_cannot_be_removed_is_passed_over(tmp_path, made, monkeypatch):
    sizes = [len(p) + 84 for p in PAYLOADS]
    tier = made(tmp_path, sum(sizes))
    tier.write(BLOCKS, "chat")
    held, unlink = tmp_path / "v1" / f"{CHAIN[3].hex()}.kv", type(tmp_path).unlink

    def refuse(self, missing_ok=False):
        if self == held:
            raise PermissionError(errno.EACCES, "in use")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(type(tmp_path), "unlink", refuse)
    assert tier.write([(HASHES[9], bytes(500))], "chat") == 1
    assert tier.has(CHAIN) == {CHAIN[0], CHAIN[1], CHAIN[3]} and tier.problem is None


@pytest.mark.skipif(sys.platform == "win32", reason="plays Windows")
def test_a_name_that_cannot_be_taken_is_passed_over(tmp_path, made, monkeypatch):
    tier = made(tmp_path)

    def refuse(*_):
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr("os.replace", refuse)
    assert tier.write(BLOCKS, "chat") == 0 and tier.problem is None
    monkeypatch.undo()
    assert tier.has(CHAIN) == set() and not list(tmp_path.rglob("*.part"))
    assert tier.write(BLOCKS, "chat") == 4


def test_threads_share_a_tier(tmp_path, made):
    tier, wrong = made(tmp_path, 60_000), []

    def work(start):
        for turn in range(15):
            some = [HASHES[(start + 3 * turn + i) % 20] for i in range(4)]
            tier.write([(h, payload(h)) for h in some], "chat")
            wrong.extend(h for h, p in zip(some, tier.read(some), strict=False) if p != payload(h))

    threads = [threading.Thread(target=work, args=(5 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and tier.problem is None and tier.info().bytes <= 60_000


def test_an_index_alone_raises(tmp_path):
    """What the tier turns into a message is an error for who uses the index itself."""
    (tmp_path / INDEX).write_bytes(b"no database" * 500)
    with pytest.raises(sqlite3.DatabaseError):
        DiskIndex(tmp_path / INDEX)


def test_files_whose_index_is_gone_are_cleared_too(tmp_path, capsys):
    tier = DiskTier(tmp_path, 10**7)
    tier.write([(h, payload(h)) for h in HASHES[:3]], "chat")
    tier.close()
    for path in tmp_path.rglob("index*"):
        path.unlink()
    assert main(["cache", "clear", "--dir", str(tmp_path)]) == 0
    assert "removed" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.kv"))
