"""Verification: which drafts stand, and the token that follows them.

A drafter has drawn n tokens for each request, one after the other. The target has scored them in
one pass. The first draft is accepted with probability min(1, p / q), where p is its probability
under the target and q under the drafter; so is the next one, given the first, and so on. At the
first rejection a token is drawn from what p has more than q, max(p - q, 0); where all drafts that
were checked stand, an ordinary one follows. What comes out is distributed as the target alone would
write it (Leviathan and others, 2023; Chen and others, 2023).

    coin    use 2 at the draft's position    accept below exp(min(log p - log q, 0))
    resample    use 1                        from max(p - q * exp(-guard), 0)
    ordinary    use 0                        after the last draft that was checked

p and q are what temperature, mask, top-k and top-p leave, as integer weights: q is the very one
that the draft was drawn by. DeepInfer shrinks q by exp(-5e-5) in the remainder, so that it never
comes up empty; `guard=0` is exact. Nothing here waits for the device: all numbers that any outcome
could need are made in advance. Brief, section 4; `fused_sample.py` of DeepInfer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from g2c_serving.on_device import on_device
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.sampler import WEIGHT_BITS, SamplingBatch, draw, weigh

GUARD = 5e-5  # DeepInfer's


@dataclass(frozen=True)
class Drafts:
    """n drafts for each of S requests.

    tokens (S, n)        int64
    weights (S, n, V)    int64, by which each was drawn; all zero where the drafter had a fault
    scores (S, n)        how likely each is accepted, given those before it, as the drafter says
    """

    tokens: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor

    def take(self, rows: Sequence[int]) -> Drafts:
        """Some requests' drafts; no copy where they are all, in their order."""
        if list(rows) == list(range(len(self.tokens))):
            return self
        index = on_device(rows, self.tokens.device)
        return Drafts(self.tokens[index], self.weights[index], self.scores[index])


@dataclass(frozen=True)
class Verdict:
    """tokens (S, n + 1): the accepted drafts, then the token drawn after them (negative for a
    fault, see the sampler); what lies behind it means nothing. accepted (S,)."""

    tokens: torch.Tensor
    accepted: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """The K rows of a verification: each request has one for its last token and one for each of
    its drafts that is checked. Arrays (K,): the request, the draft after the row's token, and
    whether there is one to check."""

    request: np.ndarray
    draft: np.ndarray
    is_checked: np.ndarray
    first: np.ndarray  # (S,), each request's first row

    @classmethod
    def of(cls, verified: np.ndarray) -> Rows:
        """verified (S,): how many drafts of each request are checked."""
        ends = np.cumsum(verified + 1)
        first = ends - verified - 1
        request = np.repeat(np.arange(len(verified)), verified + 1)
        draft = np.arange(len(request)) - first[request]
        return cls(request, draft, draft < verified[request], first)


def verify(
    logits: torch.Tensor,
    batch: SamplingBatch,
    drafts: Drafts,
    verified: np.ndarray,
    guard: float = GUARD,
    mask: torch.Tensor | None = None,
    ledger: Ledger | None = None,
) -> Verdict:
    """The accepted drafts of each request and the token after them.

    logits (K, V)    of the target, not changed; K = S + verified.sum(), request after request: at
                     its last token, then at each draft that is checked
    batch            the settings of S requests; positions are those of the first drafts
    verified (S,)    how many drafts are checked, from 0 to n
    mask (K, V)      bool, as in `sampler.sample`
    """
    rows, device = Rows.of(verified), logits.device
    weights, faults = weigh(logits, batch.take(rows.request, rows.draft), mask)  # (K, V), (K,)
    standing = _accept(weights, faults, batch, drafts, rows, ledger)  # (S, n)
    accepted = standing.long().cumprod(1).sum(1)  # (S,)
    last = on_device(rows.first, device) + accepted  # (S,), the row that is drawn from
    rejected = accepted < on_device(verified, device)  # (S,)
    final = _remainder(weights[last], drafts, accepted, rejected, guard)  # (S, V)
    use = np.where(np.arange(drafts.tokens.shape[1] + 1) < verified[:, None], rng.RESAMPLE, 0)
    drawn = draw(final, _words(batch, use, accepted))
    token = torch.where(faults[last] < 0, faults[last], drawn.tokens)
    if ledger is not None:
        where = on_device(batch.positions, device) + accepted  # (S,)
        its_use = on_device(use, device).gather(1, accepted[:, None])[:, 0]
        ledger.record(batch.seeds, where, drawn, token, its_use)
    tokens = torch.cat((drafts.tokens, torch.zeros_like(drafts.tokens[:, :1])), dim=1)
    return Verdict(tokens.scatter(1, accepted[:, None], token[:, None]), accepted)


def chances(
    target_weight: torch.Tensor,
    target_total: torch.Tensor,
    draft_weight: torch.Tensor,
    draft_total: torch.Tensor,
) -> torch.Tensor:
    """exp(min(log p - log q, 0)) as float64, from integer weights, all of one shape. A draft of
    weight 0 (a fault of the drafter) has none."""
    ratio = (target_weight.double() / target_total) / (draft_weight.double() / draft_total)
    return ratio.clamp(max=1.0).masked_fill(draft_weight == 0, 0.0)


def residual(p: torch.Tensor, q: torch.Tensor, guard: float = GUARD) -> torch.Tensor:
    """max(p - q * exp(-guard), 0) of probabilities (S, V), as integer weights: the largest is 2^32.
    All zero where nothing is left."""
    left = torch.clamp(p - q * math.exp(-guard), min=0)
    largest = left.amax(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
    return (left / largest * 2.0**WEIGHT_BITS).round_().long()


def _accept(
    weights: torch.Tensor,
    faults: torch.Tensor,
    batch: SamplingBatch,
    drafts: Drafts,
    rows: Rows,
    ledger: Ledger | None,
) -> torch.Tensor:
    """(S, n), True where the coin of a draft that is checked falls for it."""
    (checked,) = rows.is_checked.nonzero()
    request, draft = rows.request[checked], rows.draft[checked]  # (D,)
    device = weights.device
    here, r, i = (on_device(a, device) for a in (checked, request, draft))
    token, drawn_by = drafts.tokens[r, i][:, None], drafts.weights[r, i]  # (D, 1), (D, V)
    own, theirs = weights[here], drawn_by
    chance = chances(
        own.gather(1, token)[:, 0], own.sum(-1), theirs.gather(1, token)[:, 0], theirs.sum(-1)
    ).masked_fill(faults[here] != 0, 0.0)  # (D,)
    positions = batch.positions[request] + draft
    seeds = batch.seeds[request]
    bits = on_device(rng.uniform_bits(seeds, positions), device)
    falls = bits < chance * 2.0**53
    standing = torch.zeros(drafts.tokens.shape, dtype=torch.bool, device=device)
    standing = standing.index_put((r, i), falls)
    if ledger is not None:  # the coins up to the first rejection: those after it decide nothing
        counts = i <= standing.long().cumprod(1).sum(1)[r]
        ledger.record_coins(seeds, positions, bits, chance, token[:, 0], counts)
    return standing


def _remainder(
    weights: torch.Tensor,
    drafts: Drafts,
    accepted: torch.Tensor,
    rejected: torch.Tensor,
    guard: float,
) -> torch.Tensor:
    """The weights (S, V) of the token after the accepted drafts: the target's own, or after a
    rejection what they have more than the drafter's."""
    index = accepted.clamp(max=drafts.tokens.shape[1] - 1)[:, None, None]
    theirs = drafts.weights.gather(1, index.expand(-1, -1, weights.shape[1]))[:, 0]  # (S, V)
    totals = weights.sum(-1, keepdim=True).clamp(min=1), theirs.sum(-1, keepdim=True)
    left = residual(weights / totals[0].double(), theirs / totals[1].clamp(min=1).double(), guard)
    usable = rejected[:, None] & (totals[1] > 0) & (left > 0).any(-1, keepdim=True)
    return torch.where(usable, left, weights)


def _words(batch: SamplingBatch, use: np.ndarray, accepted: torch.Tensor) -> torch.Tensor:
    """Random words (ATTEMPTS, S) of the token after the accepted drafts: those of any number of
    them (S, n + 1) are made, and the right ones taken."""
    size, depth = use.shape
    positions = batch.positions[:, None] + np.arange(depth)
    seeds = np.repeat(batch.seeds, depth)
    words = rng.target_words(seeds, positions.ravel(), use.ravel())
    grid = on_device(words, accepted.device).view(-1, size, depth)
    return grid.gather(2, accepted.expand(len(grid), -1)[:, :, None])[:, :, 0]
