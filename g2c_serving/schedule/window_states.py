"""The tier in host memory: the state of sliding-window layers, by the block that it belongs to.

The middle one of the three tiers of `prefix_tiers.py` (Brief, section 2, Reported).
"""

from __future__ import annotations

from collections import OrderedDict

import torch

HOST_BYTES = 64 << 20


class WindowStates:
    """An in-memory directory: block name -> the window layers' keys and values of the `window`
    tokens up to that block's end, (window, 2, layers, H, d). The least recently used go first."""

    def __init__(self, capacity_bytes: int = HOST_BYTES) -> None:
        self.capacity_bytes, self.num_bytes = capacity_bytes, 0
        self._states: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        return name in self._states

    def get(self, name: bytes) -> torch.Tensor:
        self._states.move_to_end(name)
        return self._states[name]

    def put(self, name: bytes, state: torch.Tensor) -> None:
        if name in self._states:
            return self._states.move_to_end(name)
        self._states[name] = state
        self.num_bytes += state.nbytes
        while self.num_bytes > self.capacity_bytes:
            self.num_bytes -= self._states.popitem(last=False)[1].nbytes
