"""The one sampling path: temperature, top-k, top-p, then a draw that belongs to the request.

All rows of a batch go through together, each with its own settings. Temperature 0 is not a branch:
it is clamped to 1e-5 as in DeepInfer's `fused_sample.py` (Brief, section 3), and its row keeps one
token, so that the result is the exact argmax. The token is where the cumulative weight, in
vocabulary order, first passes a uniform draw. Left out: integer weights; masks; log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from g2c_serving.request import Request
from g2c_serving.sample import rng

MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e30  # all tokens alike; float32 still holds it


@dataclass(frozen=True)
class SamplingBatch:
    """Settings of M rows, one entry each: seed (uint64), position of the token to draw,
    temperature (0 is greedy), top_k (0 is off), top_p (1 is off)."""

    seeds: np.ndarray
    positions: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray


def batch_of(requests: Sequence[Request], vocab_size: int) -> SamplingBatch:
    """The settings of the next token of each request."""
    return SamplingBatch(
        seeds=np.array([r.seed for r in requests], dtype=np.uint64),
        positions=np.array([len(r.token_ids) for r in requests]),
        temperature=np.array([r.params.temperature for r in requests], dtype=float),
        top_k=np.array([min(r.params.top_k, vocab_size) for r in requests]),
        top_p=np.array([r.params.top_p for r in requests], dtype=float),
    )


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """One token id per row, (M,) int64; -1 where a row's logits are not all numbers.

    logits (M, V), not changed. Minus infinity is a token that cannot be drawn.
    """
    if logits.device.type == "mps":  # it has no float64
        logits = logits.cpu()
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    device = logits.device
    temperature = torch.from_numpy(batch.temperature.clip(MIN_TEMPERATURE, MAX_TEMPERATURE))
    scores = logits - logits.amax(-1, keepdim=True)  # at most 0: no division overflows upwards
    scaled = scores / temperature.to(device, logits.dtype)[:, None]  # (M, V)
    weights = torch.softmax(scaled, dim=-1).double()  # (M, V)
    top_k = np.where(batch.temperature == 0, 1, batch.top_k)
    if (top_k > 0).any():
        weights = _keep_top_k(weights, logits, torch.from_numpy(top_k).to(device))
    if (batch.top_p < 1).any():
        weights = _keep_top_p(weights, torch.from_numpy(batch.top_p).to(device))
    cumulative = weights.cumsum(-1)  # (M, V)
    total = cumulative[:, -1]
    target = torch.from_numpy(rng.uniform(batch.seeds, batch.positions)).to(device) * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))  # rounding
    tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]  # (M,)
    return torch.where(torch.isfinite(total), tokens, -1)


def _keep_top_k(weights: torch.Tensor, scores: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero all but the k largest of each row (k = 0 keeps all); ties go to the lowest ids."""
    vocab_size = scores.shape[1]
    k = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size)  # (M,)
    most = int(top_k.max().clamp(max=vocab_size))
    best = scores.topk(most, dim=-1).values  # (M, most)
    kth = best.gather(1, (k.clamp(max=most) - 1)[:, None])  # (M, 1)
    above, tied = scores > kth, scores == kth
    room = k[:, None] - above.sum(-1, keepdim=True)
    keep = above | (tied & (tied.cumsum(-1) <= room)) | (top_k <= 0)[:, None]
    return weights * keep


def _keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but each row's most likely tokens, up to the one that brings the sum to p."""
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)  # (M, V)
    before = ordered.cumsum(-1) - ordered  # the sum of all tokens before this one
    keep_ordered = before < top_p[:, None] * weights.sum(-1, keepdim=True)
    keep_ordered[:, 0] = True
    keep = torch.zeros_like(keep_ordered).scatter_(1, ids, keep_ordered)
    return weights * (keep | (top_p >= 1)[:, None])
