"""How soon a thread that wants Python's interpreter lock gets it, set while a step is in flight.

Two threads that share the lock take turns: one that wants it waits up to 5 ms until the other is
asked for it. A worker that comes back from a torch operation waits so each time, and most of the
overlap is lost. With 0.005 ms less is (the operating system adds its own delay of about 0.05 ms);
that costs everybody a little, so it is put back.
"""

from __future__ import annotations

import sys
import threading
from typing import ClassVar

from g2c_serving.interrupts import deferred_interrupt

SECONDS = 5e-6


class switch_interval:  # noqa: N801 (named as contextlib names its own)
    """`sys.setswitchinterval(seconds)` from `hold` to `drop`, or in a `with` block.

    Counted over all that hold one: the shortest counts, and one that is shorter already stays. When
    the last drops, or is collected, the former interval is set again to the microsecond, unless
    somebody has set another meanwhile. Holding twice is holding once.
    """

    _lock: ClassVar = threading.RLock()  # a collection may drop one within these lines
    _held: ClassVar[dict[int, int]] = {}  # microseconds, by who holds
    _former: ClassVar = 0
    _ours: ClassVar = 0

    def __init__(self, seconds: float = SECONDS) -> None:
        self._microseconds = max(1, round(1e6 * seconds))

    def hold(self) -> None:
        if id(self) in self._held:
            return
        with deferred_interrupt(), self._lock:
            if not self._held:
                switch_interval._former = switch_interval._ours = _now()
            self._held[id(self)] = self._microseconds
            self._settle()

    def drop(self) -> None:
        if id(self) in self._held:
            with deferred_interrupt(), self._lock:
                del self._held[id(self)]
                self._settle()

    __del__ = drop

    def _settle(self) -> None:
        if _now() == self._ours:  # and nobody else's
            switch_interval._ours = min([self._former, *self._held.values()])
            sys.setswitchinterval(1e-6 * (self._ours + 0.5))  # it is cut to whole microseconds

    def __enter__(self) -> None:
        self.hold()

    def __exit__(self, *error: object) -> None:
        self.drop()


def _now() -> int:
    return round(1e6 * sys.getswitchinterval())
