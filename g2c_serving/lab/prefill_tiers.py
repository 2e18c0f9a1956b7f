"""A panel: prefill prompts routed blindly, in four tiers by length, or by the work that is queued.

Brief, "The parts that are pure infrastructure" (four tiers by context length, Reported; why, it
does not say); Simulated by cluster/prefill_pool.py, in which a machine computes one prompt after
another, so that a short one waits for a long one before it.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster import routing
from g2c_serving.cluster.prefill_pool import PrefillPool, busiest, single_prompts
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import line, source_note
from g2c_serving.lab.prefill_work import COST, alone_ms, pressed
from g2c_serving.lab.published import value

PROMPTS, MEDIAN = 500, 4000  # of a run; tokens
TIERS = int(value("lb.buckets"))
RULES = ("at random", "round robin", "four tiers", "least work queued")


@lru_cache(maxsize=128)
def first_tokens(spread: float, load: float, machines: int) -> tuple[dict, list[float], dict]:
    """By rule: mean ms to the first token of the prompts of each tier (TIERS,); the tiers' edges in
    tokens; by rule the busiest machine's work over the average."""
    make = partial(single_prompts, PROMPTS, median=MEDIAN, spread=spread, seed=1)
    prompts = pressed(lambda gap_us: make(gap_us=gap_us), machines, load)
    lengths = [prompt.length for prompt in prompts]
    edges = routing.equal_work_edges(lengths, alone_ms(prompts).tolist(), TIERS)
    tiers = np.array([routing.tier_of(length, edges) for length in lengths])
    routers = (routing.at_random(3), routing.round_robin(), routing.in_tiers(edges),
               routing.least_work)  # fmt: skip
    means, uneven = {}, {}
    for rule, router in zip(RULES, routers, strict=True):
        served = PrefillPool(machines, router, COST.cost).serve(prompts)
        ms = np.array([float(one.first_token) / 1000 for one in served])
        means[rule] = np.array([ms[tiers == tier].mean() for tier in range(TIERS)])
        uneven[rule] = busiest(served, machines)
    return means, edges, uneven


def panel() -> Panel:
    """Time to first token of each tier's prompts, by the rule that routes them."""
    controls = {
        "spread": slider("Spread of the lengths (log)", 0.2, 1.4, 1.2, 0.1),
        "load": slider("Load of the machines (%)", 30, 95, 80, 5),
        "machines": stops("Machines", (4, 8, 16), 8),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    lines = {rule: axes.plot([], [], label=rule, **line(k))[0] for k, rule in enumerate(RULES)}
    axes.set(yscale="log", xlim=(-0.3, TIERS - 0.7), ylim=(0.02, 60), ylabel="s to first token")
    axes.set_yticks((0.1, 1, 10), ("0.1", "1", "10"))
    axes.set_xticks(range(TIERS), ["shortest", *[""] * (TIERS - 2), "longest"])
    axes.set_xlabel("prompts by length, each tier with a quarter of the work")
    axes.legend(loc="lower right")
    source_note(axes, "Simulated")
    return lines


def _update(art: dict[str, Any], spread: float, load: int, machines: int) -> str:
    means, edges, uneven = first_tokens(spread, load / 100, machines)
    for rule in RULES:
        art[rule].set_data(range(TIERS), means[rule] / 1000)
    short = {rule: f"{ms[0] / 1000:.2f}" for rule, ms in means.items()}
    long = {rule: f"{ms[-1] / 1000:.2f}" for rule, ms in means.items()}
    return (
        f"Simulated, {PROMPTS} prompts (spread {spread:g}), {machines} machines at {load}% load: "
        f"the shortest (up to {edges[0]:,.0f} tokens) wait {short['at random']} s for the first "
        f"token at random, {short['round robin']} in turn, {short['four tiers']} in tiers, "
        f"{short['least work queued']} where the least work is queued; the longest (above "
        f"{edges[-1]:,.0f}) {', '.join(long.values())}. Busiest machine over average: "
        f"{', '.join(f'{ratio:.2f}' for ratio in uneven.values())}."
    )
