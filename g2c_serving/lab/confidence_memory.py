"""How fast a real drafter's confidences drift: what is left of them after some steps.

The Brief, section 6, has the total of a step's drafts settled by older confidences. How much these
still say is a property of drafter and text, and can be measured: the correlation, over the steps of
a run, of the log odds of a request's draft i with those of its draft i some steps ago. Beside it
that of the request as a whole: how many of its drafts were expected to stand. Measured here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from g2c_serving.history import StepRecord
from g2c_serving.lab.table import Table

LAGS = (1, 2, 4, 8)
CLIP = 1e-4  # confidences nearer to 0 or 1 count as that: their log odds have no end


@dataclass(frozen=True)
class Memory:
    """Correlations, -1 to 1, after `lag` steps, over so many `pairs` of a request's steps."""

    lag: int
    pairs: int
    of_drafts: float  # each draft position for itself, the mean over positions
    of_requests: float  # the expected number of accepted drafts


def memory(history: Iterable[StepRecord], lags: Sequence[int] = LAGS) -> list[Memory]:
    """From a run with speculation. ValueError where no request drafted in enough steps."""
    runs = _runs(history)
    found = []
    for lag in lags:
        old = [run[:-lag] for run in runs if len(run) > lag]
        if sum(map(len, old)) < 3:
            raise ValueError(
                f"lag={lag}: the history has fewer than 3 pairs of drafting steps so far apart: "
                "run more requests, or longer ones, with speculation"
            )
        new = [run[lag:] for run in runs if len(run) > lag]
        found.append(_compare(lag, np.concatenate(old), np.concatenate(new)))
    return found


def _runs(history: Iterable[StepRecord]) -> list[np.ndarray]:
    """Each sample's confidences (steps, n), of the steps in which it had the usual n drafts."""
    by_sample: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for record in history:
        for drafted in record.drafts:
            sample = drafted.request_id, drafted.sample_index
            by_sample[sample].append(drafted.confidences)
    most = max((len(c) for rows in by_sample.values() for c in rows), default=0)
    kept = ([c for c in rows if len(c) == most] for rows in by_sample.values())
    return [np.array(rows) for rows in kept if rows]


def _compare(lag: int, old: np.ndarray, new: np.ndarray) -> Memory:
    """Of confidences (pairs, n) and those of `lag` steps later."""
    columns = zip(_log_odds(old).T, _log_odds(new).T, strict=True)
    drafts = float(np.mean([_correlation(a, b) for a, b in columns]))
    expected = (c.cumprod(axis=1).sum(axis=1) for c in (old, new))
    return Memory(lag, len(old), drafts, _correlation(*expected))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """0 where one of them never changes: then it says nothing of the other."""
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0


def _log_odds(confidences: np.ndarray) -> np.ndarray:
    inside = confidences.clip(CLIP, 1 - CLIP)
    return np.log(inside) - np.log1p(-inside)


def table(found: Sequence[Memory]) -> Table:
    """One line a lag."""
    drafts, requests = "correlation of each draft's log odds", "of the request's expected drafts"
    head = "steps ago", "pairs", drafts, requests
    cells = ((m.lag, m.pairs, f"{m.of_drafts:.2f}", f"{m.of_requests:.2f}") for m in found)
    return Table(head, [(str(lag), f"{pairs:,}", *rest) for lag, pairs, *rest in cells])
