"""Prompts of sessions served without a clock, as PrefillPool serves them but many times as fast.

prefill_pool.py is the one to read; this one makes the grids of prefix_grid.py. What prefill_queues
can do for whole arrays needs a loop here: where a prompt goes, and how long it takes, depends on
what was computed before, and where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from g2c_serving.cluster.prefill_pool import BLOCK, SLACK, WINDOW, Prompt

Past = list[tuple[int, int, int]]  # a session's prompts: when each ended, where, its tokens


def serve(
    prompts: Sequence[Prompt], machines: int, to_prefix: bool, shared: bool,
    work: Callable[[int, int], float],
) -> np.ndarray:  # fmt: skip
    """Machine, start, end and computed tokens of each prompt (N, 4), as PrefillPool's `Served`,
    routed by `routing.least_work` or `routing.to_prefix()`. Prompts in order of time."""
    free, rows = [0] * machines, []
    pasts: dict[int, Past] = {}
    for prompt in prompts:
        past = pasts.setdefault(prompt.session, [])
        known, home = _longest(past, prompt.time, None)
        machine = home if to_prefix and known else free.index(min(free))
        if not shared:
            known, _ = _longest(past, prompt.time, machine)
        reused = max(0, min(known, prompt.length - WINDOW - SLACK)) // BLOCK * BLOCK  # hit_rule.py
        new = prompt.length - reused
        start = max(prompt.time, free[machine])
        free[machine] = end = start + round(1000 * work(new, reused))
        past.append((end, machine, prompt.length))
        rows.append((machine, start, end, new))
    return np.array(rows, dtype=np.int64)


def _longest(past: Past, now: int, where: int | None) -> tuple[int, int]:
    """Tokens of the longest of these that has ended by now, anywhere or at one machine, and its
    machine; 0 and -1 for none. A later prompt of a session is a longer one."""
    for end, machine, length in reversed(past):
        if end <= now and (where is None or where == machine):
            return length, machine
    return 0, -1
