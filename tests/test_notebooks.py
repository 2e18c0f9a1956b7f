"""The notebooks, run as a learner runs them: from the top, one section alone, a cell twice."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from g2c_serving.lab import render
from g2c_serving.paths import NOTEBOOKS, ROOT

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)

# Moves every control of every panel to its ends, and puts it back.
PROBE = """
import gc as _gc, json as _json, sys as _sys
from g2c_serving.lab.panel import Panel as _Panel

def _move(panel, name, value):
    before = panel.picture.value, panel.text, panel.draws
    panel.controls[name].value = value
    if panel.button:
        panel.run()
    return dict(panel=panel.text, control=name, value=str(value), error=repr(panel.error or ""),
                picture=panel.picture.value != before[0], sentence=panel.text != before[1],
                draws=panel.draws - before[2])

_moves = []
for _panel in [thing for thing in _gc.get_objects() if type(thing) is _Panel and thing.comm]:
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
FORGET = """
for _name in [n for n in list(globals()) if n[0] != "_" and n not in _kept]:
    del globals()[_name]
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


# ---- as committed ----


def test_there_is_a_first_notebook():
    assert [path.name for path in ALL][:1] == ["00_start_here.ipynb"]


@each_notebook
def test_as_committed_it_has_no_flaw(path):
    """The version in git: JupyterLab saves widgets and times into the file of whoever runs it."""
    show = ["git", "show", f"HEAD:notebooks/{path.name}"]
    job = subprocess.run(show, cwd=ROOT, capture_output=True)
    text = job.stdout if job.returncode == 0 else path.read_bytes()
    assert render.flaws(nbformat.reads(text.decode("utf-8"), as_version=4)) == []


@each_notebook
def test_as_committed_its_links_lead_somewhere(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "markdown"]
    assert dead_links("\n".join(cell.source for cell in cells), path.parent) == []


def test_the_links_of_the_readme_lead_somewhere():
    assert dead_links((ROOT / "README.md").read_text(encoding="utf-8"), ROOT) == []


def dead_links(words: str, folder: Path) -> list[str]:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", words)
    return [link for link in links if "://" not in link and not (folder / link).exists()]


@each_notebook
def test_its_cells_are_short_and_leave_the_display_to_panels(path):
    for cell in render.code_cells(read(path)):
        assert len(cell.source.splitlines()) <= 25, cell.id
        for word in ("pyplot", "clear_output", "widgets.Output", "interact("):
            assert word not in cell.source, (cell.id, word)


# ---- run ----


@each_notebook
def test_it_runs_from_the_top_and_its_panels_move(path):
    committed = read(path)
    probed = copy.deepcopy(committed)
    probed.cells.append(new_code_cell(PROBE))
    done = render.execute(probed, path.parent)
    (answer,) = [json.loads(output.text) for output in done.cells.pop().outputs]
    assert render.differences(committed, done) == []
    assert answer["figures"] == []
    for move in answer["moves"]:
        assert move["error"] == "''", move
        assert move["picture"] and move["sentence"] and move["draws"] == 1, move
    has_panel = any(render.WIDGET_VIEW in str(cell.outputs) for cell in render.code_cells(done))
    assert has_panel == bool(answer["moves"])


@each_notebook
def test_every_section_runs_from_the_first_cell_alone_and_every_cell_twice(path):
    notebook = read(path)
    parts = sections(notebook)
    first = parts[0][0]
    keep, forget = len(notebook.cells), len(notebook.cells) + 1
    notebook.cells += [new_code_cell("_kept = set(globals())"), new_code_cell(FORGET)]
    client = NotebookClient(
        notebook,
        timeout=render.TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )

    def run(place: int) -> list[str]:
        return render.text_of(client.execute_cell(notebook.cells[place], place))

    with client.setup_kernel():
        run(first), run(keep)
        for section in parts:
            for place in section:
                once, again = run(place), run(place)
                if not render.is_measured(notebook.cells[place]):
                    assert again == once, notebook.cells[place].id
            run(forget)
