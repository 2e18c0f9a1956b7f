"""One kernel for one notebook: its cells run twice, its sections alone, its panels' controls moved.

What holds in this one run holds from the top as well: a section that finds only the first cell's
names, and leaves these as they were, does the same after all the sections before it.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from g2c_serving.lab import kernel_runs, render

QUICK_S = 1.0  # a measured cell that took longer is not run a second time

# Controls that from their panel's start move the sentence alone: there the others decide.
STILL = {("04_speculation", "total"), ("04_speculation", "stale_split")}
STILL |= {("05_special_tokens", "text"), ("05_special_tokens", "stop")}

KEEP = "_kept, _gone = dict(globals()), {}"

# Says which of the first cell's names a section has changed, and takes away its own.
FORGET = """
import json as _json
print(_json.dumps([_n for _n in _kept if _n[0] != "_" and globals().get(_n) is not _kept[_n]]))
for _n in [_n for _n in globals() if _n[0] != "_" and _n not in _kept]:
    _gone[_n] = globals().pop(_n)
"""

# With all names back, moves every control of every panel to its ends, and puts it back.
PROBE = """
import gc as _gc, json as _json, sys as _sys
_module = _sys.modules.get("g2c_serving.lab.panel")

def _living(kind):
    return [it for it in _gc.get_objects() if kind in type(it).__mro__ and it.comm]

def _move(panel, name, value):
    before = panel.png, panel.text, panel.draws
    panel.controls[name].value = value
    if panel.button:
        panel.run()
    return dict(panel=id(panel), text=panel.text, control=name, value=str(value),
                error=repr(panel.error or ""), picture=panel.png != before[0],
                sentence=panel.text != before[1], draws=panel.draws - before[2])

globals().update(_gone)
for _widget in _living(_module.w.Widget) if _module else []:
    if _widget.comm and _widget.model_id in FORMER:
        _module.close_all(_widget)  # as JupyterLab has it when a cell runs again
_moves = []
for _panel in _living(_module.Panel) if _module else []:
    for _name, _control in _panel.controls.items():
        _start = _control.value
        for _end in _control.ends:
            if _end != _control.value:
                _moves.append(_move(_panel, _name, _end))
        _control.value = _start
_pyplot = _sys.modules.get("matplotlib.pyplot")
_open = _pyplot.get_fignums() if _pyplot else []
print(_json.dumps(dict(moves=_moves, figures=_open)))
"""


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def sections(notebook: NotebookNode) -> list[list[int]]:
    """The places of the code cells of each section; a section starts at a `## ` heading."""
    found: list[list[int]] = [[]]
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.MULTILINE):
            found.append([])
        elif cell.cell_type == "code":
            found[-1].append(place)
    return [cells for cells in found if cells]


def views(cell: NotebookNode) -> list[str]:
    """The ids of the widgets that a cell shows."""
    data = (output.get("data", {}) for output in cell.outputs)
    return [entry[render.WIDGET_VIEW]["model_id"] for entry in data if render.WIDGET_VIEW in entry]


def prove(path: Path) -> None:
    """AssertionError, or nbclient's CellExecutionError, where the notebook does not hold."""
    committed = read(path)
    with Session(path) as session:
        answer = session.run_all()
    differences = render.differences(committed, session.notebook)
    assert not differences, "\n".join(["not as committed:", *differences])
    assert not answer["figures"], "pyplot holds figures open"
    faults = [move for move in answer["moves"] if is_fault(move)]
    assert not faults, faults
    still = still_pictures(answer["moves"]) - {name for stem, name in STILL if stem == path.stem}
    assert not still, f"no end of these controls changes the picture: {still}"
    has_panel = any(map(views, render.code_cells(session.notebook)))
    assert has_panel == bool(answer["moves"]), "the probe finds other panels than the page"


def is_fault(move: dict) -> bool:
    """Whether a control's move gave an error, or not one drawing and another sentence."""
    return move["error"] != "''" or move["draws"] != 1 or not move["sentence"]


def still_pictures(moves: list[dict]) -> set[str]:
    """The controls that change no pixel of their panel at any of their ends."""
    moved = {(move["panel"], move["control"]) for move in moves if move["picture"]}
    return {m["control"] for m in moves if (m["panel"], m["control"]) not in moved}


class Session:
    """`with Session(path) as session`: a new kernel that works in the notebook's folder.

    `notebook` holds the outputs of each cell's last run.
    """

    def __init__(self, path: Path) -> None:
        self.notebook = read(path)
        self.former_views: list[str] = []
        self._client = NotebookClient(
            self.notebook,
            timeout=kernel_runs.TIMEOUT_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
        )

    def __enter__(self) -> Session:
        self._kernel = self._client.setup_kernel()
        self._kernel.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._kernel.__exit__(*error)

    def run_all(self) -> dict:
        """The first cell, then each section alone; what the probe says of the panels at the end."""
        parts = sections(self.notebook)
        self.run_twice(parts[0].pop(0))
        self._ask(KEEP)
        for section in parts:
            for place in section:
                self.run_twice(place)
            changed = json.loads(self._ask(FORGET))
            assert not changed, f"the first cell's names change in cells {section}: {changed}"
        return json.loads(self._ask(PROBE.replace("FORMER", repr(set(self.former_views)))))

    def run_twice(self, place: int) -> None:
        """Run a cell, and once more: the same words, unless it measures."""
        cell, start = self.notebook.cells[place], time.monotonic()
        once = self._run(place)
        if render.is_measured(cell) and time.monotonic() - start > QUICK_S:
            return
        self.former_views += views(cell)
        again = self._run(place)
        assert again == once or render.is_measured(cell), f"cell {cell.id} differs when run twice"

    def _run(self, place: int) -> list[str]:
        return render.text_of(self._client.execute_cell(self.notebook.cells[place], place))

    def _ask(self, code: str) -> str:
        """What a cell that is not the notebook's prints."""
        self.notebook.cells.append(new_code_cell(code))
        self._client.execute_cell(self.notebook.cells[-1], len(self.notebook.cells) - 1)
        return "".join(output.get("text", "") for output in self.notebook.cells.pop().outputs)
