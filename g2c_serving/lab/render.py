"""`python -m g2c_serving render`: execute notebooks and write them back, ready to commit.

The .ipynb is the one source. What is written is the same at every run: pictures and text, no
widget views, no widget state, no timings. Then offline readers see every picture, and a diff shows
what changed. `--check` executes and compares the text outputs with the committed ones, cells with
the tag `measured` aside: their numbers belong to the machine named beside them.

`--jobs 2` has two kernels at the same time, each with one thread and a KV cache folder of its own.
That is for `--check`. What is written should come from one after another on a quiet machine: the
measured cells of one kernel would see the other at work.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import difflib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jupyter_core.utils import run_sync
from nbformat import NotebookNode
from nbformat.v4 import new_output

from g2c_serving.lab.kernel_runs import KERNEL, executed, failure, read, stoppable
from g2c_serving.lab.plots import paragraph
from g2c_serving.paths import NOTEBOOKS

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
TEXTS = ("text/plain", "text/markdown", "text/html")
SENTENCE = {"sentence_of": "image/png"}  # metadata of the output that stands above a picture


def clean(notebook: NotebookNode, former: NotebookNode | None = None) -> NotebookNode:
    """Take out what differs from run to run. With `former`, keep its measured outputs."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    )
    kept = measured_outputs(former) if former else {}
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
        cell.outputs = kept.get((cell.id, cell.source), cell.outputs)
        for output in cell.outputs:
            for kind in (WIDGET_VIEW, *doubled(output)):
                output.get("data", {}).pop(kind, None)
            if "execution_count" in output:
                output.execution_count = number
        cell.outputs = with_sentences(cell.outputs)
    for cell in notebook.cells:  # front ends leave more there than the tags
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
    return notebook


def with_sentences(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Each picture under its sentence, as on the live page: what shows a saved page (JupyterLab,
    nbconvert) leaves the alt text out. Those that stand there already are made anew."""
    found = []
    for output in outputs:
        if output.get("metadata") == SENTENCE:
            continue
        alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
        if alt:
            data = {"text/html": paragraph(alt), "text/plain": alt}
            found.append(new_output("display_data", data, metadata=dict(SENTENCE)))
        found.append(output)
    return found


def code_cells(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def is_measured(cell: NotebookNode) -> bool:
    return "measured" in cell.metadata.get("tags", [])


def doubled(output: NotebookNode) -> tuple[str, ...]:
    """What says the same as the picture beside it: HTML holds the picture once more."""
    return ("text/html",) if "image/png" in output.get("data", {}) else ()


def measured_outputs(notebook: NotebookNode) -> dict[tuple[str, str], list]:
    """The outputs of measured cells, by cell id and source (so that a changed cell runs anew)."""
    cells = (cell for cell in code_cells(notebook) if is_measured(cell) and cell.outputs)
    return {(cell.id, cell.source): copy.deepcopy(cell.outputs) for cell in cells}


def text_of(cell: NotebookNode) -> list[str]:
    """All words of a cell's outputs, as lines."""
    lines: list[str] = []
    for output in cell.outputs:
        if output.get("metadata") == SENTENCE:
            continue  # the picture's own words
        data = output.get("data", {})
        kinds = [kind for kind in TEXTS if kind not in doubled(output)]
        texts = [output.get("text", ""), *(data.get(kind, "") for kind in kinds)]
        lines += "".join(text if text.endswith("\n") else text + "\n" for text in texts).split("\n")
        lines += ["[picture]"] if "image/png" in data else []
    return [line.rstrip() for line in lines if line.strip()]


def differences(committed: NotebookNode, fresh: NotebookNode) -> list[str]:
    """Where the words of two runs differ, as lines of a diff; measured cells are left out."""
    found: list[str] = []
    pairs = zip(code_cells(committed), code_cells(fresh), strict=True)
    for number, (old, new) in enumerate(pairs, start=1):
        if is_measured(old):
            continue
        change = list(difflib.unified_diff(text_of(old), text_of(new), lineterm="", n=0))[2:]
        found += [f"cell {number} ({old.id}):", *change] if change else []
    return found


def flaws(notebook: NotebookNode) -> list[str]:
    """What a committed notebook must not have: cells not run, errors, widgets, silent pictures."""
    found = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        if cell.source.strip() and cell.execution_count is None:
            found.append(f"cell {number} was not executed")
        for output in cell.outputs:
            data, metadata = output.get("data", {}), output.get("metadata", {})
            if output.output_type == "error":
                found.append(f"cell {number} ends in {output.ename}")
            if WIDGET_VIEW in data:
                found.append(f"cell {number} holds a widget view")
            alt = metadata.get("image/png", {}).get("alt", "").strip()
            if "image/png" in data and not (alt and data.get("text/plain")):
                found.append(f"cell {number} has a picture without words")
    return found


async def rendered(path: Path, keep_measured: bool = False, alone: bool = True) -> bool:
    """Execute one notebook and write it; True where the file changed."""
    former = read(path)
    fresh = clean(await executed(former, path.parent, alone), former if keep_measured else None)
    text = nbformat.writes(fresh) + "\n"
    changed = text != path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8", newline="\n")
    return changed


async def checked(path: Path, alone: bool = True) -> list[str]:
    """What is wrong with a committed notebook: flaws, and words that a new run does not give."""
    committed = read(path)
    fresh = clean(await executed(committed, path.parent, alone))
    return flaws(committed) + differences(committed, fresh)


execute, render, check = run_sync(executed), run_sync(rendered), run_sync(checked)


def main(argv: list[str] | None = None) -> int:
    """Render or check these notebooks, or all; 1 where one fails, a check finds something, or a
    file cannot be written."""
    parser = argparse.ArgumentParser("python -m g2c_serving render", description=__doc__)
    parser.add_argument("notebooks", nargs="*", help="paths, or starts of names such as 01")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--keep-measured", action="store_true", help="keep outputs of such cells")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="kernels at the same time, for --check "
        "(1: one after another, as the measured cells want it)",
    )  # fmt: skip
    choice = parser.parse_args(argv)
    if choice.jobs < 1:
        parser.error(f"--jobs {choice.jobs}: at least one kernel has to run")
    paths, start = chosen(choice.notebooks, parser), time.monotonic()
    locked = [] if choice.check else [path for path in paths if not os.access(path, os.W_OK)]
    if locked:
        print(
            f"{locked[0]} cannot be written to, and render writes there. Copy the folder to a "
            "place of your own and render the copy, or compare with --check, which writes nothing.",
            file=sys.stderr,
        )
        return 1
    bad = sum(stoppable(_all(paths, choice)))
    how = "one after another" if choice.jobs == 1 else f"{choice.jobs} at a time"
    print(
        f"{len(paths)} notebook{'s' * (len(paths) != 1)} in {time.monotonic() - start:.0f} s, "
        f"{how}: {f'{bad} failed' if bad else 'all well'}"
    )
    return int(bad > 0)


async def _all(paths: list[Path], choice: argparse.Namespace) -> list[bool]:
    """Which of the notebooks failed. Several at a time begin with the last: later pages take longer
    as a rule, and a long one that begins last would run on alone."""
    turns = asyncio.Semaphore(choice.jobs)

    async def one(path: Path) -> bool:
        async with turns:
            return await _one(path, choice)

    async with asyncio.TaskGroup() as group:
        order = paths if choice.jobs == 1 else list(reversed(paths))
        jobs = [group.create_task(one(path)) for path in order]
    return [job.result() for job in jobs]


async def _one(path: Path, choice: argparse.Namespace) -> bool:
    """Render or check one notebook and say how it went; True where the check found something, or it
    failed for whatever reason: the others go on."""
    found: list[str] = []
    alone, failed = choice.jobs == 1, False
    try:
        if choice.check:
            found = await checked(path, alone)
            said = "differs" if found else "as committed"
        else:
            said = "written" if await rendered(path, choice.keep_measured, alone) else "unchanged"
    except Exception as error:
        failed, (said, found) = True, failure(error)
    print(f"{path.name}: {said}", *found, sep="\n  ", flush=True)
    return failed or bool(found)


def chosen(names: list[str], parser: argparse.ArgumentParser) -> list[Path]:
    """The notebooks that were asked for: files, or all whose name starts so."""
    every = sorted(NOTEBOOKS.glob("*.ipynb"))
    paths: list[Path] = []
    for name in names:
        found = [Path(name)] if Path(name).is_file() else []
        found = found or [path for path in every if path.name.startswith(name)]
        if not found:
            parser.error(f"no notebook {name!r}; there are {', '.join(p.stem for p in every)}")
        paths += found
    return paths or every
