"""Decode requests spread over 32 GPUs: eight seeds of every setting that the panel offers.

Simulated by cluster/decode_pool.py. A run's first 1,000 steps, five mean answers, are left out, for
they remember how the pool was filled; 200 are counted. Step times go through the first and the last
point of the decode chart (Brief, section 1); that requests cause half of the growth between them
and cached tokens the other half is our assumption, and so are lengths.

    python -m g2c_serving.lab.decode_grid      writes data/simulated/decode_spread.npz, in minutes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from g2c_serving.cluster import routing
from g2c_serving.cluster.decode_pool import DecodePool, DecodeRun, Traffic
from g2c_serving.cluster.routing import Router
from g2c_serving.lab import charts, simulated
from g2c_serving.lab.published import value
from g2c_serving.schedule.cost_model import CostModel

NAME = "decode_spread"
GPUS, SEEDS = 32, 8
BURN_IN, STEPS = round(5 * Traffic().answer / Traffic().per_step), 200  # left out, and counted
RULES: dict[str, Callable[[int], Router]] = {  # by a seed
    "at random": routing.at_random,
    "round robin": lambda seed: routing.round_robin(),
    "by count": lambda seed: routing.fewest_requests,
    "by cached tokens": lambda seed: routing.least_cache,
    "by both": lambda seed: routing.both,
}
SPREADS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
CONTEXTS = (8192, 32768, 65536, 131072)
PER_GPU = (8, 32, 60, 96)


@cache
def step_cost() -> CostModel:
    """ms of a GPU's decode step, linear through the chart's points at 8 and 256 requests."""
    few, many = (charts.decode_point(requests) for requests in (8, 256))
    request = (many.step_ms - few.step_ms) / (many.requests - few.requests)
    context = 1024 * value("bench.context")
    base = few.step_ms - few.requests * request
    return CostModel(base, request / 2, request / 2 / context, 0, 0, 0)


def simulate(rule: str, spread: float, context: int, per_gpu: int, seed: int) -> DecodeRun:
    """The counted steps of one run."""
    traffic = Traffic(context=context, spread=spread)
    pool = DecodePool(GPUS, per_gpu, RULES[rule](seed), step_cost(), traffic, seed=seed)
    pool.run(BURN_IN)
    return pool.run(STEPS)


@dataclass(frozen=True)
class Found:
    """One setting: of each seed (S,) the slowest GPU's time over the balanced one, the busiest in
    requests and in cached tokens over the average; the GPUs (32,) in the first seed's last step."""

    slowest: np.ndarray
    requests: np.ndarray
    cached: np.ndarray
    last_requests: np.ndarray
    last_cached: np.ndarray

    def efficiency(self, experts: float = 1.0, share: float = 0.5) -> np.ndarray:
        """As `DecodeRun.efficiency`, of each seed (S,)."""
        return 1 / (self.slowest + (experts - 1) * share)


def measure(rule: str, spread: float, context: int, per_gpu: int, seeds: int = SEEDS) -> Found:
    """Simulated now, in about a second."""
    runs = [simulate(rule, spread, context, per_gpu, seed) for seed in range(seeds)]
    slowest = np.array([1 / run.efficiency() for run in runs])
    requests = np.array([run.requests.max(1).mean() / run.requests.mean() for run in runs])
    cached = np.array([run.cached.max(1).mean() / run.cached.mean() for run in runs])
    return Found(slowest, requests, cached, runs[0].requests[-1], runs[0].cached[-1])


def find(rule: str, spread: float, context: int, per_gpu: int) -> Found:
    """As `measure`, from the file. ValueError for a setting that it has not."""
    at = (list(RULES).index(rule), SPREADS.index(spread), CONTEXTS.index(context),
          PER_GPU.index(per_gpu))  # fmt: skip
    kept = simulated.load(NAME)
    return Found(**{name: kept[name][at].astype(float) for name in Found.__dataclass_fields__})


def write() -> None:
    settings = list(product(RULES, SPREADS, CONTEXTS, PER_GPU))
    found = [measure(*setting) for setting in settings]
    shape = len(RULES), len(SPREADS), len(CONTEXTS), len(PER_GPU), -1
    simulated.save(NAME, {
        name: np.array([getattr(one, name) for one in found], np.float32).reshape(shape)
        for name in Found.__dataclass_fields__
    })  # fmt: skip


if __name__ == "__main__":
    write()
