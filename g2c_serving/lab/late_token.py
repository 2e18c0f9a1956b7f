"""What is known one step late: a real overlapped run, from the scheduler's point of view.

Brief, section 6. When the CPU plans step N+1, the tokens of step N are not there yet. It counts
them, and lays out the batch by their number; which they are it does not know. So a request that
ended with a token of step N has a row in N+1, and what comes of that is thrown away. Read from the
history and the outputs of an `AsyncEngine`; a slider moves through the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, BLUE, GREEN, GREY, Blocks, columns
from g2c_serving.request import SamplingParams

NAMES = "ABC"
PROMPTS = ("Once upon a time there was a", "One day a boy found a", "This is the story of a")
SECOND = 1  # the one that ends early
END = "."
STOP = f'its stop string "{END}" is complete'
FULL, ABORT = "max_tokens is reached", "somebody aborts it"
WAYS = (STOP, FULL, ABORT)
TOKENS, STEPS = 8, 13  # of the second request, with the stop string; of the run
KNOWN, RUNS, PLANNED, THROWN = "known", "on the device", "being planned", "thrown away"
LOOKS: dict[str, dict[str, Any]] = {
    KNOWN: {"facecolor": "white", "edgecolor": BLUE, "hatch": "", "linewidth": 1.2},
    RUNS: {"facecolor": GREEN, "hatch": ""},
    PLANNED: {"facecolor": "white", "edgecolor": BLACK, "hatch": "", "linestyle": "--"},
    THROWN: {"facecolor": "white", "edgecolor": GREY, "hatch": "xxxx", "linewidth": 0.4},
}
LOOKS[PLANNED]["linewidth"] = 1.4
WIDTH, HEIGHT, LETTERS = 0.9, 0.74, 8  # of a cell; of a token, at most


@dataclass
class Walk:
    """A run of three requests. Steps count launches, from 0.

    rows      of each step: which requests had a row, and the position of the token that it is for
    tokens    texts by request and step; a row without one was thrown away
    ended     the step with whose outputs it was said that the second request is over
    """

    rows: list[dict[int, int]] = field(default_factory=list)
    tokens: dict[tuple[int, int], str] = field(default_factory=dict)
    ended: int = -1

    def cell(self, request: int, step: int, planned: int) -> tuple[str, str] | None:
        """What the CPU, as it plans step `planned`, has of a request's row in a step: one of LOOKS
        and a text; None where there is no row that it knows of."""
        if step > planned or request not in self.rows[step]:
            return None
        if step == planned:
            return PLANNED, f"#{self.rows[step][request]}"
        if request == SECOND and self.ended < step and self.ended <= planned - 2:
            return THROWN, ""
        return (RUNS, "?") if step == planned - 1 else (KNOWN, self.tokens[request, step])


def walk(lm: LanguageModel, way: str) -> Walk:
    """The second request ends in that way, with its eighth token or, aborted, with its seventh; the
    others go on."""
    found, said = Walk(), [0] * len(PROMPTS)
    with AsyncEngine(lm) as engine:
        ids = [engine.add(text, _params(k, way)) for k, text in enumerate(PROMPTS)]
        while len(engine.history) < STEPS:
            outputs = engine.step()
            step = len(engine.history) - 1
            if way == ABORT and step == TOKENS - 2 and found.ended < 0:
                outputs += engine.abort(ids[SECOND])
            for output in outputs:
                k, new = ids.index(output.request_id), output.token_ids
                if len(new) > said[k]:
                    found.tokens[k, step] = _shown(lm.tokenizer.decode(new[said[k] :]))
                said[k] = len(new)
                if k == SECOND and output.finish_reason is not None:
                    found.ended = step
        for record in list(engine.history)[:STEPS]:
            row = {ids.index(r.request_id): r.num_computed + r.num_tokens for r in record.rows}
            found.rows.append(row)
    return found


def _params(k: int, way: str) -> SamplingParams:
    if k == SECOND and way == STOP:
        return SamplingParams(40, seed=0, stop=(END,), ignore_eos=True)
    return SamplingParams(TOKENS if k == SECOND and way == FULL else 40, seed=0, ignore_eos=True)


def _shown(text: str) -> str:
    text = text.replace(" ", "\u00b7").replace("\n", "\u21b5")
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "\u2026"


# ---- the panel ----


def panel(lm: LanguageModel) -> Panel:
    walks = {way: walk(lm, way) for way in WAYS}
    controls = {
        "planned": slider("Step that the CPU plans", 1, STEPS - 1, TOKENS),
        "way": choice("Request B ends because", WAYS),
    }

    def update(art: dict[str, Any], planned: int, way: str) -> str:
        return _update(art, walks[way], planned, way)

    return Panel(_draw, update, controls, size=(8, 2.3))


def _draw(figure: Figure) -> dict[str, Any]:
    axes: Axes = figure.subplots()
    axes.set(xlim=(-0.55, STEPS - 0.45), ylim=(2.55, -0.55), xlabel="step")
    axes.set_xticks(range(STEPS))
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.grid(False)
    blocks = {k: Blocks(axes, 0, k, **look) for k, look in LOOKS.items()}
    cells = range(STEPS * len(NAMES))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    texts = [axes.text(0, 0, "", ha="center", va="center", fontsize=8) for _ in cells]
    for text in texts:
        text.set_bbox(box)
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.97), "borderpad": 0.2}
    axes.legend(handles=list(blocks.values()), ncols=4, fontsize=9, handlelength=1.6, **place)
    return {"blocks": blocks, "texts": texts}


def _update(art: dict[str, Any], found: Walk, planned: int, way: str) -> str:
    cells: dict[str, list[tuple[float, float]]] = {kind: [] for kind in LOOKS}
    texts = iter(art["texts"])
    for step in range(STEPS):
        for k in range(len(NAMES)):
            cell = found.cell(k, step, planned)
            if cell is None:
                continue
            cells[cell[0]].append((step - WIDTH / 2, k - HEIGHT / 2))
            next(texts).set(position=(step, k), text=cell[1], visible=bool(cell[1]))
    for text in texts:
        text.set_visible(False)
    for kind, places in cells.items():
        art["blocks"][kind].set_boxes(*columns(places, 2), WIDTH, HEIGHT)
    return _said(found, planned, way)


def _said(found: Walk, planned: int, way: str) -> str:
    names = " and ".join(", ".join(NAMES[k] for k in sorted(found.rows[planned])).rsplit(", ", 1))
    known = f"the tokens of steps 0 to {planned - 2}" if planned > 1 else "no token yet"
    said = (
        f"B ends because {way}. While the device computes step {planned - 1}, the CPU plans step "
        f"{planned}, for {names}; it knows {known}."
    )
    late = [step for step, rows in enumerate(found.rows) if step > found.ended and SECOND in rows]
    if way == FULL and planned > found.ended:
        return f"{said} That B ends was known from the count, so it has no row."
    if planned in late:
        return f"{said} B will have ended by then, but that cannot be known: its row is in vain."
    if planned - 1 in late:
        return f"{said} It knows now that B is over; B's row on the device is thrown away."
    return said if not late or planned < late[0] else f"{said} One row of B was thrown away."
