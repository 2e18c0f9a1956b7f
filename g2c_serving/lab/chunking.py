"""A long prompt among requests that decode: whole, in chunks, under a time budget.

Brief, section 1: a long prompt can't monopolize the machine while others wait. Six users are
getting tokens when a prompt of 440 tokens arrives. All rows of a step end together, so a step that
takes the whole prompt keeps everybody waiting; chunks bound that, and a time budget bounds it in
ms, whatever the chunk costs. All runs are real and their times Measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import lanes, plots, workload
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import Picture, line, source_note
from g2c_serving.lab.words import many
from g2c_serving.lab.workload import Arrival, Run
from g2c_serving.schedule.cost_model import CostModel

DECODERS, LONG, ARRIVES = 6, 440, 8  # users, tokens of the long prompt, the step before which
MOST_TOKENS = (16, 32, 64, 128, 256, 512)  # max_num_batched_tokens; 512 takes the prompt whole


def requests() -> list[Arrival]:
    """Six short prompts at 0, whose answers outlast the long prompt, and the long one."""
    ids = [32 + i % 90 for i in range(LONG)]
    short = [Arrival(0, tuple(ids[i : i + 8]), 60) for i in range(DECODERS)]
    return [*short, Arrival(ARRIVES, tuple(ids), 8)]


def serve(
    lm: LanguageModel,
    most_tokens: int = 512,
    budget_ms: float | None = None,
    model: CostModel | None = None,
) -> Run:
    """One run of the workload, with times in ms."""
    config = EngineConfig(
        num_blocks=128,
        max_num_batched_tokens=most_tokens,
        step_time_budget_ms=budget_ms,
        cost_model=model,
    )
    return workload.in_ms(workload.run(Engine(lm, config), requests()))


def longest_gap(run: Run) -> float:
    """The longest time without a token that a user saw since the long prompt arrived, in ms."""
    arrived = run.lives[-1].arrived
    return max(
        gap
        for life in run.lives[:DECODERS]
        for gap, came in zip(life.gaps, life.tokens[1:], strict=True)
        if came > arrived
    )


def measure(lm: LanguageModel) -> dict[int, Run]:
    """A run for each of MOST_TOKENS, after one to warm up."""
    lm = roomy(lm)
    serve(lm)
    return {most: serve(lm, most) for most in MOST_TOKENS}


# ---- the panel: most tokens in a step ----


def panel(runs: Mapping[int, Run]) -> Panel:
    """When each of the six got its tokens, and the long prompt its chunks."""
    controls = {"most": stops("Most tokens in a step", MOST_TOKENS, 512)}
    end = max(run.lives[-1].tokens[1] for run in runs.values())
    return Panel(
        lambda figure: _draw(figure, end),
        lambda art, most: _update(art, runs[most], most),
        controls,
    )


def _draw(figure: Figure, end: float) -> dict[str, Any]:
    axes = figure.subplots()
    kinds = (lanes.PREFILL, lanes.DECODE)
    drawn = lanes.Lanes(axes, kinds, DECODERS + 1)
    drawn.artists[lanes.DECODE].set_linewidth(0)  # a white edge would hide so thin a mark
    axes.set(xlim=(0, 1.02 * end), xlabel="ms")
    users = [f"user {i + 1}" for i in range(DECODERS)]
    axes.set_yticks(range(DECODERS + 1), [*users, "long prompt"])
    names = ("prefill of the long prompt", "a token")
    lanes.legend(axes, kinds, labels=names, loc="lower left", bbox_to_anchor=(-0.02, 0.98))
    source_note(axes, "Measured here")
    return {"lanes": drawn, "moving": drawn.artists, "mark": 0.0025 * end}


def _update(art: dict[str, Any], run: Run, most: int) -> str:
    chunks = [
        (DECODERS, start, end)
        for record, (start, end) in zip(run.steps, run.spans, strict=True)
        for row in record.rows
        if run.order[row.request_id] == DECODERS and row.kind == "prefill"
    ]
    came = [(i, t) for i, life in enumerate(run.lives) for t in life.tokens]
    marks = [(i, t - art["mark"], t) for i, t in came]
    art["lanes"].show({lanes.PREFILL: chunks, lanes.DECODE: marks})
    return (
        f"At most {most} tokens in a step: the long prompt goes in {many(len(chunks), 'chunk')}, "
        f"the users wait up to {longest_gap(run):.0f} ms for a token, and its own first "
        f"one comes after {run.lives[-1].first_token:.0f} ms."
    )


# ---- the picture: whole, chunks, time budget ----


def rules(lm: LanguageModel, model: CostModel, chunk: int = 64) -> tuple[dict[str, Run], float]:
    """Runs with the prompt whole, with fixed chunks, with a time budget; and that budget in ms:
    what a step with the first of the fixed chunks is predicted to take."""
    lm, context = roomy(lm), DECODERS * (8 + ARRIVES)
    budget = model.decode_cost(DECODERS, context) + model.cost(chunk - DECODERS, 0)
    serve(lm)
    named = {
        "whole": serve(lm),
        f"chunks: {chunk} tokens a step": serve(lm, chunk),
        f"budget: {budget:.1f} ms a step": serve(lm, 512, budget, model),
    }
    return named, budget


def picture(runs: Mapping[str, Run], budget: float) -> Picture:
    """Step by step: the tokens that each rule gives the long prompt, and what the step takes."""
    figure = plots.new_figure()
    with plots.style():
        left, right = figure.subplots(1, 2)
        for k, (name, run) in enumerate(runs.items()):
            sizes, times = _around(run)
            steps = range(1, len(sizes) + 1)
            left.plot(steps, sizes, label=name, **line(k))
            right.plot(steps, times, label=name, **line(k))
        _finish(left, right, budget)
    said = [
        f"{name}: longest wait {longest_gap(run):.0f} ms, first token after "
        f"{run.lives[-1].first_token:.0f} ms"
        for name, run in runs.items()
    ]
    return plots.picture(figure, "; ".join(said) + ".")


def _around(run: Run) -> tuple[list[int], list[float]]:
    """Prompt tokens and ms of the steps that prefill the long prompt."""
    found: list[tuple[int, float]] = []
    for record in run.steps[ARRIVES:]:
        size = sum(row.num_tokens for row in record.rows if row.kind == "prefill")
        if size:
            found.append((size, record.total_ms))
    return [size for size, _ in found], [ms for _, ms in found]


def _finish(left: Axes, right: Axes, budget: float) -> None:
    for axes, title in ((left, "tokens of its prompt in a step"), (right, "ms of that step")):
        axes.set(title=title, xlabel="steps since it arrived", yscale="log")
        plots.plain_ticks(axes.yaxis)
        axes.margins(y=0.15)
    right.axhline(budget, color="black", linewidth=0.8, label="the budget")
    left.legend(fontsize=9, loc="upper right")
    right.legend(handles=right.lines[-1:], fontsize=9, loc="upper right")
    source_note(right, "Measured here")
