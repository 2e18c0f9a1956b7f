"""A bound on what one call may take, in seconds and in memory, for code that a learner is changing.

The call runs in the caller's own thread, so whatever it does to the engine it does where the
notebook can see it. A second thread looks at the clock and at the process's memory, and where one
of them is over its limit it has Python raise an exception in the first: at the next line that is
run, whichever that is. A call that waits in C (for a lock, or asleep) runs no lines; there Ctrl+C
is sent as well. Both work on Linux and macOS; on Windows the second does not.

What it cannot end: a single operation in C that computes for ever.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
POLL_S, AGAIN_S = 0.02, 1.0  # between two looks, and before a call that does not end is told again
STATM = Path("/proc/self/statm")


class LimitReached(Exception):
    """The call was ended: str() says why, as in "it was still running after 10 s"."""


class _Stop(BaseException):
    """What is raised in the call. No Exception: `except Exception` is not to stop it."""


def limited(call: Callable[[], Result], seconds: float, megabytes: float) -> Result:
    """What `call()` returns. LimitReached where it runs longer, or where the process grows by more
    meanwhile; what the call raises itself is passed on."""
    watch = _Watch(seconds, megabytes)
    try:
        try:
            watch.start()
            return call()
        finally:
            watch.end()
    except (_Stop, KeyboardInterrupt):
        watch.end()
        if not watch.why:
            raise  # the learner's own Ctrl+C
        raise LimitReached(watch.why) from None


class _Watch(threading.Thread):
    """Watches the thread that made it, and the threads that this one starts."""

    def __init__(self, seconds: float, megabytes: float) -> None:
        super().__init__(daemon=True, name="museum watch")
        self.seconds, self.megabytes, self.why = seconds, megabytes, ""
        self.target, self.others = threading.get_ident(), set(threading.enumerate())
        self.handler = signal.getsignal(signal.SIGINT)
        self.memory = memory_mb()
        self._lock, self._over = threading.Lock(), threading.Event()

    def run(self) -> None:
        start = time.monotonic()
        while not self.why and not self._over.wait(POLL_S):
            if time.monotonic() - start > self.seconds:
                self.why = f"it was still running after {self.seconds:g} s"
            elif memory_mb() - self.memory > self.megabytes:
                self.why = f"it had taken more than {self.megabytes:g} MB of memory"
        times = 0
        while not self._over.is_set():
            with self._lock:
                if not self._over.is_set():
                    self._stop_it(by_signal=times > 0)
            times += 1
            self._over.wait(AGAIN_S)

    def _stop_it(self, by_signal: bool) -> None:
        started = {thread.ident for thread in threading.enumerate() if thread not in self.others}
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        for ident in {self.target, *filter(None, started)} - {self.ident}:
            raise_in(ctypes.c_ulong(ident), ctypes.py_object(_Stop))
        main = threading.main_thread().ident
        if by_signal and self.target == main and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self.target, signal.SIGINT)

    def end(self) -> None:
        """From here on nothing is raised any more, and what was has come."""
        while not self._ended():
            pass

    def _ended(self) -> bool:
        try:
            with self._lock:
                self._over.set()
            for _ in range(100):
                pass  # what was raised and has not come yet comes here
            if self.ident:
                self.join()
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and callable(self.handler):  # it may have been away when the call ended
                signal.signal(signal.SIGINT, self.handler)
            return True
        except (_Stop, KeyboardInterrupt):  # late ones, where a call takes long to be cleared away
            if not self.why:
                raise  # the learner's own Ctrl+C
            return False


def memory_mb() -> float:
    """Memory that this process has now; on macOS the most that it ever had. 10^6 bytes."""
    if STATM.exists():
        import resource

        return int(STATM.read_text().split()[1]) * resource.getpagesize() / 1e6
    if sys.platform == "win32":
        return _windows_memory_mb()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _windows_memory_mb() -> float:
    """The working set, the fourth of the counters that psapi gives."""
    counters = (ctypes.c_size_t * 10)()
    windows = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    process = ctypes.c_void_p(windows.GetCurrentProcess())
    windows.K32GetProcessMemoryInfo(process, counters, ctypes.sizeof(counters))
    return counters[2] / 1e6
