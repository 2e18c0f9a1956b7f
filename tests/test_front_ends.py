"""What a learner meets who does not look at a live page with a mouse: a saved page, an export, a
screen reader, a narrow window, a folder that cannot be written."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from g2c_serving import paths
from g2c_serving.lab import render, reservation
from g2c_serving.paths import NOTEBOOKS

ALT = 'Two users & a "<|user|>" take 3 blocks.'


def picture(alt: str):
    data = {"image/png": "aaaa", "text/plain": alt}
    return new_output("display_data", data, metadata={"image/png": {"alt": alt, "width": 800}})


def committed(path: Path):
    """The version in git: JupyterLab saves live pages into the file of whoever runs it."""
    show = ["git", "show", f"HEAD:notebooks/{path.name}"]
    job = subprocess.run(show, cwd=paths.ROOT, capture_output=True)
    text = job.stdout if job.returncode == 0 else path.read_bytes()
    return nbformat.reads(text.decode("utf-8"), as_version=4)


def exported(notebook) -> str:
    """The page that `jupyter nbconvert --to html` writes."""
    exporter = pytest.importorskip("nbconvert").HTMLExporter
    return exporter().from_notebook_node(notebook)[0]


def small():
    outputs = [new_output("stream", text="before\n"), picture(ALT)]
    return new_notebook(cells=[new_markdown_cell("# A"), new_code_cell("x", outputs=outputs)])


def test_a_saved_picture_stands_under_its_sentence():
    """JupyterLab and nbconvert show an image/png without the alt text of its metadata."""
    page = exported(render.clean(small()))
    words, image = page.index(html.escape(ALT, quote=False)), page.index("base64,aaaa")
    between = re.sub("<[^>]*>", "", page[words:image].rsplit("<img", 1)[0])
    assert html.unescape(between).strip() == ALT, "nothing but the sentence, just above"


def test_the_sentence_is_there_once_however_often_it_is_rendered():
    once = render.clean(small())
    twice = render.clean(render.clean(small()), former=once)
    kept = once.cells[1].outputs
    assert [output.output_type for output in kept] == ["stream", "display_data", "display_data"]
    assert twice.cells[1].outputs == kept
    assert render.clean(once).cells[1].outputs == kept


def test_the_sentence_of_a_picture_that_changed_changes_with_it():
    notebook = render.clean(small())
    notebook.cells[1].outputs[-1] = picture("Another.")
    (_, words, _) = render.clean(notebook).cells[1].outputs
    assert words.data["text/plain"] == "Another." and ALT not in words.data["text/html"]


def test_a_check_reads_a_picture_s_words_once():
    (cell,) = render.code_cells(render.clean(small()))
    assert render.text_of(cell) == ["before", ALT, "[picture]"]


@pytest.mark.parametrize("name", ["00_start_here", "08_reading_the_numbers"])
def test_an_export_shows_every_picture_and_no_widget(name):
    notebook = committed(NOTEBOOKS / f"{name}.ipynb")
    outputs = [output for cell in render.code_cells(notebook) for output in cell.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    page = exported(notebook)
    assert page.count('src="data:image/png;base64,') == len(pictures) >= 1
    assert "widget-view" not in page and "jupyter-widgets" not in page
    for output in pictures:
        assert html.escape(output.metadata["image/png"]["alt"], quote=False) in page


# ---- a dark theme ----


def test_words_of_a_panel_have_the_pages_own_colour():
    """Its sentence and its error: a colour of ours would be hard to read on one of the themes."""
    show = reservation.panel()
    sentence = show.caption.value
    show._say("no such block", role="alert")
    for said in (sentence, show.caption.value):
        styles = ";".join(re.findall('style="([^"]*)"', said)).split(";")
        assert len(styles) > 1
        assert not [one for one in styles if one.strip().startswith(("color", "background"))]


# ---- a folder that cannot be written ----


def test_the_cache_goes_to_the_home_folder_beside_a_read_only_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv(paths.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert paths.cache_folder().is_relative_to(paths.ROOT)
    monkeypatch.setattr(paths.os, "access", lambda folder, mode: folder != paths.ROOT)
    assert paths.cache_folder().is_relative_to(tmp_path)
    monkeypatch.setenv(paths.CACHE_VARIABLE, str(tmp_path / "mine"))
    assert paths.cache_folder() == tmp_path / "mine"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_picture_of_a_committed_page_has_its_sentence(path):
    for cell in render.code_cells(committed(path)):
        assert render.with_sentences(cell.outputs) == cell.outputs, cell.id
