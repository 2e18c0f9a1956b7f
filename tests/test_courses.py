"""Faults that courses of this kind are reported for: what rots, what runs on one machine alone,
what is marked wrong although it is right, what is empty where no kernel runs.

Right values: the files of this project, the package's own exercises answered in other ways.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from notebook_session import read
from packaging.requirements import Requirement
from packaging.version import Version

import g2c_serving as g
from g2c_serving.lab import exercises, render
from g2c_serving.lab.exercises import EXERCISES, check
from g2c_serving.lab.panel import Panel
from g2c_serving.paths import NOTEBOOKS, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
WANTED = [Requirement(line) for line in LINES if line and line[0] not in "#-"]
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def no_misses():
    exercises._misses.clear()


# what rots


def pins(text: str) -> list[str]:
    """Requirements that one version alone fulfils."""
    return re.findall(r"[\w.\[\]-]+\s*(?:===?|~=)\s*[\d.*]+", text)


def test_no_requirement_is_a_pin():
    """d2l 2659, 2546, 2250: versions that were pinned have no wheel for the Python of a later year,
    or for that of a hosted notebook. Each has a lowest version, and a range."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert pins("\n".join(LINES)) == pins(project) == []
    assert pins("torch==2.6.0\na~=1.0") == ["torch==2.6.0", "a~=1.0"]  # it sees them
    assert len(WANTED) >= 15
    for wanted in WANTED:
        signs = {one.operator for one in wanted.specifier}
        assert ">=" in signs and signs <= {">=", "<"}, wanted


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_a_range_holds_what_is_installed_and_more(wanted):
    """d2l 2659: between both ends there is room, and the tests run within it: now with the versions
    that are installed here, and before a range changes with those at its ends."""
    assert wanted.specifier.contains(version(wanted.name), prereleases=True)
    (low,) = [Version(one.version) for one in wanted.specifier if one.operator == ">="]
    for high in (Version(one.version) for one in wanted.specifier if one.operator == "<"):
        assert (high.major, high.minor) > (low.major, low.minor)


def test_the_python_of_the_readme_is_the_packages():
    """d2l 2546: a newer Python than was tested is said to be so, and an older one is refused."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.11"' in project
    assert "You need Python 3.11, 3.12 or 3.13" in README and "Newer than 3.13 is not" in README
    assert sys.version_info >= (3, 11)


# whose machine


def test_the_first_screen_says_where_it_runs():
    """nano-vllm 135, 45, 139: "does it run on my CPU, on my Mac, on Windows?" were questions. Here
    the text before the first heading answers them."""
    first = README.split("\n## ")[0]
    assert len(first.splitlines()) < 30 and len(first) < 3000
    for words in ("It runs on your CPU", "macOS", "Windows", "Linux is tested", "GB of disk"):
        assert words in first, words


def test_it_runs_on_a_cpu_unless_told_otherwise(monkeypatch):
    """nano-vllm 135, 139: nothing asks for a GPU, where there is one and where there is none."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    engine = g.Engine(g.load("tiny"))
    (output,) = engine.generate(["Once upon a time"], g.SamplingParams(max_tokens=4, seed=1))
    assert engine.config.device == "cpu" and len(output.token_ids) == 4


# what is right in other words

VALUES = [name for name, asked in EXERCISES.items() if not asked.cases and not asked.judge]
FUNCTIONS = [name for name, asked in EXERCISES.items() if asked.cases and not asked.judge]


def written(value: Any) -> list[Any]:
    """The same answer as others write it."""
    if isinstance(value, str):
        return [value, value.upper(), f"  {value}.\n"]
    if isinstance(value, list | tuple):
        return [list(value), tuple(value), np.array(value)]
    number = float(value)
    return [number, np.float64(number), f" {number!r} ", f"{number:.12g}", np.array(number)]


@pytest.mark.parametrize("name", VALUES)
def test_a_right_value_is_right_however_it_is_written(name):
    """tiny-llm 292, 69: solutions that were right failed tests of one form."""
    for answer in written(EXERCISES[name].right()):
        assert check(name, answer), (name, answer)


class Called:
    """A function that is an object."""

    def __init__(self, function) -> None:
        self.function = function

    def __call__(self, *args):
        return self.function(*args)


def with_state(function):
    """A function that works things out step by step, and keeps what it has seen."""
    seen = {}

    def answer(*args, **names):
        key = repr(args)
        if key not in seen:
            seen[key] = function(*args, **names)
        return seen[key]

    return answer


def as_arrays(function):
    """A function of somebody who computes with numpy."""

    def answer(*args):
        found = function(*args)
        if isinstance(found, list | tuple) and not any(isinstance(one, str) for one in found):
            return np.array(found)
        return np.float64(found) if type(found) in (int, float) else found

    return answer


def as_tuples(function):
    def answer(*args):
        found = function(*args)
        return tuple(found) if isinstance(found, list) else found

    return answer


@pytest.mark.parametrize("how", [Called, functools.partial, with_state, as_arrays, as_tuples])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_right_function_is_right_however_it_is_made(name, how):
    """tiny-llm 292, 69: only what comes out counts, for each of the cases; neither the function's
    name, its kind, nor the type of its numbers. What comes out wrong once is wrong."""
    right = EXERCISES[name].right()
    assert check(name, how(right)), check(name, how(right)).text
    calls = []

    def wrong_at_last(*args):
        calls.append(args)
        found = right(*args)
        return found if len(calls) < len(EXERCISES[name].cases) else other(found)

    assert check(name, wrong_at_last).right is False


def other(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*value, value[-1] if value else 1]
    return not value if isinstance(value, bool) else value + 10**6


def test_there_are_exercises_of_both_kinds():
    """tiny-llm 292."""
    assert len(VALUES) > 20 and len(FUNCTIONS) > 5


# where no kernel runs


def is_panel(made: object) -> bool:
    if inspect.isclass(made):
        return issubclass(made, Panel)
    return "Panel" in str(getattr(made, "__annotations__", {}).get("return", ""))


def names_of(tree: ast.AST) -> dict[str, Any]:
    """What the cells import from the package."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("g2c_serving"):
            module = importlib.import_module(str(node.module))
            for one in node.names:
                name = f"{node.module}.{one.name}"
                known = getattr(module, one.name, None) or importlib.import_module(name)
                found[one.asname or one.name] = known
    return found


def panels_in(source: str, names: dict[str, Any]) -> int:
    """How many controls with a picture a cell makes."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made = [names.get(f.id) for f in calls if isinstance(f, ast.Name)]
    made += [
        getattr(names.get(f.value.id), f.attr, None)
        for f in calls
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name)
    ]
    return sum(map(is_panel, made))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_still_picture_stands_beside_each_control(path):
    """ipywidgets 2126, 2063, 987: on a page that is only read, on GitHub, in an export, a control
    is a blank. In each notebook as committed, each cell that makes a panel has its picture, with
    words, and no cell has a control alone."""
    names, count = {}, 0
    for cell in render.code_cells(read(path)):
        names |= names_of(ast.parse(cell.source))
        wanted = panels_in(cell.source, names)
        pictures = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(pictures) >= wanted, f"{cell.id}: {wanted} panels, {len(pictures)} pictures"
        assert all(o.metadata["image/png"]["alt"] for o in pictures), cell.id
        assert not any(render.WIDGET_VIEW in o.get("data", {}) for o in cell.outputs), cell.id
        count += wanted
    assert count >= 2 or path.stem[:2] in ("00", "10")  # a first look; the museum


def test_a_panel_shows_its_picture_where_its_controls_cannot_be():
    """ipywidgets 2063: what a panel hands to a page has the picture beside the controls."""
    from g2c_serving.lab import memory

    data, metadata = memory.panel()._repr_mimebundle_()
    assert {"image/png", "text/plain", render.WIDGET_VIEW} <= set(data)
    assert metadata["image/png"]["alt"] == data["text/plain"]
