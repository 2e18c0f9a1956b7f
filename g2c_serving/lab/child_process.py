"""A process of ours that may hang: its lines with a limit on the waiting, and an end for all of it.

A read from a pipe cannot be given up, so a thread reads. What a process has started outlives it, so
it gets a group of its own, and the group is ended (`process_group.py`).
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from g2c_serving.lab.process_group import ProcessGroup, options

MOST_LINE = 64 << 20  # characters
PATIENCE = 10.0  # seconds for a process to end by itself


class ChildProcess:
    """A command and its lines. `printed` takes its error output. OSError where it cannot run."""

    def __init__(
        self, command: Sequence[str], printed: IO[str], env: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, env=env,
            encoding="utf-8", errors="replace", **options(),
        )  # fmt: skip
        self._group = ProcessGroup(self._process)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="child", daemon=True)
        self._reader.start()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def tell(self, line: str) -> None:
        """Send a line, without waiting until it is read."""
        threading.Thread(target=self._write, args=(line + "\n",), daemon=True).start()

    def hear(self, seconds: float) -> str:
        """Its next line; "" once it has closed its output. TimeoutError after so long; then, and
        when we are interrupted, it is killed."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            raise TimeoutError(f"nothing came for {seconds:g} s") from None
        except BaseException:
            self.kill()
            raise
        if not line:
            self._lines.put("")  # for who asks again
        return line

    def end(self) -> int:
        """Wait a little for its end, then kill it. Its status."""
        if not self._is_over:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        return self.kill()

    def kill(self) -> int:
        """End it and all that it has started. Its status. Twice is fine."""
        if not self._is_over:
            self._is_over = True
            self._group.kill()
        return self._process.wait()

    def close(self, gently: bool = True) -> None:
        """End it, `gently` by the end of its input. Twice is fine."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if not gently:
            self.kill()
        with suppress(OSError):  # what was written never reached it
            self._process.stdin.close()
        self.end()
        self._reader.join(PATIENCE)
        if not self._reader.is_alive():  # else somebody beyond our reach has its output too
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            while line := self._process.stdout.readline(MOST_LINE):
                self._lines.put(line)
        self._lines.put("")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it is gone: what it said last is the reason
            self._process.stdin.write(line)
            self._process.stdin.flush()
