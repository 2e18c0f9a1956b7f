"""The file of a tokenizer, in the parent course's format `g2c.bpe`: reserved names and merges.

Left out: the course's manifest and its corpus of ids, which lie beside the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from g2c_serving.json_files import read_json
from g2c_serving.paths import DATA

SHIPPED = (
    "The shipped files come back with `git checkout -- data`; "
    "`python -m g2c_serving train tokenizer` makes the tokenizer anew"
)


def remedy(path: Path) -> str:
    """What to do about a file that is not as it should be."""
    if DATA in path.absolute().parents:
        return SHIPPED
    return "Copy the folder of that tokenizer again, or save it again from the course"


def read(path: Path) -> tuple[list[str], list[list[int]]]:
    """The names of the reserved tokens, and the merges, still unchecked."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer file {path}. {remedy(path)}")
    try:
        content = read_json(path)
    except ValueError as err:
        raise ValueError(f"{path} is damaged: not JSON ({err}). {remedy(path)}") from err
    if not isinstance(content, dict) or content.get("format") != "g2c.bpe":
        raise ValueError(f'{path} is not a tokenizer file: format is not "g2c.bpe". {remedy(path)}')
    if content.get("version") not in (1, 2):
        raise ValueError(f"{path} has version {content.get('version')!r}; we read 1 and 2")
    names, merges = content.get("special_tokens", []), content.get("merges")
    if not (isinstance(merges, list) and isinstance(names, list)) or not all(
        isinstance(name, str) for name in names
    ):
        raise ValueError(f"{path} is damaged: special_tokens or merges are missing. {remedy(path)}")
    return names, merges


def cut(merges: list[list[int]], vocab_size: int, base: int, path: Path) -> list[list[int]]:
    """As many merges as make `vocab_size` ids. ValueError where that does not fit."""
    if not base <= vocab_size <= base + len(merges):
        raise ValueError(
            f"vocab_size {vocab_size} does not fit {path}: it holds {base} to {base + len(merges)}"
        )
    return merges[: vocab_size - base]


def write(path: Path, special_tokens: Sequence[str], merges: Sequence[Sequence[int]]) -> None:
    """Version 2 of the format, a merge a line. Folders are made where they lack."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(list(merge)) for merge in merges)
    names = json.dumps(list(special_tokens))
    head = f'{{"format": "g2c.bpe", "version": 2,\n"special_tokens": {names},\n'
    path.write_text(f'{head}"merges": [\n{lines}\n]}}\n', encoding="utf-8", newline="\n")
