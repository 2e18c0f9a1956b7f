"""The matrix: which contracts an engine keeps, against what can happen to a request in a crowd.

Brief, section 3: fully deterministic sampling needs keyed draws, batch-invariant logits and a fixed
sampling path together. Each cell is two real runs of one request (`disturbances.py`). In all rows
but one, top_p has been put on the edge between two sums on purpose (`knife_edge.py`). The third
contract is at stake with speculation (section 4): the last two rows speculate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import knife_edge
from g2c_serving.lab.disturbances import DISTURBANCES
from g2c_serving.lab.panel import Panel, choice
from g2c_serving.lab.parting import Parting, Seen, compare
from g2c_serving.lab.plots import BLACK, GREEN, ORANGE, PINK, Blocks, columns
from g2c_serving.lab.watched_run import Case, Contracts, run

PLAIN = "keyed draws, ordinary logits"
LAST = "keyed draws, invariant logits"
BUDGET, ALL = "both, drafts under a budget", "both, and a fixed path"
ROWS: dict[str, Contracts] = {  # in all of them but PLAIN, top_p stands on an edge
    "shared draws, ordinary logits": Contracts(keyed=False, invariant=False),
    "shared draws, invariant logits": Contracts(keyed=False, invariant=True),
    PLAIN: Contracts(keyed=True, invariant=False),
    f"{PLAIN}, on an edge": Contracts(keyed=True, invariant=False),
    LAST: Contracts(keyed=True, invariant=True),
    BUDGET: Contracts(keyed=True, invariant=True, path="budgeted"),
    ALL: Contracts(keyed=True, invariant=True, path="fixed"),
}
WITHOUT_DRAFTS = tuple(row for row, contracts in ROWS.items() if contracts.path is None)
PATHS = (LAST, BUDGET, ALL)  # about the third contract: the first two are kept
SAME, BITS, PART = "same", "bits", "part"
LOOKS: dict[str, dict] = {
    SAME: {"facecolor": GREEN, "hatch": "", "label": "\u2713 all equal"},
    BITS: {"facecolor": PINK, "hatch": "...", "label": "\u2248 other bits, same tokens"},
    PART: {"facecolor": ORANGE, "hatch": "///", "label": "\u2717 other tokens from there on"},
}


@dataclass(frozen=True)
class Cell:
    """Two runs of one request: where they part, and the words that they have there."""

    case: Case
    parting: Parting
    words: tuple[str, str] = ("", "")

    @property
    def state(self) -> str:
        if self.parting.token is not None:
            return PART
        return SAME if self.parting.same else BITS


@dataclass
class Matrix:
    """The cells by row and disturbance."""

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def count(self, row: str, state: str) -> int:
        """How many cells of a row are in that state."""
        return sum(cell.state == state for (name, _), cell in self.cells.items() if name == row)

    def __repr__(self) -> str:
        rows = dict.fromkeys(row for row, _ in self.cells)
        return "\n".join(f"{row + ':':40} {_tally(self, row)}" for row in rows)


def determinism_matrix(
    lm: LanguageModel,
    disturbances: Sequence[str] = tuple(DISTURBANCES),
    rows: Sequence[str] = tuple(ROWS),
    say: Any = None,
) -> Matrix:
    """Run every cell of `rows` on the real engine. `say` gets a line for each disturbance: how its
    runs compare, row by row."""
    run.cache_clear()
    plain, matrix = knife_edge.plain_case(lm), Matrix()
    for name in disturbances:
        disturb = DISTURBANCES[name]
        runs = disturb(plain, ROWS[PLAIN])
        edge = knife_edge.on_the_edge(plain, *runs)
        for row in rows:
            if row == PLAIN:
                matrix.cells[row, name] = cell_of(plain, *runs)
            else:
                matrix.cells[row, name] = cell_of(edge, *disturb(edge, ROWS[row]))
        if say is not None:
            marks = "  ".join(f"{_mark(matrix.cells[row, name]):3}" for row in rows)
            say(f"{name:16} {marks}".rstrip())
    return matrix


def cell_of(case: Case, one: Seen, other: Seen) -> Cell:
    parting = compare(one, other)
    if parting.token is None:
        return Cell(case, parting)
    first, second = (run.tokens[parting.token] for run in (one, other))
    return Cell(
        case, parting, (case.lm.tokenizer.decode([first]), case.lm.tokenizer.decode([second]))
    )


def _tally(matrix: Matrix, row: str) -> str:
    counts = {state: matrix.count(row, state) for state in (SAME, BITS, PART)}
    names = {SAME: "the same", BITS: "in bits or numbers alone", PART: "in tokens"}
    return ", ".join(f"{count} {names[state]}" for state, count in counts.items() if count)


# the picture


def panel(matrix: Matrix, row: str = f"{PLAIN}, on an edge", column: str | None = None) -> Panel:
    """The matrix; choose a cell to read where its two runs part, and why. It opens on `row` and
    `column`, the first one if None."""
    rows, changes = (tuple(dict.fromkeys(names)) for names in zip(*matrix.cells, strict=True))
    controls = {
        "row": choice("Contracts", rows, row),
        "column": choice("What changes", changes, column),
    }
    return Panel(
        lambda figure: _draw(figure, matrix, rows, changes),
        lambda art, row, column: _update(art, matrix, row, column),
        controls,
    )


def _draw(
    figure: Figure, matrix: Matrix, rows: tuple[str, ...], changes: tuple[str, ...]
) -> dict[str, Any]:
    axes = figure.subplots()
    axes.grid(False)
    places: dict[str, list[tuple[int, int]]] = {state: [] for state in LOOKS}
    for y, row in enumerate(rows):
        for x, column in enumerate(changes):
            cell = matrix.cells[row, column]
            places[cell.state].append((x, y))
            axes.text(x, y, _mark(cell), ha="center", va="center", fontsize=10, color=BLACK,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})  # fmt: skip
    for state, look in LOOKS.items():
        x, y = columns(places[state], 2)
        Blocks(axes, 0, **look, edgecolor="white").set_boxes(x - 0.46, y - 0.42, 0.92, 0.84)
    axes.set(xlim=(-0.55, len(changes) - 0.45), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(changes)), [c.replace(" ", "\n") for c in changes], fontsize=9)
    names = [row.replace(", on an edge", ",\non an edge") for row in rows]  # wide columns
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, handlelength=1.6)
    figure.text(0.005, 0.9, "Measured here", fontsize=9, color="#555555")
    chosen = Blocks(axes, 0, facecolor="none", edgecolor=BLACK, hatch="", linewidth=2.4)
    return {"chosen": chosen, "rows": rows, "changes": changes}


def _mark(cell: Cell) -> str:
    if cell.state == PART:
        return f"\u2717 {(cell.parting.token or 0) + 1}"
    return "\u2713" if cell.state == SAME else "\u2248"


def _update(art: dict[str, Any], matrix: Matrix, row: str, column: str) -> str:
    x, y = art["changes"].index(column), art["rows"].index(row)
    art["chosen"].set_boxes(x - 0.46, y - 0.42, 0.92, 0.84)
    return f"{row}; {column}: {explain(matrix.cells[row, column])}"


def explain(cell: Cell) -> str:
    """Where the two runs part, and why, in words. Tokens are counted from 1."""
    part, params = cell.parting, cell.case.params
    settings = f"(top_p {params.top_p:.9g}, seed {params.seed})"
    if part.same:
        return f"all {part.length} tokens, their logits and their numbers are equal {settings}."
    facts = []
    if part.path is not None:
        facts.append(f"the sampling path differs from token {part.path + 1} on")
    if part.draw is not None:
        facts.append(f"the random numbers differ from token {part.draw + 1} on")
    if part.bit is not None:
        facts.append(
            f"the logits differ from token {part.bit + 1} on, there by up to {part.gap:.1e}"
        )
    if part.token is None:
        return f"all {part.length} tokens are equal, but {' and '.join(facts)} {settings}."
    one, other = cell.words
    return (
        f"the runs part at token {part.token + 1}, {one!r} or {other!r}; why: {part.reason}. "
        f"{' and '.join(facts).capitalize()} {settings}."
    )
