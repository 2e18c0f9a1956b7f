"""Models of the parent course: an artifact folder, and a live `TransformerLM`.

`models/<name>/` holds config.json, manifest.json and the weights (`model.safetensors` for the
models that we ship, `model.pt` in the course), and the manifest names its tokenizer in
`tokenizers/<name>/tokenizer.json` beside `models/`. The weights are copied into memory of our own,
as float32. Nothing of the course is imported: a live model is read by its attributes.
"""

from __future__ import annotations

import dataclasses
import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from g2c_serving.forward.language_model import LanguageModel, confidence_shapes, param_shapes
from g2c_serving.forward.model import ModelConfig
from g2c_serving.paths import DATA
from g2c_serving.process.tokenizer import Tokenizer


def load_folder(folder: Path) -> LanguageModel:
    manifest = _read_json(folder, "manifest.json")
    if manifest.get("kind") == "huggingface_causal_lm":
        raise TypeError(f"{folder} holds a Hugging Face model; only the GPT shape of g2c is served")
    content = _read_json(folder, "config.json")
    vocab_size: Any = content.get("vocab_size", manifest.get("vocab_size"))
    try:
        config = ModelConfig(vocab_size=vocab_size, **content["model_config"])
    except (KeyError, TypeError, ValueError) as err:
        raise ValueError(
            f"{folder / 'config.json'} is damaged ({err!r}); {_remedy(folder)}"
        ) from err
    weights = _read_weights(folder, config)
    tokenizer = _load_tokenizer(folder, manifest, config.vocab_size)
    chats = any(stage in folder.name for stage in ("-SFT", "-DPO"))
    return LanguageModel(folder.name, config, weights, tokenizer, _eos_id(tokenizer, chats))


def load_live(model: Any, tokenizer: Any) -> LanguageModel:
    if not (hasattr(model, "blocks") and hasattr(model, "token_embed")):
        raise TypeError(
            f"cannot serve a {type(model).__name__}: it has no `blocks` and `token_embed`. "
            "Pass a model name, an artifact folder, or the course's TransformerLM"
        )
    if tokenizer is None:
        raise ValueError("a live model needs its tokenizer: load(model, tokenizer=...)")
    sizes = [f.name for f in dataclasses.fields(ModelConfig) if f.default is dataclasses.MISSING]
    config = ModelConfig(**{name: getattr(model, name) for name in sizes})
    shapes = dict(param_shapes(config))
    weights = _checked({name: _follow(model, name) for name in shapes}, shapes)
    ours = _adopt(tokenizer, config.vocab_size)
    return LanguageModel("live model", config, weights, ours, _eos_id(ours, False))


def _remedy(folder: Path) -> str:
    if folder.parent == DATA / "models":
        return (
            f"`git checkout -- data/models/{folder.name}` brings it back, "
            f"`python -m g2c_serving train {folder.name}` trains it anew"
        )
    return "save the artifact again, or copy the whole folder again"


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {_remedy(folder)}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except ValueError as err:
        raise ValueError(f"{path} is damaged ({err}); {_remedy(folder)}") from err
    return content


def _load_tokenizer(folder: Path, manifest: dict[str, Any], vocab_size: int) -> Tokenizer:
    name = manifest.get("tokenizer_artifact")
    if not isinstance(name, str):
        raise ValueError(
            f"{folder / 'manifest.json'} names no tokenizer_artifact; {_remedy(folder)}"
        )
    path = folder.parent.parent / "tokenizers" / name / "tokenizer.json"
    return Tokenizer.load(path, vocab_size=vocab_size)


def _eos_id(tokenizer: Tokenizer, chats: bool) -> int | None:
    """Base models end a text with <|endoftext|>, chat models end a turn with <|end|>."""
    names = ("<|end|>", "<|endoftext|>") if chats else ("<|endoftext|>", "<|end|>")
    return next((tokenizer.reserved[n] for n in names if n in tokenizer.reserved), None)


def _read_weights(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    if not path.is_file():
        path = folder / "model.pt"
    if not path.is_file():
        raise FileNotFoundError(f"{folder / 'model.safetensors'} is missing; {_remedy(folder)}")
    shapes = dict(param_shapes(config))
    try:
        if path.suffix == ".pt":
            params = torch.load(path, map_location="cpu", weights_only=True)["params"]
            tensors = dict(zip(shapes, params, strict=True))
        else:
            tensors = safetensors.torch.load_file(path)
            shapes |= confidence_shapes(config, tensors)
        return _checked(tensors, shapes)
    except Exception as err:  # a damaged file fails in as many ways as it can be damaged
        raise ValueError(f"{path} is damaged ({err}); {_remedy(folder)}") from err


def _checked(
    tensors: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Our own float32 copies of the tensors, each of the shape that the config asks for."""
    if missing := shapes.keys() - tensors.keys():
        raise ValueError(f"tensor {min(missing)} is missing")
    if more := tensors.keys() - shapes.keys():
        raise ValueError(f"tensor {min(more)} is not one that the sizes ask for")
    for name, shape in shapes.items():
        if not tensors[name].is_floating_point() or not tensors[name].isfinite().all():
            raise ValueError(f"{name} does not hold finite floating-point numbers")
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    return {name: _copy(tensors[name]) for name in shapes}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Detached, float32, on the CPU, in aligned memory of its own."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def _adopt(tokenizer: Any, vocab_size: int) -> Tokenizer:
    """Our tokenizer with the merges of a course tokenizer (or of ours) that the model knows."""
    if isinstance(tokenizer, Tokenizer):
        special, merges = list(tokenizer.reserved), tokenizer.merges
    elif hasattr(tokenizer, "special_tokens") and hasattr(tokenizer, "merges"):
        special = list(tokenizer.special_tokens)
        merges = sorted(((*pair, new) for pair, new in tokenizer.merges.items()), key=itemgetter(2))
    else:
        raise TypeError(f"tokenizer is {tokenizer!r}: pass the course's BPETokenizer, or ours")
    count = vocab_size - 256 - len(special)
    if not 0 <= count <= len(merges):
        raise ValueError(
            f"the tokenizer has ids from {256 + len(special)} to {256 + len(special) + len(merges)}"
            f" in all, the model's vocab_size is {vocab_size}: pass the one it was trained with"
        )
    return Tokenizer(merges[:count], special)


def _follow(model: Any, name: str) -> torch.Tensor:
    """The attribute of a live model under a dotted name, `blocks.0.attn.q_proj.W` for example."""
    for part in name.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model
