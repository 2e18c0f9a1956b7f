"""The two norms: layer norm (the course's models, GPT-2) and RMS norm (Llama and its kin).

RMS norm leaves out what layer norm does with the mean: x / sqrt(mean(x^2) + eps) * gamma.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class LayerNorm:
    """Over the last dimension of x (N, D); gamma and beta (D,)."""

    def __init__(self, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> None:
        self.gamma, self.beta, self.eps = gamma, beta, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)


class RMSNorm:
    """Over the last dimension of x (N, D); gamma (D,)."""

    def __init__(self, gamma: torch.Tensor, eps: float) -> None:
        self.gamma, self.eps = gamma, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.gamma.shape, self.gamma, self.eps)


Norm = LayerNorm | RMSNorm
