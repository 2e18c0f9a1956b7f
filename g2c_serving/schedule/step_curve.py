"""The step-time curve: how many ms a step of so many rows takes, profiled, then corrected online.

The planner of verification (sample/verify_budget.py) asks it what one more row costs. Reported for
DeepInfer in the Brief, section 4: a profiled curve, corrected by running medians of measured step
times. How its corrections spread to numbers of rows that are not measured is not disclosed. Here a
measured step is compared with the profile: numbers of rows fall into buckets, four to a doubling,
each bucket keeps its last 32 ratios, and between and beyond the buckets that have some the nearest
medians decide. So the profile gives the shape, and the measured steps its height.

Left out: the context. Steps over long contexts take longer at the same rows; the medians follow.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from g2c_serving.checks import as_int, as_number
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.model import Transformer

KEPT = 32  # measured steps that a bucket remembers
ENOUGH = 3  # measured steps without which it says nothing: one hiccup is no measurement
BUCKETS_PER_DOUBLING = 4
MOST_ROWS = 2**31
LONG_MS = 40.0  # a number of rows that has taken so long is not run again


class StepCurve:
    """ms of a step by its rows, through `ms` (K,) measured at `rows` (K,), K at least 1.

    Linear between the points, beyond the last with the slope before it, and never falling: points
    that fall (noise, or a kernel that does better with more rows) take their common mean.
    ValueError for no points, rows that do not rise, and times that are not positive.
    """

    def __init__(self, rows: Sequence[int], ms: Sequence[float]) -> None:
        if not (hasattr(rows, "__len__") and hasattr(ms, "__len__")):
            raise ValueError(f"rows={rows!r} and ms={ms!r} must be sequences of numbers")
        if len(rows) != len(ms) or not len(rows):
            raise ValueError(
                f"{len(rows)} numbers of rows with {len(ms)} times: a step curve needs one time "
                "for each and at least one; step_curve.profile measures them"
            )
        self.rows = np.array([as_int("rows", r, 1, MOST_ROWS) for r in rows])
        self.ms = np.array([_as_time(m) for m in ms])
        if (np.diff(self.rows) <= 0).any():
            raise ValueError(f"rows={self.rows.tolist()} must rise: sort them, none twice")
        self._ratios: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._medians: dict[int, float] = {}  # of the buckets that have enough
        self._profile = self._points = self.rows, _rising(self.ms)

    def __call__(self, rows: int) -> float:
        """ms of a step of `rows` rows."""
        return float(_line(np.array([as_int("rows", rows, 1, MOST_ROWS)]), *self._points)[0])

    def up_to(self, max_rows: int) -> np.ndarray:
        """ms of steps of 0 to `max_rows` rows: (max_rows + 1,), entry k for k rows."""
        return _line(np.arange(as_int("max_rows", max_rows, 1) + 1), *self._points)

    def record(self, rows: int, ms: float) -> None:
        """A step of `rows` rows took `ms`: correct the curve near that number of rows."""
        expected = _line(np.array([as_int("rows", rows, 1, MOST_ROWS)]), *self._profile)[0]
        bucket = round(BUCKETS_PER_DOUBLING * np.log2(rows))
        ratios = self._ratios[bucket]
        ratios.append(_as_time(ms) / expected)
        if len(ratios) >= ENOUGH and self._medians.get(bucket) != (new := median(ratios)):
            self._medians[bucket] = new
            self._points = self._corrected()

    def _corrected(self) -> tuple[np.ndarray, np.ndarray]:
        """The profile's points and those of the measured buckets, scaled by the medians."""
        buckets = np.array(sorted(self._medians))
        medians = [self._medians[bucket] for bucket in buckets]
        centres = 2.0 ** (buckets / BUCKETS_PER_DOUBLING)
        rows = np.union1d(self.rows, centres)
        scale = np.interp(np.log2(rows), buckets / BUCKETS_PER_DOUBLING, medians)
        return rows, _rising(_line(rows, *self._profile) * scale)


def profile(
    model: Transformer,
    block_size: int,
    max_rows: int,
    context: int = 64,
    repeats: int = 3,
    num_blocks: int | None = None,
) -> StepCurve:
    """Time real passes of `model` with 1, 2, 4, ... and `max_rows` decode rows of `context` tokens.

    Wall-clock ms of the forward pass alone, the best of `repeats` (what slows a pass down from
    outside is not its cost), in a scratch cache of its own: of `num_blocks`, which rows share where
    it has no more. Under a second for 150 MB of weights.
    """
    max_rows = as_int("max_rows", max_rows, 1)
    sizes = [2**k for k in range(max_rows.bit_length()) if 2**k < max_rows] + [max_rows]
    context = min(as_int("context", context, 1), model.config.max_seq_len)
    needed = max_rows * -(-context // block_size)
    if num_blocks is not None:
        context = min(context, num_blocks * block_size)
        needed = min(needed, num_blocks)
    cache = model.new_cache(needed, block_size)
    cache.keys.fill_(0.1)  # memory that nobody has written to is faster to read
    cache.values.fill_(0.1)
    best, spent = dict.fromkeys(sizes, float("inf")), dict.fromkeys(sizes, 0.0)
    _pass_ms(model, _decode_rows(1, context, cache), cache)  # what is made once is made now
    for _ in range(as_int("repeats", repeats, 1)):
        for size in sizes:
            if spent[size] < LONG_MS:
                ms = _pass_ms(model, _decode_rows(size, context, cache), cache)
                best[size], spent[size] = min(best[size], ms), spent[size] + ms
    return StepCurve(sizes, list(best.values()))


def _decode_rows(rows: int, context: int, cache: KVCache) -> ForwardBatch:
    """One new token each for `rows` requests of `context` tokens, on blocks of their own as far as
    there are any."""
    blocks = -(-context // cache.block_size)
    tables = (np.arange(rows * blocks) % cache.keys.shape[1]).reshape(rows, blocks).tolist()
    chunks = [([0], context - 1)] * rows
    return build_batch(chunks, tables, cache.block_size, range(rows), str(cache.keys.device))


def _pass_ms(model: Transformer, batch: ForwardBatch, cache: KVCache) -> float:
    start = time.perf_counter()
    model.forward(batch, cache).amax().item()  # waits for the device
    return 1e3 * (time.perf_counter() - start)


def _as_time(ms: float) -> float:
    if as_number("ms", ms) <= 0:
        raise ValueError(f"ms={ms!r} must be positive: leave out steps that were not measured")
    return float(ms)


def _line(at: np.ndarray, rows: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """The curve through (rows, ms) at `at`, in ms."""
    slope = (ms[-1] - ms[-2]) / (rows[-1] - rows[-2]) if len(rows) > 1 else 0.0
    return np.interp(at, rows, ms) + slope * np.maximum(at - rows[-1], 0)


def _rising(ms: np.ndarray) -> np.ndarray:
    """The nearest values (least squares) that never fall: pool those that do."""
    if (ms[1:] >= ms[:-1]).all():
        return ms
    pools: list[tuple[float, int]] = []
    for mean in ms.tolist():
        count = 1
        while pools and pools[-1][0] > mean:
            before, n = pools.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    means, counts = zip(*pools, strict=True)
    return np.repeat(means, counts)
