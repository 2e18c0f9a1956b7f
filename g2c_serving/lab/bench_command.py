"""`python -m g2c_serving bench`: by itself, beside other engines, or against a server.

Without `--peer`: our own ratios (`bench.py`). With the name of an engine: a race on the same
exported weights (`bench_peers.py`). With an address, `http://host:port/v1`: a trace of requests
with arrival times, replayed against that server and against ours (`bench_servers.py`).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import bench, bench_peers, bench_report, bench_servers
from g2c_serving.lab.bench_report import Line
from g2c_serving.lab.day_result import Target
from g2c_serving.lab.peer_process import SECONDS
from g2c_serving.lab.peer_runner import KINDS

QUICK_TRIAL = (0.05, 0.1)  # seconds an hour, share of the sessions
QUICK_PEERS = bench_peers.PeerSizes(4, 8, 8, 1, (1, 4), 8)
TOO_SMALL = "Too small to judge by: --quick only shows that it runs.\n"


def main(argv: list[str] | None = None) -> int:
    """Print a table, or JSON. 0 however fast anything was: times are shown and not asserted; 1, and
    the reason, where nothing could be measured."""
    choice = _parser().parse_args(argv)
    choice.model = choice.folder or choice.model
    peers = choice.peer or []
    addresses = [peer for peer in peers if "://" in peer]
    if unknown := [peer for peer in peers if peer not in KINDS and peer not in addresses]:
        print(
            f"--peer {unknown[0]}: name one of {', '.join(sorted(KINDS))}, or an address such as "
            "http://localhost:8000/v1",
            file=sys.stderr,
        )
        return 2
    if addresses and len(addresses) < len(peers):
        print("--peer: engines and addresses are measured differently: one kind at a time",
              file=sys.stderr)  # fmt: skip
        return 2
    try:
        lm = load(choice.model)
        print(_measured(lm, choice, peers, addresses))
    except (OSError, RuntimeError, TypeError, ValueError) as err:
        print(f"not measured: {err}", file=sys.stderr)
        return 1
    return 0


def _measured(
    lm: LanguageModel, choice: argparse.Namespace, peers: list[str], addresses: list[str]
) -> str:
    quick = TOO_SMALL + "\n" if choice.quick and not choice.json else ""
    if not peers:
        own = bench.measure(lm, bench.QUICK if choice.quick else bench_report.Sizes())
        own.lines = _judged(own.lines, choice)
        return own.as_json() if choice.json else quick + bench_report.table(own)
    if addresses:
        hour, share = QUICK_TRIAL if choice.quick else (choice.hour, 1.0)
        trial = bench_servers.Trial(
            hour, share, Target(choice.first_ms / 1e3, choice.token_ms / 1e3)
        )
        seen = bench_servers.measure(
            lm, choice.model, addresses, trial, choice.peer_model, not choice.peer_stops_early,
            choice.peer_seconds,
        )  # fmt: skip
        return seen.as_json() if choice.json else quick + bench_servers.table(seen)
    sizes = QUICK_PEERS if choice.quick else bench_peers.PeerSizes()
    found = bench_peers.measure(
        lm,
        peers,
        sizes,
        dtype=choice.dtype,
        pythons=_pythons(choice.peer_python or []),
        mode=choice.peer_mode,
        seconds=choice.peer_seconds,
    )
    found.lines = _judged(found.lines, choice)
    return found.as_json() if choice.json else quick + bench_peers.table(found)


def _judged(lines: list[Line], choice: argparse.Namespace) -> list[Line]:
    """The lines; of a quick run without a verdict."""
    return [replace(line, is_judged=not choice.quick) for line in lines]


def _pythons(given: list[str]) -> dict[str, str]:
    """The interpreter of each engine, from PATH for all or ENGINE=PATH for one."""
    for_all, for_one = dict[str, str](), dict[str, str]()
    for word in given:
        kind, equals, path = word.partition("=")
        if equals and kind in KINDS:
            for_one[kind] = path
        else:
            for_all = dict.fromkeys(KINDS, word)
    return for_all | for_one


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m g2c_serving bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="too small to judge by: only to see it run"
    )
    what = "a shipped model (tiny), or the folder of one of yours"
    parser.add_argument("folder", nargs="?", metavar="MODEL", help=what)
    parser.add_argument("--model", default="tiny", metavar="MODEL", help="the same")
    group = parser.add_argument_group("another engine")
    group.add_argument("--peer", action="append", metavar="ENGINE|URL",
                       help="vllm, openvino, or a server's address; repeatable")  # fmt: skip
    group.add_argument("--peer-python", action="append", metavar="[ENGINE=]PATH",
                       help="the Python that has it, where that is another one")  # fmt: skip
    group.add_argument("--peer-mode", choices=("eager", "compiled"), default="eager",
                       help="vLLM's: compiled needs a C++ compiler, and a minute")  # fmt: skip
    group.add_argument("--peer-seconds", type=_positive, default=SECONDS, metavar="SECONDS",
                       help="give up a start, a round, an answer after so long (600)")  # fmt: skip
    group.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                       help="all engines' precision")  # fmt: skip
    group = parser.add_argument_group("a server", "Its key, if any, is read from OPENAI_API_KEY.")
    group.add_argument("--peer-model", metavar="NAME", help="which of its models; else the first")
    group.add_argument("--peer-stops-early", action="store_true",
                       help="do not ask for full lengths: it does not know ignore_eos")  # fmt: skip
    group.add_argument("--hour", type=_positive, default=1.0, metavar="SECONDS",
                       help="how long an hour of the day takes (1)")  # fmt: skip
    group.add_argument("--first-ms", type=_positive, default=500.0, metavar="MS",
                       help="in time: the first token within (500)")  # fmt: skip
    group.add_argument("--token-ms", type=_positive, default=50.0, metavar="MS",
                       help="in time: a further token within, on average (50)")  # fmt: skip
    return parser


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} must be a number above 0")
    return value
