"""The linear layer: the fastest kernel at hand, checked at load, with a plain fallback.

On x86 processors oneDNN can reorder a weight once, at load, into the layout that its kernel reads
best: float32, and bfloat16 where the processor computes in it. With such a weight 2 to 8 rows cost
about as much as one, which is the whole point of a batch. The operator is private to torch, so it
is used only where it exists and agrees with `F.linear` on a probe; everywhere else (Apple silicon,
GPUs, float64) the layer is `F.linear`. A large weight is then kept in that layout alone.

Plays the part of DeepGEMM, the matrix library that DeepInfer calls. Left out: low precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the types that can be packed
PACKED_ROWS = 64  # the number of rows for which oneDNN is asked to lay the weight out
ONE_ROW_BYTES = 4 << 20  # up to this size one row alone is faster unpacked

Activation = Callable[[torch.Tensor], torch.Tensor]
# Each as torch computes it, and under its two names in oneDNN, which applies it within the kernel.
ACTIVATIONS: dict[str, tuple[Activation, tuple[str, str]]] = {
    "none": (lambda y: y, ("none", "")),
    "gelu": (F.gelu, ("gelu", "none")),
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), ("gelu", "tanh")),  # GPT-2's own
    "silu": (F.silu, ("swish", "")),
}


class Linear:
    """y = activation(x @ weight + bias).

    weight (in, out) and bias (out,) as the parent course stores them; x (N, in), y (N, out).
    activation  one of ACTIVATIONS
    pack        whether to look for the faster kernel
    keep_plain  a small weight stays as it is beside the packed one, for one row alone
    lent        the weight's memory will be used again: what is kept of it is a copy
    `shape` is (out, in); `weight` (out, in) is None where only the packed one is kept.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str = "none",
        *,
        pack: bool = True,
        keep_plain: bool = True,
        lent: bool = False,
    ) -> None:
        self.weight: torch.Tensor | None = weight.T  # (out, in), a view
        self.bias, self.shape = bias, self.weight.shape
        self.activate, self._fused = ACTIVATIONS[activation]
        self.packed = _pack(self.weight) if pack else None
        if self.packed is not None and not self._agrees(self.weight):
            self.packed = None
        small = weight.numel() * weight.element_size() <= ONE_ROW_BYTES
        self._one_row_plain = small and keep_plain and weight.dtype == torch.float32
        if self.packed is not None and not self._one_row_plain:
            self.weight = None
        elif lent:
            self.weight = self.weight.clone()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is None or (x.shape[0] == 1 and self._one_row_plain):
            assert self.weight is not None
            return self.activate(F.linear(x, self.weight, self.bias))  # (N, out)
        return self._packed_linear(x)

    def _packed_linear(self, x: torch.Tensor) -> torch.Tensor:
        name, algorithm = self._fused
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, name, [], algorithm)

    def _agrees(self, weight: torch.Tensor) -> bool:
        """Whether the packed kernel gives what F.linear gives, on a fixed probe of 2 rows."""
        dtype, off = weight.dtype, TOLERANCE[weight.dtype]
        probe = torch.linspace(-1, 1, 2 * weight.shape[1], dtype=dtype).view(2, -1)  # (2, in)
        plain = self.activate(F.linear(probe, weight, self.bias))
        try:
            packed = self._packed_linear(probe)
        except (AttributeError, RuntimeError, TypeError):
            return False
        return torch.allclose(packed, plain, rtol=off, atol=off)


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight (out, in) in oneDNN's own layout, or None where that cannot be had."""
    if weight.dtype not in TOLERANCE or weight.device.type != "cpu":
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return None
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    except (AttributeError, RuntimeError, TypeError):
        return None
