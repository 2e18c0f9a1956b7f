"""`load`: a shipped model, a folder of the parent course or of Hugging Face, or a live model.

What each is made of: `course_artifacts.py`, `hugging_face.py` and `live_models.py`.
"""

from __future__ import annotations

import difflib
import errno
import os
from pathlib import Path
from typing import Any

from g2c_serving.forward import course_artifacts, hugging_face, live_models
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.paths import DATA

DESCRIBE = "config.json", "manifest.json"
EXPECTED = (
    "expected a folder with config.json, manifest.json and model.pt, as the course saves it, or "
    "with config.json and model.safetensors, as transformers does"
)


def load(source: Any = "tiny", tokenizer: Any = None) -> LanguageModel:
    """A language model ready to serve.

    source     a shipped model's name, the path of an artifact or Hugging Face folder, or a live
               model: a `TransformerLM`, or transformers' GPT-2, Llama, Mistral or Qwen2
    tokenizer  needed with a live model: its `BPETokenizer`, or one of ours; with transformers'
               models its fast tokenizer, or the folder of one

    Raises FileNotFoundError or ValueError that name the file and the remedy, TypeError for a model
    of another kind.
    """
    if isinstance(source, LanguageModel):
        return source
    if isinstance(source, str | Path):
        if tokenizer is not None:
            raise ValueError("tokenizer is for live models: an artifact folder names its own")
        folder = _find_folder(source)
        if course_artifacts.is_base_lm(folder):
            return course_artifacts.load_base_lm(folder)
        if hugging_face.is_hugging_face(folder):
            return hugging_face.load_folder(folder)
        return course_artifacts.load_folder(folder)
    return live_models.load_live(source, tokenizer)


def _find_folder(source: str | Path) -> Path:
    """The folder under that path, or else the shipped model of that name."""
    given, shipped = Path(os.path.abspath(Path(source).expanduser())), DATA / "models"
    _check_path(given)
    for folder in (given, shipped / source):
        if str(source) and any((folder / name).is_file() for name in DESCRIBE):
            return folder
    if not str(source) or not given.exists():
        raise FileNotFoundError(_nothing_there(source, given))
    if given.is_file():
        raise NotADirectoryError(
            f"{given} is a file; {EXPECTED}: pass the folder that it lies in, {given.parent}"
        )
    raise FileNotFoundError(_not_a_model(given))


def _check_path(given: Path) -> None:
    """FileNotFoundError for what no system can look up. `is_file` and `exists` raise there."""
    try:
        os.stat(given)
    except OSError as err:
        if err.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(f"no model {given.name!r:.80}: no path is so long") from None
    except ValueError:
        pass  # a zero byte, say: there is no such folder


def _nothing_there(source: str | Path, given: Path) -> str:
    """A name without a folder: what there is instead."""
    there = _models_in(DATA / "models")
    said = (
        f"no model {str(source)!r}: neither a folder with a config.json nor one of the shipped "
        f"models {there}. "
    )
    beside = _models_in(given.parent) if str(source) else []
    if beside:
        like = difflib.get_close_matches(given.name, beside, 1, 0.5)
        said += f"{given.parent} has {beside}. " + (f"Did you mean {like[0]!r}? " if like else "")
    elif missing := [p for p in (*reversed(given.parents), given) if not p.exists()]:
        said += f"{missing[0]} does not exist. "
    return said + (
        "`git checkout -- data` brings the shipped ones back, "
        "`python -m g2c_serving train tiny` trains tiny anew"
    )


def _not_a_model(given: Path) -> str:
    """A folder that is none: whether it is one above."""
    for above in (given, given / "models", given / "artifacts" / "models"):
        if names := _models_in(above):
            return (
                f"{given} holds models, {EXPECTED}: pass one of {[str(above / n) for n in names]}"
            )
    found = sorted(p.name for p in given.iterdir())[:8]
    return f"{given} has no config.json; found {found}, {EXPECTED}. Save the artifact again"


def _models_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/config.json"))
