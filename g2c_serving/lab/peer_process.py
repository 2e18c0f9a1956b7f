"""A peer: another engine that takes part in the benchmark, in a process of its own.

Engines of this kind pin threads, patch torch and read their settings from the environment before
they are imported, and often live in another environment than ours. So a peer always is a process,
`peer_runner.py` under a Python that has the engine, and it counts its own CPU-seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from g2c_serving.lab.contestants import Contestant, Prompts

RUNNER = Path(__file__).with_name("peer_runner.py")
LAST_LINES = 3  # of what a peer printed, in an error


class PeerError(RuntimeError):
    """The peer does not run here; the message says why."""


class PeerProcess:
    """An engine of `kind` on a folder that `export` wrote. Close it, or use it in a `with`.

    python  the interpreter that has the engine; None: this one
    mode    for vLLM eager or compiled

    PeerError where it cannot start, or dies on the way.
    """

    def __init__(
        self,
        kind: str,
        folder: str | Path,
        *,
        python: str | Path | None = None,
        dtype: str = "float32",
        mode: str = "eager",
    ) -> None:
        self.kind, self.cpu_seconds = kind, 0.0
        self._printed: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        command = [str(python or sys.executable), str(RUNNER), kind, str(folder), dtype, mode]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed,
                encoding="utf-8",
            )  # fmt: skip
        except OSError as err:
            self._printed.close()
            raise PeerError(f"{command[0]} cannot be run ({err}): name a Python that has {kind}"
                            ) from err  # fmt: skip
        try:
            self.name = str(self._hear()["name"])
        except BaseException:
            self.close()
            raise

    def run(self, prompts: Prompts, new_tokens: int) -> list[list[int]]:
        """Greedy new ids of each prompt; what it cost is added to `cpu_seconds`."""
        assert self._process.stdin is not None
        job = {"prompts": [list(prompt) for prompt in prompts], "new": new_tokens}
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is gone: what it said last is the reason
        answer = self._hear()
        self.cpu_seconds += answer["cpu"]
        return answer["ids"]

    def contestant(self) -> Contestant:
        return Contestant(self.name, self.run, clock=lambda: self.cpu_seconds)

    def close(self) -> None:
        """End the process. Twice is fine."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:  # what was written never reached it
                    pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hear(self) -> dict[str, Any]:
        """Its next line. PeerError with its reason where it has failed or is gone."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer = json.loads(line)
            if "error" not in answer:
                return answer
            raise PeerError(f"{self.kind} does not run here: {answer['error']}{self._remedy(line)}")
        code = self._process.wait()
        words = "; ".join(self._last_lines()) or "it printed nothing"
        raise PeerError(f"{self.kind} ended with status {code}: {words}{self._remedy(words)}")

    def _remedy(self, words: str) -> str:
        if "No module named" not in words:
            return ""
        return f". If {self.kind} lives in another environment, name its Python: --peer-python PATH"

    def _last_lines(self) -> Sequence[str]:
        self._printed.seek(0)
        return [line.strip() for line in self._printed if line.strip()][-LAST_LINES:]
