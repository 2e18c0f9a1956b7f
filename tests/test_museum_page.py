"""The museum's notebook says what the exhibits say, and its cells hold their very faults; the
picture of all faults against all scenes is of real runs."""

from __future__ import annotations

import nbformat
import numpy as np
import pytest

from g2c_serving.lab import museum, museum_matrix
from g2c_serving.lab.museum import Exhibit, exhibit
from g2c_serving.lab.museum_matrix import APART, TOLD, UNSEEN
from g2c_serving.paths import NOTEBOOKS

ORDER = museum.in_order()
CELLS = nbformat.read(NOTEBOOKS / "10_bug_museum.ipynb", as_version=4).cells


def place(words: str) -> int:
    """Of the one cell that has these words."""
    (found,) = [i for i, cell in enumerate(CELLS) if words in cell.source]
    return found


@pytest.mark.parametrize("number", range(1, len(ORDER) + 1))
def test_each_exhibit_has_its_story_its_run_and_its_fault_in_a_cell_to_edit(number: int):
    one = ORDER[number - 1]
    start = place(f"### {number}. {one.title}\n")
    story, run, mend = (cell.source for cell in CELLS[start : start + 3])
    assert one.story in story and f"*Reports:* {', '.join(one.reports)}." in story
    assert run == f'museum.exhibit("{one.name}").run()'
    *head, last = mend.split(one.show().code)
    assert len(head) == 1, "the cell's code is the fault's own, to the letter"
    assert last.strip() == f'museum.exhibit("{one.name}").check({one.fault.__name__})'


@pytest.mark.parametrize("number", range(1, len(ORDER) + 1))
def test_as_it_stands_the_cell_is_told_what_is_wrong(number: int):
    one = ORDER[number - 1]
    mend = CELLS[place(f"### {number}. {one.title}\n") + 2]
    (output,) = mend.outputs
    assert output["data"]["text/plain"].startswith("Not yet: ")


def test_a_room_is_a_section_and_the_page_has_all_of_them():
    headings = [i for i, cell in enumerate(CELLS) if cell.source.startswith("## ")]
    rooms = list(dict.fromkeys(one.room for one in ORDER))
    first = [next(k for k, one in enumerate(ORDER, 1) if one.room == room) for room in rooms]
    starts = [place(f"### {k}. {ORDER[k - 1].title}\n") for k in first]
    assert set(starts) <= set(headings)


# ---- the matrix ----


def some(*names: str) -> list[Exhibit]:
    return [exhibit(name) for name in names]


def test_the_matrix_is_of_real_runs_and_leaves_out_what_never_comes_to_the_part():
    """By what the scenes are: the three lists have no prefix cache, all have a block table, and
    only the visits without a name of their own are without a hit."""
    found = museum_matrix.matrix(some("shared_tail", "full_hit", "quick_guess"))
    assert found.names == ("shared_tail", "full_hit", "quick_guess")
    expected = [[TOLD, UNSEEN, UNSEEN], [APART, TOLD, UNSEEN], [APART, UNSEEN, TOLD]]
    assert found.cells.tolist() == expected
    words = found.sentence
    assert "3 faults, 3 scenes, and 7 pairs" in words and "none by another's" in words


def test_a_fault_that_another_scene_sees_as_well_is_counted():
    cells = np.array([[TOLD, TOLD], [APART, UNSEEN]])
    words = museum_matrix.Matrix(("a", "b"), cells).sentence
    assert "1 faults are seen by their own scene, 1 by another's" in words
    assert museum_matrix.picture(museum_matrix.Matrix(("a", "b"), cells)).text == words


def test_a_part_of_any_kind_is_noted_and_does_what_it_did():
    """A class, a method, a property and a class method."""
    for name in ("in_and_out", "all_wait", "late_token", "late_mask"):
        one = exhibit(name)
        assert museum_matrix._used(one, [one]) == [True], name
        assert one.verdict_on(one.look()) == ""
    assert museum_matrix._used(exhibit("shared_tail"), some("late_mask")) == [False]
