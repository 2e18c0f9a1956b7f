"""The KV cache as pages: one pool of blocks a layer, written by slot, read by block table.

A block holds `block_size` tokens' keys and values. Which request owns which block is not known
here; that is the block manager's business (`schedule/block_manager.py`). Brief, section 2.

Reading gathers a few requests' blocks into buffers that are made once, sized to stay in the
processor's cache: the memory traffic of the gather decides the cost of attention here, not its
arithmetic. A GPU kernel (FlashMLA in DeepInfer) reads the pages where they lie, without the copy.
Low precision is in low_precision_cache.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from g2c_serving.on_device import on_device

GATHER_BYTES = 2 << 20  # of keys, and as much of values, gathered at a time


class KVCache:
    """Pools of `num_blocks` blocks for `num_layers` layers of `num_heads` heads of `head_dim`."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_dim: int,
        max_blocks_per_request: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.block_size = block_size
        shape = (num_layers, num_blocks, block_size, num_heads, head_dim)
        try:
            self.keys = torch.zeros(shape, dtype=dtype, device=device)
            self.values = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as err:
            gigabytes = 2 * math.prod(shape) * dtype.itemsize / 1e9
            raise MemoryError(
                f"num_blocks={num_blocks} of {block_size} tokens take {gigabytes:,.1f} GB of keys "
                "and values, more than there is: lower EngineConfig.num_blocks"
            ) from err
        block_bytes = block_size * num_heads * head_dim * self.read_dtype.itemsize
        self.gather_blocks = max(GATHER_BYTES // block_bytes, max_blocks_per_request)
        self._key_buffer = self.keys.new_empty((self.gather_blocks, *shape[2:]))
        self._value_buffer = torch.empty_like(self._key_buffer)
        self._wide = torch.empty(0)
        if self.read_dtype != dtype:
            self._wide = self.keys.new_empty((2, *self._key_buffer.shape), dtype=self.read_dtype)

    @property
    def num_layers(self) -> int:
        return self.keys.shape[0]

    @property
    def read_dtype(self) -> torch.dtype:
        """What `read` gives: on a CPU float32 at least, since torch's attention over half-precision
        numbers takes several times as long there."""
        dtype, is_cpu = self.keys.dtype, self.keys.device.type == "cpu"
        return torch.promote_types(dtype, torch.float32) if is_cpu else dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        layers, _, _, heads, head_dim = self.keys.shape
        return 2 * layers * heads * head_dim * self.keys.element_size()

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store keys and values (N, H, d) of one layer at slots (N,)."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks (M,), M at most `gather_blocks`: two (M, block_size, H, d).

        They lie in buffers that the next read overwrites, as `read_dtype`.
        """
        keys, values = self._key_buffer[: len(blocks)], self._value_buffer[: len(blocks)]
        torch.index_select(self.keys[layer], 0, blocks, out=keys)
        torch.index_select(self.values[layer], 0, blocks, out=values)
        if len(self._wide):
            wide_keys, wide_values = self._wide[:, : len(blocks)]
            return wide_keys.copy_(keys), wide_values.copy_(values)
        return keys, values

    def clear(self, blocks: Sequence[int]) -> None:
        """Wipe `blocks` for a new owner."""
        if blocks:
            index = on_device(blocks, self.keys.device)
            self.keys.index_fill_(1, index, 0)
            self.values.index_fill_(1, index, 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination). All sources are read before anything is written."""
        if pairs:
            source, destination = on_device(pairs, self.keys.device).T
            keys, values = self.keys.index_select(1, source), self.values.index_select(1, source)
            self.keys.index_copy_(1, destination, keys)
            self.values.index_copy_(1, destination, values)

    # pages leave the pool and come back, bit for bit

    def slots(self, table: Sequence[int], first: int, last: int) -> torch.Tensor:
        """The slots (last - first,) of the tokens `first` to `last` of a block table."""
        positions = torch.arange(first, last)
        blocks = torch.tensor(table, dtype=torch.int64)[positions // self.block_size]
        return (blocks * self.block_size + positions % self.block_size).to(self.keys.device)

    def export_slots(self, slots: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        """Keys and values of `layers` at slots (N,), on the CPU: (N, 2, layers, H, d)."""
        pools = self.keys.flatten(1, 2), self.values.flatten(1, 2)  # (L, slots, H, d)
        pages = [torch.stack([pool[i, slots] for i in layers], 1) for pool in pools]
        return torch.stack(pages, 1).cpu()

    def import_slots(self, slots: torch.Tensor, layers: Sequence[int], pages: torch.Tensor) -> None:
        """Write what `export_slots` gave, as it is, to other slots perhaps."""
        pages = pages.to(self.keys.device)
        for k, layer in enumerate(layers):
            KVCache.write(self, layer, slots, pages[:, 0, k], pages[:, 1, k])

    def block_bytes(self, layers: Sequence[int]) -> int:
        """Of one block in `layers`, as `export_blocks` gives it."""
        return self.block_size * self.bytes_per_token * len(layers) // self.num_layers

    def export_blocks(self, blocks: Sequence[int], layers: Sequence[int]) -> list[bytes]:
        """The bytes of each of `blocks` in `layers`."""
        if not blocks:
            return []
        pages = self.export_slots(self._slots_of(blocks), layers).view(len(blocks), -1)
        return [page.view(torch.uint8).numpy().tobytes() for page in pages]

    def import_blocks(
        self, blocks: Sequence[int], layers: Sequence[int], pages: Sequence[bytes]
    ) -> None:
        """Write what `export_blocks` gave, to other blocks perhaps."""
        _, _, _, heads, head_dim = self.keys.shape
        flat = torch.frombuffer(bytearray(b"".join(pages)), dtype=self.keys.dtype)
        slots = self._slots_of(blocks)
        self.import_slots(slots, layers, flat.view(len(slots), 2, len(layers), heads, head_dim))

    def _slots_of(self, blocks: Sequence[int]) -> torch.Tensor:
        """All slots of `blocks`, block after block."""
        return self.slots(blocks, 0, len(blocks) * self.block_size)
