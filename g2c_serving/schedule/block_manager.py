"""The block manager: which blocks of the cache are free, who uses which, and what they hold.

The cache is cut into `num_blocks` blocks of `block_size` tokens. A request's block table lists the
blocks that hold its tokens, in order: token t lies in block table[t // block_size]. A block may
stand in several tables; its reference count says in how many. Mirrors
`csrc/engine/block_manager.hpp` of DeepInfer (Brief, section 2), the chain of hashes included.

    free_blocks    [5, 4]            nothing in them; a stack: the block freed last is used first
    cached_blocks  {6, 3}            used by nobody, content known; the one unused longest first
    ref_counts     [2, 1, 1, 0, ...] tables that each block stands in
    tables         {7: [0, 2], 9: [0, 1]}     sequence id -> its blocks; they share block 0

What is always true, and what `check()` proves:
- A block with references is neither free nor cached; one without is exactly one of the two.
- Its count is the number of tables that it stands in.
- A cached block has a name (its hash), a free one has none; a name belongs to one block.

Copy on write: a fork shares all blocks, also the half-written last one. Whoever writes to that one
while its count is above 1 gets a copy first. A full block is never written again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol


class Pages(Protocol):
    """What holds the blocks' contents: `forward/kv_cache.py`."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination). All sources are read before anything is written."""

    def clear(self, blocks: Sequence[int]) -> None:
        """Wipe `blocks`."""


class OutOfBlocks(Exception):
    """There are fewer free blocks than an allocation needs."""


class BlockManager:
    """Hands out blocks and takes them back, every operation in time that the pool's size does not
    change. `num_free` counts the blocks that nobody uses, cached ones included."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self.cached_blocks: OrderedDict[int, None] = OrderedDict()
        self.ref_counts = [0] * num_blocks
        self.tables: dict[int, list[int]] = {}
        self.hash_of: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        self.fresh: set[int] = set()  # handed out, and not yet wiped for the new owner
        self.copies: dict[int, int] = {}  # destination -> source, not yet copied
        self.peak_used = 0

    @property
    def num_free(self) -> int:
        return len(self.free_blocks) + len(self.cached_blocks)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    # a sequence's table grows, forks, ends

    def num_missing(self, sequence_id: int, num_tokens: int, num_computed: int) -> int:
        """Blocks that the sequence needs to hold `num_tokens` tokens and to write the first of
        them that is not computed yet."""
        table = self.tables.get(sequence_id, ())
        missing = max(0, self.blocks_for(num_tokens) - len(table))
        return missing + self._must_copy(table, num_computed)

    def can_allocate(self, sequence_id: int, num_tokens: int, num_computed: int = 0) -> bool:
        return self.num_missing(sequence_id, num_tokens, num_computed) <= self.num_free

    def allocate(self, sequence_id: int, num_tokens: int, num_computed: int = 0) -> None:
        """Grow the sequence's table until it holds `num_tokens`, with a half-written block of its
        own at `num_computed`. OutOfBlocks changes nothing."""
        missing = self.num_missing(sequence_id, num_tokens, num_computed)
        if missing > self.num_free:
            raise OutOfBlocks(f"{missing} blocks needed, {self.num_free} free")
        table = self.tables.setdefault(sequence_id, [])
        if self._must_copy(table, num_computed):
            index = num_computed // self.block_size
            table[index] = self._copy(table[index])
        while len(table) < self.blocks_for(num_tokens):
            table.append(self._take())
        self.peak_used = max(self.peak_used, self.num_used)

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """Give the child a table over the parent's first `num_tokens` tokens. Nothing is copied."""
        table = self.tables[parent_id][: self.blocks_for(num_tokens)]
        for block in table:
            self.ref_counts[block] += 1
        self.tables[child_id] = table

    def keep_shared(self, sequence_id: int) -> int:
        """Drop the sequence's blocks from the first one on that it alone uses: to hold the others
        costs nothing. How many are left."""
        table = self.tables[sequence_id]
        kept = 0
        while kept < len(table) and self.ref_counts[table[kept]] > 1:
            kept += 1
        while len(table) > kept:
            self._release(table.pop())
        return kept

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Give back the blocks after those that `num_tokens` tokens need."""
        table = self.tables[sequence_id]
        while len(table) > self.blocks_for(num_tokens):
            self._release(table.pop())

    def free(self, sequence_id: int) -> None:
        """Drop the sequence's table; none for an unknown sequence. From the last block to the
        first: a cached prefix is of no use without its beginning, so its end is to go first."""
        for block in reversed(self.tables.pop(sequence_id, [])):
            self._release(block)

    # blocks that outlive the request

    def publish(self, sequence_id: int, first: int, hashes: Sequence[bytes]) -> None:
        """Name the sequence's blocks from the `first` on, so that others find them. Only for blocks
        that are full and written. A name that another block bears already stays with that one."""
        for block, name in zip(self.tables[sequence_id][first:], hashes, strict=False):
            if name not in self.block_of:
                self.hash_of[block], self.block_of[name] = name, block

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known beginning of the chain."""
        blocks = []
        for name in hashes:
            if name not in self.block_of:
                break
            blocks.append(self.block_of[name])
        return blocks

    def num_unused(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody uses: to adopt those takes them from `num_free`."""
        return sum(self.ref_counts[block] == 0 for block in blocks)

    def adopt(self, sequence_id: int, blocks: Sequence[int]) -> None:
        """Begin the sequence's table with `blocks` that `match` has found."""
        for block in blocks:
            if self.ref_counts[block] == 0:
                del self.cached_blocks[block]
            self.ref_counts[block] += 1
        self.tables[sequence_id] = list(blocks)

    def unname(self, sequence_id: int) -> None:
        """Take the names from the blocks that this sequence alone uses: nobody is to find them."""
        for block in self.tables.get(sequence_id, ()):
            if self.ref_counts[block] == 1 and block in self.hash_of:
                del self.block_of[self.hash_of.pop(block)]

    def forget_names(self) -> None:
        """Take the names from all blocks: nothing that was kept is found again."""
        self.free_blocks += self.cached_blocks
        for names in (self.cached_blocks, self.hash_of, self.block_of):
            names.clear()

    def frees(self, sequence_id: int) -> bool:
        """Whether any block would be free if the sequence gave up its table."""
        return any(self.ref_counts[block] == 1 for block in self.tables.get(sequence_id, ()))

    # what must be done to the pages before the next step

    def prepare(self, pages: Pages) -> None:
        """Make the copies, and wipe the blocks that were handed out, so that nothing of the last
        owner reaches the next one, not even what is not a number. Copies come first: a source may
        have a new owner by now. What fails is done again at the next call, unless its owner has
        ended."""
        pages.copy([(source, destination) for destination, source in self.copies.items()])
        self.copies = {}
        pages.clear(sorted(self.fresh))
        self.fresh = set()

    # for the reader

    def check(self) -> None:
        """Prove the invariants of the module's docstring. AssertionError says which one fails."""
        counts = Counter(block for table in self.tables.values() for block in table)
        assert self.ref_counts == [counts[b] for b in range(self.num_blocks)], (
            f"counts {self.ref_counts} differ from the tables {self.tables}"
        )
        unused = [b for b in range(self.num_blocks) if not counts[b]]
        assert sorted([*self.free_blocks, *self.cached_blocks]) == unused, (
            f"blocks lost or held twice: unused {unused}, free {sorted(self.free_blocks)}, "
            f"cached {list(self.cached_blocks)}"
        )
        assert self.hash_of == {block: name for name, block in self.block_of.items()}
        assert self.cached_blocks.keys() <= self.hash_of.keys(), "a cached block without a name"
        assert self.hash_of.keys().isdisjoint(self.free_blocks), "a free block with a name"
        assert {*self.fresh, *self.copies} <= counts.keys(), "a block to prepare that nobody uses"

    def show(self) -> str:
        """The pool as text, one character a block: a letter for its one user, a digit for the
        number that share it (+ for ten and more), o for cached, a dot for free."""
        cells = ["o" if block in self.hash_of else "." for block in range(self.num_blocks)]
        for sequence_id, table in self.tables.items():
            for block in table:
                count = self.ref_counts[block]
                letter = chr(ord("A") + sequence_id % 26)
                cells[block] = letter if count == 1 else str(count) if count < 10 else "+"
        rows = ["".join(cells[i : i + 64]) for i in range(0, self.num_blocks, 64)]
        return "\n".join([f"{self.num_free} of {self.num_blocks} blocks free", *rows])

    # one block

    def _must_copy(self, table: Sequence[int], num_computed: int) -> bool:
        """Whether the next token would go into a begun block that others use too, or may find."""
        index, offset = divmod(num_computed, self.block_size)
        if offset == 0 or index >= len(table):
            return False
        return self.ref_counts[table[index]] > 1 or table[index] in self.hash_of

    def _take(self) -> int:
        """A block with nothing in it, or else the cached one that was unused longest."""
        if self.free_blocks:
            block = self.free_blocks.pop()
        else:
            block, _ = self.cached_blocks.popitem(last=False)
            del self.block_of[self.hash_of.pop(block)]
        self.ref_counts[block] = 1
        self.fresh.add(block)
        return block

    def _copy(self, source: int) -> int:
        """A block of its own for one of the users of `source`."""
        destination = self._take()
        self.fresh.discard(destination)  # the copy fills it
        self.copies[destination] = self.copies.get(source, source)  # where its content is now
        self._release(source)
        return destination

    def _release(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if self.ref_counts[block]:
            return
        self.fresh.discard(block)
        self.copies.pop(block, None)
        if block in self.hash_of:
            self.cached_blocks[block] = None
        else:
            self.free_blocks.append(block)
