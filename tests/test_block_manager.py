"""Blocks: the Brief's example, and that none is lost or held twice."""

import random

import pytest

from g2c_serving.schedule.block_manager import BlockManager, OutOfBlocks


def test_the_briefs_300_tokens():
    """Brief, section 2: 300 tokens in blocks of 128 hold three blocks, 384 slots, 78 % used."""
    manager = BlockManager(num_blocks=16, block_size=128)
    manager.allocate(1, 300)
    assert len(manager.tables[1]) == 3
    assert round(100 * 300 / (3 * 128)) == 78


def test_a_table_grows_only_when_a_block_is_full():
    manager = BlockManager(num_blocks=3, block_size=4)
    sizes = []
    for num_tokens in range(1, 13):
        manager.allocate(7, num_tokens)
        sizes.append(len(manager.tables[7]))
    assert sizes == [1] * 4 + [2] * 4 + [3] * 4


def test_too_few_blocks_changes_nothing():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate(1, 8)
    assert not manager.can_allocate(2, 5)
    with pytest.raises(OutOfBlocks):
        manager.allocate(2, 5)
    manager.check()
    assert manager.num_free == 1 and 2 not in manager.tables


def test_freeing_twice_or_unknown_frees_nothing():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate(1, 8)
    manager.free(1)
    manager.free(1)
    manager.free(99)
    manager.check()
    assert manager.num_free == 3


def test_the_block_freed_last_is_used_first():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 8)
    manager.allocate(2, 4)
    manager.free(1)
    (last,) = manager.tables[2]
    manager.free(2)
    manager.allocate(3, 4)
    assert manager.tables[3] == [last]


def test_every_block_handed_out_is_told_once():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 5)
    assert wiped(manager) == manager.tables[1]
    assert wiped(manager) == []
    manager.allocate(1, 9)
    assert wiped(manager) == manager.tables[1][2:]


def test_invariants_over_random_use():
    """2,000 random allocations and frees: the pool is conserved after each, and full at the end."""
    rnd = random.Random(0)
    manager = BlockManager(num_blocks=40, block_size=4)
    lengths: dict[int, int] = {}
    for _ in range(2000):
        sequence = rnd.randrange(12)
        if rnd.random() < 0.3:
            manager.free(sequence)
            lengths.pop(sequence, None)
        elif manager.can_allocate(sequence, lengths.get(sequence, 0) + 3):
            lengths[sequence] = lengths.get(sequence, 0) + 3
            manager.allocate(sequence, lengths[sequence])
        manager.check()
        assert manager.num_used == sum(-(-n // 4) for n in lengths.values())
    for sequence in list(lengths):
        manager.free(sequence)
    assert manager.num_free == 40


@pytest.mark.parametrize("damage", ["lost", "twice"])
def test_check_finds_damage(damage):
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 8)
    if damage == "lost":
        manager.tables[1].pop()
    else:
        manager.free_blocks.append(manager.tables[1][0])
    with pytest.raises(AssertionError, match="differ from the tables|lost or held twice"):
        manager.check()


def test_show_draws_every_block():
    manager = BlockManager(num_blocks=5, block_size=4)
    manager.allocate(0, 5)
    manager.allocate(1, 1)
    assert manager.show() == "2 of 5 blocks free\nAAB.."


class Log:
    """Stands in for the pages: remembers what was asked of them."""

    def copy(self, pairs):
        self.copied = pairs

    def clear(self, blocks):
        self.wiped = blocks


def copies(manager: BlockManager) -> list[tuple[int, int]]:
    log = Log()
    manager.prepare(log)
    return log.copied


def wiped(manager: BlockManager) -> list[int]:
    log = Log()
    manager.prepare(log)
    return log.wiped


def names(*labels: str) -> list[bytes]:
    return [label.encode() for label in labels]


def test_a_fork_shares_every_block_and_copies_nothing():
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate(1, 10)  # two full blocks and a half-written one
    manager.fork(1, 2, num_tokens=10)
    assert manager.tables[2] == manager.tables[1] and manager.num_used == 3
    assert copies(manager) == []
    manager.check()


def test_only_a_shared_tail_is_copied_and_only_while_it_is_shared():
    """vLLM 417, xLLM 1984: after a fork both append into the half-filled tail. The first to write
    gets a copy of it; the other, now its only user, writes in place."""
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate(1, 10)
    manager.fork(1, 2, num_tokens=10)
    *full, tail = manager.tables[1]
    manager.allocate(2, 11, num_computed=10)
    *full_too, copy = manager.tables[2]
    assert full_too == full and copy != tail
    assert copies(manager) == [(tail, copy)]
    manager.allocate(1, 11, num_computed=10)
    assert manager.tables[1] == [*full, tail] and copies(manager) == []
    manager.check()


def test_a_copy_of_a_block_whose_own_copy_is_not_made_yet():
    """All copies of a step read before any writes: it is taken from where the content is."""
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate(1, 3)
    manager.fork(1, 2, num_tokens=3)
    (first,) = manager.tables[1]
    manager.allocate(2, 4, num_computed=3)
    manager.fork(2, 3, num_tokens=3)
    manager.allocate(3, 4, num_computed=3)
    (second,), (third,) = manager.tables[2], manager.tables[3]
    assert sorted(copies(manager)) == sorted([(first, second), (first, third)])
    manager.check()


def test_a_fork_at_the_end_of_a_block_copies_nothing():
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate(1, 8)
    manager.fork(1, 2, num_tokens=8)
    for sequence_id in (1, 2):
        manager.allocate(sequence_id, 9, num_computed=8)
    assert copies(manager) == [] and manager.num_used == 4
    manager.check()


def test_a_copy_counts_as_a_missing_block():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate(1, 10)
    manager.fork(1, 2, num_tokens=10)
    assert not manager.can_allocate(2, 11, num_computed=10)
    with pytest.raises(OutOfBlocks):
        manager.allocate(2, 11, num_computed=10)
    manager.check()
    manager.free(1)
    manager.allocate(2, 11, num_computed=10)  # alone now: in place
    assert copies(manager) == []


def test_a_copy_for_a_sequence_that_ends_at_once_is_forgotten():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 6)
    wiped(manager)
    manager.fork(1, 2, num_tokens=6)
    manager.allocate(2, 7, num_computed=6)
    manager.free(2)
    log = Log()
    manager.prepare(log)
    assert log.copied == log.wiped == []
    manager.check()


def test_a_freed_block_with_a_name_is_found_until_it_is_needed():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate(1, 8)
    manager.publish(1, 0, names("a", "b"))
    table = list(manager.tables[1])
    manager.free(1)
    assert manager.num_free == 3 and manager.match(names("a", "b", "c")) == table
    manager.adopt(2, table)
    assert manager.num_free == 1
    manager.check()


def test_a_block_handed_out_again_is_no_longer_found():
    """nano-vllm 163, vLLM 4764: a block is freed and given to another prompt; the first prompt must
    not hit it when it comes back."""
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate(1, 8)
    manager.publish(1, 0, names("a", "b"))
    manager.free(1)
    manager.allocate(2, 8)
    assert manager.match(names("a", "b")) == []
    manager.free(2)
    assert manager.match(names("a", "b")) == []
    manager.check()


def test_eviction_takes_the_block_unused_longest_and_a_prefix_from_its_end():
    manager = BlockManager(num_blocks=4, block_size=4)
    for sequence_id, prefix in ((1, "ab"), (2, "xy")):
        manager.allocate(sequence_id, 8)
        manager.publish(sequence_id, 0, names(*prefix))
    manager.free(1)
    manager.free(2)
    found = []
    for sequence_id in range(3, 7):
        manager.allocate(sequence_id, 4)
        found.append([len(manager.match(names(*prefix))) for prefix in ("ab", "xy")])
    assert found == [[1, 2], [0, 2], [0, 1], [0, 0]]
    manager.check()


def test_two_blocks_with_one_content_have_one_name():
    manager = BlockManager(num_blocks=4, block_size=4)
    for sequence_id in (1, 2):
        manager.allocate(sequence_id, 4)
        manager.publish(sequence_id, 0, names("a"))
    assert manager.match(names("a")) == manager.tables[1]
    manager.free(2)
    manager.check()
    assert len(manager.free_blocks) == 3 and not manager.cached_blocks


def test_show_tells_shared_cached_and_free_apart():
    manager = BlockManager(num_blocks=6, block_size=4)
    manager.allocate(0, 8)
    manager.fork(0, 1, num_tokens=4)
    manager.allocate(2, 4)
    manager.publish(2, 0, names("a"))
    manager.free(2)
    manager.allocate(3, 1)
    assert manager.show().splitlines() == ["3 of 6 blocks free", "2AoD.."]


def test_what_fails_in_preparing_the_pages_is_done_again():
    class Full(Log):
        def copy(self, pairs):
            raise MemoryError

    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 6)
    wiped(manager)
    manager.fork(1, 2, num_tokens=6)
    tail = manager.tables[1][-1]
    manager.allocate(2, 9, num_computed=6)
    with pytest.raises(MemoryError):
        manager.prepare(Full())
    log = Log()
    manager.prepare(log)
    assert log.copied == [(tail, manager.tables[2][1])] and log.wiped == [manager.tables[2][2]]


def test_the_names_of_a_sequence_that_failed_are_taken_back():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 4)
    manager.publish(1, 0, names("good"))
    manager.adopt(2, manager.match(names("good")))
    manager.allocate(2, 8)
    manager.publish(2, 1, names("bad"))
    manager.unname(2)
    manager.free(2)
    assert manager.match(names("good")) and not manager.match(names("bad"))
    manager.check()


def test_a_preempted_fork_keeps_what_it_shares():
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate(1, 10)
    manager.fork(1, 2, num_tokens=10)
    manager.allocate(2, 13, num_computed=10)  # two shared blocks, a copied tail, a new block
    assert manager.keep_shared(2) == 2 and manager.tables[2] == manager.tables[1][:2]
    assert manager.keep_shared(2) == 2
    manager.free(1)
    assert manager.frees(2) and manager.keep_shared(2) == 0
    manager.check()
    assert manager.num_free == 8
