"""Two lanes, processor and device: bars for what each step has done there, hatched where one waits.

Takes spans as the virtual clock gives them (`Span`, labelled "schedule 3", "run 3" or "process 3"),
so it draws a simulated run and one made from real timestamps alike. Step 1 is called N: 0 is N−1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes

from g2c_serving.lab.overlap_model import PROCESS, RUN, SCHEDULE
from g2c_serving.lab.plots import GREY, Blocks, columns
from g2c_serving.virtual_clock import Span

WAITS = "waits"
LOOKS: dict[str, tuple[int, dict[str, Any]]] = {
    SCHEDULE: (0, {}),
    RUN: (2, {"hatch": ""}),
    PROCESS: (1, {}),
    WAITS: (4, {"facecolor": "white", "edgecolor": GREY, "hatch": "xxxx", "linewidth": 0.4}),
}
NAMES = {SCHEDULE: "CPU schedules", PROCESS: "CPU processes", RUN: "device runs", WAITS: WAITS}
CPU, DEVICE, HEIGHT = 0.0, 1.0, 0.66  # the lanes' middles, and how much of a lane is filled
FONT, CHARACTER = 9, 6.0  # points


def step_name(n: int) -> str:
    """N−1, N, N+1, ... for steps 0, 1, 2, ..."""
    return "N" if n == 1 else f"N{n - 1:+d}".replace("-", "\u2212")


class TwoLanes:
    """The lanes in `axes`, from `start` to `end` ms; `artists` are those that move.

    points   the width of the axes in points: where a step's name has no room it is turned
    names    how many names there are at most
    """

    def __init__(
        self, axes: Axes, start: float, end: float, points: float = 490, names: int = 60
    ) -> None:
        axes.set(xlim=(start, end), ylim=(1.5, -0.5), yticks=(CPU, DEVICE))
        axes.set_yticklabels(("CPU", "device"))
        axes.grid(False)
        self.start, self.end, self.points = start, end, points
        self.blocks = {k: Blocks(axes, LOOKS[k][0], NAMES[k], **LOOKS[k][1]) for k in LOOKS}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": FONT, "clip_on": True}
        self.names = [axes.text(start, CPU, "", bbox=box, **look) for _ in range(names)]
        self.artists = [self.blocks, self.names]

    def show(self, cpu: Sequence[Span], device: Sequence[Span], waits: Iterable[Span]) -> None:
        """The jobs of both lanes, and the gaps in them (as `Lane.gaps` gives)."""
        jobs = [
            (*_read(span), middle)
            for spans, middle in ((cpu, CPU), (device, DEVICE))
            for span in spans
            if span.start < self.end and span.end > self.start
        ]
        for kind in (SCHEDULE, RUN, PROCESS):
            self._bars(kind, [(left, right, y) for k, _, left, right, y in jobs if k == kind])
        of_cpu = {span.lane for span in cpu}
        gaps = [(*_ends(gap), CPU if gap.lane in of_cpu else DEVICE) for gap in waits]
        self._bars(WAITS, gaps)
        self._name(jobs)

    def _bars(self, kind: str, bars: Sequence[tuple[float, float, float]]) -> None:
        left, right, middle = columns(bars, 3)
        self.blocks[kind].set_boxes(left, middle - HEIGHT / 2, right - left, HEIGHT)

    def _name(self, jobs: Sequence[tuple[str, int, float, float, float]]) -> None:
        per_ms = self.points / (self.end - self.start)
        free = iter(self.names)
        for _, n, left, right, middle in jobs:
            name, left, right = step_name(n), max(left, self.start), min(right, self.end)
            room = (right - left) * per_ms
            if room >= FONT + 3 and (text := next(free, None)):
                turn = 0 if room >= CHARACTER * len(name) + 4 else 90
                text.set(text=name, position=((left + right) / 2, middle), rotation=turn)
                text.set_visible(True)
        for text in free:
            text.set_visible(False)


def _read(span: Span) -> tuple[str, int, float, float]:
    """(kind, step, start, end) of a span with a label such as "run 3"."""
    kind, step = span.label.split()
    return kind, int(step), *_ends(span)


def _ends(span: Span) -> tuple[float, float]:
    return float(span.start), float(span.end)


def legend(axes: Axes, lanes: TwoLanes, **where: Any) -> None:
    """The kinds of bars in one row above the axes."""
    place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.97), "borderpad": 0.2}
    axes.legend(
        handles=list(lanes.blocks.values()),
        ncols=4,
        fontsize=9,
        handlelength=1.6,
        **{**place, **where},
    )
