"""Two pools behind one set of block ids: the target's pages and its drafter's.

What the block manager does with a block, it does with the pages of both: a fork, a copy, a hit in
the prefix cache and an eviction never part them, so that a drafter finds the beginning of a text
wherever its target does. Brief, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from g2c_serving.forward.kv_cache import KVCache


class PairedCache:
    """What the block manager and the prefix cache ask of pages, asked of both pools. The state of
    window layers is the target's: a drafter has none."""

    def __init__(self, target: KVCache, drafter: KVCache) -> None:
        self.target, self.drafter = target, drafter

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.target.copy(pairs)
        self.drafter.copy(pairs)

    def clear(self, blocks: Sequence[int]) -> None:
        self.target.clear(blocks)
        self.drafter.clear(blocks)

    def block_bytes(self, layers: Sequence[int]) -> int:
        """Of one block in the target's `layers` and all of the drafter's."""
        return self.target.block_bytes(layers) + self.drafter.block_bytes(self._drafter_layers)

    def export_blocks(self, blocks: Sequence[int], layers: Sequence[int]) -> list[bytes]:
        """The bytes of each of `blocks` in the target's `layers`, then in all of the drafter's."""
        ours = self.target.export_blocks(blocks, layers)
        theirs = self.drafter.export_blocks(blocks, self._drafter_layers)
        return [a + b for a, b in zip(ours, theirs, strict=True)]

    def import_blocks(
        self, blocks: Sequence[int], layers: Sequence[int], pages: Sequence[bytes]
    ) -> None:
        """Write what `export_blocks` gave, to other blocks perhaps."""
        cut = self.target.block_bytes(layers)
        self.target.import_blocks(blocks, layers, [page[:cut] for page in pages])
        self.drafter.import_blocks(blocks, self._drafter_layers, [page[cut:] for page in pages])

    def slots(self, table: Sequence[int], first: int, last: int) -> torch.Tensor:
        return self.target.slots(table, first, last)

    def export_slots(self, slots: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        return self.target.export_slots(slots, layers)

    def import_slots(self, slots: torch.Tensor, layers: Sequence[int], pages: torch.Tensor) -> None:
        self.target.import_slots(slots, layers, pages)

    def export_drafter(self, slots: torch.Tensor) -> torch.Tensor:
        """All of the drafter's layers at slots (N,), on the CPU: (N, 2, layers, H, d)."""
        return self.drafter.export_slots(slots, self._drafter_layers)

    def import_drafter(self, slots: torch.Tensor, pages: torch.Tensor) -> None:
        """Write what `export_drafter` gave, to other slots perhaps."""
        self.drafter.import_slots(slots, self._drafter_layers, pages)

    @property
    def _drafter_layers(self) -> range:
        return range(self.drafter.num_layers)
