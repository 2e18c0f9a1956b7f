"""The cost model: how long a step takes, and the largest prefill chunk that fits a time budget.

    cost(q, c)   =  q * per_token + q * c * per_pair + q * q * per_square          one chunk
    step         =  base + rows * per_row + context * per_context + sum of chunk costs

q new tokens on top of c cached ones: the work of the linear layers grows with q, that of attention
with q * c for the cached prefix and q * q for the chunk itself. Decode rows come in beside, by
their number and the tokens that they read. The coefficients are fitted to measured steps, never
negative, and frozen. Reported for DeepInfer in the Brief, section 1 (a fitted quadratic cost(q, c)
solved for the largest chunk); its form of the decode term and of the fit is not disclosed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from g2c_serving.checks import as_number


@dataclass(frozen=True)
class StepShape:
    """What a step had to do: `chunks` of (new tokens q, cached tokens c), `decode_rows` requests
    with one token each, which read `decode_context` tokens in all."""

    chunks: tuple[tuple[int, int], ...] = ()
    decode_rows: int = 0
    decode_context: int = 0

    def features(self) -> list[float]:
        q = sum(q for q, _ in self.chunks)
        pairs = sum(q * c for q, c in self.chunks)
        squares = sum(q * q for q, _ in self.chunks)
        return [1.0, self.decode_rows, self.decode_context, q, pairs, squares]


@dataclass(frozen=True)
class CostModel:
    """Coefficients in ms: of a step, a decode row, a token read by one, and of q, q*c and q*q."""

    base: float
    per_row: float
    per_context: float
    per_token: float
    per_pair: float
    per_square: float

    def __post_init__(self) -> None:
        for field in fields(self):
            if as_number(field.name, getattr(self, field.name)) < 0:
                raise ValueError(f"{field.name}={getattr(self, field.name)} must be 0 or more")

    @classmethod
    def fit(cls, shapes: Sequence[StepShape], times_ms: Sequence[float]) -> CostModel:
        """Least squares with no negative coefficient, each step weighted by 1 / its time.

        ValueError with fewer than six steps, or times that are not positive.
        """
        times = np.asarray(times_ms, dtype=float)
        if len(times) != len(shapes) or len(times) < 6:
            raise ValueError(f"{len(times)} steps of {len(shapes)} shapes: the fit needs 6 or more")
        if not (np.isfinite(times) & (times > 0)).all():
            raise ValueError(
                "times_ms must all be positive: leave out steps that were not measured"
            )
        features = np.array([shape.features() for shape in shapes])
        return cls(*_fit_non_negative(features / times[:, None], np.ones(len(times))).tolist())

    def cost(self, q: int, c: int) -> float:
        """ms that a chunk of q new tokens on c cached ones adds to a step."""
        return q * (self.per_token + c * self.per_pair + q * self.per_square)

    def decode_cost(self, rows: int, context: int) -> float:
        """ms of a step with `rows` decode rows that read `context` tokens, before any chunk."""
        return self.base + rows * self.per_row + context * self.per_context

    def predict(self, shape: StepShape) -> float:
        """ms of a whole step."""
        chunks = sum(self.cost(q, c) for q, c in shape.chunks)
        return self.decode_cost(shape.decode_rows, shape.decode_context) + chunks

    def largest_chunk(self, c: int, budget_ms: float) -> int:
        """The largest q with cost(q, c) <= budget_ms, 0 if even one token costs more.

        The positive root of per_square * q^2 + (per_token + c * per_pair) * q = budget_ms, in the
        form that does not cancel. A chunk that costs nothing has no largest size: 2^31 then.
        """
        if budget_ms <= 0:
            return 0
        slope = self.per_token + c * self.per_pair
        root = math.hypot(slope, 2 * math.sqrt(self.per_square) * math.sqrt(budget_ms))
        divisor = slope / 2 + root / 2
        if divisor == 0 or budget_ms / divisor > 2**31:
            return 2**31
        q = int(budget_ms / divisor)
        while self.cost(q + 1, c) <= budget_ms:  # the root was rounded
            q += 1
        while q > 0 and self.cost(q, c) > budget_ms:
            q -= 1
        return q


def _fit_non_negative(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares, dropping the most negative coefficient until none is left.

    Columns are scaled to length 1 first. Simpler than Lawson and Hanson's method: a dropped
    coefficient does not come back.
    """
    scale = np.linalg.norm(features, axis=0)
    active = scale > 0
    solution = np.zeros(features.shape[1])
    while active.any():
        kept = np.linalg.lstsq(features[:, active] / scale[active], target, rcond=None)[0]
        solution[:] = 0
        solution[active] = kept / scale[active]
        if (kept >= 0).all():
            break
        worst = np.flatnonzero(active)[kept.argmin()]
        active[worst] = False
    return np.maximum(solution, 0)
