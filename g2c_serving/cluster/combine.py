"""Adding up what a token's experts gave, in an order that stays, or in one that does not.

Brief, "The parts that are pure infrastructure" and section 3. A token goes to k experts on several
GPUs, and their outputs, times the router's weights, are added up. Floating-point addition depends
on order and grouping, so a token's bits depend on the rule:

    by_arrival   as the partial results come in: the faster GPU first
    by_gpu       each GPU adds up its own experts' outputs and sends one sum; then GPU after GPU
    by_expert    every output is sent by itself, and added in the order of the experts' numbers

`by_gpu` looks fixed, and is, until a reassignment moves an expert: then the groups are others.
Only `by_expert` does not know where an expert lies; it sends k vectors a token instead of one a
GPU. What DeepInfer does here is not in the Brief.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def by_arrival(parts: torch.Tensor, gpus: torch.Tensor, arrival: torch.Tensor) -> torch.Tensor:
    """parts (N, k, D): outputs of each token's k experts, in the order of the experts' numbers,
    times their weights; gpus (N, k): where each was computed; arrival (N, k): when it came.

    Returns (N, D), as do the other two. Equal arrivals are added in the experts' order.
    """
    order = arrival.argsort(dim=1, stable=True)  # (N, k)
    return _in_a_row(parts.take_along_dim(order[..., None], 1))


def by_gpu(parts: torch.Tensor, gpus: torch.Tensor, arrival: torch.Tensor) -> torch.Tensor:
    """As `by_arrival`; each GPU's own sum first (its experts in order), then GPUs in order."""
    sums = []
    for gpu in gpus.unique().tolist():  # rises
        mine = (gpus == gpu)[..., None]  # (N, k, 1)
        sums.append(_in_a_row(torch.where(mine, parts, -0.0)))  # adding -0 changes no bit
    return _in_a_row(torch.stack(sums, 1))


def by_expert(parts: torch.Tensor, gpus: torch.Tensor, arrival: torch.Tensor) -> torch.Tensor:
    """As `by_arrival`; in the order of the experts' numbers."""
    return _in_a_row(parts)


def vectors_sent(gpus: torch.Tensor, rule: Combine) -> float:
    """How many vectors are sent for a token, on average: gpus (N, k) as above."""
    if rule is not by_gpu:
        return float(gpus.shape[1])
    return sum(len(set(row)) for row in gpus.tolist()) / len(gpus)


def _in_a_row(parts: torch.Tensor) -> torch.Tensor:
    """parts (N, k, D) -> (N, D), one after the other; sum(1) may choose its own order."""
    total = parts[:, 0].clone()
    for i in range(1, parts.shape[1]):
        total += parts[:, i]
    return total
