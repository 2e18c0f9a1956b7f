"""A day of traffic, over and over, with every mechanism on: nothing is lost, and nothing grows.

The pool is so small that requests are preempted, some visitors leave in the middle, and the blocks
are checked step by step. What counts is steps, never the clock: a busy machine takes longer and
finds the same. A few days in the fast tests; in the slow ones an hour's worth of steps (or as many
SOAK_MINUTES) that take what the engine's time budget aims at.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import day
from g2c_serving.lab.day_replay import replay
from g2c_serving.schedule.cost_model import CostModel

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
STEP_MS = 20.0
STEPS = round(60_000 * MINUTES / STEP_MS)
GROWTH = {"MB": 8, "objects": 4000, "threads": 0, "open files": 2}  # after the first tenth


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
        step_time_budget_ms=STEP_MS,
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


def soak(engine: g.Engine, models, steps: int, check: Checker, share: float = 1.0) -> Iterator[int]:
    """Day after day until there were so many steps, each day with visitors of its own; after each,
    who was served."""
    seed = 0
    while check.steps < steps:
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


def weight() -> dict[str, float]:
    """What this process holds, as far as the system says."""
    gc.collect()
    here = {"objects": sys.getallocatedblocks(), "threads": threading.active_count()}
    status, files = Path("/proc/self/status"), Path("/proc/self/fd")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmRSS:"))
        here |= {"MB": int(line.split()[1]) / 1024, "open files": len(list(files.iterdir()))}
    return here


def grown(early: dict[str, float], late: dict[str, float]) -> list[str]:
    """What has grown by more than it may."""
    return [
        f"{name}: {early[name]:,.0f}, then {late[name]:,.0f}"
        for name in early
        if late[name] > early[name] + GROWTH[name]
    ]


@pytest.mark.parametrize("kind", ["plain", "overlapped"])
@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_a_few_days_with_everything_on(models, kind, mode, tmp_path):
    config = everything(models, mode, cache_dir=tmp_path, cache_bytes=1 << 20)
    check = Checker()
    engine = (g.AsyncEngine if kind == "overlapped" else g.Engine)(models[0], config)
    served = sum(soak(engine, models, 150, check, share=0.5))
    stats = engine.stats
    assert served > 30 and check.left > 0
    assert stats.preemptions and stats.accepted and stats.cached_tokens
    if kind == "overlapped":
        assert engine.close() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "overlapped"])
def test_an_hour_with_everything_on(models, kind, tmp_path):
    """Half of the steps on each engine. What it holds is compared after the first tenth, when all
    that has a limit has reached it: the logs are cut short for that."""
    config = everything(models, "budgeted", cache_dir=tmp_path, cache_bytes=1 << 20)
    engine = (g.AsyncEngine if kind == "overlapped" else g.Engine)(models[0], config)
    engine.history, engine.events = deque(maxlen=64), deque(maxlen=64)
    check, served, early = Checker(every=5), 0, None
    for count in soak(engine, models, STEPS // 2, check):
        served += count
        if early is None and check.steps >= STEPS // 20:
            early = weight()
    assert early is not None and not grown(early, weight())
    assert served > STEPS // 20 and check.left > STEPS // 40
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


def test_the_soak_would_notice_what_is_kept(models):
    """An engine that holds on to what it has told, over a few days."""

    class Hoarder(g.Engine):
        def step(self):
            outputs = super().step()
            self.told.extend(outputs)
            return outputs

    engine, check = Hoarder(models[0], g.EngineConfig(num_blocks=200)), Checker()
    engine.told = []
    engine.history, engine.events = deque(maxlen=64), deque(maxlen=64)
    days = soak(engine, models, 400, check)
    next(days)
    early = weight()
    sum(days)
    assert any(what.startswith("objects") for what in grown(early, weight()))
    engine.told.clear()
    assert not grown(early | {"MB": float("inf")}, weight())
