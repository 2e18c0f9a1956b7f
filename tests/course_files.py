"""Artifacts as the parent course saves them, with random weights in the shapes of its models.

Written from the course's description of its format, without our code; the reference logits come
from transformers' GPT-2, filled from the same list of tensors by this file's own mapping.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SPECIALS = [f"<|{name}|>" for name in (
    "endoftext", "system", "user", "assistant", "tool_call", "tool_result", "end", "pad"
)]  # fmt: skip
BASE = 256 + len(SPECIALS)


@dataclass(frozen=True)
class Shape:
    """A model's sizes, what the course says of its parameters, and how large its tokenizer is."""

    vocab_size: int
    embedding_dim: int
    num_layers: int
    num_heads: int
    max_seq_len: int
    hidden_dim: int
    num_parameters: int = 0
    tokenizer: str = "StoryTokenizer"
    tokenizer_size: int = 8192

    @property
    def model_config(self) -> dict[str, int]:
        names = ("embedding_dim", "num_layers", "num_heads", "max_seq_len", "hidden_dim")
        return {name: getattr(self, name) for name in names}


G2C, SHAKESPEARE = ("G2CTokenizer", 16384), ("ShakespeareTokenizer", 2048)
SHAPES = {
    "ShakespeareLM-1M-base": Shape(264, 128, 4, 4, 128, 512, 843_784, *SHAKESPEARE),
    "StoryLM-1M-base": Shape(4096, 128, 4, 4, 256, 512, 1_354_496),
    "StoryLM-5M-base": Shape(4096, 256, 6, 8, 256, 1024, 5_857_280),
    "StoryLM-30M-base": Shape(4096, 512, 9, 8, 256, 2048, 30_604_800),
    "TinyLLM-30M-base": Shape(8192, 512, 8, 8, 512, 2048, 29_684_736, *G2C),
    "TinyLLM-100M-base": Shape(8192, 768, 12, 12, 512, 3072, 91_748_864, *G2C),
}


def merges(tokenizer_size: int, seed: int = 0) -> list[list[int]]:
    """As many merges as make so many ids, no two of the same bytes: an earlier token and a byte."""
    generator = random.Random(seed)
    letters = b"etaoinshrdlu ., TWE"
    pool = [(letter, bytes([letter])) for letter in letters]
    known, made = {token for _, token in pool}, []
    while BASE + len(made) < tokenizer_size:
        (left, start), letter = generator.choice(pool), generator.choice(letters)
        token = start + bytes([letter])
        if token in known:
            continue
        made.append([left, letter, BASE + len(made)])
        known.add(token)
        if len(token) < 10:
            pool.append((made[-1][2], token))
    return made


def params(shape: Shape, seed: int = 0) -> list[torch.Tensor]:
    """The `params` list of a model.pt: for each layer ln1, q, k, v, out, ln2, fc1, fc2, each (W, b)
    or (gamma, beta), between the embeddings and the final norm with the head bias."""
    generator = torch.Generator().manual_seed(seed)
    dim, hidden = shape.embedding_dim, shape.hidden_dim
    block = [(dim,), (dim,), *([(dim, dim), (dim,)] * 4), (dim,), (dim,)]
    block += [(dim, hidden), (hidden,), (hidden, dim), (dim,)]
    ends = (
        [(shape.vocab_size, dim), (shape.max_seq_len, dim)],
        [(dim,), (dim,), (shape.vocab_size,)],
    )
    shapes = [*ends[0], *(block * shape.num_layers), *ends[1]]
    tensors = [dim**-0.5 * torch.randn(size, generator=generator) for size in shapes]
    gammas = [2 + 16 * i for i in range(shape.num_layers)]
    gammas += [place + 10 for place in gammas] + [len(shapes) - 3]
    for place in gammas:
        tensors[place] += 1
    return tensors


def write(
    root: Path, name: str, shape: Shape | None = None, seed: int = 0, **manifest: Any
) -> Path:
    """`models/<name>/` and its tokenizer beside it, under `root`; the model's folder."""
    shape = SHAPES[name] if shape is None else shape
    folder = root / "models" / name
    folder.mkdir(parents=True)
    sizes = {"model_config": shape.model_config, "training_config": {"lr": 3e-4}}
    weights = {"vocab_size": shape.vocab_size, "model_config": shape.model_config}
    torch.save(weights | {"params": params(shape, seed)}, folder / "model.pt")
    (folder / "config.json").write_text(json.dumps(sizes))
    says = {"name": name, "module": "10", "tokenizer_artifact": shape.tokenizer}
    says |= {"vocab_size": shape.vocab_size, "steps_completed": 10, **manifest}
    (folder / "manifest.json").write_text(json.dumps(says | sizes))
    write_tokenizer(root, shape.tokenizer, shape.tokenizer_size)
    return folder


def write_tokenizer(root: Path, name: str, size: int, seed: int = 0) -> Path:
    path = root / "tokenizers" / name / "tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": "g2c.bpe", "version": 2, "special_tokens": SPECIALS}
    path.write_text(json.dumps(content | {"merges": merges(size, seed)}))
    return path


@torch.no_grad()
def fill_gpt2(model: Any, tensors: list[torch.Tensor]) -> None:
    """Put a `params` list into a GPT2LMHeadModel, all but the head bias, which it has not."""
    left, body = iter(tensors), model.transformer
    body.wte.weight.copy_(next(left))  # the head is tied to it
    body.wpe.weight.copy_(next(left))
    for block in body.h:
        block.ln_1.weight.copy_(next(left)), block.ln_1.bias.copy_(next(left))
        q, qb, k, kb, v, vb = (next(left) for _ in range(6))
        block.attn.c_attn.weight.copy_(torch.cat([q, k, v], dim=1))
        block.attn.c_attn.bias.copy_(torch.cat([qb, kb, vb]))
        for layer in (block.attn.c_proj, block.ln_2, block.mlp.c_fc, block.mlp.c_proj):
            layer.weight.copy_(next(left)), layer.bias.copy_(next(left))
    body.ln_f.weight.copy_(next(left)), body.ln_f.bias.copy_(next(left))


class Reference:
    """transformers' GPT-2 with the weights of a `params` list, the head bias added by hand."""

    def __init__(self, shape: Shape, tensors: list[torch.Tensor]) -> None:
        import transformers

        config = transformers.GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.max_seq_len,
            n_embd=shape.embedding_dim,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            n_inner=shape.hidden_dim,
            activation_function="gelu",
        )
        self.model = transformers.GPT2LMHeadModel(config).eval()
        self.head_bias = tensors[-1]
        fill_gpt2(self.model, tensors)

    @torch.no_grad()
    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The next `count` ids, each the largest logit over the whole text so far."""
        ids = list(ids)
        for _ in range(count):
            logits = self.model(torch.tensor([ids])).logits[0, -1] + self.head_bias
            ids.append(int(logits.argmax()))
        return ids[-count:]
