"""Load a Hugging Face folder and serve three tokens, and print what that took: run by
test_load_memory.py in a process of its own.

    python load_memory.py FOLDER DTYPE [whole]

whole: with all weights in memory first, as a loader does that reads a file at once.

The measure is VmHWM, the largest resident set so far, which counts the mapped pages of files too.
It is set back before loading, so what importing took does not hide what loading takes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch

import g2c_serving as g


def resident(which: str) -> int:
    """Bytes: VmRSS now, VmHWM at most since it was set back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(which)


def serve(lm: g.LanguageModel, dtype: str) -> None:
    engine = g.Engine(lm, g.EngineConfig(dtype=dtype, num_blocks=4))
    engine.generate([[1, 2]], g.SamplingParams(temperature=0, max_tokens=3))
    serve.kept = engine  # type: ignore[attr-defined]  # its weights stay, as in a session


def main(folder: str, dtype: str, how: str = "") -> None:
    torch.set_num_threads(1)
    serve(g.load("tiny"), dtype)  # kernels and buffers that every model uses
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM back to VmRSS
    before = resident("VmRSS")
    lm = g.load(folder)
    if how == "whole":
        lm = dataclasses.replace(lm, weights={n: w.clone() for n, w in lm.weights.items()})
    serve(lm, dtype)
    print(json.dumps({"peak": resident("VmHWM") - before, "after": resident("VmRSS") - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
