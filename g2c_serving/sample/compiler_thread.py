"""A thread that works off jobs in order, and can be left behind.

What runs inside a library cannot be stopped. If a job takes too long, its future gets an error, and
a fresh thread goes on with the queue; the old one ends when its job does, and its result is
dropped. The threads do not keep the interpreter from exiting.

What a job takes is its own thread's processor time: on a busy machine, where this thread steps back
behind the others, a small job may wait for long and has done nothing wrong. By the clock it may
take `PATIENCE` times as long, since one that stands still must end, too. macOS and Windows do not
tell the processor time of another thread: there the clock counts alone.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

PATIENCE = 10


@dataclass
class _Now:
    """What a thread is at, since when, and whether it was left behind. Times are in s; `clock` is
    the number of the thread's own, None where the system has none."""

    future: Future | None = None
    began: float = 0.0
    clock: int | None = None
    worked: float = 0.0
    is_left: bool = False

    def begin(self, future: Future) -> None:
        """In the thread."""
        if hasattr(time, "pthread_getcpuclockid"):
            self.clock = time.pthread_getcpuclockid(threading.get_ident())
            self.worked = time.clock_gettime(self.clock)
        self.began, self.future = time.monotonic(), future

    def is_over(self, limit_s: float) -> bool:
        """From any thread: whether the job has taken longer."""
        by_clock = time.monotonic() - self.began
        if by_clock <= limit_s or self.clock is None:
            return by_clock > limit_s
        if by_clock > PATIENCE * limit_s:
            return True
        try:
            return time.clock_gettime(self.clock) - self.worked > limit_s
        except OSError:  # the thread is gone, and so its job is done
            return False


class CompilerThread:
    def __init__(self) -> None:
        self._jobs: SimpleQueue = SimpleQueue()
        self._now: _Now | None = None
        weakref.finalize(self, self._jobs.put, None)  # the thread ends with its owner

    def submit(self, job: Callable[[], Any]) -> Future:
        future: Future = Future()
        self._jobs.put((future, job))
        if self._now is None:
            self._start()
        return future

    def leave_after(self, limit_s: float) -> None:
        """Leave the running job behind if it has taken longer: TimeoutError in its future."""
        now = self._now
        future = None if now is None else now.future
        if now is None or future is None or not now.is_over(limit_s):
            return
        now.is_left = True
        with suppress(InvalidStateError):  # it ended just now
            future.set_exception(TimeoutError(f"it took longer than {limit_s:g} s"))
        self._start()

    def _start(self) -> None:
        self._now = _Now()
        work = threading.Thread(
            target=_work, args=(self._jobs, self._now), name="grammars", daemon=True
        )
        work.start()


def _work(jobs: SimpleQueue, now: _Now) -> None:
    while not now.is_left and (job := jobs.get()) is not None:
        future, do = job
        now.begin(future)
        try:
            result, error = do(), None
        except BaseException as err:
            result, error = None, err
        now.future = None
        with suppress(InvalidStateError):  # left behind
            future.set_exception(error) if error is not None else future.set_result(result)
        del job, do, future, result, error  # or they live until the next job comes
