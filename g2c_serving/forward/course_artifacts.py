"""An artifact folder of the parent course, read without the course.

    artifacts/models/<name>/          config.json, manifest.json, model.pt
    artifacts/tokenizers/<name>/      tokenizer.json; manifest.json says which

The models that we ship have the same layout under `data/`, with `model.safetensors`. A model may be
trained on the first ids of a larger tokenizer: it is cut to the model's vocabulary. The weights are
copied into memory of our own, as float32. An artifact of the course's BaseLM holds a Hugging Face
model instead: `hf_model/` and `hf_tokenizer/`.
"""

from __future__ import annotations

import dataclasses
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from g2c_serving.forward import hugging_face
from g2c_serving.forward.checkpoint_files import is_file_name, read_json
from g2c_serving.forward.language_model import (
    LanguageModel,
    checked,
    confidence_shapes,
    end_of_text,
    param_shapes,
)
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.paths import DATA
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer
from g2c_serving.process.tokenizer import Tokenizer

BASE_LM = "huggingface_causal_lm"  # the manifest's `kind` of a BaseLM


def load_folder(folder: Path) -> LanguageModel:
    """The model of an artifact folder. FileNotFoundError or ValueError name the file and the
    remedy."""
    manifest = _read_json(folder, "manifest.json")
    content = _read_json(folder, "config.json")
    vocab_size: Any = content.get("vocab_size", manifest.get("vocab_size"))
    try:
        config = ModelConfig(vocab_size=vocab_size, **content["model_config"])
        if other := config.other_than_gpt:
            raise ValueError(f"model_config has {other}, which is not the shape of the course's")
    except (KeyError, TypeError, ValueError) as err:
        raise ValueError(
            f"{folder / 'config.json'} is damaged ({err!r}); {_remedy(folder)}"
        ) from err
    weights = _read_weights(folder, config)
    tokenizer = _load_tokenizer(folder, manifest, config.vocab_size)
    eos_id = end_of_text(tokenizer, is_chat_model(folder.name, manifest))
    return LanguageModel(folder.name, config, weights, tokenizer, eos_id)


def is_base_lm(folder: Path) -> bool:
    """Whether this is an artifact of the course's BaseLM, as its manifest says."""
    if not (folder / "manifest.json").is_file():
        return False
    return _read_json(folder, "manifest.json").get("kind") == BASE_LM


def load_base_lm(folder: Path) -> LanguageModel:
    """The Hugging Face model of a BaseLM artifact, where the artifact holds one; else
    FileNotFoundError with the remedy."""
    inner, words = folder / "hf_model", folder / "hf_tokenizer"
    if not inner.is_dir():
        named = _read_json(folder, "manifest.json").get("source")
        raise FileNotFoundError(
            f"{folder} is a BaseLM without its weights: hf_model/ is missing (manifest.json names "
            f"{named!r}). Write them there: model.inner.save_pretrained(r'{inner}')"
        )
    tokenizer = None
    if words.is_dir():
        vocab_size = _read_json(inner, "config.json").get("vocab_size")
        tokenizer = HuggingFaceTokenizer.load(words, vocab_size)
    return dataclasses.replace(hugging_face.load_folder(inner, tokenizer), name=folder.name)


def is_chat_model(name: str, manifest: Mapping[str, Any]) -> bool:
    """Whether it was trained further, on chats: the course names a stage, and the base artifact."""
    return any(stage in name for stage in ("-SFT", "-DPO")) or "base_artifact" in manifest


def _remedy(folder: Path) -> str:
    if folder.parent == DATA / "models":
        return (
            f"`git checkout -- data/models/{folder.name}` brings it back, "
            f"`python -m g2c_serving train {folder.name}` trains it anew"
        )
    return "save the artifact again, or copy the whole folder again"


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name, _remedy(folder))


def _load_tokenizer(folder: Path, manifest: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer that the manifest names, cut to the model's vocabulary."""
    name, says = manifest.get("tokenizer_artifact"), folder / "manifest.json"
    if not isinstance(name, str) or not is_file_name(name):
        raise ValueError(
            f"{says} names no tokenizer_artifact: found {name!r}, expected the name of a folder "
            f"in tokenizers/; {_remedy(folder)}"
        )
    homes = [place.parent.parent / "tokenizers" for place in (folder, folder.resolve())]
    paths = [home / name / "tokenizer.json" for home in homes]
    path = next((path for path in paths if path.is_file()), paths[0])
    if not path.is_file():
        there = sorted(p.parent.name for p in homes[0].glob("*/tokenizer.json"))
        raise FileNotFoundError(
            f"{path} is missing: {says} names the tokenizer {name!r}, and {homes[0]} has {there}. "
            f"Copy the course's artifacts/tokenizers/{name} there, beside models/"
        )
    try:
        return Tokenizer.load(path, vocab_size=vocab_size)
    except ValueError as err:
        raise ValueError(f"{folder.name}: {err} (tokenizer_artifact {name!r} of {says})") from err


def _read_weights(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    if not path.is_file():
        path = folder / "model.pt"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder / 'model.safetensors'} is missing, and so is model.pt; {_remedy(folder)}"
        )
    shapes = dict(param_shapes(config))
    try:
        if path.suffix == ".pt":
            return checked(_read_params(path, config, list(shapes)), shapes)
        tensors = safetensors.torch.load_file(path)
        return checked(tensors, shapes | dict(confidence_shapes(config, tensors)))
    except Exception as err:  # a damaged file fails in as many ways as it can be damaged
        raise ValueError(f"{path} is damaged ({err}); {_remedy(folder)}") from err


def _read_params(path: Path, config: ModelConfig, names: list[str]) -> dict[str, torch.Tensor]:
    """The course's list of tensors, under their names. Nothing but tensors and numbers is read, so
    a file from somewhere else cannot run code here."""
    try:
        mapped = zipfile.is_zipfile(path)  # then only our copy takes memory
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise ValueError("it is not torch.save's file of tensors, numbers and dicts") from None
    if not isinstance(content, dict) or not isinstance(content.get("params"), list):
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"it has no list `params` beside its sizes: found {found}")
    for size, value in content.get("model_config", {}).items():
        if (ours := getattr(config, size, value)) != value:
            raise ValueError(f"it was saved with {size}={value}, config.json says {ours}")
    if len(content["params"]) != len(names):
        raise ValueError(
            f"`params` has {len(content['params'])} tensors, {config.num_layers} layers ask for "
            f"{len(names)}"
        )
    return dict(zip(names, content["params"], strict=True))
