"""A day of traffic, over and over, with every mechanism on: nothing is lost, and nothing grows.

The pool is so small that requests are preempted, some visitors leave in the middle, and the blocks
are checked step by step. A few days in the fast tests, twenty minutes in the slow ones (or
SOAK_MINUTES).
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import day
from g2c_serving.lab.day_replay import replay
from g2c_serving.schedule.cost_model import CostModel

MINUTES = float(os.environ.get("SOAK_MINUTES", "20"))
GROWTH = 8.0  # MB of the process, after the first tenth of the time


@pytest.fixture(scope="module")
def models() -> tuple[g.LanguageModel, g.LanguageModel]:
    return random_lm(vocab_size=266, context=128), random_lm(
        vocab_size=266, context=128, layers=1, seed=1
    )


def everything(models, mode: str, **more) -> g.EngineConfig:
    """All that an engine has, in a pool of less than two whole contexts."""
    return g.EngineConfig(
        num_blocks=14,
        block_size=16,
        max_num_batched_tokens=48,
        max_num_seqs=12,
        enable_prefix_caching=True,
        batch_invariant=True,
        kv_cache_dtype="nvfp4",
        step_time_budget_ms=20.0,
        cost_model=CostModel(1.0, 0.1, 0.0, 0.2, 1e-4, 1e-4),
        speculation=g.Speculation(mode, 3, models[1], step_time=lambda rows: 20 + 0.6 * rows),
        **more,
    )


class Checker:
    """Checks the pool after every step, and now and then sends a visitor who leaves at once."""

    def __init__(self, every: int = 1) -> None:
        self.every, self.steps, self.left = every, 0, 0

    def __call__(self, engine: g.Engine) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            engine.block_manager.check()
        if self.steps % 17 == 0:
            rid = engine.add([65] * 40, g.SamplingParams(8), "passer-by")
            (output,) = engine.abort(rid)
            assert output.finish_reason == "abort"
            self.left += 1


def soak(
    engine: g.Engine, models, seconds: float, check: Checker, share: float = 1.0
) -> Iterator[int]:
    """Day after day, each with visitors of its own; after each, who was served."""
    until, seed = time.monotonic() + seconds, 0
    while time.monotonic() < until or seed < 2:
        visits = day.made_up(models[0], seed, share)
        found = replay(engine, visits, 1.0, clock="steps", after_step=check)
        for one in found.served:
            for stream in one.streams:
                if not one.visit.calls:
                    assert len(stream.ids) == one.visit.answer
        assert not engine.has_unfinished and not engine._requests
        assert engine.block_manager.num_free == engine.config.num_blocks
        seed += 1
        yield len(found.served)


def resident_mb() -> float | None:
    """This process's memory, where the system says."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("kind", ["plain", "overlapped"])
@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_a_few_days_with_everything_on(models, kind, mode, tmp_path):
    config = everything(models, mode, cache_dir=tmp_path, cache_bytes=1 << 20)
    check = Checker()
    engine = (g.AsyncEngine if kind == "overlapped" else g.Engine)(models[0], config)
    served = sum(soak(engine, models, 1.0, check, share=0.5))
    stats = engine.stats
    assert served > 30 and check.left > 0
    assert stats.preemptions and stats.accepted and stats.cached_tokens
    if kind == "overlapped":
        assert engine.close() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "overlapped"])
def test_twenty_minutes_with_everything_on(models, kind, tmp_path):
    """Half of the time on each engine. Memory is compared after the first tenth, when all that has
    a limit has reached it: the logs are cut short for that."""
    config = everything(models, "budgeted", cache_dir=tmp_path, cache_bytes=1 << 20)
    engine = (g.AsyncEngine if kind == "overlapped" else g.Engine)(models[0], config)
    engine.history, engine.events = deque(maxlen=64), deque(maxlen=64)
    seconds, served, early = 30 * MINUTES, 0, None
    start = time.monotonic()
    for count in soak(engine, models, seconds, Checker(every=5)):
        served += count
        if early is None and time.monotonic() - start > seconds / 10:
            gc.collect()
            early = resident_mb()
    gc.collect()
    late = resident_mb()
    assert served > 10 * MINUTES
    if early is not None and late is not None:
        assert late < early + GROWTH, f"{early:.0f} MB, then {late:.0f} MB"
    if kind == "overlapped":
        assert engine.close() == []


def test_the_soak_would_notice_a_lost_answer(models):
    """The replay itself refuses a day in which somebody is forgotten."""

    class Forgetful(g.Engine):
        def step(self):
            return [replace_end(o) for o in super().step()]

    def replace_end(output):
        if output.finish_reason and output.request_id == 3:
            output.finish_reason = None
        return output

    engine = Forgetful(models[0], g.EngineConfig(num_blocks=200))
    with pytest.raises(RuntimeError, match="answers have no end|never served"):
        replay(engine, day.made_up(models[0], share=0.1), 1.0, clock="steps")
