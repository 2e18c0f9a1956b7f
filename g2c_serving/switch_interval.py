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


class SwitchInterval:
    """Sets the interval from `hold` to `drop`, unless it is as short already.

    Counted over all that hold it: when the last drops, or is collected, the former interval is set
    again to the microsecond, unless somebody has set another meanwhile. Holding twice is holding
    once.
    """

    _lock: ClassVar = threading.RLock()  # a collection may drop one within these lines
    _holders: ClassVar[set[int]] = set()
    _former: ClassVar = 0  # microseconds, and so is what we have set
    _ours: ClassVar = 0

    def hold(self) -> None:
        with deferred_interrupt(), self._lock:
            if not self._holders:
                SwitchInterval._former = _now()
                SwitchInterval._ours = min(self._former, round(1e6 * SECONDS))
                _set(self._ours)
            self._holders.add(id(self))

    def drop(self) -> None:
        if id(self) in self._holders:  # looked at again under the lock: another thread may drop it
            with deferred_interrupt(), self._lock:
                held = id(self) in self._holders
                self._holders.discard(id(self))
                if held and not self._holders and _now() == self._ours:
                    _set(self._former)

    __del__ = drop


def _now() -> int:
    return round(1e6 * sys.getswitchinterval())


def _set(microseconds: int) -> None:
    sys.setswitchinterval(1e-6 * (microseconds + 0.5))  # it is cut to whole microseconds
