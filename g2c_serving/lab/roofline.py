"""The roofline: what arithmetic and memory each allow, and where prefill and decode stand.

Brief, section 1: prefill is limited by arithmetic, decode by memory bandwidth. A step does some
number of floating-point operations for each byte that it must read; below the ridge the memory
decides, above it the arithmetic. Peaks and points are Measured here, the counts are Derived.

Left out: caches. A model that fits one can stand above the memory's slope, and does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.lab import phases, plots
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import line, source_note

DECODE, PREFILL = (1, 8, 64), (16, 128, 256)  # rows at which real steps are timed
ROWS, TOKENS = phases.DECODE_ROWS, phases.PREFILL_TOKENS


@dataclass(frozen=True)
class Machine:
    """Peaks of this machine with torch's present number of threads, in float32."""

    gflops: float  # 10^9 operations a second
    gbytes: float  # 10^9 bytes read a second

    @property
    def ridge(self) -> float:
        """Operations a byte from which on the arithmetic decides."""
        return self.gflops / self.gbytes

    def attainable(self, intensity: float) -> float:
        """10^9 operations a second at `intensity` operations a byte."""
        return min(self.gflops, self.gbytes * intensity)


@dataclass(frozen=True)
class Work:
    """What one step must do: operations, and bytes that it must read or write once."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def measure_machine(size: int = 1024, megabytes: int = 192) -> Machine:
    """Time one large matrix product, and a product of a matrix beyond the cache with a vector."""
    a, b = torch.randn(2, size, size)
    big = torch.randn(megabytes * 250, 1000)  # 4 bytes each
    vector = torch.randn(1000)
    linear = Linear(b, None)  # the kernel that the engine uses
    product = min(_best(lambda: a @ b), _best(lambda: linear(a)))
    reading = min(_best(lambda: big @ vector), _best(big.sum))
    return Machine(2 * size**3 / product / 1e9, 4 * big.numel() / reading / 1e9)


def _best(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def work(lm: LanguageModel, requests: int, new: int, cached: int = 0) -> Work:
    """A float32 step in which each of `requests` adds `new` tokens to `cached` ones.

    Linear layers: 2 operations a weight and token; the head only for each request's last token.
    Attention: 4 operations a layer and number of a query, all heads, for each pair of a new token
    and one that it sees.
    Bytes: every weight once, the cached keys and values once, the new ones written.
    """
    dim, vocab = lm.config.embedding_dim, lm.vocab_size
    seen, stored = lm.config.attention_dim, lm.config.num_kv_heads * lm.config.head_dim
    linear = sum(w.numel() for name, w in lm.weights.items() if w.dim() == 2 and "blocks" in name)
    layers = sum(name.endswith("q_proj.W") for name in lm.weights)
    rows, pairs = requests * new, requests * (new * cached + new * (new + 1) / 2)
    flops = 2 * rows * linear + 2 * requests * vocab * dim + 4 * layers * seen * pairs
    kept = requests * (cached + new) * 2 * layers * stored
    return Work(flops, 4 * (linear + vocab * dim + kept))


def decode_work(lm: LanguageModel, requests: int) -> Work:
    """`requests` with one token each, on the few cached tokens that phases.decode_ms gives them."""
    return work(lm, requests, 1, cached=16)


def prefill_work(lm: LanguageModel, tokens: int) -> Work:
    """`tokens` prompt tokens in a step, in prompts of at most phases.PROMPT."""
    return work(lm, -(-tokens // phases.PROMPT), min(tokens, phases.PROMPT))


@dataclass(frozen=True)
class Points:
    """Of one model: (intensity, measured 10^9 operations a second) of a few real steps."""

    lm: LanguageModel
    decode: list[tuple[float, float]]
    prefill: list[tuple[float, float]]


def measure(lm: LanguageModel, steps: int = 4) -> Points:
    """Some of the real steps of `phases.measure`, of its last run if there was one; if not, that
    times `steps` decode steps and half as many prefill steps at each point now."""
    decode, prefill = phases.latest(lm, steps)
    lm = roomy(lm)
    return Points(
        lm,
        [_point(decode_work(lm, n), decode.at(n)) for n in DECODE],
        [_point(prefill_work(lm, n), prefill.at(n)) for n in PREFILL],
    )


def _point(done: Work, ms: float) -> tuple[float, float]:
    return done.intensity, done.flops / ms / 1e6


def panel(machine: Machine, models: Mapping[str, Points]) -> Panel:
    """The roof, both phases' measured points, and a mark under the roof for each slider."""
    controls = {
        "model": choice("Weights", tuple(models), list(models)[-1]),
        "rows": stops("Requests that decode", ROWS, 8),
        "tokens": stops("Prompt tokens in a step", TOKENS, 128),
    }
    return Panel(
        lambda figure: _draw(figure, machine),
        lambda art, model, **v: _update(art, machine, model, models[model], **v),
        controls,
    )


def _draw(figure: Figure, machine: Machine) -> dict[str, Any]:
    axes = figure.subplots()
    low, high = 0.3, 300.0
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set(ylim=(machine.gbytes * low / 8, machine.gflops * 2.5))
    axes.set(xlabel="operations for each byte", ylabel="10\u2079 operations a second")
    roof = (low, machine.ridge, high)
    axes.plot(roof, [machine.attainable(x) for x in roof], color=plots.BLACK, label="the roof")
    for axis in (axes.xaxis, axes.yaxis):
        plots.plain_ticks(axis)
    art: dict[str, Any] = {}
    for k, phase in enumerate(("decode", "prefill")):
        look = line(k) | {"linestyle": "", "markersize": 8}
        art[phase] = axes.plot([], [], label=f"{phase}, measured", **look)[0]
        rail = line(k) | {"marker": "", "linewidth": 1.4}
        art[phase + " here"] = axes.plot([], [], label=f"{phase}, at your slider", **rail)[0]
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    source_note(axes, "Measured here")
    return art


def _update(
    art: dict[str, Any], machine: Machine, model: str, points: Points, rows: int, tokens: int
) -> str:
    at = {"decode": decode_work(points.lm, rows), "prefill": prefill_work(points.lm, tokens)}
    for phase, measured in (("decode", points.decode), ("prefill", points.prefill)):
        art[phase].set_data(*zip(*measured, strict=True))
        x = at[phase].intensity
        art[phase + " here"].set_data([x, x], [1e-3, machine.attainable(x)])
    said = [
        f"{name} does {at[phase].intensity:.1f} operations a byte, so {_limit(machine, at[phase])}"
        for phase, name in (
            ("decode", f"decoding for {rows}"),
            ("prefill", f"prefill of {tokens} tokens"),
        )
    ]
    return f"{model}; ridge at {machine.ridge:.1f}: {'; '.join(said)}."


def _limit(machine: Machine, done: Work) -> str:
    ms = 1e3 * done.flops / 1e9 / machine.attainable(done.intensity)
    name = "memory" if done.intensity < machine.ridge else "arithmetic"
    return f"{name} allows {ms:.1f} ms at best"
