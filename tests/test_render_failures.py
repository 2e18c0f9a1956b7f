"""One notebook that fails, in whatever way: said in a sentence, and the others go on."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from g2c_serving.lab import kernel_runs, render

EMPTY = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
NONE = "the file is empty, or no notebook of format 4.5 or later; save it again"


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1")]), path)
    return path


def lines_of(capsys, *argv) -> list[str]:
    """What the command prints; it has to end with 1, and say nothing of a trace."""
    assert render.main([str(arg) for arg in argv]) == 1
    out = capsys.readouterr().out
    assert "Traceback" not in out and "Group" not in out
    return out.splitlines()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    "source, said",
    [
        ("import os; os._exit(3)", "its kernel died; nothing was written"),
        ("import time; time.sleep(60)", "a cell took longer than 3 s; nothing was written"),
    ],
)
def test_a_kernel_that_ends_or_does_not(source, said, jobs, good, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel_runs, "TIMEOUT_S", 3)
    bad = tmp_path / "bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), bad)
    before = bad.read_text()
    lines = lines_of(capsys, bad, good, "--jobs", jobs)
    assert sorted(lines[:2]) == [f"bad.ipynb: {said}", "good.ipynb: written"]
    assert lines[2].endswith(": 1 failed") and len(lines) == 3
    assert bad.read_text() == before


@pytest.mark.parametrize(
    "content",
    [
        "", "hello", "5", "[]", "{}", '{"nbformat": 9}', '{"nbformat": "x"}',
        json.dumps(EMPTY | {"cells": 5}),
        json.dumps(EMPTY | {"cells": [{}]}),
        json.dumps(EMPTY)[:-5],
        json.dumps(EMPTY | {"nbformat_minor": 4, "cells": [
            {k: v for k, v in new_code_cell("1").items() if k != "id"}]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", [(), ("--check",)])
def test_a_file_that_is_no_notebook(content, option, tmp_path, capsys):
    bad = tmp_path / "bad.ipynb"
    bad.write_text(content)
    first, last = lines_of(capsys, bad, *option)
    assert first.startswith(f"bad.ipynb: failed: {NONE}") and last.endswith(": 1 failed")
    assert bad.read_text() == content


def test_bytes_that_are_no_text(good, tmp_path, capsys):
    bad = tmp_path / "bad.ipynb"
    bad.write_bytes(b"\xff\xfe{}")
    first, second, last = lines_of(capsys, bad, good)
    assert first.startswith(f"bad.ipynb: failed: {NONE}")
    assert second == "good.ipynb: written" and last.endswith(": 1 failed")


@pytest.mark.parametrize("step", ["read", "write"])
def test_a_file_that_cannot_be_read_or_written(step, good, tmp_path, capsys, monkeypatch):
    """As of a disk that is full, or that has gone, once the kernels run."""
    bad = tmp_path / "bad.ipynb"
    bad.write_bytes(good.read_bytes())
    kind, name = type(bad), f"{step}_{'bytes' if step == 'read' else 'text'}"
    usual = getattr(kind, name)

    def broken(path, *args, **options):
        if path == bad:
            raise OSError(28, "No space left on device", str(path))
        return usual(path, *args, **options)

    monkeypatch.setattr(kind, name, broken)
    first, second, last = lines_of(capsys, bad, good)
    assert first.startswith("bad.ipynb: failed: ") and "No space left" in first
    assert second == "good.ipynb: written" and last.endswith(": 1 failed")


def test_what_nobody_has_thought_of_stops_no_other(good, tmp_path, capsys, monkeypatch):
    bad, usual = tmp_path / "bad.ipynb", render.clean
    nbformat.write(new_notebook(cells=[new_code_cell("'bad'")]), bad)

    def clean(notebook, former=None):
        return usual(notebook, former) if "bad" not in notebook.cells[0].source else {}["mine"]

    monkeypatch.setattr(render, "clean", clean)
    first, second, _ = lines_of(capsys, bad, good)
    assert first == "bad.ipynb: failed: KeyError: 'mine'" and second == "good.ipynb: written"
