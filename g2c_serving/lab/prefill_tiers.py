"""A panel: prefill prompts routed blindly, in four tiers by length, or by the work that is queued.

Brief, "The parts that are pure infrastructure" (four tiers by context length, Reported; why, it
does not say). Simulated by cluster/prefill_queues.py, in which a machine computes one prompt after
another, so that a short one waits for a long one before it. Twenty seeds; the tiers' edges come
from an earlier sample, as a router's would, not from the prompts that are served.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from g2c_serving.cluster import prefill_queues, routing
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, Blocks, line, source_note
from g2c_serving.lab.prefill_work import COST
from g2c_serving.lab.published import value
from g2c_serving.lab.simulated import margin, plus_minus

SEEDS, PROMPTS, BURN_IN = 20, 4000, 1000  # prompts of a run that count, and before those
EARLIER = 20_000  # prompts that the edges come from
BATCH = 64  # prompts a machine that are there at once, for the efficiency
MEDIAN, MOST = 4000, 131072  # tokens
TIERS = int(value("lb.buckets"))
RULES = ("at random", "round robin", "four tiers", "least work queued")
SAID = ("at random", "in turn", "in tiers", "by least work")


@dataclass(frozen=True)
class Draws:
    """What the controls do not change, (SEEDS, BURN_IN + PROMPTS) each: logarithms of the lengths
    and gaps in units of their own, and a number from 0 to 1 to choose a machine by."""

    lengths: np.ndarray
    gaps: np.ndarray
    choices: np.ndarray


@cache
def draws(prompts: int = BURN_IN + PROMPTS) -> Draws:
    random, shape = np.random.default_rng(0), (SEEDS, prompts)
    return Draws(random.standard_normal(shape), random.exponential(1, shape), random.random(shape))


def lengths_of(normals: np.ndarray, spread: float) -> np.ndarray:
    """Tokens, lognormal about MEDIAN, from 1 to MOST."""
    return (MEDIAN * np.exp(spread * normals)).round().clip(1, MOST).astype(np.int64)


def work_of(lengths: np.ndarray) -> np.ndarray:
    """Microseconds that prompts take, nothing of them being cached."""
    q = lengths.astype(float)
    return (1000 * q * (COST.per_token + q * COST.per_square)).round().astype(np.int64)


def edges_before(spread: float) -> list[float]:
    """The tiers' edges, each tier with an equal share of the work of an earlier sample."""
    earlier = lengths_of(np.random.default_rng(99).standard_normal(EARLIER), spread)
    return routing.equal_work_edges(earlier.tolist(), work_of(earlier).tolist(), TIERS)


@dataclass(frozen=True)
class Found:
    """By rule: mean s to the first token of each tier's prompts (TIERS, SEEDS), and the efficiency
    of a batch (SEEDS,); the tiers' edges in tokens."""

    first_token: dict[str, np.ndarray]
    efficiency: dict[str, np.ndarray]
    edges: list[float]


@lru_cache(maxsize=128)
def first_tokens(spread: float, load: float, machines: int) -> Found:
    """All RULES on the same prompts."""
    drawn, edges = draws(), edges_before(spread)
    lengths = lengths_of(drawn.lengths, spread)
    work, tiers = work_of(lengths), np.searchsorted(edges, lengths)
    gap_us = work.mean() / (machines * load)
    times = np.cumsum(drawn.gaps * gap_us, 1).round().astype(np.int64)
    first, efficiency = {}, {}
    late = np.s_[:, BURN_IN:]
    for rule in RULES:
        took = starts(rule, times, work, tiers, machines) + work - times
        first[rule] = means(took[late] / 1e6, tiers[late])
        few = np.s_[:, : BATCH * machines]
        at_once = starts(rule, 0 * times[few], work[few], tiers[few], machines) + work[few]
        efficiency[rule] = prefill_queues.efficiency(at_once, work[few], machines)
    return Found(first, efficiency, edges)


def starts(
    rule: str, times: np.ndarray, work: np.ndarray, tiers: np.ndarray, machines: int
) -> np.ndarray:
    """When prompts begin, (SEEDS, N), of a run's first N."""
    if rule in RULES[:2]:
        turns = np.broadcast_to(np.arange(times.shape[1]) % machines, times.shape)
        chance = (draws().choices[:, : times.shape[1]] * machines).astype(np.int64)
        return prefill_queues.starts_alone(times, work, chance if rule == RULES[0] else turns)
    groups, number = (tiers, TIERS) if rule == RULES[2] else (0 * tiers, 1)
    return prefill_queues.starts_in_groups(times, work, groups, machines // number)


def means(seconds: np.ndarray, tiers: np.ndarray) -> np.ndarray:
    """The mean of each tier's, by seed, (SEEDS, N) -> (TIERS, SEEDS)."""
    which = [tiers == tier for tier in range(TIERS)]
    return np.array([(seconds * mine).sum(1) / mine.sum(1) for mine in which])


# ---- the panel ----


def panel() -> Panel:
    """Time to first token of each tier's prompts, by the rule that routes them, and efficiency."""
    controls = {
        "spread": slider("Spread of the lengths (log)", 0.2, 1.4, 1.2, 0.1),
        "load": slider("Load of the machines (%)", 30, 90, 80, 5),
        "machines": stops("Machines", (4, 8, 16), 8),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, width_ratios=(5, 3))
    lines = {rule: left.plot([], [], label=rule, **line(k))[0] for k, rule in enumerate(RULES)}
    left.set(yscale="log", xlim=(-0.3, TIERS - 0.7), ylim=(0.02, 300), ylabel="s to first token")
    left.set_yticks((0.1, 1, 10, 100), ("0.1", "1", "10", "100"))
    left.set_xticks(range(TIERS), ["shortest", *[""] * (TIERS - 2), "longest"])
    left.set_xlabel("prompts, each tier a quarter of the work")
    left.legend(loc="upper left", fontsize=9, ncols=2)
    right.set(xlim=(-0.6, len(RULES) - 0.4), ylim=(0, 100), ylabel="% of perfect balance")
    right.set_xticks(range(len(RULES)), ["random", "in turn", "tiers", "least\nwork"], fontsize=9)
    right.set_xlabel("all there at once")
    right.axhline(value("lb.efficiency"), color=BLACK, linestyle="--", linewidth=1)
    source_note(right, "Simulated; dashed: Reported")
    margins = [LineCollection([], colors=BLACK, linewidths=1.5) for _ in range(2)]
    for axes, one in zip((left, right), margins, strict=True):
        axes.add_collection(one, autolim=False)
        one.set_zorder(4)
    return {"lines": lines, "bars": Blocks(right, 0), "margins": margins}


def _update(art: dict[str, Any], spread: float, load: int, machines: int) -> str:
    found = first_tokens(spread, load / 100, machines)
    points = []
    for k, rule in enumerate(RULES):
        places, seconds = np.arange(TIERS) + 0.06 * (k - 1.5), found.first_token[rule]
        art["lines"][rule].set_data(places, seconds.mean(1))
        points += list(zip(places, seconds, strict=True))
    percent = [100 * found.efficiency[rule] for rule in RULES]
    art["bars"].set_boxes(np.arange(len(RULES)) - 0.35, 0, 0.7, [one.mean() for one in percent])
    for one, spots in zip(art["margins"], (points, list(enumerate(percent))), strict=True):
        one.set_segments([_around(place, seeds) for place, seeds in spots])
    return (
        f"Simulated, {SEEDS} seeds of {PROMPTS:,} prompts (spread {spread:g}), {machines} machines "
        f"at {load}% load, \u00b1 two standard errors. The shortest (up to {found.edges[0]:,.0f} "
        f"tokens) have their first token after {_each(found, 0)}; the longest (above "
        f"{found.edges[-1]:,.0f}) after {_each(found, -1)} ({_against_chance(found)}). Where "
        f"{BATCH} prompts a machine are there at once, they are computed at this share of perfect "
        f"balance: {_named(percent, '.0f', '%')} (reported for the whole system: about "
        f"{value('lb.efficiency'):.0f}%)."
    )


def _around(place: float, seeds: np.ndarray) -> list[tuple[float, float]]:
    low, high = seeds.mean() - margin(seeds), seeds.mean() + margin(seeds)
    return [(place, max(float(low), 1e-3)), (place, float(high))]


def _each(found: Found, tier: int) -> str:
    return _named([found.first_token[rule][tier] for rule in RULES], ".2f", " s")


def _named(by_rule: list[np.ndarray], form: str, unit: str) -> str:
    """The numbers of all RULES, each with its rule."""
    first, *rest = (f"{plus_minus(one, form)}" for one in by_rule)
    numbers = (f"{first}{unit}", *rest)
    return ", ".join(f"{one} {rule}" for one, rule in zip(numbers, SAID, strict=True))


def _against_chance(found: Found) -> str:
    """Whether tiers make the longest wait longer, seed by seed on the same prompts."""
    more = found.first_token["four tiers"][-1] - found.first_token["at random"][-1]
    if abs(more.mean()) <= margin(more):
        return f"in tiers as late as at random, within the draws: {plus_minus(more, '+.2f')} s"
    word, sign = ("later", 1) if more.mean() > 0 else ("earlier", -1)
    return f"{plus_minus(sign * more)} s {word} in tiers than at random"
