"""Show the source of the function that matters, in the notebook, as it stands in the file."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

from g2c_serving.paths import ROOT


class Source:
    """Code with its file's name: highlighted where a page shows Markdown, plain elsewhere."""

    def __init__(self, where: str, code: str) -> None:
        self.where, self.code = where, code

    def __repr__(self) -> str:
        return f"# {self.where}\n{self.code}"

    def _repr_markdown_(self) -> str:
        return f"From `{self.where}`:\n\n```python\n{self.code}\n```"


def show_source(thing: Any) -> Source:
    """The source of a function, method or class. End a cell with it.

    It is read from the file each time: what a kernel runs is what the file said when it was
    imported. Raises TypeError for what has no source, a number for example.
    """
    thing = inspect.unwrap(thing)
    file = Path(inspect.getsourcefile(thing) or "").resolve()
    local = "<locals>" in thing.__qualname__
    found = inspect.getsource(thing) if local else _definition(file, thing.__qualname__)
    code = textwrap.dedent(found).rstrip()
    inside = file.is_relative_to(ROOT)
    return Source(file.relative_to(ROOT).as_posix() if inside else file.name, code)


def _definition(file: Path, qualname: str) -> str:
    """The lines of a definition, found by its name: line numbers of code that was imported before
    the file was changed would point at something else."""
    text = file.read_text(encoding="utf-8")
    found: ast.AST = ast.parse(text)
    for name in qualname.split("."):
        inside = ast.iter_child_nodes(found)
        found = next(node for node in inside if getattr(node, "name", None) == name)
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : found.end_lineno])
