"""Prefill saturates, decode does not: how long a step takes as rows are added, measured.

Brief, section 1. `measure` times real engine steps: decode steps of 1 to 64 requests with one token
each, and prefill steps of 16 to 512 tokens. The panel reads the curves, `compare` puts them beside
the ratios of DeepInfer's charts. A model whose weights fit the processor's cache does not show the
effect: reading them costs next to nothing, so there is nothing to share. `inflate` makes one that
does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import charts, plots
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import GREY, line, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

DECODE_ROWS = (1, 2, 4, 6, 8, 16, 32, 64)  # requests that decode together
PREFILL_TOKENS = (16, 32, 64, 128, 256, 512)  # prompt tokens in one step
PROMPT = 256  # the longest prompt; 512 tokens are two of them


@dataclass(frozen=True)
class Curve:
    """Step times of one phase of one model: `ms[i]` with `rows[i]` tokens in the step."""

    model: str
    phase: str  # decode or prefill
    rows: tuple[int, ...]
    ms: tuple[float, ...]

    def at(self, rows: int) -> float:
        """ms of a step with `rows` rows, which must have been measured."""
        return self.ms[self.rows.index(rows)]

    def throughput(self, rows: int) -> float:
        """Tokens per second at `rows` rows."""
        return 1e3 * rows / self.at(rows)

    def gain(self, few: int, many: int) -> float:
        """How many times the throughput at `few` rows it is at `many`."""
        return self.throughput(many) / self.throughput(few)

    def slowdown(self, few: int, many: int) -> float:
        """How many times longer a step takes with `many` rows than with `few`."""
        return self.at(many) / self.at(few)


def measure(lm: LanguageModel, name: str = "", steps: int = 4) -> tuple[Curve, Curve]:
    """The decode and the prefill curve of `lm`: the fastest of a few measured engine steps,
    since what slows a step down from outside has nothing to do with its rows.

    steps: decode steps timed at each point. A small model's are short: take more, it is quieter.
    """
    name, wide = name or lm.name, roomy(lm)
    decode = decode_ms(wide, DECODE_ROWS, steps)
    prefill = prefill_ms(wide, PREFILL_TOKENS, max(2, steps // 2))
    _latest[lm] = (
        Curve(name, "decode", DECODE_ROWS, decode),
        Curve(name, "prefill", PREFILL_TOKENS, prefill),
    )
    return _latest[lm]


_latest: WeakKeyDictionary[LanguageModel, tuple[Curve, Curve]] = WeakKeyDictionary()


def latest(lm: LanguageModel, steps: int) -> tuple[Curve, Curve]:
    """What `measure` found last for `lm`; measured now if it has not been."""
    return _latest.get(lm) or measure(lm, steps=steps)


def decode_ms(lm: LanguageModel, rows: Sequence[int], steps: int) -> tuple[float, ...]:
    """The fastest ms of decode steps with each of the given numbers of rows, in one run.

    All requests start together and leave in groups, so that the batch shrinks through `rows`. The
    first step after each departure is left out.
    """
    down = sorted(rows, reverse=True)
    answers = []
    for turn, many in enumerate(down):
        fewer = down[turn + 1] if turn + 1 < len(down) else 0
        answers += [1 + (turn + 1) * (steps + 1)] * (many - fewer)
    engine = Engine(lm, EngineConfig(num_blocks=16 * down[0], max_num_seqs=down[0]))
    engine.generate([_ids(4, i) for i in range(down[0])], [_exactly(n) for n in answers])
    times: dict[int, list[float]] = {many: [] for many in down}
    for record in engine.history:
        if record.num_decode_rows == record.num_tokens and record.num_tokens in times:
            times[record.num_tokens].append(record.total_ms)
    return tuple(min(times[many][1:]) for many in rows)


def prefill_ms(lm: LanguageModel, tokens: Sequence[int], repeats: int = 2) -> tuple[float, ...]:
    """The fastest ms of steps that prefill each of the given numbers of tokens, and no more."""
    engine = Engine(lm, EngineConfig(num_blocks=128, max_num_batched_tokens=max(tokens)))
    found = []
    for total in tokens:
        sizes = [PROMPT] * (total // PROMPT) + [total % PROMPT] * (total % PROMPT > 0)
        asked, first = [_ids(n, i) for i, n in enumerate(sizes)], len(engine.history)
        for _ in range(repeats):
            engine.generate(asked, _exactly(1))
        found.append(min(record.total_ms for record in list(engine.history)[first:]))
    return tuple(found)


def _ids(length: int, seed: int) -> list[int]:
    return [32 + (7 * k + seed) % 90 for k in range(length)]


def _exactly(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


# ---- the panel ----

PHASES = (  # which, at how many tokens, what they are
    ("decode", DECODE_ROWS, "requests, one token each"),
    ("prefill", PREFILL_TOKENS, "prompt tokens in the step"),
)


def panel(curves: Sequence[Curve]) -> Panel:
    """Both phases of one model at a time; two sliders walk along the curves."""
    names = list(dict.fromkeys(curve.model for curve in curves))
    controls = {
        "model": choice("Weights", names, names[-1]),
        "rows": stops("Requests that decode", DECODE_ROWS, 8),
        "tokens": stops("Prompt tokens in a step", PREFILL_TOKENS, 128),
    }
    by_key = {(curve.model, curve.phase): curve for curve in curves}
    return Panel(_draw, lambda art, **v: _update(art, by_key, **v), controls)


def _draw(figure: Figure) -> dict[str, Any]:
    art: dict[str, Any] = {}
    pair = figure.subplots(1, 2)
    for k, (axes, (phase, rows, label)) in enumerate(zip(pair, PHASES, strict=True)):
        axes.set(xscale="log", yscale="log", xlim=(rows[0] / 1.2, rows[-1] * 1.2))
        axes.set(ylim=(0.5, 1.5 * rows[-1] / rows[0]), xlabel=label, title=phase)
        axes.set_xticks(rows, [str(n) for n in rows])
        axes.minorticks_off()
        plots.plain_ticks(axes.yaxis)
        axes.yaxis.set_major_formatter("{x:g}x")
        full = {"color": GREY, "linestyle": ":", "label": "each row at full price"}
        axes.plot(rows, [n / rows[0] for n in rows], **full)
        art[phase] = axes.plot([], [], label="measured", **line(k))[0]
        ring = {"marker": "o", "markersize": 14, "fillstyle": "none", "color": "black"}
        art[phase + " here"] = axes.plot([], [], **ring)[0]
        axes.legend(loc="upper left", fontsize=9)
    pair[0].set_ylabel("time of a step")
    source_note(pair[1], "Measured here")
    return art


def _update(art: dict[str, Any], curves: dict, model: str, rows: int, tokens: int) -> str:
    decode, prefill = curves[model, "decode"], curves[model, "prefill"]
    for curve, at in ((decode, rows), (prefill, tokens)):
        relative = [ms / curve.ms[0] for ms in curve.ms]
        art[curve.phase].set_data(curve.rows, relative)
        art[curve.phase + " here"].set_data([at], [relative[curve.rows.index(at)]])
    first = PREFILL_TOKENS[0]
    return (
        f"{model}: a step with {rows} decoding takes {decode.at(rows):.1f} ms, "
        f"{decode.slowdown(1, rows):.1f} times one alone, for {decode.gain(1, rows):.1f} times its "
        f"tokens per second. A prefill step of {tokens} tokens takes {prefill.at(tokens):.1f} ms "
        f"and gives {prefill.gain(first, tokens):.1f} times the tokens per second of {first}."
    )


# ---- the tables ----

Pair = Sequence[Curve]  # decode and prefill of one model, as from `measure`


def decode_table(decode: Curve) -> Table:
    """The Brief's decode table, and in its last columns the same for `decode`."""
    rows = []
    for point in charts.decode_points():
        ours = ["not measured"] * 2
        if point.requests in decode.rows:
            ms, speed = decode.at(point.requests), decode.throughput(point.requests)
            ours = [f"{ms:.1f} ms", f"{speed:,.0f} tok/s"]
        theirs = [f"{point.user_speed:.0f} tok/s", f"{point.step_ms:.1f} ms"]
        rows.append([str(point.requests), *theirs, f"{point.throughput:,.0f} tok/s", *ours])
    head = ["requests (per GPU)"]
    head += [f"{name} (Derived)" for name in ("per-user speed", "step time", "throughput per GPU")]
    head += [f"{name} (Measured here)" for name in ("step time", "throughput")]
    return Table(head, rows)


def compare(small: Pair, big: Pair) -> Table:
    """The Brief's ratios beside ours."""
    decode, prefill = [big[0], small[0]], [big[1], small[1]]
    longer, more = "a step takes", "tokens per second"
    rows: list[tuple[str, float | None, list[float]]] = [
        (f"decode, 1 to 6 requests: {more}", None, [c.gain(1, 6) for c in decode]),
        (
            f"decode, 8 to 64 requests: {longer}",
            charts.step_slowdown(8, 64),
            [c.slowdown(8, 64) for c in decode],
        ),
        (
            f"decode, 8 to 64 requests: {more}",
            charts.throughput_gain(8, 64),
            [c.gain(8, 64) for c in decode],
        ),
        (
            f"prefill, 16 times the tokens: {longer}",
            charts.prefill_latency_ratio(),
            [c.slowdown(32, 512) for c in prefill],
        ),
        (
            f"prefill, 16 times the tokens: {more}",
            value("prefill.throughput_ratio"),
            [c.gain(32, 512) for c in prefill],
        ),
    ]
    head = ["ratio", "DeepInfer (Derived)", *(f"{c.model} (Measured here)" for c in decode)]
    return Table(head, [(what, _times(theirs), *map(_times, ours)) for what, theirs, ours in rows])


def _times(ratio: float | None) -> str:
    return "not on the chart" if ratio is None else f"{ratio:.2f}x"
