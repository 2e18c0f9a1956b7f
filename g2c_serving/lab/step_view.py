"""The Brief's picture of an engine step, drawn from a real run: who waits, runs, has finished.

"The change of perspective" draws one step as a box with waiting requests at its left and finished
ones at its right. Here the box is filled with what the engine's own record of a step says: a row
for each request in the batch, with the tokens that it brings and the text that it has so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import Row
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import BLACK, Blocks
from g2c_serving.lab.words import many
from g2c_serving.lab.workload import Arrival, Run, run

SEATS, STEP_TOKENS = 5, 24
PROMPTS = (  # (arrives at step, prompt, tokens to answer)
    (0, "Once upon a time there was a brave girl named Mia", 9),
    (0, "This is the story of Tom, a kind boy from the farm.", 15),
    (0, "One sunny morning a girl named Ella came to the river. Ella had a red kite.", 6),
    (1, "Long ago, a clever boy called Hugo lived near the town.", 14),
    (2, "There once was a girl named Wren.", 18),
    (4, "Luke had a blue jar. One day Luke left the jar under the bush.", 8),
    (7, "Once upon a time there lived a boy called Leo in a small house near the lake.", 12),
    (8, "In a tall house by the bridge lived a shy girl named Anna.", 7),
)


@dataclass(frozen=True)
class Moment:
    """What one step looked like. Requests are counted from 0; step 1 is the first."""

    step: int
    waiting: list[int]  # in the queue while the step ran
    rows: list[Row]
    finished: list[int]  # when the step had ended, in the order of their end

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


def example_run(lm: LanguageModel) -> Run:
    """Eight requests through an engine with five seats and 24 tokens a step; clock in steps."""
    workload = [Arrival(t, tuple(lm.tokenizer.encode(text)), n) for t, text, n in PROMPTS]
    config = EngineConfig(num_blocks=64, max_num_seqs=SEATS, max_num_batched_tokens=STEP_TOKENS)
    return run(Engine(lm, config), workload)


def moment(run: Run, step: int) -> Moment:
    """Step 1 to len(run.steps) of a run on the clock of steps."""
    record, (start, end) = run.steps[step - 1], run.spans[step - 1]
    waiting = [i for i, v in enumerate(run.lives) if v.arrived <= start < v.started]
    finished = [i for i, v in enumerate(run.lives) if v.finished <= end]
    finished.sort(key=lambda i: run.lives[i].finished)
    rows = sorted(record.rows, key=lambda row: (row.kind != "decode", run.order[row.request_id]))
    return Moment(step, waiting, rows, finished)


def words_after(lm: LanguageModel, run: Run, row: Row, step: int) -> str:
    """What a request has when the step has ended: a part of its prompt, or its last characters."""
    request, end = run.order[row.request_id], run.spans[step - 1][1]
    life, prompt = run.lives[request], lm.tokenizer.encode(PROMPTS[request][1])
    came = sum(time <= end for time in life.tokens)
    if not came:
        return f"{row.num_computed + row.num_tokens} of {len(prompt)} prompt tokens"
    text = lm.tokenizer.decode([*prompt, *life.ids[:came]])
    return "\u2026" + "".join(c if " " <= c <= "~" else "\u00b7" for c in text[-26:])


def panel(lm: LanguageModel) -> Panel:
    """A slider over the steps of one real run."""
    found = example_run(lm)
    controls = {"step": slider("Step", 1, len(found.steps), 8)}
    return Panel(_draw, lambda art, step: _update(art, lm, found, step), controls)


# ---- drawing: a plane of 8 x 3.2, in inches ----

LEFT, BOX, TEXT, RIGHT = 0.42, (1.05, 5.95), 4.1, 7.5  # the queue, the step's box, the finished
TOP, ROW, UNIT = 2.3, 0.4, 0.088  # of the first row; from row to row; width of a token


def _draw(figure: Figure) -> dict[str, Any]:
    figure.set_layout_engine("none")  # one plane, placed by hand
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 8), ylim=(0, 3.2))
    axes.set_axis_off()
    axes.add_patch(
        FancyBboxPatch(
            (BOX[0], 0.38), BOX[1], 2.42, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="white", edgecolor=BLACK, linestyle="--", linewidth=1,
        )
    )  # fmt: skip
    for x, name in ((LEFT, "waiting"), (RIGHT, "finished")):
        axes.text(x, 2.9, name, ha="center", fontsize=12)
    for x, name in ((1.62, "its tokens in this step"), (TEXT, "its text after the step")):
        axes.text(x, 2.56, name, fontsize=9, color="#555555")
    for x in (0.78, 7.02):
        axes.annotate("", (x + 0.25, 1.5), (x, 1.5), arrowprops={"arrowstyle": "-|>", "lw": 1.3})
    art: dict[str, Any] = {
        "title": axes.text(1.15, 2.9, "", fontsize=12),
        "queue": Blocks(axes, 0, facecolor="#EEEEEE", edgecolor=BLACK),
        "prefill": Blocks(axes, 1, "prefill: tokens of the prompt", linewidth=0.4),
        "decode": Blocks(axes, 0, "decode: the one token drawn last", linewidth=0.4),
        "waiting": _names(axes, LEFT, 8),
        "rows": _names(axes, 1.36, SEATS),
        "finished": _names(axes, RIGHT, 8),
        "texts": [axes.text(TEXT, y, "", va="center", fontsize=9, family="monospace")
                  for y in _heights(SEATS)],
    }  # fmt: skip
    axes.legend(
        handles=[art["prefill"], art["decode"]], loc="lower left", ncols=2, fontsize=9,
        bbox_to_anchor=(0.13, 0.005), borderpad=0,
    )  # fmt: skip
    return art


def _heights(rows: int) -> list[float]:
    return [TOP - ROW * i for i in range(rows)]


def _names(axes: Axes, x: float, count: int) -> list[Any]:
    """Empty texts, one below the other."""
    spacing = ROW if count == SEATS else 0.29
    at = [TOP - spacing * i for i in range(count)]
    return [axes.text(x, y, "", ha="center", va="center", fontsize=10) for y in at]


def _update(art: dict[str, Any], lm: LanguageModel, run: Run, step: int) -> str:
    now = moment(run, step)
    batch = [run.order[row.request_id] for row in now.rows]
    boxes = []
    for column, ids in (("waiting", now.waiting), ("rows", batch), ("finished", now.finished)):
        boxes += _name(art[column], ids)
    x, y = zip(*boxes, strict=True)
    art["queue"].set_boxes([v - 0.14 for v in x], [v - 0.11 for v in y], 0.28, 0.22)
    for kind in ("prefill", "decode"):
        those = [(i, r) for i, r in enumerate(now.rows) if r.kind == kind]
        cells = [(i, k) for i, row in those for k in range(row.num_tokens)]
        lefts = [1.62 + UNIT * k for _, k in cells]
        art[kind].set_boxes(lefts, [TOP - ROW * i - 0.1 for i, _ in cells], UNIT, 0.2)
    words = [words_after(lm, run, row, step) for row in now.rows] + [""] * SEATS
    for text, line in zip(art["texts"], words, strict=False):
        text.set_text(line)
    art["title"].set_text(f"step {step} of {len(run.steps)}: {now.num_tokens} tokens")
    return _sentence(now)


def _name(texts: list[Any], ids: list[int]) -> list[tuple[float, float]]:
    """Write the requests' numbers into a column; where their boxes go."""
    for text, name in zip(texts, [str(i + 1) for i in ids] + [""] * len(texts), strict=False):
        text.set_text(name)
    return [text.get_position() for text in texts[: len(ids)]]


def _sentence(now: Moment) -> str:
    decode = sum(row.kind == "decode" for row in now.rows)
    prefill, waiting, done = len(now.rows) - decode, len(now.waiting), len(now.finished)
    parts = [f"{decode} decoding with one token each"] if decode else []
    parts += [f"{prefill} with {many(now.num_tokens - decode, 'prompt token')}"] if prefill else []
    return (
        f"Step {now.step}: {waiting} waiting; {len(now.rows)} in the batch ({', '.join(parts)}); "
        f"{done} finished."
    )
