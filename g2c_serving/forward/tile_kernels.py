"""Attention to one tile of keys at a time: torch's own kernel, or the same written out.

Each gives what the queries see in the tile, and the logarithm of the softmax's denominator, by
which `tiled_attention.py` adds the tiles up. `batch_invariance.py` tries at load which of the two
does, and with how many queries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

TileKernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def aligned(rows: torch.Tensor) -> torch.Tensor:
    """Rows (..., d) filled up to a multiple of 16 numbers. Kernels take other ways at other
    alignments, so that a query's memory must not begin elsewhere in the next tile; only the first d
    numbers are used."""
    return rows if rows.shape[-1] % 16 == 0 else F.pad(rows, (0, -rows.shape[-1] % 16))


def attend_tiles(
    kernel: TileKernel,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `kernel` gives, (B, H, Q, d) and (B, H, Q), for aligned q (B, Q, H, d or a bit more).

    keys, values (B, K, KEYS, d), mask (B, 1, Q, KEYS). Where a head of keys is shared by H / K
    query heads, its queries stand in it one head after the other.
    """
    heads, shared, d = q.shape[2], keys.shape[1], keys.shape[3]
    if heads == shared:
        return kernel(q.transpose(1, 2)[..., :d], keys, values, mask)
    q = q.unflatten(2, (shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # (B, K, H / K * Q, d)
    rows = mask.repeat(1, 1, heads // shared, 1)  # (B, 1, H / K * Q, KEYS)
    seen, log_weight = kernel(q[..., :d], keys, values, rows)
    return (
        seen.unflatten(2, (heads // shared, -1)).flatten(1, 2),
        log_weight.unflatten(2, (heads // shared, -1)).flatten(1, 2),
    )


def flash(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q (B, H, Q, d) to one tile each, and the logarithms of the softmax's
    denominators, (B, H, Q). torch's kernel takes tile by tile and head by head, all in one way."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, attn_mask=mask
    )


def one_by_one(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, written out, for where that kernel, private to torch, does not do."""
    found = [_attend_tile(*one) for one in zip(q, keys, values, mask, strict=True)]
    return torch.stack([seen for seen, _ in found]), torch.stack([weight for _, weight in found])


def _attend_tile(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for one tile: q (H, Q, d), keys and values (H, KEYS, d), mask (1, Q, KEYS)."""
    q, keys, values = q.contiguous(), keys.contiguous(), values.contiguous()
    scores = q @ keys.transpose(1, 2) / math.sqrt(q.shape[-1]) + mask  # (H, Q, KEYS)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights / total) @ values, (top + total.log()).squeeze(-1)
