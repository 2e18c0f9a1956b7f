"""The safetensors files of a Hugging Face folder, memory-mapped: model.safetensors, or shards with
an index.

Opening a folder reads the files' headers alone: names, shapes and dtypes of all tensors. A tensor
is mapped when it is asked for and unmapped when nobody holds it any more, so loading never needs
more memory than the tensors that are in use. What is held is mapped still: while it is, do not
write over its file (a new file in its place does no harm).

Left out: pytorch_model.bin, which is pickled Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from g2c_serving.json_files import read_object

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {  # in which numbers may lie in a file
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
AGAIN = "copy the whole folder again"


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies, its shape, and its type as the file calls it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def read(self) -> torch.Tensor:
        """The tensor, mapped. It may be written to: that changes the copy in memory alone."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                return file.get_tensor(self.name)
        except Exception as err:  # the file was changed since
            raise ValueError(f"{self.path} cannot be read any more ({err}); load it again") from err


def read_json(path: Path, remedy: str = AGAIN) -> dict[str, Any]:
    """The object in a JSON file. FileNotFoundError or ValueError name it and the remedy."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {remedy}")
    try:
        return read_object(path)
    except ValueError as err:
        raise ValueError(f"{path} is damaged ({err}); {remedy}") from err


def is_file_name(name: object) -> bool:
    """Whether it is the name of something in a folder, on every system: no path to elsewhere.
    Windows drops blanks and dots at a name's end."""
    if not isinstance(name, str) or not name or name != name.rstrip(" ."):
        return False
    if not name.isprintable() or set(name) & set("/\\:"):  # so no lone surrogate either
        return False
    return len(name.encode()) <= 255


def find_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder, by their names in it.

    FileNotFoundError where there are no such files or a shard is missing, ValueError for a file
    that is damaged or does not hold what the index says.
    """
    if (folder / WHOLE).is_file():
        return _open(folder / WHOLE)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(_no_weights(folder))
    shard_of = _read_index(folder)
    shards = sorted(set(shard_of.values()))
    if missing := [name for name in shards if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"{folder} lacks {len(missing)} of the {len(shards)} shards that {INDEX} names: "
            f"{missing}; copy those files again"
        )
    stored = {name: _open(folder / name) for name in shards}
    for tensor, shard in shard_of.items():
        if tensor not in stored[shard]:
            raise ValueError(f"{folder / shard} has no {tensor}, which {INDEX} says is in it; "
                             f"{AGAIN}")  # fmt: skip
    return {tensor: stored[shard][tensor] for tensor, shard in shard_of.items()}


def _read_index(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    shard_of = read_json(folder / INDEX).get("weight_map")
    named = shard_of.items() if isinstance(shard_of, dict) else ()
    if not named or not all(is_file_name(file) for _, file in named):
        raise ValueError(
            f"{folder / INDEX} is damaged: expected a weight_map from tensors to files beside it; "
            f"{AGAIN}"
        )
    return dict(named)


def _open(path: Path) -> dict[str, Stored]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Stored(path, name, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except Exception as err:  # a damaged file fails in as many ways as it can be damaged
        size = path.stat().st_size
        raise ValueError(f"{path}, of {size:,} bytes, is damaged ({err}); {AGAIN}") from err


def _no_weights(folder: Path) -> str:
    there = sorted(path.name for path in folder.glob("*.bin"))
    if there:
        return (
            f"{folder} has {there}, expected {WHOLE}: load it with transformers and write it "
            "again by model.save_pretrained(folder)"
        )
    found = sorted(path.name for path in folder.iterdir())[:8]
    return f"{folder} has neither {WHOLE} nor {INDEX}; found {found}. {AGAIN.capitalize()}"
