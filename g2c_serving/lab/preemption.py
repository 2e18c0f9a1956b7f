"""Preemption under a small pool: who gives up blocks, what is computed again, what is written.

Brief, sections 1 and 2. When a request that decodes needs a block and none is free, the one that
arrived last gives up all of its own and is computed again later (schedule/scheduler.py). The panel
shows runs of one workload under pools of several sizes, in float64, where the tokens must be equal
to the last: float32 logits differ by up to 3e-6 with the company. The clock counts engine steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import lanes
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import BLACK, BLUE, source_note
from g2c_serving.lab.words import many
from g2c_serving.lab.workload import Run, arrivals, run

REQUESTS, BLOCK = 5, 8
POOLS = (9, 12, 16, 24, 32)  # blocks; 32 are enough for all five
KINDS = (lanes.WAITS, lanes.PREFILL, lanes.DECODE, lanes.AGAIN)


@dataclass(frozen=True)
class Served:
    """One pool's run: what was preempted and computed again, and the blocks in use after steps."""

    run: Run
    pool: int
    preemptions: int
    computed_again: int  # tokens that had been in the cache before
    in_use: tuple[int, ...]


def serve(lm: LanguageModel, pool: int) -> Served:
    """Five requests of up to 72 tokens through an engine with `pool` blocks of 8, in float64."""
    workload = arrivals(REQUESTS, gap=2, prompt=(12, 32), answer=(24, 40), seed=1)
    config = EngineConfig(num_blocks=pool, block_size=BLOCK, dtype="float64")
    engine = Engine(lm, config)
    found = run(engine, workload)
    in_use = tuple(pool - record.num_free_blocks for record in found.steps)
    return Served(found, pool, engine.stats.preemptions, computed_again(found), in_use)


def computed_again(found: Run) -> int:
    """Tokens whose keys and values were computed a second time, or a third."""
    reached: dict[int, int] = {}
    again = 0
    for record in found.steps:
        for row in record.rows:
            before, after = reached.get(row.request_id, 0), row.num_computed + row.num_tokens
            again += max(0, min(before, after) - row.num_computed)
            reached[row.request_id] = max(before, after)
    return again


def same_tokens(one: Served, other: Served) -> bool:
    """Whether all requests wrote the same."""
    pairs = zip(one.run.lives, other.run.lives, strict=True)
    return all(mine.ids == theirs.ids for mine, theirs in pairs)


def panel(lm: LanguageModel) -> Panel:
    """The timelines and the blocks in use; a slider over the pool's size."""
    served = {pool: serve(lm, pool) for pool in POOLS}
    longest = max(found.run.spans[-1][1] for found in served.values())
    controls = {"pool": stops(f"Blocks in the pool ({BLOCK} tokens each)", POOLS, 16)}
    return Panel(
        lambda figure: _draw(figure, longest),
        lambda art, pool: _update(art, served, pool),
        controls,
    )


def _draw(figure: Figure, longest: float) -> dict[str, Any]:
    top, bottom = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    drawn = lanes.Lanes(top, KINDS, REQUESTS)
    top.set(xlim=(0, longest), ylabel="requests", yticks=[])
    bottom.set(ylim=(0, POOLS[-1] + 1), xlabel="engine steps", ylabel="blocks", yticks=(0, 16, 32))
    (pool,) = bottom.plot([], [], color=BLACK, linestyle="--", linewidth=1.2, label="in the pool")
    (used,) = bottom.step([], [], where="post", color=BLUE, linewidth=1.8, label="in use")
    bottom.legend(loc="upper right", ncols=2, fontsize=9)
    lanes.legend(top, KINDS, loc="lower left", bbox_to_anchor=(0, 0.98), borderpad=0)
    source_note(top, "Measured here", "a real run, counted in steps")
    return {"drawn": drawn, "moving": drawn.artists, "pool": pool, "used": used}


def _update(art: dict[str, Any], served: dict[int, Served], pool: int) -> str:
    found = served[pool]
    art["drawn"].show(lanes.spans_of(found.run))
    steps = [start for start, _ in found.run.spans] + [found.run.spans[-1][1]]
    art["used"].set_data(steps, [*found.in_use, 0])
    art["pool"].set_data([0, 10_000], [pool, pool])
    same = "the same" if same_tokens(found, served[POOLS[-1]]) else "OTHER"
    return (
        f"{pool} blocks: {many(found.preemptions, 'preemption')}, {found.computed_again} "
        f"tokens computed again, {steps[-1]:.0f} steps in all. The {found.run.num_tokens} tokens "
        f"written are {same} as with {POOLS[-1]} blocks."
    )
