"""The way of one request's outputs, from the thread that drives the engine to who reads them.

A consumer may be slow, or never come back. Outputs are cumulative: each has all that the ones
before it had. So a channel keeps the newest `MAX_QUEUED` of a running request, and every final one;
what it drops is in what it keeps. A `Stream` is the end that the consumer holds.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from g2c_serving.output import RequestOutput

if TYPE_CHECKING:
    from g2c_serving.engine import Engine
    from g2c_serving.streams import Streams

MAX_QUEUED = 16  # outputs of a running request that wait for its consumer


class Channel:
    """Written by the driver, read in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: tuple[Any, ...]) -> None:
        self.loop, self.request = loop, request
        params = request[1]
        self.num_missing = 1 if params is None else getattr(params, "n", 1)  # final outputs
        self.request_id: int | None = None
        self.is_left = False  # nobody reads it any more
        self._lock = threading.Lock()
        self._queued: deque[RequestOutput] = deque()
        self._error: BaseException | None = None
        self._is_over = self._is_waking = False
        self._reader: asyncio.Future[None] | None = None

    # in the driver

    def put(self, output: RequestOutput) -> bool:
        """Whether the event loop is still there."""
        with self._lock:
            self._queued.append(output)
            running = [o for o in self._queued if o.finish_reason is None]
            if len(running) > MAX_QUEUED:
                self._queued.remove(running[0])
        return self._wake_up()

    def end(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._is_over, self._error = True, error
        self._wake_up()

    def _wake_up(self) -> bool:
        with self._lock:
            is_on_its_way, self._is_waking = self._is_waking, True
        if not is_on_its_way:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._wake)
        return not self.loop.is_closed()

    # in the event loop

    def _wake(self) -> None:
        with self._lock:
            self._is_waking, reader = False, self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def next(self) -> RequestOutput:
        while True:
            with self._lock:
                if self._queued:
                    return self._queued.popleft()
                if self._error is not None:
                    error, self._error = self._error, None
                    try:
                        raise error
                    finally:
                        del error  # its traceback holds this frame
                if self._is_over:
                    raise StopAsyncIteration
                if self._reader is not None:
                    raise RuntimeError("this stream is already being read: give each task its own")
                self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None


class Stream:
    """The outputs of one request, those of all its samples; it ends when all have ended.

    The request is added when the first output is asked for, and aborted when this is closed or
    dropped, or a task that waits for the next output is cancelled. What `engine.add` raises is
    raised there.

    request   what `engine.add` is called with, all of it; RuntimeError if `streams` are closed
    """

    def __init__(self, streams: Streams, engine: Engine, request: tuple[Any, ...]) -> None:
        streams.check_open()
        self._streams, self._request = streams, request
        self._engine = engine  # which lives while somebody reads
        self._channel: Channel | None = None
        self._is_closed = False

    def __aiter__(self) -> Stream:
        return self

    def __iter__(self) -> Iterator[RequestOutput]:
        raise TypeError("outputs come in time: async for output in engine.stream(...)")

    async def __anext__(self) -> RequestOutput:
        if self._is_closed:
            raise StopAsyncIteration
        if self._channel is None:
            channel = Channel(asyncio.get_running_loop(), self._request)
            self._streams.submit(channel)
            self._channel = channel
            weakref.finalize(self, self._streams.leave, self._channel).atexit = False
        try:
            return await self._channel.next()
        except asyncio.CancelledError:
            self._is_closed = True
            self._streams.leave(self._channel)
            raise

    async def aclose(self) -> None:
        """Abort the request if it has not ended; back when its blocks are free, unless another task
        is reading."""
        self._is_closed = True
        if self._channel is None:
            return
        self._streams.leave(self._channel)
        with suppress(Exception):  # at last StopAsyncIteration
            while asyncio.get_running_loop() is self._channel.loop:
                await self._channel.next()
