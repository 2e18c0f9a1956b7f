"""`LanguageModel`: weights under the parent course's names, with their tokenizer.

Every part of the engine and every notebook takes one of these; `checkpoints.load` makes it from
whatever a learner has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.process.tokenizer import Tokenizer

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """Weights with their tokenizer. `eos_id` ends a text; `model` is the float32 model on the CPU.

    `weights` maps the parent course's names to tensors (see `param_shapes`), float32 but for models
    of Hugging Face, whose own precision they have; a drafter has those of its confidence head
    beside them. `other_eos_ids` end a text as well: a chat model may have one id for the end of a
    turn and one for the end of everything.
    """

    name: str
    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer: Tokenizer
    eos_id: int | None
    other_eos_ids: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def num_parameters(self) -> int:
        return sum(w.numel() for w in self.weights.values())

    @cached_property
    def model(self) -> Transformer:
        return Transformer(self.config, self.weights)

    @cached_property
    def odd_weight(self) -> str | None:
        """The first weight that is not all finite numbers; None where all are. Reads them all."""
        return next((name for name, w in self.weights.items() if not w.isfinite().all()), None)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the sizes and of all weights at their own precision, in hexadecimal."""
        digest = hashlib.sha256(repr(self.config).encode())
        for name in sorted(self.weights):
            digest.update(name.encode())
            whole = self.weights[name].detach().contiguous()
            digest.update(whole.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def eos_ids(lm: Any) -> tuple[int, ...]:
    """All ids that end a text of a model, the first first; none where nothing does."""
    return () if lm.eos_id is None else (lm.eos_id, *lm.other_eos_ids)


def odd_weight(lm: Any) -> str:
    """What to say beside an error of the model's numbers: the weight that it may come from."""
    name = getattr(lm, "odd_weight", None)
    return f" (its weight {name} has some that are inf or nan)" if name else ""


def param_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights, in the order in which a course artifact lists them."""
    dim, hidden = config.embedding_dim, config.hidden_dim
    yield "token_embed.weight", (config.vocab_size, dim)
    yield "pos_embed.weight", (config.max_seq_len, dim)
    linears = [(f"attn.{p}_proj", dim, dim) for p in ("q", "k", "v", "out")]
    for i in range(config.num_layers):
        yield f"blocks.{i}.ln1.gamma", (dim,)
        yield f"blocks.{i}.ln1.beta", (dim,)
        for name, rows, columns in linears:
            yield f"blocks.{i}.{name}.W", (rows, columns)
            yield f"blocks.{i}.{name}.b", (columns,)
        yield f"blocks.{i}.ln2.gamma", (dim,)
        yield f"blocks.{i}.ln2.beta", (dim,)
        for name, rows, columns in (("ffn.fc1", dim, hidden), ("ffn.fc2", hidden, dim)):
            yield f"blocks.{i}.{name}.W", (rows, columns)
            yield f"blocks.{i}.{name}.b", (columns,)
    yield "ln_final.gamma", (dim,)
    yield "ln_final.beta", (dim,)
    yield "head_bias", (config.vocab_size,)


def confidence_shapes(
    config: ModelConfig, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a drafter's confidence head, if it has one among `tensors`."""
    bias = tensors.get("confidence.fc1.b")
    if bias is not None and bias.ndim == 1:
        dim, units = config.embedding_dim, bias.shape[0]
        yield "confidence.fc1.W", (dim, units)
        yield "confidence.fc1.b", (units,)
        yield "confidence.fc2.W", (units, 1)
        yield "confidence.fc2.b", (1,)


def checked(
    tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Our own float32 copies of the tensors, each of the shape that `shapes` says: detached, on the
    CPU, in aligned memory. ValueError names the first tensor that is not."""
    if missing := shapes.keys() - tensors.keys():
        raise ValueError(f"tensor {min(missing)} is missing")
    if more := tensors.keys() - shapes.keys():
        raise ValueError(f"tensor {min(more)} is not one that the sizes ask for")
    ours = {}
    for name, shape in shapes.items():
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS or tensor.is_meta:
            raise ValueError(f"{name} does not hold floating-point numbers of 16 bits or more")
        if not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise ValueError(f"{name} does not hold finite numbers alone: {count} are inf or nan")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
        ours[name] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
    return ours


def end_of_text(tokenizer: Any, chats: bool) -> int | None:
    """Base models end a text with <|endoftext|>, chat models end a turn with <|end|>."""
    names = ("<|end|>", "<|endoftext|>") if chats else ("<|endoftext|>", "<|end|>")
    return next((tokenizer.reserved[n] for n in names if n in tokenizer.reserved), None)
