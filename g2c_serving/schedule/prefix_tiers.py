"""The cache that outlives the request: blocks on the device, window state in host memory, blocks on
disk.

    tier                                    where         lifetime
    blocks of requests, past and present    the pool      until the block is needed (LRU)
    sliding-window state                    host memory   short; found by the block it belongs to
    global blocks                           disk          days, by traffic class; LRU

All three go by the names of `block_hash.py`. A request that is admitted takes the longest beginning
of its prompt that a tier holds, by the rule of `hit_rule.py`; a request that ends leaves its full
blocks. Disk blocks hold the layers with full attention. A model with window layers also needs their
keys and values of the last `window` tokens before the end of a hit: they stay in host memory, and
where they are gone the window is replayed. What follows a replay is close to what the model would
have computed, and not equal to it: nothing of it is kept in any tier.

DeepInfer's storage is not released; the tiers are those of its Q&A (Brief, section 2, Reported).
Left out: reading from disk while other requests are computed, and the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.paired_cache import PairedCache
from g2c_serving.request import Request
from g2c_serving.schedule.block_hash import extend_chain, hash_chain
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.disk_tier import DiskTier
from g2c_serving.schedule.hit_rule import Hit, hit
from g2c_serving.schedule.window_states import WindowStates

SLACK = 1  # tokens that never come from the cache: one, to compute the next token's logits from


def layers_of(model: Transformer) -> tuple[list[int], list[int]]:
    """The layers of its KV cache that see all tokens, and those that see a window."""
    kinds = [(b.attention.layer, b.windowed) for b in model.blocks if b.attention is not None]
    return [layer for layer, w in kinds if not w], [layer for layer, w in kinds if w]


@dataclass
class Load:
    """What an admitted request gets from below the device, before its first step."""

    request: Request
    first_block: int  # of the request's table that the payloads go to
    names: list[bytes]
    payloads: list[bytes]
    state: torch.Tensor | None = None


@dataclass
class PrefixCache:
    """Finds and keeps prefixes for one engine.

    fingerprint     names all that decides the bits of keys and values, see `parts.py`
    window          tokens that the window layers see; 0 for a model without any
    global_layers, window_layers   of the KV cache
    disk            None: no disk tier
    block_bytes     of a block on disk: one of another length is damaged. None: not checked
    exact           never replay a window: what cannot be reused bit for bit is computed
    """

    block_manager: BlockManager
    fingerprint: str = ""
    enabled: bool = False
    window: int = 0
    global_layers: Sequence[int] = ()
    window_layers: Sequence[int] = ()
    disk: DiskTier | None = None
    block_bytes: int | None = None
    exact: bool = False
    windows: WindowStates = field(default_factory=WindowStates)
    loads: list[Load] = field(default_factory=list)
    cached_tokens: int = 0  # found in all, each request's at its first admission

    def names(self, token_ids: Sequence[int], cache_salt: str = "") -> list[bytes]:
        """The names of a prompt's full blocks. `disk.match(names)` tells a router, before it has
        chosen an engine, how many of them any engine could load."""
        return hash_chain(token_ids, self.block_size, cache_salt, self.fingerprint)

    @property
    def block_size(self) -> int:
        return self.block_manager.block_size

    # a request is admitted

    def find(self, request: Request) -> list[int]:
        """The device's blocks that the request can share, in order."""
        if not self.enabled:
            return []
        self._name_blocks(request, len(request.token_ids) // self.block_size)
        return self.block_manager.match(request.block_hashes[: self._most_blocks(request)])

    def admit(self, request: Request, shared: list[int]) -> None:
        """Give the request blocks for its whole context, the first of them `shared` or to be loaded
        from disk, and note how much of it need not be computed."""
        below = None
        if self.disk is not None:
            below = (self._from_both if self.window else self._from_disk)(request, shared)
        if below is not None:
            self.loads.append(below)
            shared = shared[: below.first_block]
        reused = (len(shared) + len(below.payloads if below else ())) * self.block_size
        self.block_manager.adopt(request.sequence_id, shared)
        self.block_manager.allocate(request.sequence_id, len(request.token_ids))
        request.num_computed_tokens = request.num_ready = reused
        request.was_computed = False
        if below is not None and self.window:
            request.window_start = reused - self.window
            if below.state is None:
                request.replay_until, request.num_computed_tokens = reused, request.window_start
        if not request.was_admitted:
            request.num_cached_tokens = reused
            self.cached_tokens += reused
        request.was_admitted = True

    def _from_disk(self, request: Request, shared: list[int]) -> Load | None:
        """The blocks after the shared ones, as far as the disk has them."""
        assert self.disk is not None
        names = request.block_hashes[len(shared) : self._most_blocks(request)]
        payloads = self.disk.read(names, self.block_bytes) if names else []
        return Load(request, len(shared), names[: len(payloads)], payloads) if payloads else None

    def _from_both(self, request: Request, shared: list[int]) -> Load | None:
        """For a model with windows: global blocks from disk with the window state of their end, all
        in blocks of the request's own; None where the device has as much, and in full."""
        assert self.disk is not None
        names, size = request.block_hashes, self.block_size
        rule = self._rule(request, self.disk.match(names) * size)
        payloads: list[bytes] = []
        while rule.reused - rule.replayed > len(shared) * size:
            payloads = self.disk.read(names[: rule.reused // size], self.block_bytes)
            if len(payloads) * size == rule.reused:
                break
            rule = self._rule(request, len(payloads) * size)  # a block was damaged
        else:
            return None
        if not self.block_manager.can_allocate(request.sequence_id, len(request.token_ids)):
            return None  # it was the shared blocks that made room for this request
        names = names[: len(payloads)]
        state = None if rule.replayed else self.windows.get(names[-1])
        return Load(request, 0, names, payloads, state)

    def _most_blocks(self, request: Request) -> int:
        """Blocks that may come from the cache, if all are there."""
        rule = hit(len(request.token_ids), self.block_size, self.window, SLACK)
        return rule.reused // self.block_size

    def _rule(self, request: Request, cached: int) -> Hit:
        """The hit rule, given `cached` tokens in global blocks and the window states we hold."""
        blocks = min(cached // self.block_size, self._most_blocks(request))
        while self.exact and blocks and request.block_hashes[blocks - 1] not in self.windows:
            blocks -= 1
        held = blocks > 0 and request.block_hashes[blocks - 1] in self.windows
        length, cached = len(request.token_ids), blocks * self.block_size
        return hit(length, self.block_size, self.window, SLACK, cached=cached, state_held=held)

    def load(self, cache: KVCache | PairedCache) -> None:
        """Write what was found below the device into the pages of the requests it is for."""
        while self.loads:
            one = self.loads[0]
            table = self.block_manager.tables[one.request.sequence_id]
            blocks = table[one.first_block : one.first_block + len(one.payloads)]
            cache.import_blocks(blocks, self.global_layers, one.payloads)
            if self.window == 0:
                self.block_manager.publish(one.request.sequence_id, one.first_block, one.names)
            if one.state is not None:
                end = len(blocks) * self.block_size
                slots = cache.slots(table, end - self.window, end)
                cache.import_slots(slots, self.window_layers, one.state)
            self.loads.pop(0)  # only now: what is interrupted is loaded again

    def forget(self, request: Request) -> None:
        """Load nothing more for a request that gives up its blocks."""
        self.loads = [one for one in self.loads if one.request is not request]

    # a request goes on, and ends

    def commit(self, request: Request, before: int) -> None:
        """The request's tokens from `before` on are in the cache: name the blocks that they have
        filled. Before that nobody can find them."""
        last = request.num_ready // self.block_size
        first = before // self.block_size
        if not self.enabled or first == last or not request.is_exact:
            return
        self._name_blocks(request, last)
        self.block_manager.publish(request.sequence_id, first, request.block_hashes[first:last])

    def keep(self, request: Request, cache: KVCache | PairedCache) -> None:
        """Before a request's blocks are given back: its full ones go to disk, and the window state
        at the last few block ends into host memory."""
        table = self.block_manager.tables.get(request.sequence_id)
        full = request.num_ready // self.block_size
        whole = request.is_exact and request.was_computed  # before, it may be on its way from disk
        if self.disk is None or table is None or not full or not whole:
            return
        self._name_blocks(request, full)
        names = request.block_hashes[:full]
        there = self.disk.has(names)
        missing = [i for i in range(full) if names[i] not in there]
        pages = cache.export_blocks([table[i] for i in missing], self.global_layers)
        new = list(zip((names[i] for i in missing), pages, strict=True))
        self.disk.write(new, request.traffic, prompt=names)
        if self.window:
            self._keep_states(request, names, table, cache)

    def _keep_states(
        self, request: Request, names: list[bytes], table: list[int], cache: KVCache | PairedCache
    ) -> None:
        """At every block end where the next turn's hit may end: the last, and those that the window
        and the slack of a short turn would cut off."""
        span = -(-(self.window + SLACK) // self.block_size)
        for count in range(max(1, len(names) - span), len(names) + 1):
            end = count * self.block_size
            whole = end - self.window >= request.window_start
            if whole and names[count - 1] not in self.windows:
                slots = cache.slots(table, end - self.window, end)
                self.windows.put(names[count - 1], cache.export_slots(slots, self.window_layers))

    def _name_blocks(self, request: Request, count: int) -> None:
        """Work out the names of the request's first `count` blocks, where they are not known."""
        known, salt = request.block_hashes, request.cache_salt
        extend_chain(known, count, request.token_ids, self.block_size, salt, self.fingerprint)
