"""Every fault against every scene: does each see its own, and no other?

A test of an engine is worth what it tells apart. For each fault, all scenes are run with it in the
engine. Most scenes never come to the part at fault; that is found out first, with parts that only
take note that they were used, and those runs are left out: they would be the good engine's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from g2c_serving.lab import plots
from g2c_serving.lab.museum import Exhibit, in_order
from g2c_serving.lab.museum_place import placed, real_part

APART, UNSEEN, TOLD = 0, 1, 2  # never comes there; comes there, and is right; is wrong


@dataclass(frozen=True)
class Matrix:
    """cells[f, s]   one of the three above, for fault f and the scene of exhibit s"""

    names: tuple[str, ...]
    cells: np.ndarray

    @property
    def sentence(self) -> str:
        told, own = self.cells == TOLD, int((self.cells.diagonal() == TOLD).sum())
        others = int(told.sum()) - own
        return (
            f"{len(self.names)} faults, {len(self.names)} scenes, and {(self.cells > APART).sum()} "
            f"pairs in which the scene uses the part at fault: {own} faults are seen by their own "
            f"scene, {others or 'none'} by another's."
        )


def matrix(exhibits: Sequence[Exhibit] | None = None) -> Matrix:
    """Run all that can tell anything; None: of all exhibits, which takes a minute."""
    exhibits = in_order() if exhibits is None else list(exhibits)
    cells = np.array([_used(scene, exhibits) for scene in exhibits]).T.astype(int)
    for f, fault in enumerate(exhibits):
        with placed(fault.place, fault.fault):
            for s in np.flatnonzero(cells[f]):
                is_wrong = exhibits[s].verdict_on(exhibits[s].look())
                cells[f, s] = TOLD if is_wrong else UNSEEN
        print(f"\r{f + 1} of {len(exhibits)} faults", end="", flush=True)
    print()
    return Matrix(tuple(exhibit.name for exhibit in exhibits), cells)


def _used(scene: Exhibit, exhibits: Sequence[Exhibit]) -> list[bool]:
    """Which exhibits' parts the scene of one of them comes to."""
    places = dict.fromkeys(exhibit.place for exhibit in exhibits)
    noted: set[str] = set()
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(placed(place, _noting(place, noted.add)))
        scene.look()
    return [exhibit.place in noted for exhibit in exhibits]


def _noting(place: str, note: Callable[[str], None]) -> Any:
    """The part that stands there, which says when it is used."""
    part = real_part(place)
    if inspect.isclass(part):

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            note(place)
            part.__init__(self, *args, **kwargs)

        return type(part.__name__, (part,), {"__init__": __init__})
    real = getattr(part, "fget", None) or getattr(part, "__func__", part)

    def noting(*args: Any, **kwargs: Any) -> Any:
        note(place)
        return real(*args, **kwargs)

    return noting


def picture(found: Matrix) -> plots.Picture:
    """Rows are faults, columns the scenes, in the same order."""
    count = len(found.names)
    figure = plots.new_figure((8, 1 + 0.165 * count))
    with plots.style():
        axes = figure.subplots()
        axes.set(xlim=(-0.6, count - 0.4), ylim=(count - 0.4, -0.6))
        axes.set_xticks(range(count), [str(k + 1) for k in range(count)], fontsize=7)
        labels = [f"{name}  {k + 1}" for k, name in enumerate(found.names)]
        axes.set_yticks(range(count), labels, fontsize=7.5)
        axes.xaxis.tick_top()
        axes.set_xlabel("scene of exhibit", fontsize=9)
        axes.xaxis.set_label_position("top")
        axes.grid(True, color="#EEEEEE", linewidth=0.6)
        axes.tick_params(length=0)
        for kind, look in LOOKS.items():
            f, s = np.nonzero(found.cells == kind)
            axes.plot(s, f, linestyle="none", **look)
        figure.legend(loc="outside lower right", ncols=2, fontsize=9)
    return plots.picture(figure, found.sentence)


LOOKS: dict[int, dict[str, Any]] = {
    TOLD: {
        "marker": "s",
        "markersize": 7,
        "color": plots.ORANGE,
        "label": "the scene is wrong with this fault",
    },
    UNSEEN: {
        "marker": ".",
        "markersize": 4,
        "color": plots.BLUE,
        "label": "it uses the part at fault, and is right",
    },
}
