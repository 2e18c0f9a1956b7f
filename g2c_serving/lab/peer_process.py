"""A peer: another engine that takes part in the benchmark, in a process of its own.

Engines of this kind pin threads, patch torch and read their settings from the environment before
they are imported, and often live in another environment than ours. So a peer always is a process,
`peer_runner.py` under a Python that has the engine, and it counts its own CPU-seconds. It may hang,
die or talk nonsense at any time: each is a PeerError, and the others go on.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from g2c_serving.lab.child_process import ChildProcess
from g2c_serving.lab.contestants import Contestant, Prompts
from g2c_serving.lab.openai_stream import plain
from g2c_serving.lab.peer_runner import SCRATCH

RUNNER = Path(__file__).with_name("peer_runner.py")
LAST_LINES = 3  # of what a peer printed, in an error
SECONDS = 600.0


class PeerError(RuntimeError):
    """The peer does not run here; the message says why, in words that are fit to be printed."""

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class PeerProcess:
    """An engine of `kind` on a folder of Hugging Face, which is only read. Close it, or use it in
    a `with`.

    python   the interpreter that has the engine; None: this one
    mode     for vLLM eager or compiled
    seconds  until a start or a round that has not ended is given up

    PeerError where it cannot start, dies on the way, takes too long, or answers with what is none.
    """

    def __init__(
        self,
        kind: str,
        folder: str | Path,
        *,
        python: str | Path | None = None,
        dtype: str = "float32",
        mode: str = "eager",
        seconds: float = SECONDS,
    ) -> None:
        self.kind, self.seconds, self.cpu_seconds = kind, seconds, 0.0
        self._printed: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [str(python or sys.executable), str(RUNNER), kind, str(folder), dtype, mode]
        try:
            environment = os.environ | {SCRATCH: self._scratch.name}
            self._process = ChildProcess(command, self._printed, environment)
        except OSError as err:
            self._printed.close()
            self._scratch.cleanup()
            raise PeerError(f"{command[0]} cannot be run ({err}): name a Python that has {kind}"
                            ) from err  # fmt: skip
        try:
            name = self._hear().get("name")
            if not isinstance(name, str):
                raise PeerError(f"{kind} did not say its name first: is that a peer_runner.py?")
            self.name = name
        except BaseException:
            self.close()
            raise

    def run(self, prompts: Prompts, new_tokens: int) -> list[list[int]]:
        """Greedy new ids of each prompt; what it cost is added to `cpu_seconds`."""
        job = {"prompts": [list(prompt) for prompt in prompts], "new": new_tokens}
        self._process.tell(json.dumps(job))
        answer = self._hear()
        ids, cpu = answer.get("ids"), answer.get("cpu")
        if not (
            isinstance(ids, list) and [_length(new) for new in ids] == [new_tokens] * len(prompts)
        ):
            raise PeerError(f"{self.kind} did not answer with {new_tokens} ids for each of "
                            f"{len(prompts)} prompts")  # fmt: skip
        if not isinstance(cpu, int | float) or not 0 <= cpu < math.inf:
            raise PeerError(f"{self.kind} counted {cpu!r} CPU-seconds, which is no number of them")
        self.cpu_seconds += cpu
        return ids

    def contestant(self) -> Contestant:
        return Contestant(self.name, self.run, clock=lambda: self.cpu_seconds, may_fail=True)

    def close(self) -> None:
        """End the process. Twice is fine."""
        self._process.close()
        self._printed.close()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hear(self) -> dict[str, Any]:
        """Its next answer. PeerError with its reason where it has failed or is gone."""
        try:
            line = self._process.hear(self.seconds)
        except TimeoutError as err:
            raise PeerError(f"{self.kind}: {err}, so it was ended; --peer-seconds gives it longer"
                            ) from None  # fmt: skip
        if not line:
            code = self._process.end()
            words = "; ".join(self._last_lines()) or "it printed nothing"
            raise PeerError(f"{self.kind} ended with status {code}: {words}{self._remedy(words)}")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise PeerError(f"{self.kind} said {line[:80]!r}, which is no answer")
        if "error" in answer:
            raise PeerError(f"{self.kind} does not run here: {answer['error']}{self._remedy(line)}")
        return answer

    def _remedy(self, words: str) -> str:
        if "No module named" not in words:
            return ""
        return f". If {self.kind} lives in another environment, name its Python: --peer-python PATH"

    def _last_lines(self) -> Sequence[str]:
        self._printed.seek(0)
        return [line.strip() for line in self._printed if line.strip()][-LAST_LINES:]


def _length(new: Any) -> int | None:
    """How many ids; None for what is no list of ids."""
    is_ids = isinstance(new, list) and all(type(token_id) is int for token_id in new)
    return len(new) if is_ids else None
