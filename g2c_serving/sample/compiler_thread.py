"""A thread that works off jobs in order, and can be left behind.

What runs inside a library cannot be stopped. If a job takes too long, its future gets an error, and
a fresh thread goes on with the queue; the old one ends when its job does, and its result is
dropped. The threads do not keep the interpreter from exiting.
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


@dataclass
class _Now:
    """What a thread is at, and whether it was left behind."""

    future: Future | None = None
    began: float = 0.0
    is_left: bool = False


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
        if now is None or now.future is None or time.monotonic() - now.began <= limit_s:
            return
        now.is_left = True
        with suppress(InvalidStateError):  # it ended just now
            now.future.set_exception(TimeoutError(f"it took longer than {limit_s:g} s"))
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
        now.began, now.future = time.monotonic(), future
        try:
            result, error = do(), None
        except BaseException as err:
            result, error = None, err
        now.future = None
        with suppress(InvalidStateError):  # left behind
            future.set_exception(error) if error is not None else future.set_result(result)
        del job, do, future, result, error  # or they live until the next job comes
