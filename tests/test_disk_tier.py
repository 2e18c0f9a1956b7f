"""The disk tier: what is stored comes back, as long as its lifetime and its turn allow, or not at
all. Sizes and times by hand; order of use against a naive model."""

import hashlib
import math
import os
import struct
import tempfile
import time

import numpy as np
import pytest
from disk_writer import HASHES, payload
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.__main__ import main
from g2c_serving.schedule import disk_index
from g2c_serving.schedule.disk_tier import DiskTier

HEADER = 84
DAY = 86_400
KB = 1000 - HEADER  # a payload whose file has exactly 1,000 bytes


class Clock:
    now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tier(tmp_path, clock):
    tier = DiskTier(tmp_path / "kv", 100_000, clock=clock)
    yield tier
    tier.close()


def blocks(*numbers):
    return [(HASHES[i], payload(HASHES[i])[:KB]) for i in numbers]


def names(*numbers):
    return [HASHES[i] for i in numbers]


def file_of(tier, number):
    return tier.folder / "v1" / f"{HASHES[number].hex()}.kv"


def test_blocks_come_back_in_another_tier(tier, tmp_path):
    assert tier.write(blocks(0, 1, 2), "chat") == 3
    tier.close()
    again = DiskTier(tmp_path / "kv", 100_000, clock=tier.clock)
    assert again.match(names(0, 1, 2, 3)) == 3
    assert again.read(names(0, 1, 2, 3)) == [p for _, p in blocks(0, 1, 2)]
    assert again.problem is None
    again.close()


def test_only_leading_blocks_count(tier):
    tier.write(blocks(0, 1, 3), "chat")
    assert tier.match(names(0, 1, 2, 3)) == 2 and len(tier.read(names(0, 1, 2, 3))) == 2
    assert tier.match(names(2, 0)) == 0 and tier.read(names(2, 0)) == []
    assert tier.has(names(0, 2, 3)) == set(names(0, 3))
    assert tier.match([]) == 0 and tier.read([]) == [] and tier.has([]) == set()


def test_many_hashes_at_once(tier):
    """More than SQLite takes in one query by default in some builds (999)."""
    many = [hashlib.sha256(b"%d" % i).digest() for i in range(2500)]
    tier.capacity = 10**6
    tier.close()
    assert tier.write([(h, b"x") for h in many], "chat") == 2500
    assert tier.match(many) == 2500 and tier.has(many) == set(many)


def test_what_is_there_is_not_written_again(tier):
    assert tier.write(blocks(0, 1), "chat") == 2
    before = file_of(tier, 0).stat().st_mtime_ns
    assert tier.write(blocks(0, 1, 2), "chat") == 1
    assert file_of(tier, 0).stat().st_mtime_ns == before
    assert tier.write([], "chat") == 0
    assert tier.write(blocks(5, 5), "chat") == 1


def test_any_contiguous_buffer_is_a_payload(tier):
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    tier.write([(HASHES[0], array), (HASHES[1], bytearray(b"ab")), (HASHES[2], b"")], "chat")
    got = tier.read(names(0, 1, 2))
    assert np.array_equal(np.frombuffer(got[0], np.float16).reshape(2, 3, 4), array)
    assert got[1:] == [b"ab", b""]


def test_info_counts_files_and_classes(tier, clock):
    assert (tier.info().blocks, tier.info().bytes, tier.info().oldest_use) == (0, 0, None)
    tier.write(blocks(0, 1, 2), "chat")
    clock.now += 5
    tier.write(blocks(3), "agent")
    info = tier.info()
    assert (info.blocks, info.bytes) == (4, 4000)
    assert info.by_traffic == {"agent": (1, 1000), "chat": (3, 3000)}
    assert info.newest_use - info.oldest_use == 5
    assert sum(path.stat().st_size for path in tier.folder.rglob("*.kv")) == 4000


def test_clear_removes_every_file(tier):
    tier.write(blocks(0, 1, 2), "chat")
    assert tier.clear() == 3 and tier.clear() == 0
    assert not list(tier.folder.rglob("*.kv")) and tier.info().bytes == 0
    assert tier.write(blocks(0), "chat") == 1


# Lifetimes: 3 days for agents, 7 for chats, from the last use (Brief, section 2).


@pytest.mark.parametrize("traffic, days", [("agent", 3), ("chat", 7)])
def test_a_block_lives_its_days_and_no_longer(tier, clock, traffic, days):
    tier.write(blocks(0), traffic)
    clock.now += days * DAY - 1
    assert tier.match(names(0)) == 1 and tier.has(names(0))
    clock.now += 1
    assert tier.match(names(0)) == 0 and tier.read(names(0)) == [] and not tier.has(names(0))


@pytest.mark.parametrize("use", ["read", "write", "prompt"])
def test_a_use_starts_the_lifetime_anew(tier, clock, use):
    tier.write(blocks(0), "agent")
    clock.now += 2 * DAY
    if use == "read":
        tier.read(names(0))
    elif use == "write":
        tier.write(blocks(0), "agent")
    else:
        tier.write(blocks(1), "agent", prompt=names(0, 1))
    clock.now += 2 * DAY
    assert tier.match(names(0)) == 1
    clock.now += DAY
    assert tier.match(names(0)) == 0


@pytest.mark.parametrize("classes", [("agent", "chat"), ("chat", "agent")])
def test_a_block_of_both_classes_keeps_the_longer_life(tier, clock, classes):
    for traffic in classes:
        tier.write(blocks(0), traffic)
    assert tier.info().by_traffic == {"chat": (1, 1000)}
    clock.now += 7 * DAY - 1
    assert tier.match(names(0)) == 1


def test_expired_files_go_with_the_next_write(tier, clock):
    tier.write(blocks(0, 1), "agent")
    tier.write(blocks(2), "chat")
    clock.now += 4 * DAY
    tier.write(blocks(3), "agent")
    assert sorted(path.name for path in tier.folder.rglob("*.kv")) == sorted(
        file_of(tier, i).name for i in (2, 3)
    )
    assert tier.info().bytes == 2000


def test_an_expired_block_can_be_stored_again(tier, clock):
    tier.write(blocks(0), "agent")
    clock.now += 4 * DAY
    assert tier.write(blocks(0), "agent") == 1 and tier.read(names(0)) == [blocks(0)[0][1]]


# Capacity and order of use.


def test_the_tail_of_the_oldest_prompt_goes_first(tier):
    """Ten blocks fit. The beginning of a prompt is worth more than its end."""
    tier.capacity = 10_000
    tier.close()
    tier.write(blocks(0, 1, 2, 3, 4, 5), "chat")
    tier.write(blocks(10, 11, 12, 13), "chat")
    tier.write(blocks(20, 21), "chat")
    assert tier.match(names(0, 1, 2, 3, 4, 5)) == 4
    assert tier.match(names(10, 11, 12, 13)) == 4 and tier.info().bytes == 10_000
    tier.read(names(0, 1, 2, 3))
    tier.write(blocks(30, 31), "chat")
    assert tier.match(names(10, 11, 12, 13)) == 2 and tier.match(names(0, 1, 2, 3)) == 4


def test_a_prompt_never_pushes_out_its_own_beginning(tier):
    tier.capacity = 4_000
    tier.close()
    tier.write(blocks(0, 1, 2), "chat")
    assert tier.write(blocks(3, 4, 5), "chat", prompt=names(0, 1, 2, 3, 4, 5)) == 1
    assert tier.match(names(0, 1, 2, 3, 4, 5)) == 4


def test_a_smaller_capacity_later_is_kept_by_the_first_write(tier, tmp_path, clock):
    tier.write(blocks(*range(50)), "chat")
    tier.close()
    smaller = DiskTier(tmp_path / "kv", 5_000, clock=clock)
    smaller.write(blocks(60), "chat")
    assert smaller.info().bytes == 5_000 and smaller.match(names(60)) == 1
    smaller.close()


class Naive:
    """Blocks as a plain list, least recently used first: [hash, lifetime, last use]."""

    def __init__(self, capacity):
        self.capacity, self.entries = capacity, []

    def find(self, name):
        return next((e for e in self.entries if e[0] == name), None)

    def alive(self, name, now):
        entry = self.find(name)
        return entry is not None and now < entry[2] + entry[1]

    def use(self, chain, now, life=0):
        for name in reversed(chain):
            entry = self.find(name)
            if entry:
                self.entries.remove(entry)
                self.entries.append([name, max(entry[1], life), now])

    def write(self, chain, now, life):
        self.entries = [e for e in self.entries if now < e[2] + e[1]]
        missing = [name for name in chain if not self.find(name)]
        for entry in list(self.entries):
            if len(self.entries) + min(len(missing), self.capacity) <= self.capacity:
                break
            if entry[0] not in chain:
                self.entries.remove(entry)
        room = self.capacity - len(self.entries)
        self.entries += [[name, life, now] for name in missing[:room]]
        self.use(chain, now, life)
        return len(missing[:room])

    def read(self, chain, now):
        count = next((i for i, n in enumerate(chain) if not self.alive(n, now)), len(chain))
        self.use(chain[:count], now)
        return count


CHAIN = st.lists(st.integers(0, 11), min_size=1, max_size=7, unique=True)
STEPS = st.lists(
    st.tuples(st.sampled_from(["agent", "chat", "read"]), CHAIN, st.integers(0, 2 * DAY)),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(1, 9))
def test_order_of_use_is_that_of_a_naive_list(steps, capacity):
    clock, model = Clock(), Naive(capacity)
    with tempfile.TemporaryDirectory() as folder:
        tier = DiskTier(folder, capacity * 1000, clock=clock)
        for what, chain, pause in steps:
            clock.now += pause
            if what == "read":
                assert len(tier.read(names(*chain))) == model.read(names(*chain), clock.now)
            else:
                days = {"agent": 3, "chat": 7}[what]
                stored = model.write(names(*chain), clock.now, days * DAY)
                assert tier.write(blocks(*chain), what) == stored
            alive = {h for h in HASHES if model.alive(h, clock.now)}
            assert tier.has(HASHES) == alive
            assert tier.info().bytes == 1000 * len(model.entries)
        assert tier.problem is None
        tier.close()


# Damage: never wrong bytes.


def flip(offset):
    def damage(path):
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    return damage


def other_layout(path):
    """A file of layout 2, whole by its own rules."""
    data = path.read_bytes()
    fields = struct.pack(">8sI32sQ", data[:8], 2, data[12:44], len(data) - HEADER)
    path.write_bytes(fields + hashlib.sha256(fields + data[HEADER:]).digest() + data[HEADER:])


DAMAGE = {
    "a bit of the magic": flip(0),
    "a bit of the hash": flip(20),
    "a bit of the length": flip(51),
    "a bit of the checksum": flip(60),
    "the first bit of the payload": flip(HEADER),
    "the last bit of the payload": flip(-1),
    "cut by one byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros of the right length": lambda path: path.write_bytes(bytes(1000)),
    "one byte too long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "text": lambda path: path.write_text("not a block"),
    "another layout": other_layout,
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_block_is_a_miss_and_goes(tier, kind):
    tier.write(blocks(0, 1, 2), "chat")
    DAMAGE[kind](file_of(tier, 1))
    assert tier.read(names(0, 1, 2)) == [blocks(0)[0][1]]
    assert not file_of(tier, 1).exists() and tier.has(names(0, 1, 2)) == set(names(0, 2))
    assert tier.info().bytes == 2000
    assert tier.write(blocks(1), "chat") == 1
    assert tier.read(names(0, 1, 2)) == [p for _, p in blocks(0, 1, 2)]
    assert tier.problem is None


def test_a_whole_file_of_another_block_is_a_miss(tier):
    tier.write(blocks(0, 1), "chat")
    file_of(tier, 0).write_bytes(file_of(tier, 1).read_bytes())
    assert tier.read(names(0)) == [] and tier.read(names(1)) == [blocks(1)[0][1]]


# Cost.


def instructions(tier, work):
    """How many instructions of SQLite's machine `work` takes: the same on every computer."""
    count = 0

    def step():
        nonlocal count
        count += 1

    db = tier._opened().index._db
    db.set_progress_handler(step, 1)
    work()
    db.set_progress_handler(None, 1)
    return count


def fill(tier, count):
    """Rows alone: files do not matter to what the index costs."""
    index = tier._opened().index
    hashes = sorted(hashlib.sha256(b"row %d" % i).digest() for i in range(count))
    with index.transaction():
        index.reserve(dict.fromkeys(hashes, 1000), "chat", 7 * DAY, "ab", tier.clock())
        index.publish(hashes)
    return hashes


def test_costs_do_not_grow_with_the_number_of_blocks(tmp_path):
    costs = []
    for count in (100, 10_000):
        tier = DiskTier(tmp_path / str(count), 1000 * count)
        hashes = fill(tier, count)[:32]
        with tier._opened().index.transaction():
            tier._opened().index.use(hashes, tier.clock())
        costs.append(
            (
                instructions(tier, lambda: tier.match(hashes)),  # noqa: B023
                instructions(tier, lambda: tier.has(hashes)),  # noqa: B023
                instructions(tier, lambda: tier.write(blocks(0, 1), "chat")),  # noqa: B023
            )
        )
        assert tier.info().blocks == count  # two came and two went
        tier.close()
    assert costs[1] == pytest.approx(costs[0], rel=0.02)


@pytest.mark.slow
def test_speed(tmp_path):
    """28 blocks of 131,072 bytes among 100,000 others, against plain files and bare checksums in
    the same moment. The best of 15 turns: what else runs on the machine only adds."""
    tier = DiskTier(tmp_path, 10**9)
    fill(tier, 100_000)
    pages = [os.urandom(131_072) for _ in range(28)]
    best = dict.fromkeys(("write", "read", "match", "plain write", "plain read"), math.inf)

    def timed(what, work, *arguments):
        start = time.perf_counter()
        work(*arguments)
        best[what] = min(best[what], 1000 * (time.perf_counter() - start))

    for turn in range(15):
        chain = [hashlib.sha256(b"%d %d" % (turn, i)).digest() for i in range(28)]
        timed("write", tier.write, list(zip(chain, pages, strict=True)), "chat")
        timed("read", tier.read, chain)
        timed("match", tier.match, chain)
        files = [tmp_path / f"{turn} {i}" for i in range(28)]
        timed("plain write", plain_write, files, pages)
        timed("plain read", plain_read, files)
    tier.close()
    print({what: round(ms, 2) for what, ms in best.items()})
    assert best["write"] < 3 * best["plain write"] and best["read"] < 2 * best["plain read"]
    assert best["match"] < 1


def plain_write(files, pages):
    for path, page in zip(files, pages, strict=True):
        hashlib.sha256(page).digest()
        path.write_bytes(page)


def plain_read(files):
    for path in files:
        hashlib.sha256(path.read_bytes()).digest()


# Bad values are the caller's: they raise.


def test_an_unknown_traffic_class_is_refused(tier):
    with pytest.raises(ValueError, match="traffic='bulk' must be one of 'agent', 'chat'"):
        tier.write(blocks(0), "bulk")


def test_a_hash_of_another_length_is_refused(tier):
    with pytest.raises(ValueError, match="32 bytes"):
        tier.write([(b"short", b"x")], "chat")


@pytest.mark.parametrize("capacity", [-1, 1.5, None])
def test_a_capacity_that_is_none_is_refused(tmp_path, capacity):
    with pytest.raises(ValueError, match="capacity_bytes"):
        DiskTier(tmp_path, capacity)


# The command.


def test_the_command_tells_and_clears(tmp_path, capsys):
    folder = tmp_path / "kv"
    tier = DiskTier(folder, 10**6)
    tier.write(blocks(0, 1, 2), "chat")
    tier.write(blocks(3), "agent")
    assert main(["cache", "info", "--dir", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert f"{folder}: 4 blocks" in printed and "chat" in printed and "agent" in printed
    assert time.strftime("%Y-") in printed
    assert main(["cache", "clear", "--dir", str(folder)]) == 0
    assert "4 blocks removed" in capsys.readouterr().out
    assert tier.match(names(0)) == 0
    tier.close()


@pytest.mark.parametrize("what", ["info", "clear"])
def test_the_command_makes_no_folder(tmp_path, capsys, what):
    assert main(["cache", what, "--dir", str(tmp_path / "none")]) == 0
    assert "holds no cache" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_the_command_replaces_a_broken_index(tmp_path, capsys):
    tier = DiskTier(tmp_path, 10**6)
    tier.write(blocks(0, 1), "chat")
    tier.close()
    (tmp_path / "v1" / disk_index.INDEX).write_bytes(b"no database" * 500)
    assert main(["cache", "info", "--dir", str(tmp_path)]) == 1
    assert "cache clear" in capsys.readouterr().out
    assert main(["cache", "clear", "--dir", str(tmp_path)]) == 0
    assert "2 blocks removed" in capsys.readouterr().out
    again = DiskTier(tmp_path, 10**6)
    assert again.problem is None and again.write(blocks(0), "chat") == 1
    again.close()
