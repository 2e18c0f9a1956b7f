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


def test_the_tail_of_a_freed_table_is_used_next():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 16)
    head, *_, tail = manager.tables[1]
    manager.free(1)
    manager.allocate(2, 4)
    assert manager.tables[2] == [tail] != [head]


def test_every_block_handed_out_is_told_once():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 5)
    assert manager.take_fresh() == manager.tables[1]
    assert manager.take_fresh() == []
    manager.allocate(1, 9)
    assert manager.take_fresh() == manager.tables[1][2:]


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
    with pytest.raises(AssertionError, match="lost or held twice"):
        manager.check()


def test_show_draws_every_block():
    manager = BlockManager(num_blocks=5, block_size=4)
    manager.allocate(0, 5)
    manager.allocate(1, 1)
    assert manager.show() == "2 of 5 blocks free\nAAB.."
