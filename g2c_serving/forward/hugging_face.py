"""A Hugging Face folder of GPT-2 or Llama shape, as a model of ours: config.json, safetensors, a
tokenizer.

    gpt2             layer norm, learned positions, GELU by tanh, biases everywhere, a tied head
    llama, mistral   RMS norm, rotary positions, shared key heads, a gated SiLU, no biases
    qwen2            the same with biases on q, k and v

`hugging_face_config.py` reads the config, `hugging_face_weights.py` finds the tensors. Left out:
chat templates, sampling defaults, and all other architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from g2c_serving.forward.checkpoint_files import read_json
from g2c_serving.forward.hugging_face_config import model_config
from g2c_serving.forward.hugging_face_weights import find_weights
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.json_files import read_object
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer, NoTokenizer
from g2c_serving.process.tokenizer import Tokenizer


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder is in this layout. A course artifact has a manifest.json, and no model_type
    in its config.json."""
    try:
        fields = read_object(folder / "config.json")
        return "model_type" in fields or "architectures" in fields
    except (OSError, ValueError):
        pass
    return any(folder.glob("*.safetensors*")) and not (folder / "manifest.json").is_file()


def load_folder(folder: Path, tokenizer: Tokenizer | None = None) -> LanguageModel:
    """The model of a folder, with its own tokenizer unless one is given.

    FileNotFoundError for what is missing, ValueError for what is damaged, does not fit together or
    is not served: each names the file, what was found, what was expected and the remedy.
    """
    path = folder / "config.json"
    config, fields = model_config(path, read_json(path))
    weights = find_weights(folder, config, fields)
    if tokenizer is None:
        kind = HuggingFaceTokenizer.load if HuggingFaceTokenizer.holds(folder) else NoTokenizer
        tokenizer = kind(folder, config.vocab_size)
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    ends = end_ids(folder, fields, generation.get("eos_token_id"), config.vocab_size)
    return LanguageModel(folder.name, config, weights, tokenizer, *ends)


def end_ids(
    folder: Path, fields: Mapping[str, Any], generation: Any, vocab_size: int
) -> tuple[int | None, tuple[int, ...]]:
    """The ids that end a text, the first and the others, by what generation says or else the
    config: an id, several, or nothing; ValueError for something else, with which no text would
    end. Those that the model does not have never come."""
    found = fields.get("eos_token_id") if generation is None else generation
    several = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int for i in several):
        raise ValueError(
            f"{folder} has eos_token_id={found!r} in its generation_config.json or config.json, "
            "expected an id, a list of ids or null: copy the two files again"
        )
    ends = [i for i in several if 0 <= i < vocab_size]
    return (ends[0] if ends else None), tuple(ends[1:])
