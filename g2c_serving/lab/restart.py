"""The cache on disk: it outlives the process, two engines share it, and reading it beats computing.

Brief, section 2. `visit` serves one prompt with a new engine over a cache folder and says how much
of it came from disk; `in_another_process` does the same in a Python of its own. What is loaded was
written by whichever process ended its request before. All times are Measured here, and the files
come from the operating system's memory, not from the disk's surface.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import plots
from g2c_serving.lab.own_model import share
from g2c_serving.lab.plots import BLACK, Picture, line, source_note
from g2c_serving.lab.table import Table
from g2c_serving.output import RequestOutput
from g2c_serving.paths import ROOT
from g2c_serving.request import SamplingParams
from g2c_serving.train.words import PREAMBLES

CONTEXT = 448  # tokens: 28 blocks of 16
LENGTHS = (16, 32, 64, 128, 256, CONTEXT)
REPEATS = 5  # of every time, of which the fastest counts
PROGRAM = """
import sys, torch, g2c_serving as g
from g2c_serving.lab import restart
torch.set_num_threads(1)
print(restart.visit(g.load("tiny"), sys.argv[1]))
"""


def context(lm: LanguageModel, tokens: int = CONTEXT) -> list[int]:
    """The ids of a long text, cut to `tokens` or to what fits into the model's context."""
    return lm.tokenizer.encode("\n".join(PREAMBLES))[: min(tokens, share(lm, CONTEXT))]


def prompt(lm: LanguageModel, tokens: int = CONTEXT) -> list[int]:
    """The long text and one token more: the hit rule never gives the last one."""
    return [*context(lm, tokens), *lm.tokenizer.encode(" ")]


def config(folder: str | Path | None) -> EngineConfig:
    """A small engine with a disk tier in `folder`; without any prefix cache for None."""
    return EngineConfig(
        num_blocks=64,
        max_num_batched_tokens=512,
        enable_prefix_caching=folder is not None,
        cache_dir=folder,
        cache_bytes=0 if folder is None else 200_000_000,
    )


def serve(
    lm: LanguageModel, ids: Sequence[int], folder: str | Path | None
) -> tuple[RequestOutput, float]:
    """Two tokens for `ids` from a new engine: the output, and the ms to the first of them. (With
    one, the step would also hold the end of the request, when its blocks are written.)"""
    engine = Engine(lm, config(folder))
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    (out,) = engine.generate([list(ids)], params)
    if engine.prefix_cache.disk is not None:
        engine.prefix_cache.disk.close()
    return out, engine.history[0].total_ms


def visit(lm: LanguageModel, folder: str | Path) -> str:
    """Serve the long text over the cache in `folder`, and say how much of it was there."""
    ids = prompt(lm)
    out, ms = serve(lm, ids, folder)
    return (
        f"process {os.getpid()}, a new engine: {out.num_cached_tokens} of {len(ids)} tokens came "
        f"from disk, and the first token after {ms:.1f} ms"
    )


def in_another_process(folder: str | Path) -> str:
    """`visit` in a new Python. RuntimeError with its words where that one fails."""
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    job = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    if job.returncode:
        raise RuntimeError(f"the other process failed:\n{job.stderr.strip()}")
    return job.stdout.strip()


# ---- two engines over one folder ----


def two_engines(lm: LanguageModel) -> Table:
    """One engine computes a context; what a router finds then, and what the other computes."""
    ids, params = prompt(lm), SamplingParams(max_tokens=1, temperature=0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        one, two = (Engine(lm, config(folder)) for _ in range(2))
        rows = []
        for name, engine in (("one", one), ("two", two)):
            disk, names = engine.prefix_cache.disk, engine.prefix_cache.names(ids)
            found = disk.match(names) if disk else 0
            (out,) = engine.generate([ids], params)
            counts = out.num_cached_tokens, engine.stats.prefill_tokens
            rows.append((f"engine {name}", f"{found} of {len(names)} blocks", *map(str, counts)))
        for engine in (one, two):
            if engine.prefix_cache.disk:
                engine.prefix_cache.disk.close()
    return Table(
        (f"{len(ids)} tokens, counted", "found before it is asked", "from disk", "computed"), rows
    )


# ---- load or compute again ----


def times(lm: LanguageModel, lengths: Sequence[int] = LENGTHS) -> tuple[list[float], list[float]]:
    """ms to the first token after a prefix of each length: computed anew, and loaded from disk."""
    computed, loaded = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for n in lengths:
            ids = prompt(lm, n)
            computed.append(min(serve(lm, ids, None)[1] for _ in range(REPEATS)))
            serve(lm, ids, folder)  # writes what the shorter ones have not written
            loaded.append(min(_loaded_ms(lm, ids, folder) for _ in range(REPEATS)))
    return computed, loaded


def _loaded_ms(lm: LanguageModel, ids: list[int], folder: str) -> float:
    out, ms = serve(lm, ids, folder)
    assert out.num_cached_tokens == len(ids) - 1, "the blocks are not on disk"
    return ms


def crossing(lengths: Sequence[int], computed: Sequence[float], loaded: Sequence[float]) -> int:
    """The shortest of `lengths` from which on loading is the faster one by 5 % and more; 0 where it
    never is."""
    slower = [n for n, a, b in zip(lengths, computed, loaded, strict=True) if b > 0.95 * a]
    return next((n for n in lengths if n > max(slower, default=0)), 0)


def picture(lm: LanguageModel, lengths: Sequence[int] = LENGTHS) -> Picture:
    """Both times over the length of the prefix, and where they cross."""
    lengths = [n for n in lengths if n <= share(lm, CONTEXT)]
    serve(lm, context(lm, 64), None)  # warm up
    computed, loaded = times(lm, lengths)
    where = crossing(lengths, computed, loaded)
    figure = plots.new_figure()
    with plots.style():
        axes = figure.subplots()
        axes.loglog(lengths, computed, label="computed again", **line(1))
        axes.loglog(lengths, loaded, label="loaded from disk", **line(0))
        axes.set(xlabel="tokens of the prefix", ylabel="ms to the first token")
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.minorticks_off()
        plots.plain_ticks(axes.yaxis)
        if where:
            axes.axvline(where, color=BLACK, linestyle=":", linewidth=1.2)
            axes.annotate(" loading wins from here", (where, 0.03), fontsize=9,
                          xycoords=axes.get_xaxis_transform())  # fmt: skip
        axes.legend()
        source_note(axes, "Measured here")
    verdict = (
        f"Loading is clearly faster from {where} tokens on"
        if where
        else "Loading is never clearly faster"
    )
    return plots.picture(
        figure,
        f"{verdict}: {lengths[0]} tokens take {computed[0]:.1f} ms to compute and {loaded[0]:.1f} "
        f"to load, {lengths[-1]} take {computed[-1]:.1f} and {loaded[-1]:.1f} ms.",
    )
