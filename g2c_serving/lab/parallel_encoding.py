"""A long prompt of many segments, encoded in four ways, and what a byte costs as a text grows.

Brief, section 5: texts between reserved tokens can be encoded apart and at the same time. There are
two gains in that, and this file takes them apart. Short pieces are cheaper by the byte than one
long text: our vocabulary has no pattern that cuts a text into words, so the merges of a whole text
are one queue, which outgrows the processor's cache. And the pieces can go to all cores, if those
are free: the CPU time beside the time on the clock shows it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from g2c_serving.lab.machine import cores
from g2c_serving.lab.table import Table
from g2c_serving.process.prompt import Part, Prompt, Reserved, Text
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train import corpus

MEGABYTE = 1_000_000
WHOLE = "all text in one call"
LOOP = "segment by segment"
ONE_CORE = "all segments in one call, one core"
ALL_CORES = "all segments in one call, all cores"
SIZES = (1_000, 10_000, 100_000)


def long_prompt(num_bytes: int = MEGABYTE, segment: int = 0) -> Prompt:
    """A conversation of so many bytes of text in our corpus's words. Its turns are a few dozen to a
    few hundred bytes long; `segment` cuts it into segments of that many characters instead."""
    if num_bytes < 1 or segment < 0:
        raise ValueError(f"num_bytes={num_bytes} must be 1 or more, segment={segment} 0 or more")
    rng, parts, size = random.Random(0), [], 0
    while size < num_bytes:
        for part in corpus.chat(rng):
            parts.append(part)
            size += len(part.encode("utf-8")) if isinstance(part, str) else 0
    prompt = Prompt(parts)
    if not segment:
        return prompt
    text = "".join(part.text for part in prompt if isinstance(part, Text))
    cut: list[Part] = []
    for at in range(0, len(text), segment):
        cut += [Reserved("<|user|>"), Text(text[at : at + segment])]
    return Prompt(cut)


@dataclass(frozen=True)
class Timing:
    """Median seconds of each way, on the clock and of the processor, for a prompt of `num_bytes`
    of text in `num_segments` texts."""

    num_bytes: int
    num_segments: int
    cores: int
    seconds: dict[str, float]
    cpu_seconds: dict[str, float]

    def ratio(self, slow: str, fast: str) -> float:
        return self.seconds[slow] / self.seconds[fast]

    def table(self) -> Table:
        whole = self.seconds[WHOLE]
        rows = [
            (way, _ms(s), _ms(self.cpu_seconds[way]), f"{self.busy(way):.1f}", f"{whole / s:.2f}")
            for way, s in self.seconds.items()
        ]
        head = ("how", "time", "CPU time", "cores in use", "times faster than one call")
        return Table(head, rows)

    def busy(self, way: str) -> float:
        """How many cores it had on average; below 1 where other programs took them."""
        return self.cpu_seconds[way] / self.seconds[way]

    def __str__(self) -> str:
        return (
            f"{self.num_bytes / MEGABYTE:.1f} MB in {self.num_segments:,} segments, "
            f"{self.cores} cores: the parallel call is {self.ratio(WHOLE, ALL_CORES):.1f} times as "
            f"fast as the text in one piece. Cutting alone gives a factor of "
            f"{self.ratio(WHOLE, ONE_CORE):.1f}, the cores one of "
            f"{self.ratio(ONE_CORE, ALL_CORES):.1f}: {self.busy(ALL_CORES):.1f} were in use."
        )


def measure(tokenizer: Tokenizer, prompt: Prompt | None = None, repeats: int = 3) -> Timing:
    """Encode `prompt` (a `long_prompt` by default) in four ways, in turn, `repeats` times.

    The text in one piece is no way to encode this prompt (its reserved tokens are left out): it is
    what the same number of bytes costs uncut.
    """
    prompt = long_prompt() if prompt is None else prompt
    texts = [part.text for part in prompt if isinstance(part, Text)]
    text = "".join(texts)
    ways: dict[str, Callable[[], object]] = {
        WHOLE: lambda: tokenizer.encode(text),
        LOOP: lambda: [tokenizer.encode(piece) for piece in texts],
        ONE_CORE: lambda: _on_one_core(tokenizer, prompt),
        ALL_CORES: lambda: tokenizer.encode_parts(prompt),
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(repeats):  # in turn, so that another program's work falls on all of them
        for way, encode in ways.items():
            times[way].append(_seconds(encode))
    clock, cpu = (
        {way: median(pair[i] for pair in found) for way, found in times.items()} for i in (0, 1)
    )
    return Timing(len(text.encode("utf-8")), len(texts), cores(), clock, cpu)


def growth(
    tokenizer: Tokenizer, timing: Timing, sizes: tuple[int, ...] = SIZES, repeats: int = 5
) -> Table:
    """What a byte costs in one call, for texts of so many bytes and, last, for the one of `timing`.
    Were the cost in step with the length, the column would be constant."""
    text = "".join(part.text for part in long_prompt(max(sizes)) if isinstance(part, Text))
    found = {}
    for size in sizes:
        piece = text.encode("utf-8")[:size].decode("utf-8", "ignore")
        found[size] = _median_cpu(tokenizer, piece, repeats)
    found[timing.num_bytes] = timing.cpu_seconds[WHOLE]
    rows = [
        (f"{size:,}", f"{1e3 * cpu:,.1f} ms", f"{1e9 * cpu / size:,.0f}")
        for size, cpu in found.items()
    ]
    return Table(("bytes in one call", "CPU time", "ns per byte"), rows)


def _on_one_core(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    with _parallelism("false"):
        return tokenizer.encode_parts(prompt)


@contextmanager
def _parallelism(value: str) -> Iterator[None]:
    """The switch of Hugging Face's tokenizers, which they read at every call."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _median_cpu(tokenizer: Tokenizer, text: str, repeats: int) -> float:
    return median(_seconds(lambda: tokenizer.encode(text))[1] for _ in range(repeats))


def _seconds(encode: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of the processor in all threads."""
    start, cpu = time.perf_counter(), time.process_time()
    encode()
    return time.perf_counter() - start, time.process_time() - cpu


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"
