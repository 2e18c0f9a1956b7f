"""The notebooks, run as a learner runs them: from the top, one section alone, a cell twice."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from notebook_session import prove, read

from g2c_serving.lab import render
from g2c_serving.paths import NOTEBOOKS, ROOT

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)


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
def test_its_sections_run_alone_and_each_cell_twice_and_its_panels_move(path):
    prove(path)
