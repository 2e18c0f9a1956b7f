"""What is asked of the pages while the device is busy: kept, and done when the device comes to it.

The block manager hands out a block as soon as it is free, though the step that last wrote to it may
still be on its way. That is safe because the device does its work in order: what a new owner needs
done to its blocks (copies, wipes, what comes from disk) is queued behind that step. Brief, section
6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.paired_cache import PairedCache

Calls = list[tuple[Callable[..., None], tuple[Any, ...]]]


def do(calls: Calls) -> None:
    """The calls in their order. One that fails is done again: what fails twice raises. Each reads
    all before it writes."""
    for call, arguments in calls:
        try:
            call(*arguments)
        except Exception:
            call(*arguments)


class PageCalls:
    """Takes the place of the pages where `BlockManager.prepare` and `PrefixCache.load` write to
    them."""

    def __init__(self, pages: KVCache | PairedCache) -> None:
        self._pages = pages
        self._calls: Calls = []

    @property
    def is_empty(self) -> bool:
        return not self._calls

    def take(self) -> Calls:
        """The calls since the last time, in their order."""
        calls, self._calls = self._calls, []
        return calls

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            self._calls.append((self._pages.copy, (pairs,)))

    def clear(self, blocks: Sequence[int]) -> None:
        if blocks:
            self._calls.append((self._pages.clear, (blocks,)))

    def import_blocks(
        self, blocks: Sequence[int], layers: Sequence[int], pages: Sequence[bytes]
    ) -> None:
        self._calls.append((self._pages.import_blocks, (blocks, layers, pages)))

    def import_slots(self, slots: torch.Tensor, layers: Sequence[int], pages: torch.Tensor) -> None:
        self._calls.append((self._pages.import_slots, (slots, layers, pages)))

    def import_drafter(self, slots: torch.Tensor, pages: torch.Tensor) -> None:
        assert isinstance(self._pages, PairedCache)
        self._calls.append((self._pages.import_drafter, (slots, pages)))

    def slots(self, table: Sequence[int], first: int, last: int) -> torch.Tensor:
        return self._pages.slots(table, first, last)
