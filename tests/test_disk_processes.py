"""A disk tier in several processes, and in ones that are killed: the right bytes or none, and never
more of them on disk than allowed."""

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from disk_writer import HASHES, payload

from g2c_serving.schedule.disk_index import INDEX
from g2c_serving.schedule.disk_tier import DiskTier

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="a process on Windows is not killed by a signal"
)
CAPACITY = 300_000
FOREVER = 10**9


def start(folder, seeds, ahead=0.0, rounds=FOREVER):
    """Processes that write and read, one for each seed; returns once all are at it."""
    script = str(Path(__file__).with_name("disk_writer.py"))
    processes = []
    for seed in seeds:
        arguments = map(str, [folder, CAPACITY, seed, ahead, rounds])
        command = [sys.executable, script, *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    assert all(process.stdout.readline() == "ready\n" for process in processes)
    return processes


def bytes_on_disk(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.suffix in (".kv", ".part"))


def read_all(tier):
    """How many blocks can be read, each with the right bytes."""
    found = 0
    for block_hash in HASHES:
        got = tier.read([block_hash])
        assert got in ([], [payload(block_hash)])
        found += len(got)
    return found


def kill_again_and_again(folder, rounds, seed):
    """Two processes at once, each killed at some moment; then look at what is left. The clock goes
    on by two minutes a round: by then the dead writers' blocks may be taken over."""
    rng, found = random.Random(seed), 0
    for ahead in range(0, 120 * rounds, 120):
        for process in start(folder, [rng.randrange(10**6), rng.randrange(10**6)], ahead):
            time.sleep(rng.uniform(0, 0.03))
            assert process.poll() is None, "it read wrong bytes, or raised"
            process.kill()
            process.communicate()
        assert bytes_on_disk(folder) <= CAPACITY
        tier = DiskTier(folder, CAPACITY, clock=lambda: time.time() + ahead)  # noqa: B023
        found += read_all(tier)
        tier.close()
    return found


def nothing_is_left_over(folder, ahead):
    """After one more write there is a row for each file, and a file for each row."""
    tier = DiskTier(folder, CAPACITY, clock=lambda: time.time() + ahead)
    read_all(tier)
    tier.write([(HASHES[0], payload(HASHES[0]))], "chat")
    files = {path.name for path in folder.rglob("*") if path.suffix in (".kv", ".part")}
    assert files == {f"{h.hex()}.kv" for h in tier.has(HASHES)}
    assert tier.info().bytes == bytes_on_disk(folder) <= CAPACITY
    assert tier.problem is None
    tier.close()


def test_kills_at_any_moment(tmp_path):
    assert kill_again_and_again(tmp_path, 10, seed=1) > 0
    nothing_is_left_over(tmp_path, ahead=10 * 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills(tmp_path, seed):
    assert kill_again_and_again(tmp_path, 100, seed) > 0
    nothing_is_left_over(tmp_path, ahead=100 * 120)


def test_two_processes_on_one_folder(tmp_path):
    processes = start(tmp_path, [1, 2], rounds=100)
    index = sqlite3.connect(tmp_path / "v1" / INDEX, timeout=10, isolation_level=None)
    while any(process.poll() is None for process in processes):
        index.execute("BEGIN IMMEDIATE")  # or files would get other names while we count
        assert bytes_on_disk(tmp_path) <= CAPACITY
        index.execute("ROLLBACK")
        time.sleep(0.01)
    index.close()
    for process in processes:
        process.communicate()
        assert process.returncode == 0, "it read wrong bytes, or raised"
    nothing_is_left_over(tmp_path, ahead=0)
