"""What the block manager's operations cost, in pools of 100 to 100,000 blocks. Measured here.

Brief, section 2: a free list, and a reference count on every block. Nothing that is done for a
request looks at the whole pool, so nothing may take longer in a large one. `allocate` is timed for
a prompt of 512 tokens (32 blocks of 16), once from free blocks and once when every free block is a
cached one that must be forgotten first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from g2c_serving.lab import plots
from g2c_serving.lab.plots import Picture, line, source_note
from g2c_serving.schedule.block_hash import hash_chain
from g2c_serving.schedule.block_manager import BlockManager

POOLS = (100, 1_000, 10_000, 100_000)
PROMPT, BLOCK = 512, 16  # tokens
REPEATS = 200
OPERATIONS = ("allocate", "allocate, evicting", "append", "fork", "free", "hash")

Times = dict[str, list[float]]  # operation -> microseconds, pool by pool


def half_full(num_blocks: int) -> BlockManager:
    """A pool whose first half belongs to others, in sequences of 5 blocks."""
    manager = BlockManager(num_blocks, BLOCK)
    for sequence in range(num_blocks // 10):
        manager.allocate(sequence, 5 * BLOCK)
    return manager


def all_cached(num_blocks: int) -> BlockManager:
    """A pool in which nobody runs, and every block holds what was named once."""
    manager = BlockManager(num_blocks, BLOCK)
    manager.allocate(0, num_blocks * BLOCK)
    manager.publish(0, 0, [b"%032d" % block for block in range(num_blocks)])
    manager.free(0)
    return manager


def measure(pools: Sequence[int] = POOLS, repeats: int = REPEATS) -> Times:
    """The median of `repeats` for each operation in each pool."""
    found: Times = {name: [] for name in OPERATIONS}
    for num_blocks in pools:
        for name, us in _one_pool(num_blocks, repeats).items():
            found[name].append(us)
    return found


def _one_pool(num_blocks: int, repeats: int) -> dict[str, float]:
    manager, cached = half_full(num_blocks), all_cached(num_blocks)
    parent, child = -1, -2  # ids of sequences that are not there yet
    ids = list(range(PROMPT))
    taken: dict[str, list[float]] = {name: [] for name in OPERATIONS}

    def timed(name: str, operation: Callable[[], object]) -> None:
        start = time.perf_counter()
        operation()
        taken[name].append(1e6 * (time.perf_counter() - start))

    for _ in range(repeats):
        timed("allocate", lambda: manager.allocate(parent, PROMPT))
        timed("append", lambda: manager.allocate(parent, PROMPT + 1, PROMPT))
        timed("fork", lambda: manager.fork(parent, child, PROMPT + 1))
        timed("free", lambda: manager.free(child))
        manager.free(parent)
        timed("allocate, evicting", lambda: cached.allocate(parent, PROMPT))
        _give_back(cached, parent)
        timed("hash", lambda: hash_chain(ids, BLOCK, "tenant", "model"))
    return {name: float(np.median(times)) for name, times in taken.items()}


def _give_back(manager: BlockManager, sequence: int) -> None:
    """End the sequence and leave its blocks cached, under names that nobody has used."""
    names = [b"%032d" % (time.perf_counter_ns() * 64 + k) for k in range(PROMPT // BLOCK)]
    manager.publish(sequence, 0, names)
    manager.free(sequence)


def picture(pools: Sequence[int] = POOLS, repeats: int = REPEATS) -> Picture:
    """Each operation a line over the size of the pool."""
    found = measure(pools, repeats)
    figure = plots.new_figure()
    with plots.style():
        axes = figure.subplots()
        for k, name in enumerate(OPERATIONS):
            axes.loglog(pools, found[name], label=name, **line(k) | _sixth(k))
        axes.set(xlabel="blocks in the pool", ylabel="microseconds", ylim=(0.1, 1000))
        axes.set_xticks(pools, [f"{n:,}" for n in pools])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.legend(ncols=3, fontsize=9, loc="upper center")
        source_note(axes, "Measured here", "a prompt of 512 tokens")
    said = [f"{name} {times[0]:.1f} and {times[-1]:.1f}" for name, times in found.items()]
    return plots.picture(
        figure,
        f"Microseconds in a pool of {pools[0]:,} blocks and in one of {pools[-1]:,}: "
        f"{'; '.join(said)}.",
    )


def _sixth(k: int) -> dict:
    """There are five looks, and six lines."""
    return {"color": plots.GREY, "marker": "x"} if k == 5 else {}
