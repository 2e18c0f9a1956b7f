"""The best k of each row, exactly k: among equals the lowest ids."""

from __future__ import annotations

import torch


def the_best(scores: torch.Tensor, last: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """True (R, V) for exactly `count` (R, 1) tokens a row: those above its count-th best score,
    `last` (R, 1), and of those that equal it the lowest ids."""
    above, tied = scores > last, scores == last  # (R, V)
    room = count - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1, dtype=torch.int32) <= room))
