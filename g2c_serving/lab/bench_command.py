"""`python -m g2c_serving bench`: by itself, beside other engines, or against a server.

Without `--peer`: our own ratios (`bench.py`). With the name of an engine: a race on the same
exported weights (`bench_peers.py`). With an address, `http://host:port/v1`: a trace of requests
with arrival times, replayed against that server and against ours (`bench_servers.py`).
"""

from __future__ import annotations

import argparse
import sys

from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import bench, bench_peers, bench_report
from g2c_serving.lab.peer_runner import KINDS

QUICK_PEERS = bench_peers.PeerSizes(4, 8, 8, 1, (1, 4), 8)
TOO_SMALL = "Too small to judge by: --quick only shows that it runs.\n"


def main(argv: list[str] | None = None) -> int:
    """Print a table, or JSON. 0 however fast anything was: times are shown and not asserted; 1, and
    the reason, where nothing could be measured."""
    choice = _parser().parse_args(argv)
    peers = choice.peer or []
    addresses = [peer for peer in peers if "://" in peer]
    if unknown := [peer for peer in peers if peer not in KINDS and peer not in addresses]:
        print(
            f"--peer {unknown[0]}: name one of {', '.join(sorted(KINDS))}, or an address such as "
            "http://localhost:8000/v1",
            file=sys.stderr,
        )
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
        return own.as_json() if choice.json else quick + bench_report.table(own)
    sizes = QUICK_PEERS if choice.quick else bench_peers.PeerSizes()
    found = bench_peers.measure(
        lm,
        peers,
        sizes,
        dtype=choice.dtype,
        pythons=_pythons(choice.peer_python or []),
        mode=choice.peer_mode,
    )
    return found.as_json() if choice.json else quick + bench_peers.table(found)


def _pythons(given: list[str]) -> dict[str, str]:
    """The interpreter of each engine, from PATH for all or ENGINE=PATH for one."""
    found: dict[str, str] = {}
    for word in given:
        kind, equals, path = word.partition("=")
        found |= {kind: path} if equals and kind in KINDS else dict.fromkeys(KINDS, word)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m g2c_serving bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="too small to judge by: only to see it run"
    )
    parser.add_argument("--model", default="tiny", help="a shipped model or an artifact folder")
    group = parser.add_argument_group("another engine")
    group.add_argument("--peer", action="append", metavar="ENGINE|URL",
                       help="vllm, openvino, or a server's address; repeatable")  # fmt: skip
    group.add_argument("--peer-python", action="append", metavar="[ENGINE=]PATH",
                       help="the Python that has it, where that is another one")  # fmt: skip
    group.add_argument("--peer-mode", choices=("eager", "compiled"), default="eager",
                       help="vLLM's: compiled needs a C++ compiler, and a minute")  # fmt: skip
    group.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                       help="all engines' precision")  # fmt: skip
    return parser
