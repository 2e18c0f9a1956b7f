"""Eight machines as one pool or as two: how long users wait for the first token, and between two.

Brief, section 1. Simulated by `cluster/disaggregation.py`; its assumptions stand there. A step
takes 9.5 ms and 0.06 for each row, which is about what the decode chart says at 8 and 64 requests;
a token of a prompt adds 0.02. Both pictures show the share of requests (of tokens) that waited
longer than that; what matters is where a curve ends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.cluster.disaggregation import Load, Outcome, one_pool, two_pools
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import line, plain_ticks, source_note
from g2c_serving.schedule.cost_model import CostModel

MACHINES, SECONDS, ANSWER = 8, 2, 50  # arrivals of so many seconds; tokens of an answer
COSTS = CostModel(9.5, 0.058, 0.0, 0.02, 1e-7, 1e-7)
PROMPTS = (500, 1_000, 2_000, 4_000, 8_000)  # tokens
CHUNKS = (256, 512, 1_024, 2_048, 4_096, 8_192)
FIRST, BETWEEN = (10, 20_000), (8, 250)  # ms that are drawn
LONGER = np.geomspace(100, 0.5, 90)  # %


def pools_panel() -> Panel:
    """Controls: what comes, how the machines are split, and the chunk of the one pool."""
    controls = {
        "rate": slider("Requests a second", 5, 60, 30, 5),
        "prompt": stops("Prompt (tokens)", PROMPTS, 4_000),
        "prefill": slider("Machines for prefill, of 8", 1, MACHINES - 1, 4),
        "chunk": stops("Chunk in one pool (tokens)", CHUNKS, 2_048),
    }
    return Panel(_draw, _update, controls, size=(8, 2.7))


@lru_cache(maxsize=256)
def _one(rate: int, prompt: int, chunk: int) -> Outcome:
    return one_pool(_load(rate, prompt), MACHINES, COSTS, chunk)


@lru_cache(maxsize=256)
def _two(rate: int, prompt: int, prefill: int) -> Outcome:
    return two_pools(_load(rate, prompt), prefill, MACHINES - prefill, COSTS)


def _load(rate: int, prompt: int) -> Load:
    return Load(rate, rate * SECONDS, prompt, ANSWER)


def _draw(figure: Figure) -> dict[str, Any]:
    first, between = figure.subplots(1, 2, sharey=True)
    art: dict[str, Any] = {}
    for axes, limits, label in (
        (first, FIRST, "time to first token (ms)"),
        (between, BETWEEN, "time between tokens (ms)"),
    ):
        axes.set(xscale="log", yscale="log", xlim=limits, ylim=(0.45, 115), xlabel=label)
        plain_ticks(axes.xaxis)
        art[label] = [_curve(axes, k, name) for k, name in enumerate(("one pool", "two pools"))]
    first.set_ylabel("waited longer (%)")
    first.set_xticks((10, 100, 1_000, 10_000))
    plain_ticks(first.yaxis)
    first.set_yticks((1, 10, 100))
    first.legend(fontsize=9, loc="lower right")
    source_note(between, "Simulated")
    return art


def _curve(axes: Axes, k: int, name: str) -> Any:
    look = {**line(k), "markevery": len(LONGER) // 6, "markersize": 4}
    return axes.plot([], [], label=name, **look)[0]


def _update(art: dict[str, Any], rate: int, prompt: int, prefill: int, chunk: int) -> str:
    one, two = _one(rate, prompt, chunk), _two(rate, prompt, prefill)
    for curves, values in zip(
        art.values(), ((one.first_token, two.first_token), (one.between, two.between)), strict=True
    ):
        for curve, ms in zip(curves, values, strict=True):
            curve.set_data(np.percentile(ms, 100 - LONGER), LONGER)
    return _said(one, two, rate, prompt, prefill, chunk)


def _said(one: Outcome, two: Outcome, rate: int, prompt: int, prefill: int, chunk: int) -> str:
    first = [_time(np.percentile(run.first_token, 99)) for run in (one, two)]
    between = [_time(np.percentile(run.between, 99)) for run in (one, two)]
    full = two.busy[:prefill].mean()
    return (
        f"Simulated, {rate} requests a second with {prompt:,} tokens each, 8 machines. 99% of the "
        f"tokens come within {between[0]} of the one before in one pool (chunks of {chunk:,}) and "
        f"{between[1]} in two; 99% of the first tokens within {first[0]} and {first[1]}. The "
        f"prefill machines ({prefill} of 8) are busy {full:.0%} of the time."
    )


def _time(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1e3 else f"{ms:.0f} ms"
