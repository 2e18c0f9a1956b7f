"""Let the stop button wait for the end of a few lines that must not be cut in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BLINK = 0.1  # seconds: who waits for long wakes so often, and an interrupt gets through


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Within the block SIGINT (Ctrl+C, the notebook's stop button) is only noted; at its end it
    goes to whoever handles it, KeyboardInterrupt as a rule. Where nobody does, and in other threads
    than the main one, which get no SIGINT, this does nothing."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(signal.SIGINT, None)
