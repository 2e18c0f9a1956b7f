"""How far a decode step is from its floor, and where the rest of its time goes.

The floor is what no arrangement of a step can save: its linear layers by themselves, and one read
of the keys and values that the rows see. Both are timed on the same machine in the same run, on one
thread, in CPU time. What lies above is told by operator, as torch's profiler sees it; gathering
pages and the attention itself read the keys and values, so a part of the two is the floor's read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_high

import torch

from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.lab import step_times
from g2c_serving.lab.bench_report import Line
from g2c_serving.lab.exact_scores import linears

REPETITIONS = 12  # of the floor's parts, which are short; the steps' median is over as many


@dataclass(frozen=True)
class StepFloor:
    """A decode step of `requests` rows, in CPU ms: all of it, and the two parts of its floor.
    `shares` of the step by what it is for, which sum to 1."""

    requests: int
    step_ms: float
    linear_ms: float
    read_ms: float
    shares: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.step_ms / (self.linear_ms + self.read_ms)

    def as_row(self) -> dict[str, float]:
        """For a table: the shares in ms of the step."""
        row = {
            "requests": self.requests,
            "step ms": self.step_ms,
            "floor: linear": self.linear_ms,
            "floor: KV read": self.read_ms,
            "step / floor": self.ratio,
        }
        return row | {name: share * self.step_ms for name, share in self.shares.items()}


def measure(lm: LanguageModel, requests: int, prompt_len: int, dtype: str = "float32") -> StepFloor:
    """At the contexts that `requests` prompts of `prompt_len` tokens reach in the steps timed."""
    new_tokens = REPETITIONS + step_times.lead_in(requests, prompt_len)
    engine = step_times.filled(lm, requests, prompt_len, new_tokens, dtype)
    steps = step_times.engine_steps(engine, requests, most=REPETITIONS)
    tokens = requests * sum(step.context for step in steps) / len(steps)
    return StepFloor(
        requests,
        median_high([step.ms for step in steps]),
        _timed(_all_linears(engine.model, requests)),
        _timed(_read(engine.cache, tokens)),
        step_times.profile(lm, requests, prompt_len, REPETITIONS, dtype),
    )


def line(model: str, floor: StepFloor) -> Line:
    """Its place among the ratios. The bar is for 64 requests."""
    name = f"{model}: step of {floor.requests} requests / linear layers and one read of the KV"
    note = f"{floor.step_ms:.2f} / {floor.linear_ms:.2f} + {floor.read_ms:.2f} ms"
    return Line(name, 1.5 if floor.requests == 64 else None, floor.ratio, note, at_most=True)


def _all_linears(model: Transformer, rows: int) -> Callable[[], None]:
    """All linear layers of one pass over `rows` rows, one after the other."""
    layers = [
        (layer, torch.ones(rows, layer.shape[1], dtype=model.dtype)) for layer in linears(model)
    ]

    def run() -> None:
        for layer, x in layers:
            layer(x)

    return run


def _read(cache: KVCache, tokens: float) -> Callable[[], None]:
    """One read of as many keys and values as `tokens` tokens have."""
    blocks = min(-(-round(tokens) // cache.block_size), cache.keys.shape[1])
    pools = [
        pool[layer, :blocks] for pool in (cache.keys, cache.values) for layer in range(len(pool))
    ]

    def run() -> None:
        for pool in pools:
            pool.view(torch.float32).sum()  # two half-precision numbers are read as one

    return run


@torch.inference_mode()
def _timed(work: Callable[[], None]) -> float:
    """The median CPU ms of `work`."""
    times = []
    for _ in range(1 + REPETITIONS):
        start = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - start))
    return median_high(times[1:])
