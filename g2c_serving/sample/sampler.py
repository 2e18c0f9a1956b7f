"""The one sampling path: temperature, mask, top-k, top-p, then a draw that belongs to the request.

All rows of a batch go through together, each with its own settings. Weights are integers, and so
are their sums and the target: integer addition is associative, so the order in which a machine adds
cannot change the token.

    logits -> exp((logit - largest) / temperature) * 2^32, rounded   weights (M, V), int64
           -> 0 for what top-k and top-p leave out                   still in vocabulary order
           -> cumulative sum, target even in [0, total)              the first token beyond it

Of equal logits the lower id comes first, in the argmax, in top-k and in top-p. Top-k keeps exactly
k tokens. Top-p is compared with a share of the integer total, in whole numbers, top_p read to nine
decimals; a sum that misses it by a millionth reaches it, since float32 logits say no more.
Temperature 0 is not a branch: it is clamped to 1e-5 as in DeepInfer's `fused_sample.py` (Brief,
section 3), and its row keeps one token, so that the result is the exact argmax.

What is decided here is decided on the settings, which are numpy arrays on the host, never on the
value of a tensor: nothing waits for the device. Left out: penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from g2c_serving.forbid_sync import allow_sync
from g2c_serving.on_device import on_device
from g2c_serving.request import Request
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.top_k import the_best

MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e30  # all tokens alike; float32 still holds it
WEIGHT_BITS = 32  # the likeliest token weighs 2^32; one less likely by 2^33 is never drawn
NO_WEIGHT = -40.0  # exp of it times 2^32 is far below a half
TOP_P_UNIT = 10**9  # top_p counts in these: nine decimals, as the user wrote them
TOP_P_SLACK = 1000  # a millionth, see above

LIMB = 2**31 - 1  # the lower half of 62 bits

NOT_NUMBERS, INFINITE, NOTHING_LEFT = -1, -2, -3  # in place of a token
FAULTS = {
    NOT_NUMBERS: "the model gave logits that are not numbers",
    INFINITE: "the model gave a logit of plus infinity",
    NOTHING_LEFT: "all tokens are masked: each logit is minus infinity, so none can be drawn",
}


@dataclass(frozen=True)
class SamplingBatch:
    """Settings of M rows, one entry each: seed (uint64), position of the token to draw,
    temperature (0 is greedy), top_k (0 is off), top_p (1 is off)."""

    seeds: np.ndarray
    positions: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray

    def take(self, rows: np.ndarray, ahead: np.ndarray | int = 0) -> SamplingBatch:
        """The settings of some rows (K,), `ahead` tokens further on (K,)."""
        names = ("seeds", "positions", "temperature", "top_k", "top_p")
        taken = SamplingBatch(*(getattr(self, name)[rows] for name in names))
        return replace(taken, positions=taken.positions + ahead)


def batch_of(requests: Sequence[Request], vocab_size: int) -> SamplingBatch:
    """The settings of the next token of each request."""
    return SamplingBatch(
        seeds=np.array([r.seed for r in requests], dtype=np.uint64),
        positions=np.array([r.num_tokens for r in requests]),
        temperature=np.array([r.params.temperature for r in requests], dtype=float),
        top_k=np.array([min(r.params.top_k, vocab_size) for r in requests]),
        top_p=np.array([r.params.top_p for r in requests], dtype=float),
    )


def sample(
    logits: torch.Tensor,
    batch: SamplingBatch,
    mask: torch.Tensor | None = None,
    ledger: Ledger | None = None,
) -> torch.Tensor:
    """One token id per row, (M,) int64; a negative one, see FAULTS, where a row has none to draw.

    logits (M, V), not changed; minus infinity is a token that cannot be drawn
    mask (M, V), bool: True for the tokens that may be drawn; None for all
    ledger  keeps a record of the draws
    ValueError for a mask of another shape or type.
    """
    weights, faults = weigh(logits, batch, mask)  # (M, V), (M,)
    drawn = draw(weights, rng.target_words(batch.seeds, batch.positions))
    tokens = torch.where(faults < 0, faults, drawn.tokens)
    if ledger is not None:
        ledger.record(batch.seeds, batch.positions, drawn, tokens)
    return tokens


def weigh(
    logits: torch.Tensor, batch: SamplingBatch, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights (M, V) that each row's token is drawn by, and its fault (M,), 0 for none."""
    scores, best, faults = _readable(logits, mask)
    return integer_weights(scores, batch, best), faults


class Drawn(NamedTuple):
    """M draws: the token is the first whose cumulative weight is above the target."""

    tokens: torch.Tensor  # (M,)
    target: torch.Tensor  # (M,), from 0 to the row's total - 1
    attempt: torch.Tensor  # (M,), at the target
    cumulative: torch.Tensor  # (M, V)


def draw(weights: torch.Tensor, words: np.ndarray | torch.Tensor) -> Drawn:
    """One token a row, by weights (M, V) int64, which are changed, and words (ATTEMPTS, M) of
    `rng.target_words`. A row without any weight gives any token."""
    cumulative = weights.cumsum_(-1)  # in place: fresh memory costs more than arithmetic
    total = cumulative[:, -1].clamp(min=1)  # (M,)
    target, attempt = below(on_device(words, weights.device), total)
    tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]  # (M,)
    return Drawn(tokens, target, attempt, cumulative)


def _readable(
    logits: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The logits (M, V) in float32 or better, masked, the largest of each row (M,), and its fault
    (M,), 0 for none. What is wrong with the model's logits is told before what is masked."""
    if logits.device.type == "mps":
        with allow_sync("mps has no kernels for some of it"):
            logits = logits.cpu()
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best = top = scores.amax(-1)  # (M,), NaN where any is
    if mask is not None:
        if mask.shape != scores.shape or mask.dtype != torch.bool:
            raise ValueError(f"mask of shape {tuple(mask.shape)} and {mask.dtype} must be bool, of "
                             f"the logits' shape {tuple(scores.shape)}")  # fmt: skip
        allowed = on_device(mask, scores.device).view(torch.int8)  # 1, 0: from it 0, -inf, since
        shift = allowed.to(scores.dtype).reciprocal_().neg_().add_(1)  # masked_fill is slow here:
        scores = shift.add_(scores)  # it branches at each element
        best = scores.amax(-1)
    faults = (best == -torch.inf) * NOTHING_LEFT
    faults.masked_fill_(top == torch.inf, INFINITE).masked_fill_(top.isnan(), NOT_NUMBERS)
    return scores, best, faults


def integer_weights(
    scores: torch.Tensor, batch: SamplingBatch, best: torch.Tensor | None = None
) -> torch.Tensor:
    """The weight of each token, (M, V) int64, 0 for those that are filtered out. best (M,): the
    largest score of each row, where it is known.

    The largest of a row is 2^32 whatever the others are, so there is no sum of floats in it.
    """
    top_k = np.where(batch.temperature == 0, 1, batch.top_k)
    if (top_k == 1).all():  # the largest alone stays, and its weight is known
        only = torch.zeros(scores.shape, dtype=torch.int64, device=scores.device)
        return only.scatter_(1, scores.argmax(-1, keepdim=True), 2**WEIGHT_BITS)
    clipped = batch.temperature.clip(MIN_TEMPERATURE, MAX_TEMPERATURE)
    temperature = on_device(clipped, scores.device).to(scores.dtype)
    best = scores.amax(-1) if best is None else best
    scaled = scores - best[:, None]  # at most 0: no division overflows upwards
    scaled /= temperature[:, None]  # (M, V)
    scaled.clamp_(min=NO_WEIGHT)  # minus infinity too: exp is slow where it underflows
    weights = scaled.exp_().mul_(2.0**WEIGHT_BITS).round_().long()
    return _filter(weights, scores, top_k, np.rint(batch.top_p * TOP_P_UNIT).astype(np.int64))


def _filter(
    weights: torch.Tensor, scores: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray
) -> torch.Tensor:
    """Set to zero, in `weights` (M, V), what top-k and top-p leave out. Rows of a kind go together,
    so that none is sorted for the sake of a neighbour."""
    vocab_size = scores.shape[1]
    top_k = np.where(top_k > 0, top_k, vocab_size).clip(max=vocab_size)
    one, few = top_k == 1, (top_k > 1) & (top_k < vocab_size)
    for chosen in (one, few, ~one & ~few & (top_p < TOP_P_UNIT)):
        (rows,) = chosen.nonzero()
        if len(rows) == len(chosen):
            weights *= _keep(scores, weights, top_k, top_p)
        elif len(rows):
            index = on_device(rows, scores.device)
            weights[index] *= _keep(scores[index], weights[index], top_k[rows], top_p[rows])
    return weights


def below(words: torch.Tensor, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets (M,), each number in [0, total) exactly as likely as the others, and the attempts
    (M,) that they were taken from.

    words (ATTEMPTS, M) in [0, 2^62), of `rng.target_words`; totals (M,) int64, from 1 to 2^60.
    The target is word * total / 2^62, rounded down, which stays where it is when a total changes in
    its last bits; a remainder would leap. Some targets would get one word more than the others, so
    the words whose product leaves less than 2^62 % total are rejected (Lemire, "Fast random integer
    generation in an interval", 2019). A total is at most V * 2^32: at V = 32,768 fewer than one
    attempt in 2^15 is rejected, and all four in fewer than one draw in 2^60; then the first is
    taken as it is.
    """
    high, low = words >> 31, words & LIMB  # (ATTEMPTS, M); a product of two has 62 bits
    total_high, total_low = totals >> 31, totals & LIMB  # (M,)
    ones = total_low * low
    middle = total_high * low + (ones >> 31)
    more = total_low * high + (middle & LIMB)
    target = total_high * high + (middle >> 31) + (more >> 31)  # (ATTEMPTS, M)
    left = (more & LIMB) << 31 | ones & LIMB  # the product's lower 62 bits
    attempt = (left >= 2**rng.TARGET_BITS % totals).byte().argmax(0)  # (M,), the first accepted
    return target.gather(0, attempt[None])[0], attempt


def _keep(
    scores: torch.Tensor, weights: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray
) -> torch.Tensor:
    """True (R, V) for the tokens that stay: top-k and top-p both say how many of the best do.

    top_k (R,) from 1 to V; top_p (R,) in units of 1e-9.
    """
    most, vocab_size = int(top_k.max()), scores.shape[1]
    if most == 1:
        first = scores.argmax(-1, keepdim=True)  # (R, 1), the lowest id of equals
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, first, True)
    best, ids = scores.topk(most) if most < vocab_size else scores.sort(descending=True)
    count = on_device(top_k, scores.device)[:, None]  # (R, 1)
    if (top_p < TOP_P_UNIT).any():
        count = _reaching(weights.gather(1, ids), count, top_p)
    last = best.gather(1, count - 1)  # (R, 1), the lowest score that stays
    return the_best(scores, last, count)


def _reaching(ordered: torch.Tensor, count: torch.Tensor, top_p: np.ndarray) -> torch.Tensor:
    """How many tokens (R, 1) it takes to reach top_p: the one that crosses is the last that stays.

    ordered (R, K) weights, largest first, of which the first `count` are in the game: top_p is a
    share of their sum, compared in whole numbers.
    """
    sums = ordered.cumsum_(-1)  # (R, K)
    total = sums.gather(1, count - 1)  # (R, 1)
    parts = np.where(top_p < TOP_P_UNIT, (top_p - TOP_P_SLACK).clip(min=0), TOP_P_UNIT)
    p = on_device(parts, sums.device)[:, None]  # (R, 1)
    whole, rest = total // TOP_P_UNIT, total % TOP_P_UNIT  # p * total would not fit 64 bits
    needed = p * whole + (p * rest + TOP_P_UNIT - 1) // TOP_P_UNIT  # p * total, rounded up
    return torch.minimum(torch.searchsorted(sums, needed) + 1, count)
