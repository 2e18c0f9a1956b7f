"""A live model: the parent course's `TransformerLM`, read by its attributes.

The course's class is no `torch.nn.Module` and has no state_dict, so its tensors are found by their
dotted names. It may still be half written: none of its methods is called. A copy is served: train
on, and load again. The course's BaseLM is a wrapper; the model in its `inner` is taken.
"""

from __future__ import annotations

import dataclasses
from operator import itemgetter
from typing import Any

from g2c_serving.forward.course_artifacts import is_chat_model
from g2c_serving.forward.language_model import LanguageModel, checked, end_of_text, param_shapes
from g2c_serving.forward.model import ModelConfig
from g2c_serving.process.tokenizer import Tokenizer


def load_live(model: Any, tokenizer: Any) -> LanguageModel:
    """TypeError for what is no model of ours, ValueError for a tokenizer that does not fit."""
    manifest = getattr(model, "manifest", None)
    if isinstance(manifest, dict) and hasattr(model, "model"):  # what the course's loader returns
        held = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
        chats = is_chat_model(str(getattr(model, "name", "")), manifest)
        return dataclasses.replace(_load(model.model, held, chats), name=str(model.name))
    return _load(model, tokenizer, False)


def _load(model: Any, tokenizer: Any, chats: bool) -> LanguageModel:
    if not (hasattr(model, "blocks") and hasattr(model, "token_embed")):
        raise TypeError(
            f"cannot serve a {type(model).__name__}: it has no `blocks` and `token_embed`. "
            "Pass a model name, an artifact folder, or the course's TransformerLM"
        )
    if tokenizer is None:
        raise ValueError("a live model needs its tokenizer: load(model, tokenizer=...)")
    sizes = [f.name for f in dataclasses.fields(ModelConfig) if f.default is dataclasses.MISSING]
    config = ModelConfig(**{name: _follow(model, name) for name in sizes})
    shapes = dict(param_shapes(config))
    weights = checked({name: _follow(model, name) for name in shapes}, shapes)
    ours = _adopt(tokenizer, config.vocab_size)
    return LanguageModel("live model", config, weights, ours, end_of_text(ours, chats))


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
