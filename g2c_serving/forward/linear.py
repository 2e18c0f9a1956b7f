"""The linear layer: the fastest kernel at hand, checked at load, with a plain fallback.

On x86 processors oneDNN can reorder a float32 weight once, at load, into the layout that its
kernel reads best. With such a weight 2 to 8 rows cost about as much as one, which is the whole
point of a batch. The operator is private to torch, so it is used only where it exists and agrees
with `F.linear` on a probe; everywhere else (Apple silicon, GPUs, float64, bfloat16) the layer is
`F.linear`.

Plays the part of DeepGEMM, the matrix library that DeepInfer calls. Left out: low precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

PACKED_ROWS = 64  # the number of rows for which oneDNN is asked to lay the weight out
ONE_ROW_BYTES = (
    4 << 20
)  # up to this size one row alone is faster unpacked (a matrix-vector product)


class Linear:
    """y = x @ weight + bias, then optionally exact GELU.

    weight (in, out) and bias (out,) as the parent course stores them; x (N, in), y (N, out).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight.T  # (out, in), a view
        self.bias = bias
        self.packed = _pack(self.weight)
        self._one_row_plain = weight.numel() * weight.element_size() <= ONE_ROW_BYTES
        if self.packed is not None and not self._agrees():
            self.packed = None

    def __call__(self, x: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        if self.packed is None or (x.shape[0] == 1 and self._one_row_plain):
            y = F.linear(x, self.weight, self.bias)  # (N, out)
            return F.gelu(y) if gelu else y
        return self._packed_linear(x, gelu)

    def _packed_linear(self, x: torch.Tensor, gelu: bool) -> torch.Tensor:
        activation, algorithm = ("gelu", "none") if gelu else ("none", "")
        return torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, activation, [], algorithm
        )

    def _agrees(self) -> bool:
        """Whether the packed kernel gives what F.linear gives, on a fixed probe of 2 rows."""
        probe = torch.linspace(-1, 1, 2 * self.weight.shape[1]).view(2, -1)  # (2, in)
        plain = F.linear(probe, self.weight, self.bias)
        try:
            packed = self._packed_linear(probe, gelu=True)
        except (AttributeError, RuntimeError, TypeError):
            return False
        return torch.allclose(packed, F.gelu(plain), rtol=1e-4, atol=1e-4)


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight (out, in) in oneDNN's own layout, or None where that cannot be had."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    except (AttributeError, RuntimeError, TypeError):
        return None
