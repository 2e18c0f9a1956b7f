"""Weights on their way into a model: one at a time, at its precision and on its device.

Weights in memory are used as they are where they fit. Those of a file (a Mapping that reads them
when asked, `hugging_face_weights.py`) pass one by one through room that is used again and again, so
that while a model is built there is never more than its own weights and the layer at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from g2c_serving.forward.linear import Linear

Weights = Mapping[str, torch.Tensor]
CACHED_BYTES = 32 << 20  # a model up to this size stays in a processor's cache


def place(weights: Weights, dtype: torch.dtype, device: str, pack: bool) -> PlacedWeights:
    """`weights`, under the parent course's names, at `dtype` on `device`.

    pack  whether linear layers may look for the faster kernel
    """
    kind = PlacedWeights if isinstance(weights, dict) else FileWeights
    return kind(weights, dtype, device, pack)


class PlacedWeights:
    """Weights in memory."""

    def __init__(self, weights: Weights, dtype: torch.dtype, device: str, pack: bool) -> None:
        self._weights, self._dtype, self._device, self._pack = weights, dtype, device, pack

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._device, self._dtype)

    def table(self, name: str) -> torch.Tensor:
        """For lookups of a few rows: as it lies, on the CPU perhaps in its file and at another
        precision than the model's."""
        return self._weights[name] if self._device == "cpu" else self.tensor(name)

    def linear(self, name: str, activation: str = "none") -> Linear:
        """The linear layer of name.W (in, out) and, where there is one, name.b (out,)."""
        return self.layer([self._weights[f"{name}.W"]], self._bias(f"{name}.b"), activation)

    def fused(self, names: Sequence[str]) -> Linear:
        """Linear layers of one input as one, whose outputs lie side by side."""
        weights = [self._weights[f"{name}.W"] for name in names]
        biases = [self._bias(f"{name}.b") for name in names]
        if all(bias is None for bias in biases):
            return self.layer(weights, None)
        widths = [w.shape[1] for w in weights]
        new = torch.zeros(sum(widths), dtype=self._dtype, device=self._device)
        for part, bias in zip(new.split(widths), biases, strict=True):
            if bias is not None:
                part.copy_(bias)
        return self.layer(weights, new)

    def head(self) -> Linear:
        """The layer from the last block's output to logits: head.W, or the token embedding."""
        own = "head.W" in self
        weight = self._weights["head.W"] if own else self._weights["token_embed.weight"].T
        return self.layer([weight], self._bias("head_bias"))

    def layer(
        self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, activation: str = "none"
    ) -> Linear:
        """The linear layer of `weights`, (in, out) each, side by side."""
        placed = [w.to(self._device, self._dtype) for w in weights]
        whole = placed[0] if len(placed) == 1 else torch.cat(placed, dim=1)
        return Linear(whole, bias, activation, pack=self._pack)

    def _bias(self, name: str) -> torch.Tensor | None:
        return self.tensor(name) if name in self else None


class FileWeights(PlacedWeights):
    """Weights that lie in files. What a model keeps of them is a copy."""

    def __init__(self, weights: Weights, dtype: torch.dtype, device: str, pack: bool) -> None:
        super().__init__(weights, dtype, device, pack)
        size = sum(w.numel() for w in weights.values()) * dtype.itemsize
        self._keep_plain = size <= CACHED_BYTES
        self._room = torch.empty(0, dtype=dtype, device=device)

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._device, self._dtype, copy=True)

    def head(self) -> Linear:
        head = super().head()
        self._room = self._room.new_empty(0)  # by far the largest layer: the others need less
        return head

    def layer(
        self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, activation: str = "none"
    ) -> Linear:
        """The weights lie in the room together, (out, in), until the next layer's do."""
        rows, columns = sum(w.shape[1] for w in weights), weights[0].shape[0]
        if self._room.numel() < rows * columns:
            self._room = self._room.new_empty(0)  # first, so that the two are never there together
            self._room = self._room.new_empty(rows * columns)
        whole = self._room[: rows * columns].view(rows, columns)
        for part, weight in zip(whole.split([w.shape[1] for w in weights]), weights, strict=True):
            part.copy_(weight.T)
        plain = self._keep_plain
        return Linear(whole.T, bias, activation, pack=self._pack, keep_plain=plain, lent=True)
