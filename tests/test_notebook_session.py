"""What the notebooks' test must see: each of these small pages has one flaw."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_session import Session, is_fault, prove, still_pictures

from g2c_serving.lab import render

FIRST = "import itertools\ncount = itertools.count()\nnumbers = [1]"
MAKE_PANEL = """
from g2c_serving.lab.panel import Panel, slider
one = 1
def make(name, height_of, words):
    def update(lines, **values):
        lines[0].set_ydata([0, one / height_of(values[name])])
        return words.format(values[name])
    draw = lambda figure: figure.subplots().plot([0, 1], [0, 1])
    display(Panel(draw, update, {name: slider("Height", 1, 9, 3)}))
"""


def page(tmp_path, *sources, measured=False):
    """A notebook of a first cell and a section for each source."""
    cells = [new_code_cell(FIRST)]
    for source in sources:
        cells += [new_markdown_cell("## Section"), new_code_cell(source)]
    cells[-1].metadata["tags"] = ["measured"] if measured else []
    path = tmp_path / "page.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_a_good_page_passes_and_one_whose_committed_words_are_others_does_not(tmp_path):
    path = page(tmp_path, "other = len(numbers)\nprint(7)", "print(next(count))", measured=True)
    render.render(path)
    prove(path)
    path.write_text(path.read_text().replace('"7\\n"', '"8\\n"'))
    with pytest.raises(AssertionError, match=r"not as committed(.|\n)*-8\n\+7"):
        prove(path)


@pytest.mark.parametrize(
    "sources, words",
    [
        (["print(next(count))"], "differs when run twice"),
        (["other = 2", "1 + other"], "name 'other' is not defined"),
        (["numbers = [1]", "numbers"], re.escape(": ['numbers']")),
    ],
)
def test_a_flaw_of_the_cells_is_seen(tmp_path, sources, words):
    with pytest.raises((AssertionError, CellExecutionError), match=words):
        prove(page(tmp_path, *sources))


def test_a_control_that_does_nothing_is_seen(tmp_path):
    """And what a panel takes from the notebook's names is there, though sections run alone."""
    panels = """
make("good", lambda height: height, "{} high")
make("words", lambda height: height, "some are high")
make("picture", lambda height: 3, "{} high")
make("error", lambda height: 9 - height, "{} high")
"""
    with Session(page(tmp_path, MAKE_PANEL + panels)) as session:
        moves = session.run_all()["moves"]
    found = [(move["control"], move["value"]) for move in moves if is_fault(move)]
    assert sorted(found) == [("error", "9"), ("words", "1"), ("words", "9")]
    assert still_pictures(moves) == {"picture"}
