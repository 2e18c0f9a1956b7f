"""A panel and a table: decode requests spread over GPUs by count, by cache, by both, or blindly.

Brief, "The parts that are pure infrastructure"; Simulated by decode_grid.py, where the assumptions
stand. Reported is one number, about 80 % of a perfectly balanced benchmark for the whole system:
the model has only two of the causes, the spread of requests and that of the experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.decode_grid import (
    CONTEXTS,
    GPUS,
    PER_GPU,
    RULES,
    SEEDS,
    SPREADS,
    STEPS,
    find,
    step_cost,
)
from g2c_serving.lab.panel import Panel, choice, slider, stops
from g2c_serving.lab.plots import BLACK, PINK, Blocks, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.simulated import plus_minus
from g2c_serving.lab.table import Table

EXPERTS_SHARE = 0.5  # of a step, that waits for the GPU with the most expert load: assumed


def panel() -> Panel:
    """What each GPU needs for one step, and how long all wait for the slowest."""
    controls = {
        "rule": choice("Requests are spread", list(RULES), "at random"),
        "spread": stops("Spread of the contexts (log)", SPREADS, 1.0),
        "context": stops("Mean context (tokens)", CONTEXTS, 131072),
        "per_gpu": stops("Requests per GPU", PER_GPU, 60),
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
    found, cost = find(rule, spread, context, per_gpu), step_cost()
    requests, caches = cost.per_row * found.last_requests, cost.per_context * found.last_cached
    order = np.argsort(-requests - caches)
    heights = (np.full(GPUS, cost.base), requests[order], caches[order])
    bottom = np.zeros(GPUS)
    for blocks, height in zip(art["parts"], heights, strict=True):
        blocks.set_boxes(np.arange(GPUS) - 0.4, bottom, 0.8, height)
        bottom = bottom + height
    slowest, perfect = bottom.max(), bottom.mean()
    later = slowest + (experts - 1) * EXPERTS_SHARE * perfect
    for name, ms in (("slowest", slowest), ("perfect", perfect), ("experts", later)):
        art[name].set_data([-0.7, GPUS - 0.3], [ms, ms])
    return (
        f"Simulated, {SEEDS} seeds, \u00b1 two standard errors; {per_gpu} requests a GPU of "
        f"{context:,} tokens on average (spread {spread:g}) {_spread(rule)}: the busiest GPU has "
        f"{plus_minus(found.requests)} times the average in requests and "
        f"{plus_minus(found.cached)} in cached tokens, so {STEPS} steps run at "
        f"{plus_minus(found.efficiency(), '.1f', 100)}% of perfect balance; with experts at "
        f"{experts:.2f}, on half of a step, at "
        f"{plus_minus(found.efficiency(experts, EXPERTS_SHARE), '.1f', 100)}%. Reported for the "
        f"whole system: about {value('lb.efficiency'):.0f}%. The picture is one step of one seed."
    )


def _spread(rule: str) -> str:
    return f"spread {rule}" if rule != "round robin" else "spread in turn"


def efficiency_table() -> Table:
    """All rules at the panel's first settings."""
    rows, experts = [], value("lb.moe")
    for rule in RULES:
        found = find(rule, 1.0, 131072, 60)
        shares = [found.efficiency(experts, share) for share in (0, EXPERTS_SHARE, 1)]
        busiest = plus_minus(found.requests), plus_minus(found.cached)
        rows.append((rule, *busiest, *(plus_minus(one, ".1f", 100) for one in shares)))
    head = (f"Simulated, {SEEDS} seeds", "busiest / average: requests", "cached tokens",
            "% of perfect balance", f"experts at {experts:.3f}: half a step",
            "all of it")  # fmt: skip
    return Table(head, rows)
