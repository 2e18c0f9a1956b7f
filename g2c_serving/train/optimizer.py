"""The optimizer: Muon for the matrices inside the blocks, AdamW for everything else.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest matrix whose singular
values are all about one, so that no direction of the update is starved. On this model it needs
about half the steps of AdamW. The schedule is a short warm-up, a plateau and a decay to zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # odd quintic that pulls (0, 1] towards 1


def orthogonalize(matrix: Tensor) -> Tensor:
    """The matrix with its singular values pushed to about 1 (0.7 to 1.2); same shape (m, n)."""
    a, b, c = NEWTON_SCHULZ
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T  # (s, l), s <= l
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T  # (s, s)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized. `parts` of a parameter's group cuts its rows into that many
    matrices first (query, key and value share one parameter but are three matrices)."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                memory = self.state[p].setdefault("momentum", torch.zeros_like(p))
                memory.lerp_(p.grad, 1 - group["momentum"])
                ahead = p.grad.lerp(memory, group["momentum"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                for rows, change in zip(
                    p.chunk(group["parts"]), ahead.chunk(group["parts"]), strict=True
                ):
                    size = max(1.0, rows.shape[0] / rows.shape[1]) ** 0.5
                    rows.sub_(orthogonalize(change), alpha=group["lr"] * size)


def make_optimizers(
    model: nn.Module, muon_lr: float, adam_lr: float
) -> list[torch.optim.Optimizer]:
    """Every parameter of `model` in exactly one group; each group remembers its `peak_lr`."""
    thirds: list[Tensor] = []
    whole: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        inside = name.startswith("blocks.") and p.ndim == 2
        (thirds if "qkv" in name and inside else whole if inside else rest).append(p)
    muon = Muon([{"params": thirds, "parts": 3}, {"params": whole}], lr=muon_lr)
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.01)
    for group in (*muon.param_groups, *adam.param_groups):
        group["peak_lr"] = group["lr"]
    return [muon, adam]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], step: int, steps: int) -> None:
    """Warm up over a fiftieth of the steps, hold, decay linearly to zero over the last half."""
    warm = min(1.0, (step + 1) / max(1, steps // 50))
    decay = min(1.0, 2 * (steps - step) / steps)
    for group in (g for o in optimizers for g in o.param_groups):
        group["lr"] = group["peak_lr"] * min(warm, decay)
