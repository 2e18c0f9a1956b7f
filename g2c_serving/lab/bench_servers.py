"""`bench --peer http://host:port/v1`: one trace, replayed against a server and against ours.

The day of `day.py` in quick motion, written with the model's tokenizer: chats that come back,
agents, long documents, samples. Ours runs in a process of its own (`openai_server.py`), behind the
same interface, and both are asked by the same client: what differs is the engine, its machine and
the way there. With the exported weights on both sides the tokens are the same; with others the
lengths still are.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import day, machine, server_replay
from g2c_serving.lab.bench_report import progress
from g2c_serving.lab.child_process import ChildProcess
from g2c_serving.lab.day_result import Target
from g2c_serving.lab.openai_client import Server, ServerError
from g2c_serving.lab.server_replay import Call, Replayed
from g2c_serving.paths import ROOT

START = 600.0  # seconds for our own server to load the model


@dataclass(frozen=True)
class Trial:
    """What is asked of the servers: seconds for an hour of the day, the share of its sessions."""

    hour: float = 1.0
    share: float = 1.0
    target: Target = Target(0.5, 0.05)


@dataclass
class ServerReport:
    machine: str
    model: str
    calls: list[Call]
    runs: list[tuple[str, Replayed]]
    target: Target

    def as_json(self) -> str:
        found = server_replay.table(self.runs, self.target)
        columns = {
            name: {row[0]: row[k] for row in found.rows} | {"failures": dict(run.failures)}
            for k, (name, run) in enumerate(self.runs, start=1)
        }
        about = {"machine": self.machine, "model": self.model, "calls": len(self.calls)}
        return json.dumps(about | {"servers": columns}, indent=1)


def measure(
    lm: LanguageModel,
    source: str,
    addresses: Sequence[str],
    trial: Trial,
    model: str | None = None,
    ignore_eos: bool = True,
    seconds: float = 600.0,
) -> ServerReport:
    """Replay the day against ours and each address in turn. `source` names `lm` to our server,
    `model` that of the others. An answer that is not over after `seconds` has failed.

    ServerError for an address that cannot be used; what fails later is counted in the report.
    """
    visits = day.made_up(lm, share=trial.share)
    calls = server_replay.calls_of_day(lm, visits, trial.hour)
    with ExitStack() as stack:
        options = {"ignore_eos": ignore_eos, "deadline": seconds}
        others = [Server.at(url, model, **options) for url in addresses]
        progress("our server starts")
        mine = Server.at(stack.enter_context(our_server(source)), deadline=seconds)
        runs = []
        for name, server in (("ours", mine), *((one.url, one) for one in others)):
            progress(f"{len(calls)} requests to {server.url}")
            server.complete(calls[0].prompt, 2)  # the first request of a server is slow
            runs.append((name, server_replay.replay(server, calls)))
    return ServerReport(machine.line(), lm.name, calls, runs, trial.target)


@contextmanager
def our_server(source: str) -> Iterator[str]:
    """Our server in a process of its own; its address. ServerError where it does not start."""
    command = [sys.executable, "-m", "g2c_serving.lab.openai_server", source, "--port", "0",
               "--markers"]  # fmt: skip
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        process = ChildProcess(command, printed, os.environ | {"PYTHONPATH": paths})
        try:
            line = _first_line(process)
            if " at http://" not in line:
                process.end()
                printed.seek(0)
                raise ServerError(f"our own server did not start: {printed.read().strip()}")
            yield line.split(" at ")[1].split(";")[0]
        finally:
            process.close(gently=False)


def _first_line(process: ChildProcess) -> str:
    try:
        return process.hear(START)
    except TimeoutError as err:
        raise ServerError(f"our own server did not start: {err}") from None


def table(report: ServerReport) -> str:
    """The report as text."""
    starts = [call.arrival for call in report.calls if call.follows is None]
    returns = len(report.calls) - len(starts)
    lines = [
        f"A day of {report.model}: {len(report.calls)} requests, {returns} of them returns, "
        f"sent over {max(starts) - min(starts):.0f} s and as long as they take.",
        f"Times are the client's, on {report.machine}. A piece is what a server sends at a time.",
        "",
        repr(server_replay.table(report.runs, report.target)),
    ]
    for name, run in report.runs:
        lines += [f"{name}: {count} failed: {why}" for why, count in run.failures.most_common()]
    return "\n".join(lines)
