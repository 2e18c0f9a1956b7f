"""Sessions that return, with caches of the machines' own or one for all: all settings, eight seeds.

Simulated by cluster/prefill_queues.py with the Brief's hit rule; 128 sessions go on at a time, and
prompts count once each of them is a whole one. Caches never get full here, and a session's next
turn comes when it comes, whether the one before is answered or not.

    python -m g2c_serving.lab.prefix_grid      writes data/simulated/prefix_routing.npz, in a minute
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from g2c_serving.cluster.prefill_pool import Prompt, sessions
from g2c_serving.cluster.prefill_queues import serve_sessions
from g2c_serving.lab import simulated
from g2c_serving.lab.prefill_work import COST, alone_ms

NAME = "prefix_routing"
ACTIVE, PROMPTS, SEEDS = 128, 2560, 8  # sessions at a time; prompts that count
MORE = 2000  # tokens that a turn adds, about
SETUPS = {  # whether a prompt goes to its prefix, and whether caches are shared
    "own caches,\nby queued work": (False, False),
    "own caches,\nto the prefix": (True, False),
    "found first,\nby queued work": (False, True),
}
MACHINES, TURNS = (4, 8, 16), (1, 2, 4, 8, 16)
LOADS = (10, 20, 30, 45, 60, 75, 90)  # %, if every prefix is found


@dataclass(frozen=True)
class Outcome:
    """Of each seed (S,): the share of the prompts' tokens that were computed; the work that came
    over what the machines can do; mean s to the first token; the busiest machine's work over the
    average."""

    computed: np.ndarray
    load: np.ndarray
    first_token: np.ndarray
    busiest: np.ndarray

    @property
    def is_steady(self) -> bool:
        """Whether the machines can do what comes, clearly: by the load and its margin. Otherwise
        first_token grows with the run."""
        return bool(self.load.mean() + simulated.margin(self.load) < 1)


def arrivals(machines: int, load: int, turns: int, seed: int) -> list[Prompt]:
    """All prompts of a run; the first ACTIVE * turns do not count."""
    gap_us = mean_us(turns, seed) / (machines * load / 100)
    return sessions(ACTIVE, turns, ACTIVE * turns + PROMPTS, gap_us, MORE, seed)


@cache
def mean_us(turns: int, seed: int) -> float:
    """The mean work of the prompts that count, if every prefix is found."""
    prompts = sessions(ACTIVE, turns, ACTIVE * turns + PROMPTS, 1.0, MORE, seed)
    return 1000 * float(alone_ms(prompts)[ACTIVE * turns :].mean())


def measure(machines: int, load: int, turns: int, seed: int) -> np.ndarray:
    """Simulated now: (SETUPS, fields of Outcome)."""
    prompts, rows, skip = arrivals(machines, load, turns, seed), [], ACTIVE * turns
    for setup in SETUPS.values():
        served = serve_sessions(prompts, machines, *setup, COST.cost)
        rows.append(summary(prompts[skip:], served[skip:], machines))
    return np.array(rows)


def summary(
    prompts: list[Prompt], served: np.ndarray, machines: int
) -> tuple[float, float, float, float]:
    """The fields of Outcome, of the prompts that count in one run."""
    where, start, end, computed = served.T
    came = np.array([prompt.time for prompt in prompts])
    work = np.bincount(where, weights=end - start, minlength=machines)
    return (
        float(computed.sum() / sum(prompt.length for prompt in prompts)),
        float(work.mean() / (came[-1] - came[0])),
        float((end - came).mean()) / 1e6,
        float(work.max() / work.mean()),
    )


def find(machines: int, load: int, turns: int) -> list[Outcome]:
    """Of SETUPS, from the file. ValueError for a setting that it has not."""
    kept = simulated.load(NAME)["outcomes"].astype(float)
    found = kept[MACHINES.index(machines), LOADS.index(load), TURNS.index(turns)]
    return [Outcome(*setup) for setup in np.moveaxis(found, 0, -1)]


def write() -> None:
    settings = product(MACHINES, LOADS, TURNS, range(SEEDS))
    found = np.array([measure(*setting) for setting in settings], np.float32)
    shape = len(MACHINES), len(LOADS), len(TURNS), SEEDS, *found.shape[1:]
    simulated.save(NAME, {"outcomes": found.reshape(shape)})


if __name__ == "__main__":
    write()
