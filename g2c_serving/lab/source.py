"""Show the source of the function that matters, in the notebook, as it stands in the file."""

from __future__ import annotations

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

    Raises TypeError for what has no source, a number for example.
    """
    code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    file = Path(inspect.getsourcefile(thing) or "").resolve()
    inside = file.is_relative_to(ROOT)
    return Source(file.relative_to(ROOT).as_posix() if inside else file.name, code)
