"""Fragments: free memory that fits nobody, when every cache must lie in one piece.

Brief, section 2. Requests of mixed lengths come and go in one arena of token slots. Left whole,
each cache goes into the first hole that holds it (first fit); cut into blocks, it takes any blocks
that are free. Simulated, and kind to the whole pieces: each request's final length is known when it
comes, so that nothing has to move later; and whoever fits is let in, whatever the order. The kind
of allocator under torch rounds and splits in other ways; the holes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import Blocks, columns, fill, source_note
from g2c_serving.lab.words import many

SLOTS, ROW = 4096, 1024  # of the arena, and of one row of its picture
STEPS, QUEUE = 200, 12  # how long it runs, and how many always wait
BLOCK = 16

Piece = tuple[int, int, int, int]  # request, first slot, tokens in it, slots that it holds


class Store(Protocol):
    """Where caches live."""

    def place(self, request: int, tokens: int) -> bool: ...
    def remove(self, request: int) -> None: ...
    def pieces(self) -> list[Piece]: ...


class Arena:
    """Every cache in one piece, in the first hole that holds it."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.slots = slots
        self.held: dict[int, tuple[int, int]] = {}  # request: first slot, slots

    def holes(self) -> list[tuple[int, int]]:
        """First slot and slots of every hole, from the left."""
        ends = [0, *(start + n for start, n in sorted(self.held.values()))]
        begins = [*(start for start, _ in sorted(self.held.values())), self.slots]
        return [(end, begin - end) for end, begin in zip(ends, begins, strict=True) if begin > end]

    def place(self, request: int, tokens: int) -> bool:
        for start, size in self.holes():
            if size >= tokens:
                self.held[request] = start, tokens
                return True
        return False

    def remove(self, request: int) -> None:
        del self.held[request]

    def pieces(self) -> list[Piece]:
        return [(request, start, n, n) for request, (start, n) in self.held.items()]


class Pages:
    """Every cache in blocks, wherever they are free."""

    def __init__(self, slots: int = SLOTS, block: int = BLOCK) -> None:
        self.block, self.free = block, list(range(slots // block - 1, -1, -1))
        self.held: dict[int, tuple[int, list[int]]] = {}  # request: tokens, blocks

    def place(self, request: int, tokens: int) -> bool:
        needed = -(-tokens // self.block)
        if needed > len(self.free):
            return False
        self.held[request] = tokens, [self.free.pop() for _ in range(needed)]
        return True

    def remove(self, request: int) -> None:
        self.free += self.held.pop(request)[1]

    def pieces(self) -> list[Piece]:
        size = self.block
        return [
            (request, size * b, min(size, tokens - size * k), size)
            for request, (tokens, blocks) in self.held.items()
            for k, b in enumerate(blocks)
        ]


@dataclass(frozen=True)
class Moment:
    """A store after one step: what it holds, and the lengths of those who wait."""

    pieces: list[Piece]
    waiting: list[int]

    @property
    def running(self) -> int:
        return len({piece[0] for piece in self.pieces})

    @property
    def used(self) -> int:
        """Slots that hold a token."""
        return sum(tokens for _, _, tokens, _ in self.pieces)

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Runs of slots that nobody holds: (first slot, slots)."""
        taken = np.ones(SLOTS + 2, dtype=int)
        taken[1:-1] = 0
        for _, start, _, held in self.pieces:
            taken[1 + start : 1 + start + held] = 1
        edges = np.diff(taken)
        begins, ends = np.flatnonzero(edges == -1), np.flatnonzero(edges == 1)
        return [(int(b), int(e - b)) for b, e in zip(begins, ends, strict=True)]


def traffic(longest: int, requests: int) -> tuple[list[int], list[int]]:
    """Tokens of each request (log-uniform, 16 to `longest`) and the steps that it stays."""
    draw = np.random.default_rng(0)
    tokens = np.exp(draw.uniform(np.log(16), np.log(longest), requests)).round().astype(int)
    return tokens.tolist(), draw.integers(5, 40, requests).tolist()


def simulate(store: Store, longest: int, steps: int = STEPS) -> list[Moment]:
    """Keep `QUEUE` requests waiting, and let in whoever fits; a moment for each step."""
    tokens, stays = traffic(longest, 60 * steps)
    new, moments = count(), []
    waiting: list[int] = []
    leaves: dict[int, int] = {}  # request: the step in which it goes
    for step in range(steps):
        for request in [r for r, end in leaves.items() if end == step]:
            store.remove(request)
            del leaves[request]
        tried = 0
        while tried < QUEUE:
            waiting += [next(new) for _ in range(QUEUE - len(waiting))]
            request = waiting[tried]
            if store.place(request, tokens[request]):
                leaves[request] = step + stays[request]
                waiting.remove(request)
            else:
                tried += 1
        moments.append(Moment(store.pieces(), [tokens[r] for r in waiting]))
    return moments


# ---- the panel ----


def panel() -> Panel:
    """Both stores after the same number of steps, with the holes that fit nobody."""
    found: dict[int, tuple[list[Moment], list[Moment]]] = {}

    def update(art: dict[str, Any], step: int, longest: int) -> str:
        if longest not in found:
            found[longest] = simulate(Arena(), longest), simulate(Pages(), longest)
        return _update(art, *found[longest], step, longest)

    controls = {
        "step": slider("Step", 1, STEPS, 120),
        "longest": stops("Longest request (tokens)", (128, 256, 512, 1024, 2048), 1024),
    }
    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    art: dict[str, Any] = {}
    for axes, name in zip(figure.subplots(2, sharex=True), ("in one piece", "in blocks of 16"),
                          strict=True):  # fmt: skip
        art[name] = _store_axes(axes)
        art[name + " title"] = axes.set_title("", fontsize=10)
        axes.set_ylabel(name, fontsize=10)
    axes.set_xlabel("token slots, four rows of 1,024")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    source_note(figure.axes[0], "Simulated", "first fit")
    figure.legend(
        handles=list(art["in blocks of 16"].values()),
        loc="outside lower center", ncols=4, fontsize=9, columnspacing=1,
    )  # fmt: skip
    return art


def _store_axes(axes: Axes) -> dict[str, Blocks]:
    axes.set(xlim=(0, ROW), ylim=(SLOTS // ROW, 0), yticks=())
    axes.grid(False)
    edge = {"edgecolor": "white", "linewidth": 0.7}
    return {
        "even": Blocks(axes, 0, "held by a request", **{**fill(0), **edge}),
        "odd": Blocks(axes, 1, "held by another", **{**fill(2), **edge}),
        "empty": Blocks(axes, 0, "held, empty", facecolor="#BBBBBB", hatch="", linewidth=0),
        "hole": Blocks(axes, 3, "free, and fits nobody who waits", facecolor="white",
                       hatch="xxxx", edgecolor="#A04070", linewidth=0.4),
    }  # fmt: skip


def _update(
    art: dict[str, Any], whole: list[Moment], cut: list[Moment], step: int, longest: int
) -> str:
    words = []
    for name, moments in (("in one piece", whole), ("in blocks of 16", cut)):
        now = moments[step - 1]
        _show(art[name], now)
        free, mean = SLOTS - now.used, np.mean([m.used for m in moments[20:]]) / SLOTS
        words.append(f"{name}: {free:,} slots are not used, {now.running} run; {mean:.0%} "
                     "used on average")  # fmt: skip
    gaps = [n for _, n in whole[step - 1].holes]
    text = f"{many(len(gaps), 'hole')}, {sum(gaps):,} slots"
    text += f", the largest {max(gaps, default=0)}"
    smallest = min(whole[step - 1].waiting)
    art["in one piece title"].set_text(f"{text}; the shortest of those who wait needs {smallest}")
    blocks = sum(n for _, n in cut[step - 1].holes) // BLOCK
    text = f"{many(blocks, 'block')} free, {blocks * BLOCK:,} slots in all"
    smallest = min(cut[step - 1].waiting)
    art["in blocks of 16 title"].set_text(
        f"{text}; the shortest of those who wait needs {smallest}"
    )
    return f"Step {step}, requests up to {longest:,} tokens. {'; '.join(words).capitalize()}."


def _show(blocks: dict[str, Blocks], now: Moment) -> None:
    kinds: dict[str, list[tuple[int, int]]] = {
        "even": [],
        "odd": [],
        "empty": [],
        "hole": now.holes,
    }
    for request, start, tokens, held in now.pieces:
        kinds["odd" if request % 2 else "even"].append((start, tokens))
        kinds["empty"].append((start + tokens, held - tokens))
    for name, spans in kinds.items():
        boxes = [box for start, n in spans for box in _rows(start, n)]
        left, row, width = columns(boxes, 3)
        blocks[name].set_boxes(left, row + 0.08, width, 0.84)


def _rows(start: int, n: int) -> list[tuple[int, int, int]]:
    """A run of slots cut at the rows of the picture: (left, row, width)."""
    found = []
    while n > 0:
        row, left = divmod(start, ROW)
        width = min(n, ROW - left)
        found.append((left, row, width))
        start, n = start + width, n - width
    return found
