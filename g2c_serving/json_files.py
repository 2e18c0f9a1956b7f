"""Text and JSON files that somebody else may have written: read within a stated size.

A JSON file of 64 MB is twice the largest tokenizer that is known, and takes up to a GB while it is
read. Left out: what the content means, which whoever reads it checks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """The text of a file. ValueError where it is too large or no UTF-8, OSError where there is
    none: a pipe, which one might wait at for ever, is no file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes; at most {MOST_BYTES:,} are read")
        return file.read(size).decode("utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds. ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """The same, of a file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, expected an object")
    return content
