"""Our weights under GPT-2's names: what export writes, and what is compared with transformers.

GPT-2 has the shape of our models, down to linear layers that store (in, out). It has no bias on its
head, no block without attention, no window layers, and one hidden width: what it cannot hold is
refused. Left out: the other direction, which `hugging_face.py` has.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from g2c_serving.forward.hugging_face_weights import gpt2_tensors
from g2c_serving.forward.language_model import LanguageModel, eos_ids

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}  # ours -> transformers'
ONLY = {  # what a field of our config must be
    "norm": ("layer", "layer norm"),
    "gated": (False, "no gate in its feed-forward"),
    "rotary": (None, "learned positions"),
}


def check_gpt2(lm: LanguageModel) -> None:
    """ValueError for what `lm` has and a GPT-2 has no place for."""
    config = lm.config
    if config.window_layers:
        raise ValueError(
            f"{lm.name} has window layers {list(config.window_layers)}: GPT-2 has none, and would "
            "let them see everything; use the Engine"
        )
    for name, (value, words) in ONLY.items():
        if getattr(config, name) != value:
            raise ValueError(f"{lm.name} has {name}={getattr(config, name)!r}: GPT-2 has {words}")
    if config.num_kv_heads != config.num_heads:
        raise ValueError(f"{lm.name} has fewer heads for keys than for queries: GPT-2 has as many")
    if config.attention_dim != config.embedding_dim:
        raise ValueError(f"the heads of {lm.name} are not embedding_dim wide, as GPT-2's must be")
    if "head_bias" in lm.weights and lm.weights["head_bias"].any():
        raise ValueError(
            f"head_bias of {lm.name} is not zero: GPT-2 has no bias on its head, so it would write "
            "other tokens. Train with head_bias held at zero, as tiny was"
        )
    for i in range(config.num_layers):
        if f"blocks.{i}.attn.q_proj.W" not in lm.weights:
            raise ValueError(f"block {i} of {lm.name} has no attention: GPT-2 has no such block")
    if "head.W" in lm.weights:
        raise ValueError(f"{lm.name} has a head of its own: GPT-2's is its token embedding")


def gpt2_config(lm: LanguageModel) -> dict[str, Any]:
    """The sizes of `lm` as the fields of transformers' `GPT2Config`."""
    return {
        "vocab_size": lm.config.vocab_size,
        "n_positions": lm.config.max_seq_len,
        "n_embd": lm.config.embedding_dim,
        "n_layer": lm.config.num_layers,
        "n_head": lm.config.num_heads,
        "n_inner": lm.config.hidden_dim,
        "activation_function": ACTIVATIONS[lm.config.activation],
        "layer_norm_epsilon": lm.config.norm_eps,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos_token_id(lm),
    }


def eos_token_id(lm: LanguageModel) -> int | list[int] | None:
    """What ends a text, as that field says it: an id, or several."""
    return list(eos_ids(lm)) if len(eos_ids(lm)) > 1 else lm.eos_id


def gpt2_weights(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """The weights of a `GPT2LMHeadModel`, at their own dtype; the head is the token embedding."""
    check_gpt2(lm)
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)  # q, k and v lie in one of theirs
    for one in gpt2_tensors(lm.config):
        parts[f"transformer.{one.theirs}"].append(_weight(lm, one.ours))
    return {
        name: torch.cat(some, dim=-1) if len(some) > 1 else some[0] for name, some in parts.items()
    }


def _weight(lm: LanguageModel, name: str) -> torch.Tensor:
    """A weight; zeros for a linear layer's bias that is not there, since GPT-2 has them all."""
    if name.endswith(".b") and name not in lm.weights:
        matrix = lm.weights[name.removesuffix(".b") + ".W"]
        return matrix.new_zeros(matrix.shape[1])
    return lm.weights[name]
