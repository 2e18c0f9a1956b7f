"""One pool or two, for every setting that the panel offers: waits in the steady state.

Simulated by cluster/disaggregation.py; its assumptions stand there. A step takes 9.5 ms and 0.06
for each row, which is about what the decode chart says at 8 and 64 requests; a token of a prompt
adds 0.02. Each setting is played with three draws of 2,200 arrivals, of which the first 200 are
left out, for they find empty machines. A setting with an offered load of 1 or more is not played:
its waits grow as long as requests come, and would only say how long the simulation was.

    python -m g2c_serving.lab.pools_grid      writes data/simulated/pools.npz, in minutes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from g2c_serving.cluster.disaggregation import Load, Outcome, one_pool, two_pools
from g2c_serving.cluster.offered_load import decode_load, one_pool_load, prefill_load
from g2c_serving.lab import simulated
from g2c_serving.schedule.cost_model import CostModel

NAME = "pools"
MACHINES, ANSWER = 8, 50  # tokens of an answer
COSTS = CostModel(9.5, 0.058, 0.0, 0.02, 1e-7, 1e-7)
DRAWS, LEFT_OUT, COUNTED = 3, 200, 2_000  # requests of a draw
RATES = (10, 20, 30, 40, 50, 60)  # requests a second
PROMPTS = (500, 1_000, 2_000, 4_000, 8_000)  # tokens
CHUNKS = (256, 512, 1_024, 2_048, 4_096, 8_192)
PREFILL = tuple(range(1, MACHINES))  # machines
LONGER = np.geomspace(100, 0.5, 40)  # %


@dataclass(frozen=True)
class Waits:
    """ms that LONGER % waited longer than (L,), of all draws; and in each draw (DRAWS,) the time
    that 99 % did not exceed: to the first token, and between two. NaN without a steady state."""

    first: np.ndarray
    between: np.ndarray
    first_99: np.ndarray
    between_99: np.ndarray


def load_of(rate: int, prompt: int, draw: int = 0) -> Load:
    return Load(rate, LEFT_OUT + COUNTED, prompt, ANSWER, draw)


def one_load(rate: int, prompt: int, chunk: int) -> float:
    """The offered load of all machines in one pool."""
    return one_pool_load(load_of(rate, prompt), MACHINES, COSTS, chunk)


def two_loads(rate: int, prompt: int, prefill: int) -> tuple[float, float]:
    """The offered load of the prefill pool and of the decode pool."""
    load = load_of(rate, prompt)
    decode = decode_load(load, MACHINES - prefill, COSTS)
    return prefill_load(load, prefill, COSTS), decode


def measure_one(rate: int, prompt: int, chunk: int) -> Waits:
    """Simulated now, in about a second."""
    play = partial(one_pool, machines=MACHINES, costs=COSTS, chunk=chunk)
    return _waits(play, rate, prompt, one_load(rate, prompt, chunk))


def measure_two(rate: int, prompt: int, prefill: int) -> Waits:
    """Simulated now, in about a second."""
    play = partial(two_pools, prefill=prefill, decode=MACHINES - prefill, costs=COSTS)
    return _waits(play, rate, prompt, max(two_loads(rate, prompt, prefill)))


def _waits(play: partial[Outcome], rate: int, prompt: int, offered: float) -> Waits:
    if offered >= 1:
        curve, each = np.full(len(LONGER), np.nan), np.full(DRAWS, np.nan)
        return Waits(curve, curve, each, each)
    runs = [play(load_of(rate, prompt, draw)) for draw in range(DRAWS)]
    first = np.array([run.first_token[LEFT_OUT:] for run in runs])  # (DRAWS, COUNTED)
    between = np.array([run.between[LEFT_OUT * (ANSWER - 1) :] for run in runs])
    return Waits(
        np.percentile(first, 100 - LONGER),
        np.percentile(between, 100 - LONGER),
        np.percentile(first, 99, axis=1),
        np.percentile(between, 99, axis=1),
    )


def find_one(rate: int, prompt: int, chunk: int) -> Waits:
    """As `measure_one`, from the file. ValueError for a setting that it has not."""
    return _kept("one", RATES.index(rate), PROMPTS.index(prompt), CHUNKS.index(chunk))


def find_two(rate: int, prompt: int, prefill: int) -> Waits:
    """As `measure_two`, from the file. ValueError for a setting that it has not."""
    return _kept("two", RATES.index(rate), PROMPTS.index(prompt), PREFILL.index(prefill))


def _kept(which: str, *at: int) -> Waits:
    kept = simulated.load(NAME)
    return Waits(*(kept[f"{which}_{name}"][at].astype(float) for name in _FIELDS))


_FIELDS = tuple(Waits.__dataclass_fields__)


def write() -> None:
    found = {}
    for which, play, last in (("one", measure_one, CHUNKS), ("two", measure_two, PREFILL)):
        waits = [play(*at) for at in product(RATES, PROMPTS, last)]
        for name in _FIELDS:
            numbers = np.array([getattr(one, name) for one in waits], np.float32)
            found[f"{which}_{name}"] = numbers.reshape(len(RATES), len(PROMPTS), len(last), -1)
    simulated.save(NAME, found)


if __name__ == "__main__":
    write()
