"""A panel and a table: decode requests spread over GPUs by count, by cache, by both, or blindly.

Brief, "The parts that are pure infrastructure"; Simulated by cluster/decode_pool.py. Step times go
through the first and the last point of the decode chart (section 1); that requests cause half of
the growth between them and cached tokens the other half is our assumption, and so are lengths.
Reported is one number, about 80 % of a perfectly balanced benchmark for the whole system: the model
has only two of the causes, the spread of requests and that of the experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster import routing
from g2c_serving.cluster.decode_pool import DecodePool, DecodeRun, Traffic
from g2c_serving.cluster.routing import Router
from g2c_serving.lab import charts
from g2c_serving.lab.panel import Panel, choice, slider, stops
from g2c_serving.lab.plots import BLACK, PINK, Blocks, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table
from g2c_serving.schedule.cost_model import CostModel

GPUS, STEPS = 32, 200
EXPERTS_SHARE = 0.5  # of a step, that waits for the GPU with the most expert load: assumed
RULES: dict[str, Callable[[], Router]] = {
    "at random": routing.at_random,
    "round robin": routing.round_robin,
    "by count": lambda: routing.fewest_requests,
    "by cached tokens": lambda: routing.least_cache,
    "by both": lambda: routing.both,
}


@cache
def step_cost() -> CostModel:
    """ms of a GPU's decode step, linear through the chart's points at 8 and 256 requests."""
    few, many = (charts.decode_point(requests) for requests in (8, 256))
    request = (many.step_ms - few.step_ms) / (many.requests - few.requests)
    context = 1024 * value("bench.context")
    base = few.step_ms - few.requests * request
    return CostModel(base, request / 2, request / 2 / context, 0, 0, 0)


@lru_cache(maxsize=64)
def run(rule: str, spread: float, context: int, per_gpu: int) -> DecodeRun:
    """STEPS steps of GPUS GPUs under one of RULES."""
    traffic = Traffic(context=context, spread=spread)
    pool = DecodePool(GPUS, per_gpu, RULES[rule](), step_cost(), traffic, seed=2)
    return pool.run(STEPS)


def panel() -> Panel:
    """What each GPU needs for the last step, and how long all wait for the slowest."""
    controls = {
        "rule": choice("Requests are spread", list(RULES), "at random"),
        "spread": slider("Spread of the contexts (log)", 0.0, 1.5, 1.0, 0.1),
        "context": stops("Mean context (tokens)", (8192, 32768, 65536, 131072), 131072),
        "per_gpu": stops("Requests per GPU", (8, 32, 60, 96), 60),
        "experts": slider("Experts: busiest / average", 1.0, 1.5, value("lb.moe"), 0.01),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    parts = [
        Blocks(axes, k, label)
        for k, label in ((2, "the same for all"), (0, "its requests"), (1, "their caches"))
    ]
    lines = {
        name: axes.plot([], [], color=colour, linestyle=style, label=label)[0]
        for name, colour, style, label in (
            ("slowest", BLACK, "-", "all wait for the slowest"),
            ("experts", PINK, "--", "and for the busiest experts"),
            ("perfect", BLACK, ":", "perfectly balanced"),
        )
    }
    axes.set(xlim=(-0.7, GPUS - 0.3), ylim=(0, 34), ylabel="ms", xticks=())
    axes.set_xlabel(f"{GPUS} GPUs, the slowest first")
    axes.legend(loc="upper right", ncols=2, fontsize=10)
    source_note(axes, "Simulated")
    return {"parts": parts, **lines}


def _update(
    art: dict[str, Any], rule: str, spread: float, context: int, per_gpu: int, experts: float
) -> str:
    found, cost = run(rule, spread, context, per_gpu), step_cost()
    order = np.argsort(-found.gpu_ms[-1])
    caches = cost.per_context * found.cached[-1][order]
    heights = (np.full(GPUS, cost.base), cost.per_row * found.requests[-1][order], caches)
    bottom = np.zeros(GPUS)
    for blocks, height in zip(art["parts"], heights, strict=True):
        blocks.set_boxes(np.arange(GPUS) - 0.4, bottom, 0.8, height)
        bottom = bottom + height
    slowest, perfect = bottom.max(), bottom.mean()
    later = slowest + (experts - 1) * EXPERTS_SHARE * perfect
    for name, ms in (("slowest", slowest), ("perfect", perfect), ("experts", later)):
        art[name].set_data([-0.7, GPUS - 0.3], [ms, ms])
    count = found.requests.max(1).mean() / found.requests.mean()
    cached = found.cached.max(1).mean() / found.cached.mean()
    return (
        f"Simulated, {per_gpu} requests a GPU of {context:,} tokens on average (spread {spread:g}) "
        f"{_spread(rule)}: the busiest GPU has {count:.2f} times the average in requests and "
        f"{cached:.2f} in cached tokens, so {STEPS} steps run at {found.efficiency():.1%} of "
        f"perfect balance; with experts at {experts:.2f}, on half of a step, at "
        f"{found.efficiency(experts, EXPERTS_SHARE):.1%}. Reported for the whole system: about "
        f"{value('lb.efficiency'):.0f}%."
    )


def _spread(rule: str) -> str:
    return f"spread {rule}" if rule != "round robin" else "spread in turn"


def efficiency_table() -> Table:
    """All rules at the panel's first settings."""
    rows = []
    for rule in RULES:
        found, experts = run(rule, 1.0, 131072, 60), value("lb.moe")
        rows.append((
            rule,
            f"{found.requests.max(1).mean() / found.requests.mean():.2f}",
            f"{found.cached.max(1).mean() / found.cached.mean():.2f}",
            f"{found.efficiency():.1%}",
            f"{found.efficiency(experts, EXPERTS_SHARE):.1%}",
        ))  # fmt: skip
    head = ("Simulated", "requests, busiest / average", "cached tokens, busiest / average",
            "of perfect balance", f"with experts at {value('lb.moe'):.3f}")  # fmt: skip
    return Table(head, rows)
