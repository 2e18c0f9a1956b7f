"""Log-probabilities of the generated tokens, for the requests that ask.

They are the model's own: the log-softmax of its raw logits, in float32 or better, before
temperature, top-k, top-p and any mask. So a token of temperature 0 has one below 0 too, and those
of one text can be compared across settings. DeepInfer's batch-invariance test compares such lists,
with the five best, exactly (Brief, section 3). They are worked out on the device and read once the
step is over. Left out: those of the prompt's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from g2c_serving.on_device import on_device
from g2c_serving.sample.top_k import the_best


class TokenLogprobs(NamedTuple):
    """Of one generated token: its log-probability, and the k best as (token id, log-probability),
    best first, the lower id first among equals."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class AskedLogprobs:
    """Of the R of M rows that ask, still on the device: ids and own log-probabilities (R,), those
    of the K best (R, K). asked (M,), as in `asked_logprobs`."""

    asked: Sequence[int | None]
    columns: tuple[torch.Tensor, ...]

    def read(self) -> list[TokenLogprobs | None]:
        """One entry a row, None where it is not asked for. It waits for the device."""
        rows = zip(*(column.tolist() for column in self.columns), strict=True)
        return [None if k is None else _entry(k, *next(rows)) for k in self.asked]


def _entry(
    k: int, token: int, logprob: float, top_ids: list[int], top: list[float]
) -> TokenLogprobs:
    return TokenLogprobs(token, logprob, tuple(zip(top_ids[:k], top[:k], strict=True)))


def asked_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, asked: Sequence[int | None]
) -> AskedLogprobs | None:
    """Those of the rows that ask; None, and nothing is computed, where none does.

    logits (M, V); tokens (M,); asked (M,): how many of the best, more than V count as V
    """
    rows = [i for i, k in enumerate(asked) if k is not None]
    if not rows:
        return None
    index = on_device(rows, logits.device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    logprobs = torch.log_softmax(logits[index].to(wide), dim=-1)  # (R, V)
    ids = tokens.to(logits.device)[index].clamp(min=0)
    own = logprobs.gather(1, ids[:, None])[:, 0]
    best, best_ids = _best(logprobs, max(asked[i] or 0 for i in rows))  # (R, K)
    return AskedLogprobs(asked, (ids, own, best_ids, best))


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, asked: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """The same, read: one entry a row, None where it is not asked for."""
    found = asked_logprobs(logits, tokens, asked)
    return [None] * len(asked) if found is None else found.read()


def _best(logprobs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of each row and their ids, (R, k) each; of equals, the lower ids first.

    `topk` alone may take any of the equals, and a sort of all is slow where V is large.
    """
    k = min(k, logprobs.shape[1])
    if k == 0:
        return logprobs[:, :0], logprobs[:, :0].long()
    last = logprobs.topk(k).values[:, -1:]  # (R, 1)
    chosen = the_best(logprobs, last, torch.full_like(last, k, dtype=torch.int64))  # (R, V)
    ids = chosen.byte().topk(k).indices.sort(-1).values  # (R, k), the lower ids first
    best, order = logprobs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return best, ids.gather(1, order)
