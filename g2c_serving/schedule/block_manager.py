"""The block manager: which blocks of the cache are free, and which request holds which.

The cache is cut into `num_blocks` blocks of `block_size` tokens. A request's block table lists the
blocks that hold its tokens, in order: token t lies in block table[t // block_size]. Mirrors
`csrc/engine/block_manager.hpp` of DeepInfer (Brief, section 2). Left out here: reference counts,
forks and hashes, which sharing needs.

    free        [5, 4, 3]                    a stack: the block freed last is used first
    tables      {7: [0, 2], 9: [1]}          sequence id -> its blocks
    fresh       {2}                          handed out, and not yet wiped for the new owner
"""

from __future__ import annotations


class OutOfBlocks(Exception):
    """There are fewer free blocks than an allocation needs."""


class BlockManager:
    """Hands out blocks and takes them back. `num_free` counts the blocks that nobody uses."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self.tables: dict[int, list[int]] = {}
        self.fresh: set[int] = set()
        self.peak_used = 0

    @property
    def num_free(self) -> int:
        return len(self.free_blocks)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self.free_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def num_missing(self, sequence_id: int, num_tokens: int) -> int:
        """Blocks that the sequence lacks to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(self.tables.get(sequence_id, ())))

    def can_allocate(self, sequence_id: int, num_tokens: int) -> bool:
        return self.num_missing(sequence_id, num_tokens) <= len(self.free_blocks)

    def allocate(self, sequence_id: int, num_tokens: int) -> None:
        """Grow the sequence's table until it holds `num_tokens`. OutOfBlocks changes nothing."""
        missing = self.num_missing(sequence_id, num_tokens)
        if missing > len(self.free_blocks):
            raise OutOfBlocks(f"{missing} blocks needed, {len(self.free_blocks)} free")
        new = [self.free_blocks.pop() for _ in range(missing)]
        self.tables.setdefault(sequence_id, []).extend(new)
        self.fresh.update(new)
        self.peak_used = max(self.peak_used, self.num_used)

    def take_fresh(self) -> list[int]:
        """The blocks handed out since the last call. Whoever owns the cache wipes them, so that
        nothing of the last owner reaches the next one, not even what is not a number."""
        fresh, self.fresh = sorted(self.fresh), set()
        return fresh

    def free(self, sequence_id: int) -> None:
        """Take all blocks of the sequence back, its tail to be used next; none for an unknown
        sequence."""
        table = self.tables.pop(sequence_id, [])
        self.fresh.difference_update(table)
        self.free_blocks.extend(table)

    def check(self) -> None:
        """Prove the invariants: every block is free or in exactly one table, never both."""
        used = [block for table in self.tables.values() for block in table]
        everything = sorted(self.free_blocks + used)
        assert everything == list(range(self.num_blocks)), (
            f"blocks lost or held twice: free {sorted(self.free_blocks)}, tables {self.tables}"
        )

    def show(self) -> str:
        """The pool as text, one character a block: a letter for each sequence, a dot for free."""
        cells = ["."] * self.num_blocks
        for sequence_id, table in self.tables.items():
            for block in table:
                cells[block] = chr(ord("A") + sequence_id % 26)
        rows = ["".join(cells[i : i + 64]) for i in range(0, self.num_blocks, 64)]
        return "\n".join([f"{self.num_free} of {self.num_blocks} blocks free", *rows])
