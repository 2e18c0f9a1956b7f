"""Pages that arrive with a request which another engine has begun.

They wait in host memory until the request is admitted; then they are written to its blocks, and it
goes on where it was, with nothing computed again. Positions count, not blocks: the two engines may
cut their caches differently. `cluster/handover.py` sends and receives them. Brief, section 1 ("its
cache is shipped to a decode machine to continue").

    layers that see all tokens    0 ........................ num_computed
    window layers                              the last `window` of them: more they never look at
    drafter                       0 ........ num_ready

Left out: what the receiving engine has in its own prefix cache is sent all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.paired_cache import PairedCache
from g2c_serving.page_calls import PageCalls
from g2c_serving.request import Request
from g2c_serving.schedule.prefix_tiers import PrefixCache, layers_of


@dataclass(frozen=True)
class Pages:
    """Keys and values of one request, bit for bit, on the CPU.

    num_computed, num_ready   tokens in the target's cache, and in the drafter's as well
    window_start, replay_until   as in `Request`
    layers    of the target's pool: those that see all tokens, and the window layers
    full      (num_computed, 2, layers, H, d)
    window    (num_computed - window_start, 2, layers, H, d)
    drafter   (num_ready, 2, layers, H, d); None without speculation
    """

    num_computed: int
    num_ready: int
    window_start: int
    replay_until: int
    layers: tuple[Sequence[int], Sequence[int]]
    full: torch.Tensor
    window: torch.Tensor
    drafter: torch.Tensor | None

    @classmethod
    def of(
        cls, request: Request, table: Sequence[int], model: Transformer,
        cache: KVCache | PairedCache,
    ) -> Pages:  # fmt: skip
        """Copies of what the blocks of `table` hold of a request with nothing on its way."""
        count = request.num_computed_tokens
        layers = layers_of(model)
        start = max(request.window_start, count - model.config.window) if layers[1] else 0
        slots, drafter = cache.slots(table, 0, count), None
        if isinstance(cache, PairedCache):
            drafter = cache.export_drafter(slots[: request.num_ready])
        return cls(
            count,
            request.num_ready,
            start,
            request.replay_until,
            layers,
            _export(cache, slots, layers[0]),
            _export(cache, slots[start:], layers[1]),
            drafter,
        )

    @property
    def num_bytes(self) -> int:
        """Of all that is sent."""
        return sum(t.nbytes for t in (self.full, self.window, self.drafter) if t is not None)

    def promise(self, request: Request) -> None:
        """The request's state once the pages are written."""
        request.num_computed_tokens, request.num_ready = self.num_computed, self.num_ready
        request.drafter_lag = self.num_computed - self.num_ready
        request.window_start, request.replay_until = self.window_start, self.replay_until

    def write(self, cache: KVCache | PairedCache | PageCalls, table: Sequence[int]) -> None:
        """Write them to the blocks of `table`."""
        slots = cache.slots(table, 0, self.num_computed)
        for some, layers, pages in (
            (slots, self.layers[0], self.full),
            (slots[self.window_start :], self.layers[1], self.window),
        ):
            if layers and len(some):
                cache.import_slots(some, layers, pages)
        if self.drafter is not None and not isinstance(cache, KVCache):
            cache.import_drafter(slots[: self.num_ready], self.drafter)


def _export(
    cache: KVCache | PairedCache, slots: torch.Tensor, layers: Sequence[int]
) -> torch.Tensor:
    return cache.export_slots(slots, layers) if layers else torch.empty(0)


class Arrivals:
    """Whose pages wait, by sequence id, and who is admitted and waits for them to be written."""

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self.prefix_cache, self.block_manager = prefix_cache, prefix_cache.block_manager
        self._held: dict[int, Pages] = {}
        self._admitted: list[tuple[Request, Pages]] = []

    def hold(self, request: Request, pages: Pages) -> None:
        """Keep the pages of a request that is about to be queued."""
        self._held[request.sequence_id] = pages

    def of(self, request: Request) -> Pages | None:
        """The pages that wait for the request; None without any."""
        return self._held.get(request.sequence_id)

    def is_written(self, request: Request) -> bool:
        return all(one is not request for one, _ in self._admitted)

    def admit(self, request: Request) -> None:
        """Give the request, which has pages here, blocks for its whole context."""
        self.block_manager.allocate(request.sequence_id, len(request.token_ids))
        pages = self._held.pop(request.sequence_id)
        pages.promise(request)
        self._admitted.append((request, pages))

    def load(self, cache: KVCache | PairedCache | PageCalls) -> None:
        """Write the pages of those that were admitted; full blocks can be found from then on."""
        while self._admitted:
            request, pages = self._admitted[0]
            pages.write(cache, self.block_manager.tables[request.sequence_id])
            if not self.prefix_cache.window:  # else nobody may share them: the windows are cut
                self.prefix_cache.commit(request, 0)
            self._admitted.pop(0)  # only now: what is interrupted is written again

    def next_written(self) -> list[Request]:
        """Whose pages `load` writes next; nobody's where all are written."""
        return [request for request, _ in self._admitted[:1]]

    def forget(self, request: Request, has_ended: bool = False) -> None:
        """The request gives up its blocks. What waits in host memory is kept until it ends."""
        self._admitted = [pair for pair in self._admitted if pair[0] is not request]
        if has_ended:
            self._held.pop(request.sequence_id, None)
