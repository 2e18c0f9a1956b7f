"""Rendering: what is committed is the same at every run, and has words for every picture."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from g2c_serving.lab import render

PANEL = """
from g2c_serving.lab.reservation import panel
show = panel()
display(show)
"""
NOISY = "import time; print(time.perf_counter())"


def write(path, *cells):
    notebook = new_notebook(cells=list(cells), metadata={"widgets": {"state": {}}})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A small notebook after two renderings, and the text of the file after each."""
    path = tmp_path_factory.mktemp("with space") / "small.ipynb"
    measured = new_code_cell(NOISY, metadata={"tags": ["measured"], "collapsed": True})
    write(
        path, new_markdown_cell("# Small"), new_code_cell(PANEL), new_code_cell("1 + 1"), measured
    )
    assert render.main([str(path)]) == 0
    first = path.read_text()
    assert render.main([str(path), "--keep-measured"]) == 0
    return path, first, path.read_text()


def test_a_second_rendering_gives_the_same_file(rendered):
    _, first, second = rendered
    assert first == second


def test_what_is_written_has_pictures_and_words_but_no_widgets(rendered):
    path, _, text = rendered
    notebook = nbformat.read(path, as_version=4)
    sentence, output = notebook.cells[1].outputs
    assert sentence.data["text/plain"] == output.data["text/plain"]
    assert "300 tokens use 15%" in output.data["text/plain"]
    assert output.metadata["image/png"]["alt"] == output.data["text/plain"]
    assert "image/png" in output.data
    assert "widget" not in text.replace("ipywidgets", "")
    assert render.flaws(notebook) == []
    assert notebook.cells[3].metadata == {"tags": ["measured"]}
    assert [cell.execution_count for cell in render.code_cells(notebook)] == [1, 2, 3]


def test_check_passes_what_was_rendered_though_measured_cells_differ(rendered, capsys):
    path, _, text = rendered
    assert render.main([str(path), "--check"]) == 0
    assert "as committed" in capsys.readouterr().out
    assert path.read_text() == text


def test_check_names_the_cell_whose_words_changed(rendered, tmp_path, capsys):
    notebook = nbformat.read(rendered[0], as_version=4)
    del notebook.cells[1]
    notebook.cells[1].source = "1 + 2"
    path = tmp_path / "changed.ipynb"
    nbformat.write(notebook, path)
    assert render.main([str(path), "--check"]) == 1
    out = capsys.readouterr().out
    assert "cell 1 (cell-2)" in out and "-2" in out and "+3" in out and "cell 2" not in out


def test_a_cell_that_fails_stops_the_rendering_and_leaves_the_file(tmp_path):
    path = write(tmp_path / "bad.ipynb", new_code_cell("1 / 0"))
    before = path.read_text()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        render.render(path)
    assert path.read_text() == before


def test_the_html_of_a_still_picture_is_for_the_live_page_alone():
    data = {"image/png": "aaaa", "text/plain": "x", "text/html": "<img alt='x'>"}
    cell = new_code_cell("x", outputs=[new_output("display_data", data)])
    assert render.text_of(cell) == ["x", "[picture]"]
    (cleaned,) = render.clean(new_notebook(cells=[cell])).cells
    assert set(cleaned.outputs[0].data) == {"image/png", "text/plain"}


def test_a_new_source_drops_the_kept_measurement():
    old = new_code_cell(
        NOISY, metadata={"tags": ["measured"]}, outputs=[new_output("stream", text="1")]
    )
    fresh = new_code_cell("print(2)", metadata={"tags": ["measured"]}, id=old.id)
    fresh.outputs = [new_output("stream", text="2")]
    cleaned = render.clean(new_notebook(cells=[fresh]), new_notebook(cells=[old]))
    assert cleaned.cells[0].outputs[0].text == "2"


@pytest.mark.parametrize(
    "output, words",
    [
        (new_output("error", ename="ValueError", evalue="x"), "ends in ValueError"),
        (new_output("display_data", {render.WIDGET_VIEW: {}, "text/plain": "x"}), "widget view"),
        (new_output("display_data", {"image/png": "aaaa", "text/plain": "x"}), "without words"),
        (new_output("display_data", {"image/png": "aaaa"}, metadata={"image/png": {"alt": "x"}}),
         "without words"),
    ],
)  # fmt: skip
def test_flaws(output, words):
    cell = new_code_cell("x", execution_count=1, outputs=[output])
    (found,) = render.flaws(new_notebook(cells=[cell]))
    assert "cell 1" in found and words in found


def test_a_cell_that_was_not_run_is_a_flaw():
    assert render.flaws(new_notebook(cells=[new_code_cell("x")])) == ["cell 1 was not executed"]


def test_progress_lines_are_kept_as_their_last_state(tmp_path):
    counter = "for k in range(3):\n    print(f'\\r{k + 1} of 3', end='', flush=True)\nprint()"
    path = write(tmp_path / "counter.ipynb", new_code_cell(counter))
    render.render(path)
    (cell,) = render.code_cells(nbformat.read(path, as_version=4))
    assert render.text_of(cell) == ["3 of 3"]


# ---- two kernels at a time ----

MEETING = """
import json, os, pathlib, time
here, (mine, other) = pathlib.Path(FOLDER), NAMES
known = [os.environ.get(name) for name in ("G2C_SERVING_CACHE", "OMP_NUM_THREADS")]
known[0] = known[0] and [known[0], os.path.isdir(known[0])]
(here / f"{mine}.json").write_text(json.dumps(known))
end = time.monotonic() + 60
while not (here / f"{other}.json").exists() and time.monotonic() < end:
    time.sleep(0.05)
assert (here / f"{other}.json").exists(), "the other kernel has not come"
"""


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two notebooks, each of which ends only when the other runs as well; what their kernels knew
    is left in `a.json` and `b.json`."""
    monkeypatch.delenv("G2C_SERVING_CACHE", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for names in ("ab", "ba"):
        source = MEETING.replace("FOLDER", repr(str(tmp_path))).replace("NAMES", repr(names))
        write(tmp_path / f"{names[0]}.ipynb", new_code_cell(source))
    return tmp_path


def test_two_kernels_run_at_the_same_time_and_share_no_cache(pair, capsys):
    paths = [str(pair / "a.ipynb"), str(pair / "b.ipynb")]
    assert render.main([*paths, "--jobs", "2"]) == 0
    for name in "ab":
        (pair / f"{name}.json").unlink()
    capsys.readouterr()
    assert render.main([*paths, "--check", "--jobs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == ["a.ipynb: as committed", "b.ipynb: as committed"]
    assert re.fullmatch(r"2 notebooks in \d+ s, 2 at a time: all well", lines[2])
    (one, there), (other, also) = (json.loads((pair / f"{n}.json").read_text())[0] for n in "ab")
    assert one != other and there and also
    assert [json.loads((pair / f"{n}.json").read_text())[1] for n in "ab"] == ["1", "1"]


def test_one_after_another_is_the_default_and_leaves_the_kernel_as_it_is(pair, capsys):
    (pair / "b.json").touch()
    assert render.main([str(pair / "a.ipynb")]) == 0
    assert json.loads((pair / "a.json").read_text()) == [None, "3"]
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"1 notebook in \d+ s, one after another: all well", lines[-1])


def test_one_that_fails_beside_one_that_does_not(tmp_path, capsys):
    bad, good = tmp_path / "bad.ipynb", tmp_path / "good.ipynb"
    before = write(bad, new_code_cell("1 / 0")).read_text()
    write(good, new_code_cell("1 + 1"))
    assert render.main([str(bad), str(good), "--jobs", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "good.ipynb: written" in lines
    assert "bad.ipynb: a cell failed; nothing was written" in lines
    assert any("ZeroDivisionError" in line for line in lines)
    assert lines[-1].endswith("2 at a time: 1 failed") and bad.read_text() == before


def test_no_kernel_at_all_is_refused(capsys):
    with pytest.raises(SystemExit):
        render.main(["--jobs", "0"])
    assert "--jobs 0: at least one kernel" in capsys.readouterr().err


def test_an_unknown_notebook_is_refused_with_the_list(capsys):
    with pytest.raises(SystemExit):
        render.main(["99_nothing"])
    assert "'99_nothing'" in capsys.readouterr().err


# ---- what goes wrong around it ----


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    ran = tmp_path / "ran"
    path = write(tmp_path / "locked.ipynb", new_code_cell(f"open({str(ran)!r}, 'w').close()"))
    monkeypatch.setattr(render.os, "access", lambda file, mode: file != path)
    assert render.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert str(path) in said and "cannot be written" in said and "--check" in said
    assert said.count("\n") == 1 and not ran.exists()
    assert render.main([str(path), "--check"]) == 1 and ran.exists()  # its cell was never run


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT to one process")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_it_quietly_and_its_kernels_with_it(tmp_path, jobs):
    begun = [tmp_path / name for name in "ab"]
    source = "import os, time; open({!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    for pid in begun:
        write(tmp_path / f"{pid.name}.ipynb", new_code_cell(source.format(str(pid))))
    command = [sys.executable, "-m", "g2c_serving", "render", "--jobs", jobs]
    command += [str(tmp_path / "a.ipynb"), str(tmp_path / "b.ipynb")]
    running, said = begun[: int(jobs)], "Address already in use"
    while "Address already in use" in said:  # another test's kernel has taken this one's port
        for pid in begun:
            pid.unlink(missing_ok=True)
        code, said = interrupted(command, running)
    assert code == 130 and said.rstrip().endswith("Stopped.")
    assert "Traceback" not in said and "Task" not in said and "ERROR" not in said
    for pid in running:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    assert len(running) == 2 or not begun[1].exists()


def interrupted(command: list[str], running: list[Path]) -> tuple[int, str]:
    """The exit status and the words of a command that gets a SIGINT once the cells run."""
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: all(pid.exists() and pid.read_text() for pid in running))
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    return job.returncode, said


def wait_until(true, seconds: float = 60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
