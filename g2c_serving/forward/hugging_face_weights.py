"""The tensors of a Hugging Face folder under the parent course's names.

transformers stores a linear layer as (out, in), GPT-2 alone as (in, out) like us, with q, k and v
in one. Ours are views of theirs, mapped when they are asked for (`checkpoint_files.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from g2c_serving.forward.checkpoint_files import AGAIN, DTYPES, Stored, find_tensors
from g2c_serving.forward.model_config import ModelConfig

INNER = {"gpt2": "transformer.", "llama": "model.", "mistral": "model.", "qwen2": "model."}
HEAD = "lm_head.weight"
# In old files, without being weights: masks, and what rotary positions are computed from.
IGNORED = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq)$")


@dataclass(frozen=True)
class Wanted:
    """One of our weights: its name, theirs, the shape of theirs, and how ours lies in it."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    transposed: bool = False
    columns: slice | None = None

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor if self.columns is None else tensor[..., self.columns]
        return tensor.T if self.transposed else tensor


class HuggingFaceWeights(Mapping[str, torch.Tensor]):
    """Our names to tensors in the file's dtype, each mapped when it is asked for. `folders`: where
    these files lie."""

    def __init__(self, wanted: Mapping[str, Wanted], stored: Mapping[str, Stored]) -> None:
        self._wanted, self._stored = wanted, stored
        self.folders = {found.path.parent for found in stored.values()}

    def __getitem__(self, name: str) -> torch.Tensor:
        wanted = self._wanted[name]
        return wanted.view(self._stored[wanted.theirs].read())

    def __contains__(self, name: object) -> bool:
        return name in self._wanted  # without a look at the file

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)


def find_weights(
    folder: Path,
    config: ModelConfig,
    fields: Mapping[str, Any],
    stored: Mapping[str, Stored] | None = None,
) -> HuggingFaceWeights:
    """All that `config`, made of config.json's completed `fields`, asks for: each there and of its
    shape, and no other beside them that would change what is computed. `stored`: the tensors,
    unless they are the folder's.

    FileNotFoundError or ValueError name the file or the tensor, and the remedy.
    """
    kind, stored = fields["model_type"], find_tensors(folder) if stored is None else stored
    _check_types(stored)
    wanted = list(gpt2_tensors(config) if kind == "gpt2" else _llama_tensors(config, kind, fields))
    whole = any(name.startswith(INNER[kind]) for name in stored)  # not saved without its head
    if whole:
        wanted = [replace(w, theirs=INNER[kind] + w.theirs) for w in wanted]
    tied = bool(fields.get("tie_word_embeddings"))
    if not tied or _has_other_head(wanted[0], stored):
        shape = config.vocab_size, config.embedding_dim
        wanted.append(Wanted("head.W", HEAD, shape, transposed=True))
    for w in wanted:
        _check(folder, w, stored)
    others = stored.keys() - {w.theirs for w in wanted} - ({HEAD} if tied else set())
    if others := {name for name in others if not IGNORED.search(name)}:
        raise ValueError(
            f"{folder} has {len(others)} tensors that a {kind} of its config.json has no place for "
            f"({min(others)} for one), expected none: config.json and weights do not belong "
            f"together, or the model has parts that are not served; {AGAIN}"
        )
    return HuggingFaceWeights({w.ours: w for w in wanted}, stored)


def _has_other_head(embedding: Wanted, stored: Mapping[str, Stored]) -> bool:
    """Whether there is a head that is not the token embedding, whatever config.json says: then it
    is the one that the model was saved with, and transformers takes it too."""
    if HEAD not in stored or embedding.theirs not in stored:
        return False
    head, table = stored[HEAD], stored[embedding.theirs]
    same = (head.shape, head.dtype) == (table.shape, table.dtype)
    return not (same and torch.equal(head.read(), table.read()))


def _check_types(stored: Mapping[str, Stored]) -> None:
    for name, found in stored.items():
        if found.dtype not in DTYPES and not IGNORED.search(name):
            raise ValueError(
                f"{name} in {found.path} is stored as {found.dtype}, expected one of "
                f"{list(DTYPES)}: quantised checkpoints are not served; take the model in bfloat16 "
                "or float32"
            )


def _check(folder: Path, wanted: Wanted, stored: Mapping[str, Stored]) -> None:
    found = stored.get(wanted.theirs)
    if found is None:
        raise ValueError(
            f"{folder} has no tensor {wanted.theirs}, which its config.json asks for; found "
            f"{len(stored)} others. {AGAIN.capitalize()}"
        )
    if found.shape != wanted.shape:
        raise ValueError(
            f"{wanted.theirs} in {found.path} has shape {found.shape}, expected {wanted.shape} by "
            f"config.json: the two do not belong together; {AGAIN}"
        )


def gpt2_tensors(config: ModelConfig) -> Iterator[Wanted]:
    """What a GPT-2 of these sizes has, under the names of one saved without its head."""
    dim, hidden = config.embedding_dim, config.hidden_dim
    yield Wanted("token_embed.weight", "wte.weight", (config.vocab_size, dim))
    yield Wanted("pos_embed.weight", "wpe.weight", (config.max_seq_len, dim))
    for i in range(config.num_layers):
        ours, theirs = f"blocks.{i}", f"h.{i}"
        for number in (1, 2):
            yield from _layer_norm(f"{ours}.ln{number}", f"{theirs}.ln_{number}", dim)
        for k, p in enumerate("qkv"):
            mine, name = slice(k * dim, (k + 1) * dim), f"{ours}.attn.{p}_proj"
            yield Wanted(f"{name}.W", f"{theirs}.attn.c_attn.weight", (dim, 3 * dim), columns=mine)
            yield Wanted(f"{name}.b", f"{theirs}.attn.c_attn.bias", (3 * dim,), columns=mine)
        for name, there, rows, columns in (
            ("attn.out_proj", "attn.c_proj", dim, dim),
            ("ffn.fc1", "mlp.c_fc", dim, hidden),
            ("ffn.fc2", "mlp.c_proj", hidden, dim),
        ):
            yield Wanted(f"{ours}.{name}.W", f"{theirs}.{there}.weight", (rows, columns))
            yield Wanted(f"{ours}.{name}.b", f"{theirs}.{there}.bias", (columns,))
    yield from _layer_norm("ln_final", "ln_f", dim)


def _layer_norm(ours: str, theirs: str, dim: int) -> Iterator[Wanted]:
    yield Wanted(f"{ours}.gamma", f"{theirs}.weight", (dim,))
    yield Wanted(f"{ours}.beta", f"{theirs}.bias", (dim,))


def _llama_tensors(config: ModelConfig, kind: str, fields: Mapping[str, Any]) -> Iterator[Wanted]:
    dim, hidden, queries = config.embedding_dim, config.hidden_dim, config.attention_dim
    pairs = config.num_kv_heads * config.head_dim
    in_attention, in_mlp = (
        kind == "llama" and bool(fields.get(f"{part}_bias")) for part in ("attention", "mlp")
    )
    yield Wanted("token_embed.weight", "embed_tokens.weight", (config.vocab_size, dim))
    for i in range(config.num_layers):
        ours, theirs = f"blocks.{i}", f"layers.{i}"
        yield Wanted(f"{ours}.ln1.gamma", f"{theirs}.input_layernorm.weight", (dim,))
        yield Wanted(f"{ours}.ln2.gamma", f"{theirs}.post_attention_layernorm.weight", (dim,))
        for name, there, rows, columns, bias in (
            ("attn.q_proj", "self_attn.q_proj", queries, dim, in_attention or kind == "qwen2"),
            ("attn.k_proj", "self_attn.k_proj", pairs, dim, in_attention or kind == "qwen2"),
            ("attn.v_proj", "self_attn.v_proj", pairs, dim, in_attention or kind == "qwen2"),
            ("attn.out_proj", "self_attn.o_proj", dim, queries, in_attention),
            ("ffn.gate", "mlp.gate_proj", hidden, dim, in_mlp),
            ("ffn.fc1", "mlp.up_proj", hidden, dim, in_mlp),
            ("ffn.fc2", "mlp.down_proj", dim, hidden, in_mlp),
        ):
            shape = rows, columns  # (out, in)
            yield Wanted(f"{ours}.{name}.W", f"{theirs}.{there}.weight", shape, transposed=True)
            if bias:
                yield Wanted(f"{ours}.{name}.b", f"{theirs}.{there}.bias", (rows,))
    yield Wanted("ln_final.gamma", "norm.weight", (dim,))
