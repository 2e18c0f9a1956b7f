"""`load`: a shipped model, an artifact folder of the parent course, or a live course model.

What each is made of: `course_artifacts.py`.

Left out: Hugging Face checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from g2c_serving.forward import course_artifacts
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.paths import DATA

__all__ = ["LanguageModel", "load"]


def load(source: Any = "tiny", tokenizer: Any = None) -> LanguageModel:
    """A language model ready to serve.

    source     a shipped model's name, an artifact folder's path, or a live `TransformerLM`
    tokenizer  needed with a live model: its `BPETokenizer`, or one of ours

    Raises FileNotFoundError or ValueError that name the file and the remedy, TypeError for a model
    of another kind.
    """
    if isinstance(source, LanguageModel):
        return source
    if isinstance(source, str | Path):
        if tokenizer is not None:
            raise ValueError("tokenizer is for live models: an artifact folder names its own")
        return course_artifacts.load_folder(_find_folder(source))
    return course_artifacts.load_live(source, tokenizer)


def _find_folder(source: str | Path) -> Path:
    shipped = DATA / "models"
    for folder in (Path(source), shipped / source):
        if (folder / "config.json").is_file():
            return folder
    names = sorted(p.parent.name for p in shipped.glob("*/config.json"))
    raise FileNotFoundError(
        f"no model {str(source)!r}: neither a folder with a config.json nor one of the shipped "
        f"models {names}. `git checkout -- data` brings the shipped ones back, "
        "`python -m g2c_serving train tiny` trains tiny anew"
    )
