"""The house: which room imports which, and how large its pieces are.

Read from the source, so that an import inside a function counts too; one for type checkers alone
does not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from g2c_serving.paths import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "g2c_serving").rglob("*.py")
}
ROOMS = {"process", "forward", "sample", "schedule", "cluster", "train", "lab"}
BELOW = {  # what a room may import, besides itself and the engine's own files
    "process": set(),
    "forward": {"process"},
    "sample": {"process"},
    "schedule": {"forward"},
    "cluster": {"schedule", "sample"},
    "train": {"forward", "process"},
    "engine": {"process", "forward", "sample", "schedule"},
    "lab": ROOMS,
}
ENGINE = {"g2c_serving", "g2c_serving.__main__"}  # these two tie all together
ABOVE = {"engine", "loop", "launches", "sampling", "speculating", "async_engine", "backend"}


def imports(node: ast.AST) -> Iterator[str]:
    """The modules of ours that a piece of code imports when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in FILES)
        elif isinstance(child, ast.ImportFrom) and child.module in FILES:
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield inner if inner in FILES else child.module
        else:
            yield from imports(child)


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
GRAPH = {name: set(imports(tree)) for name, tree in TREES.items()}


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "engine"


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as err:
        pytest.fail(f"a circle of imports: {' -> '.join(err.args[1])}")


def test_lower_rooms_import_none_above():
    up = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        if name not in ENGINE
        for other in others
        if room(other) not in BELOW[room(name)] | {room(name), "engine"}
    ]
    assert not up


def test_the_four_phases_do_not_know_the_engine():
    """Of the engine's own files they may use the small ones: requests, checks, the device."""
    up = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        if room(name) in {"process", "forward", "sample", "schedule"}
        for other in others
        if other.removeprefix("g2c_serving.") in ABOVE
    ]
    assert not up


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_says_what_it_is_and_is_read_in_one_sitting(name: str):
    lines = FILES[name].read_text(encoding="utf-8").splitlines()
    assert ast.get_docstring(TREES[name]), "its first lines say what it is"
    assert len(lines) <= 260, "two things? make them two files"


def test_functions_stay_short():
    """Docstrings aside."""
    long = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                said = ast.get_docstring(node) is not None
                docs = (first.end_lineno or 0) - first.lineno + 1 if said else 0
                if (node.end_lineno or 0) - node.lineno + 1 - docs > 45:
                    long.append(f"{name}.{node.name}")
    assert not long


def _run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("command", [("check", "."), ("format", "--check", ".")])
def test_lint(command: tuple[str, ...]):
    _run("ruff", *command, "--no-cache")


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_types(tmp_path: Path):
    _run("mypy", "--cache-dir", str(tmp_path))
