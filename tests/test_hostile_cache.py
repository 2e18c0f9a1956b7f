"""The disk tier over a folder that somebody else may write to: names, rows and files that are not
what they should be cost the cache, never the engine, and nothing outside the folder is touched.

Right values: by hand. Damage by accident is in test_disk_faults.py.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from g2c_serving.cache_command import main
from g2c_serving.schedule.block_files import BlockFiles
from g2c_serving.schedule.disk_tier import DiskTier

A, B, C, NEW = (sha256(bytes([i])).digest() for i in range(4))
DAMAGED = "its index is damaged"
ROW = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
posix = pytest.mark.skipif(sys.platform == "win32", reason="no such files there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache of three blocks."""
    tier = DiskTier(tmp_path / "cache", 1000)
    assert tier.write([(h, b"x" * 100) for h in (A, B, C)], "chat") == 3
    tier.close()
    return tmp_path / "cache"


def sql(folder: Path, *statement) -> None:
    with closing(sqlite3.connect(folder / "v1/index.sqlite3", isolation_level=None)) as db:
        db.execute(*statement)


def file(folder: Path, block_hash: bytes) -> Path:
    return folder / "v1" / f"{block_hash.hex()}.kv"


# rows


@pytest.mark.parametrize(
    "name",
    ["../../victim", "x' OR 1=1 --", "\0", "\u202e", 5, 1.5, b"a" * 500, b"a", b"", b"\0" * 31],
)
def test_a_row_whose_hash_is_none_is_never_a_path(name, folder):
    """It is the first to be evicted."""
    sql(folder, ROW, (name, 900, "chat", 1e9, 0.0, 0.0, -1, None))
    tier = DiskTier(folder, 1000)
    assert tier.write([(NEW, b"y" * 100)], "chat") == 0 and DAMAGED in tier.problem
    assert tier.clear() == 3 and tier.problem is None
    assert tier.write([(NEW, b"y" * 100)], "chat") == 1


@posix
@pytest.mark.parametrize(
    "owner", ["/../../victim", "../victim", "a/../../../victim", "A", "", "\0"]
)
def test_a_row_of_a_dead_writer_removes_nothing_elsewhere(owner, folder):
    """Its file would be <hash>.<owner>.part, and that would be a way out."""
    victim = folder / "victim.part"
    victim.write_text("mine")
    (folder / "v1" / f"{NEW.hex()}.").mkdir()
    sql(folder, ROW, (NEW, 9, "chat", 1.0, 0.0, 0.0, -1, owner))
    tier = DiskTier(folder, 1000)
    tier.write([(sha256(b"z").digest(), b"y")], "chat")
    assert victim.read_text() == "mine" and DAMAGED in tier.problem


def test_names_of_ours_alone_become_paths(tmp_path):
    files = BlockFiles(tmp_path)
    assert files.path(A, "0f").name == f"{A.hex()}.0f.part"
    for owner in ("..", "0f/x", "0f\n", "é", "0F", "\\x"):
        with pytest.raises(ValueError, match="no file of ours"):
            files.path(A, owner)


@pytest.mark.parametrize(
    "change",
    [
        "traffic = '\x1b[2Jgone'", "traffic = x'00'", "last_use = 1e300", "last_use = 'soon'",
        "last_use = -5.0", "last_use = x'00'", "bytes = 'many'",
    ],
)  # fmt: skip
def test_what_a_row_says_is_not_printed_unless_it_can_be(change, folder, capsys):
    sql(folder, f"UPDATE blocks SET {change}")
    assert main(["info", "--dir", str(folder)]) == 1
    said = capsys.readouterr().out
    assert DAMAGED in said and "\x1b" not in said


def test_a_trigger_of_somebody_elses_never_runs(tmp_path):
    """It would, as the tables that it lacks are made."""
    (tmp_path / "v1").mkdir()
    sql(tmp_path, "CREATE TABLE folder (bytes INTEGER, swept REAL)")
    sql(tmp_path, "CREATE TABLE ran (x)")
    sql(tmp_path, "CREATE TRIGGER t AFTER INSERT ON folder BEGIN INSERT INTO ran VALUES (1); END")
    tier = DiskTier(tmp_path, 1000)
    assert DAMAGED in tier.problem
    with closing(sqlite3.connect(tmp_path / "v1/index.sqlite3")) as db:
        assert db.execute("SELECT count(*) FROM ran").fetchone() == (0,)


def test_an_index_that_is_text_pages_long_or_cut(folder):
    whole = (folder / "v1/index.sqlite3").read_bytes()
    for content in (b"SQLite format 3\0" + b"\xff" * 5000, whole[:4096], whole[:-100], b"a" * 99):
        (folder / "v1/index.sqlite3").write_bytes(content)
        tier = DiskTier(folder, 1000)
        assert tier.read([A]) in ([], [b"x" * 100])
        tier.clear()
        assert tier.write([(NEW, b"y")], "chat") == 1
        tier.close()


# files


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_huge(path: Path) -> None:
    with open(path, "wb") as sparse:
        sparse.truncate(1 << 40)


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "mine").touch()


def make_link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_text("mine")
    path.symlink_to(target)


@posix
@pytest.mark.parametrize("make", [make_pipe, make_endless, make_huge, make_folder, make_link])
def test_a_file_that_is_none_is_a_miss(make, folder):
    """No read waits for it, none takes its bytes, and its target stays."""
    file(folder, B).unlink()
    make(file(folder, B))
    tier = DiskTier(folder, 1000)
    assert tier.read([A, B, C]) == [b"x" * 100] and tier.problem is None
    assert tier.write([(B, b"new"), (NEW, b"y")], "chat") >= 1 and tier.problem is None
    assert tier.read([NEW]) == [b"y"]
    assert tier.clear() >= 3 and tier.problem is None
    if make is make_folder:
        assert (file(folder, B) / "mine").exists()
    if make is make_link:
        assert (folder / "elsewhere").read_text() == "mine"


@posix
def test_the_folder_is_its_owners_alone(folder):
    """Keys and values give away the texts that they were computed from."""
    assert stat.S_IMODE((folder / "v1").stat().st_mode) == 0o700
