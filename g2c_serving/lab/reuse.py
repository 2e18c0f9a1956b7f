"""What a cache of any capacity and lifetime would have hit: reuse distances, computed once.

Brief, section 2. Under least-recently-used eviction a use hits exactly when the bytes used since
the object's last use, the object itself included, fit the capacity (Mattson's stack distance, here
for objects that grow), and when that last use is not longer ago than the lifetime. Both distances
of every use are found in one pass over the trace, and then any setting is a comparison of arrays.

A weight for each kind of object, for example chats that are taken up again, stands for more or
fewer of its kind: a distance is a sum over kinds, so it is kept kind by kind.

An object past its lifetime is no longer found; its bytes go when the eviction reaches it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from g2c_serving.lab.published import value
from g2c_serving.lab.traffic import AGAIN, BASE_SHARE, MEASURED, ONCE, WARM_UP, Uses

KINDS = 4
TOKEN_BYTES = int(value("global.bytes_per_token"))  # 890, reported for V4.1-Flash


def previous(things: np.ndarray) -> np.ndarray:
    """For each use the place of the same object's last one before, -1 for the first (n,)."""
    order = np.argsort(things, kind="stable")
    before = np.full(len(things), -1)
    same = things[order[1:]] == things[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def distances(before: np.ndarray, kind: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Tokens of other objects used since the same object's last use, by kind (n, KINDS).

    An object counts once, with what its last use in between left: so it is all that was left in
    between, less what a later use in between replaced. First uses have no distance: ignore them.
    """
    n = len(before)
    left = np.zeros((n + 1, KINDS))  # by all uses before the k-th
    left[np.arange(1, n + 1), kind] = size
    left = np.cumsum(left, axis=0)
    replaced, seen = np.zeros((n, KINDS)), before >= 0
    replaced[seen, kind[seen]] = size[before[seen]]
    return left[:-1] - left[before + 1] - greater_before(before, replaced)


def greater_before(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """For each place i the sum of weights[j] (n, KINDS) over j < i with keys[j] > keys[i].

    By merging: at each level the right half of every block looks into the left half beside it.
    Integer keys that carry a weight differ from each other.
    """
    n, found = len(keys), np.zeros_like(weights)
    places, width = np.arange(n), 1
    while width < n:
        block = places // (2 * width)
        order = np.argsort(block * (n + 2) - keys)  # within a block, keys descending
        is_left = (order // width) % 2 == 0
        sums = np.zeros((n + 1, weights.shape[1]))
        np.cumsum(np.where(is_left[:, None], weights[order], 0), axis=0, out=sums[1:])
        right = np.flatnonzero(~is_left)
        found[order[right]] += sums[right] - sums[block[right] * 2 * width]
        width *= 2
    return found


def weights_of(share: float) -> np.ndarray:
    """How many of its kind an object of the trace stands for (KINDS,), where `share` of the chats
    are taken up again."""
    found = np.ones(KINDS)
    found[ONCE], found[AGAIN] = (1 - share) / (1 - BASE_SHARE), share / BASE_SHARE
    return found


class Reuse:
    """A trace with the age (seconds) and the distance (tokens) of every use.

    share     of the chats that are taken up again on another day, 0 to 1
    capacity  in bytes, of the one store of both classes
    """

    def __init__(self, uses: Uses) -> None:
        self.uses = uses
        before = previous(uses.thing)
        seen = before >= 0
        self.above = distances(before, uses.kind, uses.size)  # (n, KINDS)
        self.age = np.where(seen, uses.time - uses.time[before], np.inf)  # (n,)
        self.own = np.where(seen, uses.size[before], 0)
        self.until_next = np.full(len(before), np.inf)
        self.until_next[before[seen]] = self.age[seen]

    @cached_property
    def by_age(self) -> dict[bool, Reuse]:
        """The measured uses of chats (True) and of agents, the youngest first."""
        measured, chat = self.uses.time >= WARM_UP, self.uses.is_chat
        return {which: self._sorted(measured & (chat == which)) for which in (True, False)}

    def _sorted(self, chosen: np.ndarray) -> Reuse:
        places = np.flatnonzero(chosen)
        places = places[np.argsort(self.age[places], kind="stable")]
        part = object.__new__(Reuse)
        part.uses = self.uses.rows(places)
        for name in ("above", "age", "own", "until_next"):
            setattr(part, name, getattr(self, name)[places])
        return part

    def fits(self, share: float, capacity: float) -> np.ndarray:
        """Whether each use finds its object not yet evicted (n,)."""
        weights = weights_of(share)
        tokens = self.above @ weights + self.own * weights[self.uses.kind]
        return tokens * TOKEN_BYTES <= capacity

    def rates(
        self, chat: bool, lifetimes: np.ndarray, share: float, capacity: float = np.inf
    ) -> np.ndarray:
        """Share of the input tokens of one class that the cache gives, for each lifetime in s."""
        part = self.by_age[chat]
        weight = weights_of(share)[part.uses.asked]
        hits = part.uses.found * weight
        if capacity < np.inf:
            hits = hits * part.fits(share, capacity)
        total = np.concatenate([[0.0], np.cumsum(hits)])
        young = np.searchsorted(part.age, lifetimes, side="right")
        return total[young] / (part.uses.length @ weight)

    def cost(self, short: float, long: float, share: float, capacity: float = np.inf) -> float:
        """What the shorter lifetime costs chats, in points of their hit rate."""
        few, many = self.rates(True, np.array([short, long]), share, capacity)
        return 100 * float(many - few)

    def held(self, chat: bool, lifetime: float, share: float) -> float:
        """Bytes that one class keeps alive at a time, on average, without a limit of capacity."""
        part = self.by_age[chat]
        kept = np.minimum(part.until_next, lifetime) * part.uses.size
        return float(kept @ weights_of(share)[part.uses.kind]) * TOKEN_BYTES / MEASURED
