"""A live model: the parent course's `TransformerLM`, or a model of transformers.

The course's class is no `torch.nn.Module` and has no state_dict, so its tensors are found by their
dotted names. It may still be half written: none of its methods is called. The course's BaseLM wraps
a model of transformers: that in its `inner` is taken, if its architecture is one that we serve. A
copy is served: train on, and load again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from g2c_serving.forward.checkpoint_files import DTYPES
from g2c_serving.forward.course_artifacts import is_chat_model
from g2c_serving.forward.hugging_face import end_ids
from g2c_serving.forward.hugging_face_config import model_config
from g2c_serving.forward.hugging_face_weights import find_weights
from g2c_serving.forward.language_model import LanguageModel, checked, end_of_text, param_shapes
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer, NoTokenizer
from g2c_serving.process.tokenizer import Tokenizer

INNER = "inner", "tokenizer", "_tokenizer"  # where a wrapper may keep what it wraps


@dataclass(frozen=True)
class Held:
    """A tensor of a live model, as `checkpoint_files.Stored` is one of a file."""

    path: Path
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        found = self.tensor.dtype
        return next((name for name, kind in DTYPES.items() if kind == found), str(found))

    def read(self) -> torch.Tensor:
        return self.tensor


def load_live(model: Any, tokenizer: Any) -> LanguageModel:
    """TypeError for what is no model, ValueError for one that we do not serve or a tokenizer that
    does not fit: what was found, what was expected."""
    manifest = getattr(model, "manifest", None)
    if isinstance(manifest, dict) and hasattr(model, "model"):  # what the course's loader returns
        held = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
        name = str(getattr(model, "name", "live model"))
        loaded = load_live(model.model, held)
        if isinstance(loaded.tokenizer, HuggingFaceTokenizer):
            return dataclasses.replace(loaded, name=name)
        eos_id = end_of_text(loaded.tokenizer, is_chat_model(name, manifest))
        return dataclasses.replace(loaded, name=name, eos_id=eos_id)
    if hasattr(model, "blocks") and hasattr(model, "token_embed"):
        return _course_model(model, tokenizer)
    inner = getattr(model, "inner", model)
    if isinstance(inner, torch.nn.Module) and hasattr(inner, "config"):
        return _hugging_face_model(inner, tokenizer)
    raise TypeError(
        f"cannot serve a {type(model).__name__}: it has neither `blocks` and `token_embed`, as the "
        "course's TransformerLM has, nor a model of transformers in itself or its `inner`. Pass a "
        "model's name, the folder of an artifact, or a live model of those"
    )


def _course_model(model: Any, tokenizer: Any) -> LanguageModel:
    if tokenizer is None:
        raise ValueError("a live model needs its tokenizer: load(model, tokenizer=...)")
    sizes = [f.name for f in dataclasses.fields(ModelConfig) if f.default is dataclasses.MISSING]
    config = ModelConfig(**{name: _follow(model, name) for name in sizes})
    shapes = dict(param_shapes(config))
    weights = checked({name: _follow(model, name) for name in shapes}, shapes)
    ours = _adopt(tokenizer, config.vocab_size)
    return LanguageModel("live model", config, weights, ours, end_of_text(ours, False))


def _hugging_face_model(model: torch.nn.Module, tokenizer: Any) -> LanguageModel:
    """Its weights in their dtype. Without a tokenizer it serves prompts of ids."""
    where = Path(f"this {type(model).__name__}")
    settings: Any = model.config
    config, fields = model_config(where, settings.to_dict())
    held: Any = {name: Held(where, w) for name, w in model.state_dict().items()}
    if empty := [name for name, one in held.items() if one.tensor.is_meta]:
        raise ValueError(
            f"{where} has no numbers in {len(empty)} of its tensors ({empty[0]} for one): they are "
            "on torch's meta device. Load its weights, then load it here"
        )
    found = find_weights(where, config, fields, held)
    weights = {name: w.detach().to("cpu", copy=True).contiguous() for name, w in found.items()}
    ours: Tokenizer = NoTokenizer(where, config.vocab_size)
    if tokenizer is not None:
        ours = _adopt(tokenizer, config.vocab_size)
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    eos = end_ids(where, fields, ends, config.vocab_size)
    return LanguageModel("live model", config, weights, ours, *eos)


def _adopt(tokenizer: Any, vocab_size: int) -> Tokenizer:
    """Our tokenizer with the ids of a course tokenizer, of one of transformers or of ours, that the
    model knows."""
    if isinstance(tokenizer, str | Path):
        return HuggingFaceTokenizer.load(Path(tokenizer).expanduser(), vocab_size)
    if isinstance(tokenizer, NoTokenizer):
        return tokenizer
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return HuggingFaceTokenizer(tokenizer.spec.spec, vocab_size)
    for kept in (tokenizer, *(getattr(tokenizer, name, None) for name in INNER)):
        if hasattr(getattr(kept, "backend_tokenizer", kept), "to_str"):
            return HuggingFaceTokenizer.of(kept, vocab_size)
    return _adopt_course(tokenizer, vocab_size)


def _adopt_course(tokenizer: Any, vocab_size: int) -> Tokenizer:
    if isinstance(tokenizer, Tokenizer):
        special, merges = list(tokenizer.reserved), tokenizer.merges
    elif hasattr(tokenizer, "special_tokens") and hasattr(tokenizer, "merges"):
        special = list(tokenizer.special_tokens)
        merges = sorted(((*pair, new) for pair, new in tokenizer.merges.items()), key=itemgetter(2))
    else:
        raise TypeError(
            f"tokenizer is {tokenizer!r}: pass the course's BPETokenizer, one of ours, or a fast "
            "tokenizer of transformers"
        )
    count = vocab_size - 256 - len(special)
    if not 0 <= count <= len(merges):
        raise ValueError(
            f"the tokenizer has ids from {256 + len(special)} to {256 + len(special) + len(merges)}"
            f" in all, the model's vocab_size is {vocab_size}: pass the one it was trained with"
        )
    return Tokenizer(merges[:count], special)


def _follow(model: Any, name: str) -> Any:
    """The attribute of a live model under a dotted name, `blocks.0.attn.q_proj.W` for example."""
    place = model
    for part in name.split("."):
        try:
            place = place[int(part)] if part.isdigit() else getattr(place, part)
        except (AttributeError, IndexError):
            raise TypeError(
                f"cannot serve this {type(model).__name__}: it has no {name}, as the course's "
                "TransformerLM has"
            ) from None
    return place
