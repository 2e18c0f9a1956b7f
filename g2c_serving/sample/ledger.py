"""A ledger of draws: for every token that was sampled, what it was drawn with.

Give one to `engine.ledger`, run, and read off what a request drew, position by position: the key
and the counter of its random number, the integer target, the total that it was drawn below, and
the token with its weight. Brief, section 3, "Whose random numbers?": nothing in a line knows of
the other requests. Key, counter and target of a position depend on seed, position and total alone;
total and weights come of the logits, so they are equal in other company where the logits are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from g2c_serving.sample import rng

USES = {rng.SAMPLE: "sample", rng.RESAMPLE: "resample", rng.ACCEPT: "accept"}


class Draw(NamedTuple):
    """One draw. The token is the first whose cumulative weight is above the target."""

    position: int  # of the token, counted from the start of the prompt
    use: str  # sample, resample or accept
    seed: int  # the key
    counter: tuple[int, int, int, int]  # position * 3 + use, low and high word; attempt; lane
    target: int  # from 0 to total - 1
    total: int  # of all weights of the row
    token: int  # negative where the row had none to draw
    weight: int  # of the token; weight / total is its probability


class Ledger:
    """Keeps the draws of an engine that it is given to: `engine.ledger = Ledger()`."""

    def __init__(self) -> None:
        self._draws: dict[int, list[Draw]] = {}

    def of(self, seed: int) -> list[Draw]:
        """The draws of the request with that seed (`RequestOutput.seed`), in order of position;
        none for a seed that drew nothing. Two requests with one seed stand in one list."""
        return sorted(self._draws.get(seed, []))

    def record(
        self,
        seeds: np.ndarray,
        positions: np.ndarray,
        use: int,
        counters: np.ndarray,
        target: torch.Tensor,
        cumulative: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        """Note the draws of M rows: counters (M, 4), cumulative (M, V), all others (M,). It reads
        the tensors, so it waits for the device."""
        at = tokens.clamp(min=0)[:, None]  # (M, 1)
        before = torch.where(at > 0, cumulative.gather(1, (at - 1).clamp(min=0)), 0)
        weight = cumulative.gather(1, at) - before  # (M, 1)
        drawn = torch.stack((target, cumulative[:, -1], tokens, weight[:, 0]), dim=1)  # (M, 4)
        hosts = (seeds.tolist(), positions.tolist(), counters.tolist(), drawn.tolist())
        for seed, position, counter, numbers in zip(*hosts, strict=True):
            draw = Draw(position, USES[use], seed, tuple(counter), *numbers)
            self._draws.setdefault(seed, []).append(draw)
