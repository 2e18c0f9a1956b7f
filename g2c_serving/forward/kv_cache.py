"""The KV cache as pages: one pool of blocks a layer, written by slot, read by block table.

A block holds `block_size` tokens' keys and values. Which request owns which block is not known
here; that is the block manager's business (`schedule/block_manager.py`). Brief, section 2.

Reading gathers a few requests' blocks into buffers that are made once, sized to stay in the
processor's cache: the memory traffic of the gather decides the cost of attention here, not its
arithmetic. A GPU kernel (FlashMLA in DeepInfer) reads the pages where they lie, without the copy.
Left out: low precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

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
        block_bytes = block_size * num_heads * head_dim * self.keys.element_size()
        self.gather_blocks = max(GATHER_BYTES // block_bytes, max_blocks_per_request)
        self._key_buffer = self.keys.new_empty((self.gather_blocks, *shape[2:]))
        self._value_buffer = torch.empty_like(self._key_buffer)

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

        They lie in buffers that the next read overwrites.
        """
        keys, values = self._key_buffer[: len(blocks)], self._value_buffer[: len(blocks)]
        torch.index_select(self.keys[layer], 0, blocks, out=keys)
        torch.index_select(self.values[layer], 0, blocks, out=values)
        return keys, values

    def clear(self, blocks: Sequence[int]) -> None:
        """Wipe `blocks` for a new owner."""
        if blocks:
            index = torch.tensor(blocks, device=self.keys.device)
            self.keys.index_fill_(1, index, 0)
            self.values.index_fill_(1, index, 0)
