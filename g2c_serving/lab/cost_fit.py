"""The cost model fitted to this machine: steps of many shapes, the fit, what it leaves over.

Brief, section 1: a fitted quadratic cost(q, c) says how long a chunk of q tokens on c cached ones
takes, and the scheduler solves it for the largest chunk. The model itself is
schedule/cost_model.py. `profile` runs steps of well-spread shapes through a real engine, `picture`
shows fit and residuals, `panel` the largest chunk under a budget. Measured here, all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import StepRecord
from g2c_serving.lab import plots
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import Picture, line, source_note
from g2c_serving.request import SamplingParams
from g2c_serving.schedule.cost_model import CostModel, StepShape

CHUNKS = (16, 32, 64, 128, 256)  # q; c then takes every multiple of q up to the context limit
DECODERS = ((1, 8), (8, 8), (32, 8), (8, 200), (16, 200))  # (rows, tokens that each has cached)
REPEATS = 2


@dataclass(frozen=True)
class Fit:
    """The model, and the measured steps that it was fitted to: each shape's fastest run.

    The fastest, not the median: what slows a step down from outside is not its shape's cost."""

    model: CostModel
    shapes: tuple[StepShape, ...]
    ms: tuple[float, ...]

    @property
    def residuals(self) -> np.ndarray:
        """(predicted - measured) / measured of every step."""
        predicted = np.array([self.model.predict(shape) for shape in self.shapes])
        return predicted / np.array(self.ms) - 1


def fit(lm: LanguageModel, repeats: int = REPEATS) -> Fit:
    """Profile `lm` here and fit the cost model."""
    lm = roomy(lm)
    times: dict[StepShape, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for record in profile(lm):
            times[record.shape].append(record.total_ms)
    shapes, ms = tuple(times), tuple(min(found) for found in times.values())
    return Fit(CostModel.fit(shapes, ms), shapes, ms)


def profile(lm: LanguageModel) -> list[StepRecord]:
    """Steps of one prompt cut into chunks of each size, of requests that decode, and of both."""
    limit, found = lm.config.max_seq_len - 1, []
    for q in CHUNKS:
        found += _steps(lm, [limit // q * q], tokens=1, most=q)
    for rows, cached in DECODERS:
        steps = _steps(lm, [cached] * rows, tokens=5, most=512)
        found += [step for step in steps if step.num_decode_rows == rows]
    for most in (32, 64, 128):  # eight decode while a ninth is prefilled
        found += _steps(lm, [8] * 8 + [448], tokens=448 // (most - 8) + 4, most=most)[1:]
    return found


def _steps(lm: LanguageModel, prompts: Sequence[int], tokens: int, most: int) -> list[StepRecord]:
    """The steps of an engine that serves prompts of the given lengths."""
    blocks = sum(-(-(n + tokens) // 16) for n in prompts)
    engine = Engine(lm, EngineConfig(num_blocks=blocks, max_num_batched_tokens=most))
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    engine.generate([[32 + (i + k) % 90 for k in range(n)] for i, n in enumerate(prompts)], params)
    return list(engine.history)


# ---- fit and residuals ----


def picture(found: Fit) -> Picture:
    """Left: measured chunks and the fitted surface, cut along q. Right: the residuals of all."""
    figure = plots.new_figure()
    with plots.style():
        left, right = figure.subplots(1, 2)
        _surface(left, found)
        _residuals(right, found)
    off = np.abs(found.residuals)
    m = found.model
    return plots.picture(
        figure,
        f"cost(q, c) = {1e3 * m.per_token:.1f} q + {1e3 * m.per_pair:.3f} q c + "
        f"{1e3 * m.per_square:.3f} q^2 microseconds, and {m.base:.2f} ms for the step itself. "
        f"Over {len(off)} shapes of steps it is off by {np.median(off):.0%} (median) and "
        f"{off.max():.0%} (worst).",
    )


def _surface(axes: Axes, found: Fit) -> None:
    for k, q in enumerate(CHUNKS):
        look = line(k)
        points = [
            (s.chunks[0][1], ms)
            for s, ms in zip(found.shapes, found.ms, strict=True)
            if len(s.chunks) == 1 and s.chunks[0][0] == q and not s.decode_rows
        ]
        cached, times = np.array(points).T
        axes.plot(
            cached, times, marker=look["marker"], linestyle="", markersize=4, color=look["color"]
        )
        model = [found.model.base + found.model.cost(q, c) for c in cached]
        axes.plot(cached, model, color=look["color"], linewidth=1)
        axes.annotate(
            f"q={q}",
            (cached[-1], model[-1]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set(
        yscale="log",
        xlabel="c, tokens cached before",
        title="ms of a step with one chunk",
        xlim=(-10, 590),
    )
    plots.plain_ticks(axes.yaxis)


def _residuals(axes: Axes, found: Fit) -> None:
    kinds = [bool(s.chunks) + 2 * bool(s.decode_rows) for s in found.shapes]
    for k, (kind, name) in enumerate(((1, "a chunk"), (2, "decode rows"), (3, "both"))):
        chosen = [other == kind for other in kinds]
        look = line(k) | {"linestyle": "", "markersize": 4}
        axes.plot(np.array(found.ms)[chosen], 100 * found.residuals[chosen], label=name, **look)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured ms of the step", title="predicted - measured, %")
    plots.plain_ticks(axes.xaxis)
    axes.legend(fontsize=9)
    source_note(axes, "Measured here")


# ---- the largest chunk under a budget ----

PROMPT = 500  # tokens of the prompt that the panel cuts
BUDGETS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200)


def chunks(model: CostModel, left_ms: float, prompt: int = PROMPT) -> list[tuple[int, int]]:
    """(c, q) of the chunks that a prompt is cut into when each step has `left_ms` for it."""
    cut, cached = [], 0
    while cached < prompt:
        q = min(model.largest_chunk(cached, left_ms), prompt - cached)
        if q == 0:
            break
        cut.append((cached, q))
        cached += q
    return cut


def panel(found: Fit) -> Panel:
    """The largest chunk over the tokens cached before it; sliders for budget and decode rows."""
    model = found.model
    top = model.decode_cost(16, 1600) + model.cost(200, 0)
    budgets = [ms for ms in BUDGETS if ms <= max(top, 4)]
    controls = {
        "budget": stops("Budget of a step (ms)", budgets, budgets[len(budgets) * 2 // 3]),
        "rows": slider("Requests that decode", 0, 64, 8),
    }
    highest = 1.1 * model.largest_chunk(0, budgets[-1] - model.base)
    return Panel(
        lambda figure: _draw(figure, highest), lambda art, **v: _update(art, model, **v), controls
    )


def _draw(figure: Figure, highest: float) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xlim=(-4, PROMPT + 4), ylim=(0, highest))
    axes.set(xlabel="c, tokens cached before", ylabel="largest chunk q (tokens)")
    (curve,) = axes.plot([], [], color=plots.BLUE, label="largest q with cost(q, c) in the budget")
    (cuts,) = axes.plot([], [], label=f"chunks of a prompt of {PROMPT}", **CUT)
    axes.legend(loc="upper right")
    source_note(axes, "Measured here", "solved from the fitted cost(q, c)")
    return {"curve": curve, "cuts": cuts}


CUT: dict[str, Any] = {"color": plots.ORANGE, "linestyle": "", "marker": "s", "markersize": 8}


def _update(art: dict[str, Any], model: CostModel, budget: float, rows: int) -> str:
    spent = model.decode_cost(rows, 100 * rows)
    cached = range(0, PROMPT, 4)
    art["curve"].set_data(cached, [model.largest_chunk(c, budget - spent) for c in cached])
    cut = chunks(model, budget - spent)
    art["cuts"].set_data([c for c, _ in cut], [q for _, q in cut])
    return (
        f"{rows} requests that decode, with 100 tokens each, take {spent:.1f} of {budget:g} ms. "
        + (
            f"A prompt of {PROMPT} tokens goes in {len(cut)} steps; the first chunk has "
            f"{cut[0][1]} tokens."
            if cut
            else "Nothing is left: the scheduler lets one token of the prompt through all the same."
        )
    )
