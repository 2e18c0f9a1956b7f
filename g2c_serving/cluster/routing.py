"""Routing: which machine of a pool gets a request. The rules, without the machines.

Brief, "The parts that are pure infrastructure". Reported: prefill requests are bucketed by context
length into four tiers; decode requests are spread to balance both request count and total cache
length per GPU. The balancer is not released, so the rules are ours. A rule is a function

    choose(machines, request) -> number of the machine

of what is known when a request arrives. prefill_pool.py and decode_pool.py play them.

    at_random, round_robin              look at nothing
    least_work                          prefill: the machine that will be free first
    in_tiers                            prefill: long prompts have machines of their own
    to_prefix                           prefill: the machine that holds its prefix
    fewest_requests, least_cache, both  decode: by count, by cached tokens, by both
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from g2c_serving.checks import as_int


@dataclass(frozen=True)
class Request:
    """A request as a router sees it: its tokens so far, and the machine that holds the longest
    prefix of them, if one does."""

    length: int
    home: int | None = None


@dataclass(frozen=True)
class Machines:
    """A pool as a router sees it, an entry a machine: the work that is queued there, in the time
    units of the pool (below 0: it has been idle for so long); the requests that run there; the
    tokens that their caches hold."""

    queued: np.ndarray
    requests: np.ndarray
    cached: np.ndarray

    @classmethod
    def idle(cls, machines: int) -> Machines:
        zeros = np.zeros((3, as_int("machines", machines, 1)))
        return cls(*zeros)

    def __len__(self) -> int:
        return len(self.queued)


Router = Callable[[Machines, Request], int]


# ---- looking at nothing ----


def at_random(seed: int = 0) -> Router:
    draw = random.Random(seed)
    return lambda machines, request: draw.randrange(len(machines))


def round_robin() -> Router:
    """One after the other."""
    turn = count()
    return lambda machines, request: next(turn) % len(machines)


# ---- prefill ----


def least_work(machines: Machines, request: Request) -> int:
    """The machine with the least work queued, of idle ones the one that has been so for longest."""
    return int(machines.queued.argmin())


def in_tiers(edges: Sequence[float]) -> Router:
    """Prompts up to edges[0] tokens go to the first machines, those up to edges[1] to the next, and
    so on; len(edges) + 1 tiers of as many machines. Within a tier by least work.

    ValueError for edges that fall, and when called with machines that the tiers do not divide.
    """
    if any(low > high for low, high in zip(edges, edges[1:], strict=False)):
        raise ValueError(f"edges={list(edges)} must not fall")
    tiers = len(edges) + 1

    def choose(machines: Machines, request: Request) -> int:
        if len(machines) % tiers:
            raise ValueError(f"{len(machines)} machines in {tiers} tiers: give a multiple of them")
        size = len(machines) // tiers
        start = size * tier_of(request.length, edges)
        return start + int(machines.queued[start : start + size].argmin())

    return choose


def tier_of(length: int, edges: Sequence[float]) -> int:
    """The tier of a prompt: 0 up to edges[0] tokens, len(edges) beyond the last."""
    return int(np.searchsorted(edges, length))


def equal_work_edges(lengths: Sequence[int], work: Sequence[float], tiers: int = 4) -> list[float]:
    """Edges at which each tier has the same share of the work (N,) of prompts (N,), as nearly as
    whole prompts allow: tiers - 1 lengths."""
    order = np.argsort(lengths, kind="stable")
    done = np.cumsum(np.asarray(work, float)[order])
    parts = np.arange(1, as_int("tiers", tiers, 1)) / tiers
    last = np.searchsorted(done, parts * done[-1])
    return np.asarray(lengths, float)[order][last].tolist()


def to_prefix(machines: Machines, request: Request) -> int:
    """The machine that holds the request's prefix; where none does, that with the least work."""
    return least_work(machines, request) if request.home is None else request.home


# ---- decode ----


def fewest_requests(machines: Machines, request: Request) -> int:
    return int(machines.requests.argmin())


def least_cache(machines: Machines, request: Request) -> int:
    """The machine whose requests hold the fewest cached tokens."""
    return int(machines.cached.argmin())


def both(machines: Machines, request: Request) -> int:
    """The machine with the least of both, each as a multiple of the pool's sum."""
    requests, cached = machines.requests, machines.cached
    return int((requests * (cached.sum() or 1) + cached * (requests.sum() or 1)).argmin())
