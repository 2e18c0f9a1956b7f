"""Weights on their way into a model: one at a time, at its precision and on its device.

Weights in memory are used as they are where they fit. Those of a file (a Mapping that reads them
when asked, `hugging_face.py`) are copied one by one, so that while a model is built there is never
more than its own weights and the tensor at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from g2c_serving.forward.linear import Linear

Weights = Mapping[str, torch.Tensor]
CACHED_BYTES = 32 << 20  # a model up to this size stays in a processor's cache


class PlacedWeights:
    """`weights`, under the parent course's names, at `dtype` on `device`.

    pack  whether linear layers may look for the faster kernel
    """

    def __init__(
        self, weights: Weights, dtype: torch.dtype, device: str, pack: bool = True
    ) -> None:
        self._weights, self._dtype, self._device, self._pack = weights, dtype, device, pack
        self._in_file = not isinstance(weights, dict)
        size = sum(w.numel() for w in weights.values()) * dtype.itemsize
        self._keep_plain = not self._in_file or size <= CACHED_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._device, self._dtype, copy=self._in_file)

    def table(self, name: str) -> torch.Tensor:
        """For lookups of a few rows: as it lies, on the CPU perhaps in its file and at another
        precision than the model's."""
        return self._weights[name] if self._device == "cpu" else self.tensor(name)

    def bias(self, name: str) -> torch.Tensor | None:
        return self.tensor(name) if name in self else None

    def linear(self, name: str, activation: str = "none") -> Linear:
        """The linear layer of name.W (in, out) and, where there is one, name.b (out,)."""
        return self.layer(self.tensor(f"{name}.W"), self.bias(f"{name}.b"), activation)

    def fused(self, names: Sequence[str]) -> Linear:
        """Linear layers of one input as one, whose outputs lie side by side."""
        weights = [self.tensor(f"{name}.W") for name in names]
        biases = [self.bias(f"{name}.b") for name in names]
        if all(bias is None for bias in biases):
            return self.layer(torch.cat(weights, dim=1), None)
        pairs = zip(weights, biases, strict=True)
        filled = [w.new_zeros(w.shape[1]) if b is None else b for w, b in pairs]
        return self.layer(torch.cat(weights, dim=1), torch.cat(filled))

    def layer(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
    ) -> Linear:
        return Linear(weight, bias, activation, pack=self._pack, keep_plain=self._keep_plain)
