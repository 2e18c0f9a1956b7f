"""The device of a laptop: a thread that runs what it is given, in order.

On a GPU a launch goes into the device's queue and returns; here `submit` does. The thread computes
with as many threads as its maker had. torch gives a new thread the number that was set last, by
whichever thread, and only at its first operation; so the worker settles it before it is used.

Left out: several queues, and events within one; a CUDA device has both.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import torch

from g2c_serving.interrupts import BLINK, deferred_interrupt

MAX_EXIT_SECONDS = 5.0  # for which the interpreter's exit waits for what a worker is at


class WorkerDied(RuntimeError):
    """The device's thread was killed, or is closed: what it was given is not done."""


class _Killed(BaseException):
    """Raised in the thread; jobs that catch `Exception` let it through."""


def wait(future: Future) -> Any:
    """`future.result()`, in blinks of 0.1 s: Ctrl+C gets through between two of them, on Windows
    too, and never while the future's lock is taken."""
    try:
        while True:
            with deferred_interrupt(), suppress(TimeoutError):
                return future.result(BLINK)
            if future.done():
                return future.result()  # which may be a TimeoutError of the job's
    finally:
        del future  # or an error that it holds would hold it in turn, by its traceback


def receive(box: SimpleQueue) -> Any:
    """What comes next in a queue: how a job waits for the main thread. A job that waits for a lock
    or a future cannot be killed; here it can."""
    while True:
        with suppress(Empty):
            return box.get(timeout=BLINK)


class DeviceWorker:
    """A daemon thread, which ends with its worker: it holds on to jobs that it has not done yet,
    and to nothing else."""

    def __init__(self) -> None:
        self._work = _Work()
        self._thread = threading.Thread(target=self._work.run, name="device", daemon=True)
        self._thread.start()
        _threads[self._thread] = self._work
        weakref.finalize(self, self._work.jobs.put, None)
        wait(self.submit(use_threads, torch.get_num_threads()))

    @property
    def is_alive(self) -> bool:
        """Whether it takes jobs. What a killed one is at may run on for a while, see `join`."""
        return self._work.ended is None and self._thread.is_alive()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Queue a job. What it raises goes to its future and the worker goes on, unless that is no
        `Exception` (SystemExit, say): then the worker dies. WorkerDied after its end."""
        return self._work.submit(function, args)

    def kill(self) -> None:
        """End now: every future that is not done gets WorkerDied. The job that runs stops once
        Python gets control there, so after the torch operation that it is in; a lock that it took
        may stay taken, unless it was by `with`."""
        self._work.end("the device's thread was killed")

    def close(self) -> None:
        """Do what is queued, then end. Twice is fine."""
        self._work.close()
        self.join()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, for `timeout` seconds at most; whether it has. Before,
        what a killed worker was at may still write. From a job of its own: returns at once."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while self._thread.is_alive():
            left = end - time.monotonic()
            if left <= 0 or self._thread is threading.current_thread():
                return False
            self._thread.join(min(BLINK, left))
        return True


class _Work:
    """What a worker and its thread share.

    A kill hits the thread at any line. Were it one that holds the lock inside a future, whoever
    waits for that future would wait for ever. So a kill is sent only while a job runs; and only who
    takes a future out of `undone`, the thread or the killer, completes it.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue = SimpleQueue()
        self.lock = threading.Lock()
        self.undone: dict[Future, None] = {}
        self.job_of: int | None = None  # the thread, while a job of it runs
        self.ended: str | None = None  # why no more jobs are taken
        self.is_dead = False

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Future:
        future: Future = Future()
        with self.lock:
            if self.ended is not None:
                raise WorkerDied(f"{self.ended}: it takes no more jobs")
            self.undone[future] = None
            self.jobs.put((future, function, args))
        return future

    def close(self) -> None:
        with self.lock:
            if self.ended is None:
                self.ended = "the device's thread is closed"
                self.jobs.put(None)

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Give up on all that is undone."""
        with deferred_interrupt():
            with self.lock:
                if self.is_dead:
                    return
                self.is_dead, self.ended = True, reason
                lost, self.undone = self.undone, {}
                by_itself = self.job_of == threading.get_ident()
                if self.job_of is not None and not by_itself:
                    _raise_in(self.job_of)
            for future in lost:
                error = WorkerDied(f"{reason} before this was done")
                error.__cause__ = cause
                with suppress(InvalidStateError):  # it was cancelled
                    future.set_exception(error)
            self.drop_jobs()
            self.jobs.put(None)
        if by_itself:
            raise _Killed

    def drop_jobs(self) -> None:
        with suppress(Empty):
            while True:
                self.jobs.get_nowait()

    def run(self) -> None:
        """The thread."""
        try:
            while (job := self.jobs.get()) is not None:
                self.do(*job)
                del job  # or it would live until the next one comes
        except BaseException as err:  # a kill, or what a callback of a future raised
            self.end(f"the device's thread ended by {err!r}", err)
        self.drop_jobs()

    def do(self, future: Future, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        with self.lock:
            if self.is_dead:
                return
            if not future.set_running_or_notify_cancel():
                del self.undone[future]
                return
            self.job_of = threading.get_ident()
        result, error = _outcome(function, args)
        is_fatal = error is not None and not isinstance(error, Exception)
        with self.lock:
            self.job_of = None
            was_killed = self.is_dead
            if not was_killed and not is_fatal:
                del self.undone[future]
        if was_killed:
            pass  # who killed it has seen to its futures
        elif is_fatal:
            self.end(f"the device's thread ended by {error!r}", error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
        del future, function, args, result, error  # tracebacks hold this frame


def _outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
    try:
        return function(*args), None
    except BaseException as err:
        return None, err


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Killed))


def use_threads(count: int) -> None:
    """Let this thread compute with so many."""
    torch.get_num_threads()  # the thread's first operation, which would set it again
    torch.set_num_threads(count)


_threads: weakref.WeakKeyDictionary[threading.Thread, _Work] = weakref.WeakKeyDictionary()


def join_before_exit(threads: Iterable[threading.Thread]) -> None:
    """A daemon thread inside torch while the interpreter goes away would abort the process."""
    end = time.monotonic() + MAX_EXIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


@atexit.register
def _end_all() -> None:
    for work in list(_threads.values()):
        work.end("the interpreter exits")
    join_before_exit(list(_threads))
