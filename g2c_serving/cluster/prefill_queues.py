"""Waits in a prefill pool without a clock, for many runs at once: Lindley's recursion.

A prompt begins when it comes or when its machine has done all before it, whichever is later. That
is all a simulation needs whose router looks at nothing but lengths and queued work: chance and
turns make a queue for each machine, tiers one for each tier, least work one for all. In a queue
prompts begin in order of arrival, each at the machine that is free first. Sessions need a loop:
where a prompt goes, and how long it takes, depends on what was computed before, and where.

prefill_pool.py plays the same on the virtual clock, and is the one to read; this one is a hundred
times as fast. Times and works are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapreplace

import numpy as np

from g2c_serving.cluster.prefill_pool import BLOCK, SLACK, WINDOW, Prompt

Past = list[tuple[int, int, int]]  # a session's prompts: when each ended, where, its tokens


def starts_alone(times: np.ndarray, work: np.ndarray, machine: np.ndarray) -> np.ndarray:
    """When prompts begin, each at the machine that it was sent to; all (runs, N), a run's times in
    order.

    With the prompts of one machine side by side, the k-th begins at the latest of time_j +
    work_j + ... + work_(k-1) over j <= k. A machine's numbers are lifted above those before it, so
    that one running maximum serves all machines.
    """
    order = np.argsort(machine, 1, kind="stable")
    time, took, where = (np.take_along_axis(a, order, 1) for a in (times, work, machine))
    before = np.cumsum(took, 1) - took
    lift = where * (times.max() + work.sum(1).max() + 1)
    begun = np.maximum.accumulate(time - before + lift, 1) - lift + before
    found = np.empty_like(begun)
    np.put_along_axis(found, order, begun, 1)
    return found


def starts_together(times: np.ndarray, work: np.ndarray, machines: int) -> np.ndarray:
    """When the prompts (N,) of one queue begin at the first of `machines` that is free."""
    free, found = [0] * machines, []  # a heap: when each machine has done all that it was given
    for time, took in zip(times.tolist(), work.tolist(), strict=True):
        start = free[0] if free[0] > time else time
        heapreplace(free, start + took)
        found.append(start)
    return np.array(found, dtype=np.int64)


def starts_in_groups(
    times: np.ndarray, work: np.ndarray, group: np.ndarray, machines: int
) -> np.ndarray:
    """When prompts begin, all (runs, N), if each group of them has a queue and `machines`."""
    found = np.empty(times.shape, np.int64)
    for run, (time, took, which) in enumerate(zip(times, work, group, strict=True)):
        for one in range(int(which.max()) + 1):
            mine = np.flatnonzero(which == one)
            found[run, mine] = starts_together(time[mine], took[mine], machines)
    return found


def efficiency(ends: np.ndarray, work: np.ndarray, machines: int) -> np.ndarray:
    """Of runs (runs,) whose prompts are all there at time 0, as in an offline benchmark: the time
    that `machines` need for the work (runs, N) if it is perfectly balanced, over the time until the
    last prompt ends (runs, N)."""
    return work.sum(1) / machines / ends.max(1)


def serve_sessions(
    prompts: Sequence[Prompt], machines: int, to_prefix: bool, shared: bool,
    work: Callable[[int, int], float],
) -> np.ndarray:  # fmt: skip
    """Machine, start, end and computed tokens of each prompt (N, 4), as PrefillPool's `Served`,
    routed by `routing.least_work` or `routing.to_prefix`. Prompts in order of time."""
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
