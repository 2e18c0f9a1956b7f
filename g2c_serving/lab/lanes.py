"""Timelines with a lane for every request: when it waited, was prefilled, decoded, ran again.

`spans_of` turns a run into rectangles, `Lanes` draws them, one artist a kind (see plots.Blocks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from g2c_serving.lab.plots import GREY, Blocks, columns, fill
from g2c_serving.lab.workload import Run

WAITS, PREFILL, DECODE, AGAIN, EMPTY = "waits", "prefill", "decode", "computed again", "empty seat"

Span = tuple[int, float, float]  # lane, start, end
LOOKS: dict[str, tuple[int, dict]] = {
    WAITS: (0, {"facecolor": "#E3E3E3", "edgecolor": "#E3E3E3"}),
    PREFILL: (1, {}),
    DECODE: (0, {"hatch": ""}),
    AGAIN: (3, {}),
    EMPTY: (4, {"facecolor": "white", "edgecolor": GREY, "hatch": "....", "linewidth": 0.4}),
}


def spans_of(run: Run) -> dict[str, list[Span]]:
    """Rectangles by kind. Steps of one kind that follow each other make one rectangle."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for lane, steps in enumerate(_kinds(run)):
        now = run.lives[lane].arrived
        for kind, start, end in _merge(steps):
            if start > now:
                spans[WAITS].append((lane, now, start))
            spans[kind].append((lane, start, end))
            now = end
    return spans


def empty_seats(run: Run) -> list[Span]:
    """For a static run: from each request's last token to the end of its batch."""
    ends = [end for record, (_, end) in zip(run.steps, run.spans, strict=True) if _is_last(record)]
    spans = []
    for lane, life in enumerate(run.lives):
        batch_end = next(end for end in ends if end >= life.finished)
        if batch_end > life.finished:
            spans.append((lane, life.finished, batch_end))
    return spans


def _is_last(record) -> bool:
    """Whether nobody was left in the engine when the step had ended."""
    return record.num_running == 0 and record.num_waiting == 0


def _kinds(run: Run) -> list[list[tuple[str, float, float]]]:
    """For each request what every step did for it: (kind, start, end)."""
    lanes: list[list[tuple[str, float, float]]] = [[] for _ in run.lives]
    reached: dict[int, int] = defaultdict(int)  # tokens of a request that were computed once
    for record, (start, end) in zip(run.steps, run.spans, strict=True):
        for row in record.rows:
            kind = DECODE if row.kind == "decode" else PREFILL
            if kind == PREFILL and row.num_computed < reached[row.request_id]:
                kind = AGAIN
            after = row.num_computed + row.num_tokens
            reached[row.request_id] = max(reached[row.request_id], after)
            lanes[run.order[row.request_id]].append((kind, start, end))
    return lanes


def _merge(steps: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    merged: list[tuple[str, float, float]] = []
    for kind, start, end in steps:
        if merged and merged[-1][0] == kind and merged[-1][2] == start:
            start = merged.pop()[1]
        merged.append((kind, start, end))
    return merged


class Lanes:
    """Rectangles of the given kinds in `axes`, lane 0 on top; `artists` are those that move.

    height: the part of a lane that is filled; 1 lets many lanes grow into one area.
    """

    def __init__(self, axes: Axes, kinds: Sequence[str], lanes: int, height: float = 0.76) -> None:
        axes.set_ylim(lanes - 0.4, -0.6)
        axes.grid(False)
        self.height = height
        look = {"linewidth": 0.0} if height == 1 else {}
        self.artists = {k: Blocks(axes, LOOKS[k][0], k, **LOOKS[k][1], **look) for k in kinds}

    def show(self, spans: dict[str, list[Span]]) -> None:
        for kind, blocks in self.artists.items():
            lane, start, end = columns(spans.get(kind, []), 3)
            blocks.set_boxes(start, lane - self.height / 2, end - start, self.height)


def legend(axes: Axes, kinds: Sequence[str], **where: object) -> None:
    """The kinds in one row."""
    handles = [
        Patch(label=k, **{"linewidth": 0.6, **fill(LOOKS[k][0]), **LOOKS[k][1]}) for k in kinds
    ]
    options: dict[str, Any] = {
        "ncols": len(kinds),
        "fontsize": 9,
        "handlelength": 1.4,
        "columnspacing": 1.2,
    }
    axes.legend(handles=handles, **{**options, **where})
