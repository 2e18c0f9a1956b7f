"""Balances of experts for every setting that the two panels about copies and drift offer.

Simulated by cluster/experts.py and cluster/reassignment.py, in eight draws of popularities each,
because one draw says little: the busiest GPU is the busiest because of one or two experts.

    python -m g2c_serving.lab.expert_grid      writes data/simulated/experts_*.npz, in minutes
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from g2c_serving.cluster.experts import Placement, place, popularity, step_load
from g2c_serving.cluster.reassignment import reassigning
from g2c_serving.lab import simulated

DRAWS = 8  # of popularities
EXPERTS, CHOSEN = 256, 8  # of a layer, and of them a token's: made up, as the popularities are

# ---- copies ----

COPIES_FILE = "experts_copies"
COPIES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # redundant ones, in all
SKEWS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
GPUS = (8, 16, 32, 64, 128)
DRIFTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # %
TOKENS = (8, 32, 64, 256, 1024)  # of a GPU in a step
STEPS = 8  # drawn to average chance


@lru_cache(maxsize=2 * DRAWS)
def placements(skew: float, gpus: int, draw: int) -> list[Placement]:
    """One for each of COPIES, for a known load."""
    load = popularity(EXPERTS, skew, seed=draw)[0]
    return [place(load, gpus, copies) for copies in COPIES]


def known_balances(skew: float, gpus: int) -> np.ndarray:
    """(C, DRAWS) over COPIES, with the very load that the placement was made from."""
    loads = [popularity(EXPERTS, skew, seed=draw)[0] for draw in range(DRAWS)]
    found = [[p.balance(load) for p in placements(skew, gpus, draw)]
             for draw, load in enumerate(loads)]  # fmt: skip
    return np.array(found).T


def later_balances(skew: float, gpus: int, drift: float, tokens: int) -> np.ndarray:
    """(C, DRAWS) over COPIES: the mean of STEPS steps of an interval later, in which `drift` % of
    the popularities are new, each of `tokens` tokens a GPU."""
    found = []
    for draw in range(DRAWS):
        now = popularity_after(skew, drift, draw)
        steps = np.array([step_load(now, gpus * tokens * CHOSEN, s) for s in range(STEPS)])
        found.append([p.balance(steps).mean() for p in placements(skew, gpus, draw)])
    return np.array(found).T


def popularity_after(skew: float, drift: float, draw: int) -> np.ndarray:
    """Shares (E,) one interval after those that `placements` knows."""
    return popularity(EXPERTS, skew, 2, drift / 100, draw)[1]


def write_copies() -> None:
    known = [known_balances(*at) for at in product(SKEWS, GPUS)]
    later = [later_balances(*at) for at in product(SKEWS, GPUS, DRIFTS, TOKENS)]
    simulated.save(COPIES_FILE, {
        "known": thousandths(known, SKEWS, GPUS),
        "later": thousandths(later, SKEWS, GPUS, DRIFTS, TOKENS),
    })  # fmt: skip


def find_copies(
    skew: float, gpus: int, drift: float, tokens: int
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """`known_balances` and `later_balances` to three decimals, from the file. ValueError for a
    setting that it has not."""
    kept, at = simulated.load(COPIES_FILE), (SKEWS.index(skew), GPUS.index(gpus))
    later = kept["later"][*at, DRIFTS.index(drift), TOKENS.index(tokens)]
    return kept["known"][at] / 1000, later / 1000


# ---- drift ----

DRIFT_FILE = "experts_drift"
SKEW, ON = 0.8, 64  # of the runs: skew, GPUs
INTERVALS = 32  # of a run
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # % an interval
EVERY = (1, 2, 4, 8, 16)
SWAPS = (0, 4, 8, 16, 32)
SPARE = (0, 16, 64, 128)  # redundant copies
NEVER = INTERVALS + 1  # `every` of a run that is placed once


def over_time(drift: float, copies: int, every: int, swaps: int | None = None) -> np.ndarray:
    """(INTERVALS + 1, DRAWS): the balances of a run whose experts are placed every so many
    intervals from the interval before, anew or with a few swaps; in the last row the experts that
    were moved each time."""
    found = []
    for draw in range(DRAWS):
        loads = popularity(EXPERTS, SKEW, INTERVALS + 1, drift / 100, draw)
        run = reassigning(loads, ON, copies, every, swaps=swaps)
        found.append([*run.balances[1:], np.mean(run.moved or [0])])
    return np.array(found).T


def write_drift() -> None:
    once = [over_time(*at, NEVER) for at in product(RATES, SPARE)]
    anew = [over_time(*at) for at in product(RATES, SPARE, EVERY)]
    near = [over_time(*at) for at in product(RATES, SPARE, EVERY, SWAPS)]
    simulated.save(DRIFT_FILE, {
        "once": thousandths(once, RATES, SPARE),
        "anew": thousandths(anew, RATES, SPARE, EVERY),
        "near": thousandths(near, RATES, SPARE, EVERY, SWAPS),
    })  # fmt: skip


def find_drift(drift: float, copies: int, every: int, swaps: int) -> dict[str, np.ndarray]:
    """`over_time` to three decimals, from the file: placed once, anew, and near the one before.
    ValueError for a setting that it has not."""
    kept, at = simulated.load(DRIFT_FILE), (RATES.index(drift), SPARE.index(copies))
    i, j = EVERY.index(every), SWAPS.index(swaps)
    found = {
        "once": kept["once"][at],
        "near": kept["near"][*at, i, j],
        "anew": kept["anew"][*at, i],
    }
    return {name: numbers / 1000 for name, numbers in found.items()}


# ---- the files ----


def thousandths(found: list[np.ndarray], *axes: tuple) -> np.ndarray:
    """Results in the order of `product(*axes)` as whole thousandths, an array axis for each."""
    return (
        np.rint(1000 * np.array(found)).astype(np.uint32).reshape(*map(len, axes), *found[0].shape)
    )


if __name__ == "__main__":
    write_copies()
    write_drift()
