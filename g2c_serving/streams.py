"""Outputs as they come: `async for output in engine.stream(prompt, params)`.

One thread an engine, the driver, runs `engine.step()` while there is anything to do, and sleeps
otherwise. What the event loops want of the engine, adding and aborting, comes to it through an
inbox and is done between two steps: the engine needs no lock, and no event loop waits for a step.

    event loop    stream -> inbox                         channel -> consumer
    driver                  inbox -> add, abort; step() -> channel

What a consumer holds of it, and why one that is slow or gone holds up nobody, is in channel.py.
Left out: a server for several processes, which vLLM puts here.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import torch

from g2c_serving.channel import Channel
from g2c_serving.device_worker import join_before_exit, use_threads
from g2c_serving.interrupts import BLINK
from g2c_serving.output import RequestOutput

if TYPE_CHECKING:
    from g2c_serving.engine import Engine

CLOSED = "the engine is closed: make a new AsyncEngine(lm, config)"
FOREIGN = (
    "the engine has unfinished requests that were added without a stream: call step() until "
    "has_unfinished is False, or abort them, before you stream"
)


class Streams:
    """The streams of one engine, and the thread that drives it. It does not keep the engine alive
    while no stream is read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._inbox: SimpleQueue[Channel | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._live: dict[Channel, None] = {}  # submitted, and not ended
        self._open: dict[int, Channel] = {}  # those in the engine, by request id
        self._thread: threading.Thread | None = None
        self._num_threads = torch.get_num_threads()
        self._is_closed = self._is_busy = False
        self._has_rest = False  # whether a failure left something in the engine
        weakref.finalize(engine, self._inbox.put, None).atexit = False
        _all.add(self)

    def check_open(self) -> None:
        """RuntimeError once they are closed."""
        if self._is_closed:
            raise RuntimeError(CLOSED)

    def check(self) -> None:
        """For who calls the engine directly: RuntimeError while streams are read. Those that were
        left are waited for."""
        while (self._live or self._is_busy) and self._is_elsewhere():
            num_read = sum(not channel.is_left for channel in list(self._live))
            if num_read:
                raise RuntimeError(
                    f"streams of this engine are read ({num_read}), and their thread runs it: use "
                    "engine.stream() too, or end them first (await stream.aclose(), or cancel the "
                    "task that reads)"
                )
            time.sleep(1e-3)

    def close(self) -> None:
        """Abort the requests of all streams, which get their final outputs, and end the driver.
        Twice is fine."""
        self._stop()
        while self._is_elsewhere():
            assert self._thread is not None
            self._thread.join(BLINK)

    # from any thread

    def submit(self, channel: Channel) -> None:
        with self._lock:
            self.check_open()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
                self._thread.start()
            self._live[channel] = None
            self._inbox.put(channel)

    def leave(self, channel: Channel) -> None:
        """Nobody reads it any more. Takes no lock: a garbage collection may call it anywhere."""
        if not channel.is_left and channel in self._live:
            channel.is_left = True
            self._inbox.put(channel)

    def _stop(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)

    def _is_elsewhere(self) -> bool:
        """Whether the driver runs, and this is another thread."""
        thread = self._thread
        return thread is not None and thread.is_alive() and thread is not threading.current_thread()

    # in the driver

    def _run(self) -> None:
        use_threads(self._num_threads)
        goes_on = True
        while goes_on and (channel := self._inbox.get()) is not None:  # it sleeps here
            engine = self._engine()
            self._is_busy = True
            try:
                goes_on = engine is not None and self._drive(engine, channel)
            except BaseException as err:  # no request in particular: all that are read end by it
                self._fail(engine, err)
            del engine, channel  # what it keeps while it sleeps
            self._is_busy = False

    def _drive(self, engine: Engine, channel: Channel) -> bool:
        """Run the engine until nothing is left to do; whether the thread is to go on then."""
        is_foreign = engine.has_unfinished and not self._has_rest
        has_added = self._follow(engine, channel, is_foreign) or self._has_rest
        self._has_rest = False
        while True:
            with suppress(Empty):
                while (next_one := self._inbox.get_nowait()) is not None:
                    has_added |= self._follow(engine, next_one, is_foreign)
                for channel in list(self._open.values()):
                    self._abort(engine, channel)
                return False
            if not self._open and not (has_added and engine.has_unfinished):
                return True
            for output in engine.step():
                if output.request_id in self._open:
                    self._hand_over(engine, self._open[output.request_id], output)
            if self._open and not engine.has_unfinished:
                raise RuntimeError("it has nothing to do, and requests without an end")

    def _follow(self, engine: Engine, channel: Channel, is_foreign: bool) -> bool:
        """Add the request of a channel that comes for the first time, and abort that of one that
        was left. Whether one was added."""
        if channel not in self._live:
            return False
        if channel.request_id is not None:
            self._abort(engine, channel)
        elif is_foreign:
            self._end(channel, RuntimeError(FOREIGN))
        else:
            try:
                channel.request_id = engine.add(*channel.request)
            except Exception as err:
                self._end(channel, err)
                return False
            self._open[channel.request_id] = channel
            return True
        return False

    def _hand_over(self, engine: Engine, channel: Channel, output: RequestOutput) -> None:
        channel.num_missing -= output.finish_reason is not None
        if channel.num_missing == 0:
            self._forget(channel)  # before its consumer can know
        is_there = channel.put(output)
        if channel.num_missing == 0:
            channel.end()
        elif not is_there:
            self._abort(engine, channel)

    def _abort(self, engine: Engine, channel: Channel) -> None:
        assert channel.request_id is not None
        outputs = engine.abort(channel.request_id)
        self._forget(channel)
        for output in outputs:
            channel.put(output)
        channel.end()

    def _end(self, channel: Channel, error: BaseException | None = None) -> None:
        self._forget(channel)
        channel.end(error)

    def _forget(self, channel: Channel) -> None:
        self._live.pop(channel, None)
        if channel.request_id is not None:
            self._open.pop(channel.request_id, None)

    def _fail(self, engine: Engine | None, cause: BaseException) -> None:
        for channel in list(self._open.values()):
            with suppress(Exception):
                assert engine is not None and channel.request_id is not None
                engine.abort(channel.request_id)
            error = RuntimeError(f"the engine failed, and its streams end: {cause!r}")
            error.__cause__ = cause
            self._end(channel, error)
        self._has_rest = True


_all: weakref.WeakSet[Streams] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for streams in list(_all):
        streams._stop()
    join_before_exit(streams._thread for streams in list(_all) if streams._thread is not None)
