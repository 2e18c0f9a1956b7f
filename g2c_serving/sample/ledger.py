"""A ledger of draws: for every token that was sampled, what it was drawn with.

Give one to `engine.ledger`, run, and read off what a request drew, position by position: the key
and the counter of its random number, the integer target, the total that it was drawn below, and
the token with its weight. Brief, section 3, "Whose random numbers?": nothing in a line knows of
the other requests. Key, counter and target of a position depend on seed, position and total alone;
total and weights come of the logits, so they are equal in other company where the logits are.
"""

from __future__ import annotations

from collections import deque
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


class Note(NamedTuple):
    """M draws as they were noted, of arrays on the host and tensors of the device, (M,) each."""

    seeds: np.ndarray
    positions: np.ndarray | torch.Tensor
    use: int | torch.Tensor
    attempt: int | torch.Tensor
    numbers: torch.Tensor  # (M, 4): target, total, token, weight
    counts: bool | torch.Tensor = True  # whether they decided anything


class Ledger:
    """Keeps the draws of an engine that it is given to: `engine.ledger = Ledger()`. What is noted
    stays on the device until somebody asks for it."""

    def __init__(self) -> None:
        self._noted: deque[Note] = deque()  # one thread may note while another reads
        self._draws: dict[int, list[Draw]] = {}

    def of(self, seed: int) -> list[Draw]:
        """The draws of the request with that seed (`RequestOutput.seed`), in order of position;
        none for a seed that drew nothing. Two requests with one seed stand in one list. It waits
        for the device."""
        while self._noted:
            self._read(self._noted.popleft())
        return sorted(self._draws.get(seed, []))

    def join(self, other: Ledger) -> None:
        """Take over what another has noted, of a request that has changed engines, say."""
        self._noted.extend(other._noted)
        for seed, draws in other._draws.items():
            self._draws.setdefault(seed, []).extend(draws)

    def record(
        self,
        seeds: np.ndarray,
        positions: np.ndarray | torch.Tensor,
        drawn: Drawn,
        tokens: torch.Tensor,
        use: int | torch.Tensor = rng.SAMPLE,
    ) -> None:
        """Note the draws of M rows: all (M,), but for one `use` of all. `tokens` are those that
        came of it, faults included."""
        cumulative, at = drawn.cumulative, tokens.clamp(min=0)[:, None]  # (M, V), (M, 1)
        before = cumulative.gather(1, (at - 1).clamp(min=0)).masked_fill(at == 0, 0)
        weight = cumulative.gather(1, at) - before  # (M, 1)
        numbers = torch.stack((drawn.target, cumulative[:, -1], tokens, weight[:, 0]), dim=1)
        self._noted.append(Note(seeds, positions, use, drawn.attempt, numbers))

    def record_coins(
        self,
        seeds: np.ndarray,
        positions: np.ndarray,
        bits: torch.Tensor,
        chances: torch.Tensor,
        drafts: torch.Tensor,
        counts: torch.Tensor,
    ) -> None:
        """Note the coins of M drafts, all (M,): a draft is accepted where its 53 random bits are
        below its chance times 2^53. `counts`: whether all drafts before it stand; those of the
        others decide nothing, and are left out."""
        weights = (chances * 2.0**53).floor().long()
        numbers = torch.stack((bits, torch.full_like(bits, 2**53), drafts, weights), dim=1)
        self._noted.append(Note(seeds, positions, rng.ACCEPT, 0, numbers, counts))

    def _read(self, note: Note) -> None:
        seeds, positions, use, attempt, numbers, counts = map(_on_host, note)
        counters = rng.counters(positions, use, attempt).tolist()
        uses = np.broadcast_to(use, len(seeds)).tolist()
        kept = np.broadcast_to(counts, len(seeds)).tolist()
        hosts = (seeds.tolist(), positions.tolist(), uses, counters, numbers.tolist(), kept)
        for seed, position, one, counter, rest, counted in zip(*hosts, strict=True):
            if counted:
                draw = Draw(position, USES[one], seed, tuple(counter), *rest)
                self._draws.setdefault(seed, []).append(draw)


def _on_host(value: object) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
