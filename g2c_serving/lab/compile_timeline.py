"""What a compilation does to those who are writing meanwhile: beside the engine, and inside it.

Brief, section 5: decoding never waits on a compiler. Some requests decode; then one comes along
whose schema has 300 fields. In our engine it waits outside while a thread compiles; the engine that
compiles where the request is added stands still for as long. Both timelines are cut from the
engine's history and the compiler's log. The library is loaded before, by a small grammar: its first
import takes seconds. Measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.contestants import made_up_prompts
from g2c_serving.lab.plots import Blocks, Picture, new_figure, picture, source_note, style
from g2c_serving.lab.table import Table
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample.grammar import Grammar

REQUESTS, PROMPT, FIELDS = 8, 16, 300
BEFORE, AFTER, WARM = 24, 6, 4  # steps
MOST = 200  # steps, however long the compiler takes
BESIDE, INSIDE = "beside the engine", "inside it"


class CompilesInside(Engine):
    """The naive way: whoever adds a request waits until its grammar is compiled."""

    def _queue(self, request: Request) -> None:
        super()._queue(request)
        if len(self.waiting_room):
            self.waiting_room.wait()


@dataclass(frozen=True)
class Timeline:
    """One engine's steps, (S, 2) start and end, and the compilation, in ms since that was asked."""

    where: str
    steps: np.ndarray
    began: float
    done: float

    @property
    def gaps(self) -> np.ndarray:
        """From the tokens of one step to those of the next, (S - 1,)."""
        return np.diff(self.steps[:, 1])

    @property
    def usual(self) -> np.ndarray:
        """The gaps before anything was asked for."""
        return self.gaps[self.steps[1:, 1] <= 0]

    @property
    def largest(self) -> float:
        """The largest gap that has a part of the compilation in it."""
        starts, ends = self.steps[:-1, 1], self.steps[1:, 1]
        return self.gaps[(ends > self.began) & (starts < self.done)].max()

    @property
    def ratios(self) -> tuple[float, float]:
        """The largest gap while it compiles, against the median and the largest of the usual ones.
        On a machine that others use too, only the second says something of the compiler."""
        return self.largest / float(np.median(self.usual)), self.largest / self.usual.max()


def schema(fields: int = FIELDS) -> dict[str, Any]:
    """An object of so many fields, all of them required."""
    kinds: list[dict] = [
        {"type": "integer"}, {"type": "string"}, {"enum": ["small", "large"]}, {"type": "boolean"},
    ]  # fmt: skip
    properties = {f"field_{i}": kinds[i % len(kinds)] for i in range(fields)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def measure(lm: LanguageModel, requests: int = REQUESTS, fields: int = FIELDS) -> list[Timeline]:
    """Both ways, one after the other."""
    ways = {BESIDE: Engine, INSIDE: CompilesInside}
    return [_measure(kind, where, lm, requests, fields) for where, kind in ways.items()]


def _measure(
    kind: type[Engine], where: str, lm: LanguageModel, requests: int, fields: int
) -> Timeline:
    tokens = WARM + BEFORE + MOST
    blocks = (requests + 1) * -(-(PROMPT + tokens) // EngineConfig.block_size)
    engine = kind(lm, EngineConfig(num_blocks=blocks, max_num_batched_tokens=PROMPT * requests))
    engine.compiler.submit(Grammar.regex("a")).result()
    prompts = made_up_prompts(lm, requests + 1, PROMPT)
    for seed, prompt in enumerate(prompts[1:]):
        engine.add(prompt, SamplingParams(tokens, seed=seed, ignore_eos=True))
    asked = SamplingParams(tokens, seed=0, grammar=Grammar.json_schema(schema(fields)))
    for _ in range(1 + WARM + BEFORE):
        engine.step()
    engine.add(prompts[0], asked)
    left = AFTER
    while left and len(engine.history) < tokens:
        engine.step()
        left -= not len(engine.waiting_room)
    return timeline(where, engine)


def timeline(where: str, engine: Engine) -> Timeline:
    """The steps of an engine since it was warm, around its newest compilation."""
    one = engine.compiler.log[-1]
    steps = [(r.start_ms, r.start_ms + r.total_ms) for r in engine.history][1 + WARM :]
    steps_since = np.array(steps) - one.asked_ms
    return Timeline(where, steps_since, one.began_ms - one.asked_ms, one.done_ms - one.asked_ms)


def table(timelines: list[Timeline]) -> Table:
    """A line for each way."""
    head = ["compiles", "takes", "usual gap, median", "largest", "largest while it compiles",
            "against the median", "against the largest"]  # fmt: skip
    rows = []
    for t in timelines:
        times = t.done - t.began, float(np.median(t.usual)), t.usual.max(), t.largest
        ratios = (f"{ratio:.2f}x" for ratio in t.ratios)
        rows.append((t.where, *(f"{ms:.1f} ms" for ms in times), *ratios))
    return Table(head, rows)


def draw(timelines: list[Timeline]) -> Picture:
    """Both timelines, a lane for the steps and one for the compiler."""
    figure = new_figure()
    with style():
        for axes, one in zip(figure.subplots(len(timelines), sharex=True), timelines, strict=True):
            _draw(axes, one)
        usual = max(float(np.median(one.usual)) for one in timelines)
        axes.set_xlim(-8 * usual, max(one.done for one in timelines) + 8 * usual)
        axes.set_xlabel("ms since the grammar was asked for")
        source_note(figure.axes[0], "Measured here")
    sentence = " ".join(
        f"The grammar compiles {t.where} for {t.done - t.began:.0f} ms: the others' tokens are "
        f"{t.largest:.0f} ms apart at most meanwhile, {t.ratios[0]:.1f} times the usual "
        f"{np.median(t.usual):.0f} ms."
        for t in timelines
    )
    return picture(figure, sentence)


def _draw(axes: Axes, one: Timeline) -> None:
    start, end = one.steps.T
    Blocks(axes, 0, "steps").set_boxes(start, 0.6, end - start, 0.8)
    Blocks(axes, 1, "compiler").set_boxes(one.began, -0.4, one.done - one.began, 0.8)
    usual = float(np.median(one.usual))
    axes.set_ylim(-0.6, 1.6)
    axes.set_yticks((0, 1), ("compiler", "steps"))
    axes.set_title(f"{one.where}: gap of {one.largest:.0f} ms, usual {usual:.0f}", fontsize=10)
    axes.grid(False)
