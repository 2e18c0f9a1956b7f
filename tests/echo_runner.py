"""The runner of a peer with an engine that computes nothing: every new token is the prompt's last.

Run as a script by the tests of `peer_process.py`, with the protocol of `peer_runner.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "g2c_serving" / "lab"))
import peer_runner


def echo(folder: str, dtype: str, mode: str) -> tuple[str, peer_runner.Serve]:
    """What goes wrong by mode: "broken" does not start, "environment" neither, and tells its own;
    asked for 13 tokens it dies, for 14 it fails."""
    print(f"echo of {folder}, which nobody should take for an answer")
    if mode == "broken":
        raise RuntimeError("this engine does not start")
    if mode == "environment":
        e = os.environ
        raise RuntimeError(
            f"OMP {e['OMP_NUM_THREADS']}, MKL {e['MKL_NUM_THREADS']}, "
            f"MULTI {e['VLLM_ENABLE_V1_MULTIPROCESSING']}, LOG {e['VLLM_LOGGING_LEVEL']}, "
            f"HF {e['HF_HUB_OFFLINE']}"
        )

    def serve(prompts: list[list[int]], new: int) -> list[list[int]]:
        print('{"ids": "noise"}', flush=True)
        if new == 13:
            print("out of luck", file=sys.stderr)
            os._exit(3)
        if new == 14:
            raise ValueError("14 is too many")
        return [[prompt[-1]] * new for prompt in prompts]

    return f"echo in {dtype}", serve


peer_runner.KINDS["echo"] = echo
peer_runner.main(*sys.argv[1:])
