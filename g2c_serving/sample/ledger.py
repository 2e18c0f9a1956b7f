"""A ledger of draws: for every token that was sampled, what it was drawn with.

Give one to `engine.ledger`, run, and read off what a request drew, position by position: the key
and the counter of its random number, the integer target, the total that it was drawn below, and
the token with its weight. Brief, section 3, "Whose random numbers?": nothing in a line knows of
the other requests. Key, counter and target of a position depend on seed, position and total alone;
total and weights come of the logits, so they are equal in other company where the logits are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from g2c_serving.sample import rng

if TYPE_CHECKING:
    from g2c_serving.sample.sampler import Drawn

USES = {rng.SAMPLE: "sample", rng.RESAMPLE: "resample", rng.ACCEPT: "accept"}


class Draw(NamedTuple):
    """One draw. The token is the first whose cumulative weight is above the target; a coin accepts
    the drafted token if the target is below the weight."""

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
        drawn: Drawn,
        tokens: torch.Tensor,
        use: int | np.ndarray = rng.SAMPLE,
    ) -> None:
        """Note the draws of M rows: all (M,), but for one `use` of all. `tokens` are those that
        came of it, faults included. It reads the tensors, so it waits for the device."""
        cumulative, at = drawn.cumulative, tokens.clamp(min=0)[:, None]  # (M, V), (M, 1)
        before = torch.where(at > 0, cumulative.gather(1, (at - 1).clamp(min=0)), 0)
        weight = cumulative.gather(1, at) - before  # (M, 1)
        numbers = torch.stack((drawn.target, cumulative[:, -1], tokens, weight[:, 0]), dim=1)
        self._note(seeds, positions, use, drawn.attempt.cpu().numpy(), numbers.tolist())

    def record_coins(
        self,
        seeds: np.ndarray,
        positions: np.ndarray,
        bits: np.ndarray,
        chances: np.ndarray,
        drafts: np.ndarray,
    ) -> None:
        """Note the coins of M drafts, all (M,): a draft is accepted where its 53 random bits are
        below its chance times 2^53."""
        weights = np.floor(chances * 2.0**53).astype(np.int64)
        numbers = np.stack((bits, np.full_like(bits, 2**53), drafts, weights), axis=1)  # (M, 4)
        self._note(seeds, positions, rng.ACCEPT, 0, numbers.tolist())

    def _note(
        self,
        seeds: np.ndarray,
        positions: np.ndarray,
        use: int | np.ndarray,
        attempt: int | np.ndarray,
        numbers: list[list[int]],
    ) -> None:
        counters = rng.counters(positions, use, attempt).tolist()
        uses = np.broadcast_to(use, len(seeds)).tolist()
        hosts = (seeds.tolist(), positions.tolist(), uses, counters, numbers)
        for seed, position, one, counter, rest in zip(*hosts, strict=True):
            draw = Draw(position, USES[one], seed, tuple(counter), *rest)
            self._draws.setdefault(seed, []).append(draw)
