"""Single fields of a Hugging Face config.json, and what a model keeps of its file.

Right values: transformers' own reading of the same fields, and its logits.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hugging_faces import SIZES, logits, random_model, saved
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import g2c_serving as g
from g2c_serving.forward.hugging_face_config import ACTIVATIONS, model_config
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.lab.scoring import logits_of

TEXT = [17, 3, 99, 130, 3, 54, 8, 71, 0, 26]
SAID = {name: size for name, size in SIZES.items() if size is not None}  # what has no default
KINDS = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}}


def ours(**fields: Any) -> ModelConfig:
    return model_config(Path("config.json"), fields)[0]


def windowed(kinds: list[str]) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_are_absent_have_the_values_of_transformers(kind):
    fields = SAID | KINDS[kind]
    theirs = transformers.AutoConfig.for_model(kind, **fields)
    found = ours(model_type=kind, **fields)
    assert found.norm_eps == theirs.rms_norm_eps
    assert found.activation == ACTIVATIONS[theirs.hidden_act]
    assert found.head_dim == SIZES["hidden_size"] // SIZES["num_attention_heads"]
    assert found.rotary.base == theirs.rope_parameters["rope_theta"]
    assert (found.window, found.window_layers) == (0, ())


def test_fields_of_gpt2_that_are_absent_have_the_values_of_transformers():
    fields = {"vocab_size": 131, "n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 4}
    theirs, found = transformers.GPT2Config(**fields), ours(model_type="gpt2", **fields)
    assert theirs.n_inner is None and found.hidden_dim == 4 * 48  # GPT2MLP's own rule
    assert found.norm_eps == theirs.layer_norm_epsilon
    assert found.activation == ACTIVATIONS[theirs.activation_function]


@pytest.mark.parametrize("layers", [3, 28, 30])
@pytest.mark.parametrize(
    "said",
    [
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 2},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": False, "max_window_layers": 0},
        {"max_window_layers": 0},
        {},
    ],
    ids=str,
)
def test_which_layers_of_a_qwen_have_the_window(said, layers):
    """28 layers without one where max_window_layers is absent; no windows where nothing says so."""
    fields = SAID | said
    fields |= {"num_hidden_layers": layers, "sliding_window": 7}
    expected = windowed(transformers.Qwen2Config(**fields).layer_types)
    found = ours(model_type="qwen2", **fields)
    assert (found.window, found.window_layers) == (7 if expected else 0, expected)


def test_windows_where_layer_types_says(tmp_path):
    """Where max_window_layers would put them elsewhere. Right values: transformers' logits; a
    window in another layer gives others."""
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
    model = saved(tmp_path, "qwen2", **windows, layer_types=kinds)
    lm = g.load(tmp_path)
    assert (lm.config.window, lm.config.window_layers) == (3, (1,))
    expected = logits(model, TEXT, torch.float64)
    found = logits_of(Transformer(lm.config, lm.weights, torch.float64), [TEXT])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    others = logits(random_model("qwen2", **windows), TEXT, torch.float64)  # all three
    assert (others - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("kind", "field"), [("gpt2", "activation_function"), ("llama", "hidden_act")]
)
def test_every_activation_by_its_name(kind, field, name, tmp_path):
    """In float64, where exact GELU and the one by tanh, 5e-4 apart at most, are told apart."""
    model = saved(tmp_path, kind, **{field: name})
    lm = g.load(tmp_path)
    found = logits_of(Transformer(lm.config, lm.weights, torch.float64), [TEXT])[0]
    torch.testing.assert_close(found, logits(model, TEXT, torch.float64), rtol=0, atol=2e-5)


def test_an_epsilon_of_gpt2(tmp_path):
    """Right values: transformers' logits, which another epsilon changes."""
    model = saved(tmp_path, "gpt2", layer_norm_epsilon=0.5)
    lm = g.load(tmp_path)
    expected = logits(model, TEXT)
    torch.testing.assert_close(logits_of(lm.model, [TEXT])[0], expected, rtol=0, atol=2e-4)
    assert (logits(random_model("gpt2"), TEXT) - expected).abs().max() > 0.1


BOUNDS = {  # first pair to slow down, last to keep its speed; a place beyond the ends counts as one
    "both at the start, rounded": {"original_max_position_embeddings": 6},
    "both at the start, exactly": {
        "original_max_position_embeddings": 32,
        "beta_slow": 32 / (2 * math.pi),
        "truncate": False,
    },
    "both at the end": {"original_max_position_embeddings": 2**30, "rope_theta": 2.0},
    "the last before the first": {"original_max_position_embeddings": 4, "truncate": False},
    "between two pairs": {
        "original_max_position_embeddings": 64,
        "beta_fast": 1.01,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "between two pairs, rounded": {
        "original_max_position_embeddings": 64,
        "beta_fast": 1.01,
        "beta_slow": 1.0,
    },
}


@pytest.mark.parametrize("bounds", BOUNDS)
def test_yarn_between_bounds_that_meet(bounds):
    """A ramp without a width: no speed is 0 / 0. Right values: transformers' speeds."""
    said = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0} | BOUNDS[bounds]
    fields = SAID | {"rope_parameters": said}
    expected = LlamaRotaryEmbedding(transformers.LlamaConfig(**fields)).inv_freq
    found = ours(model_type="llama", **fields).rotary.frequencies(8)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is mapped is not written to")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_and_norms_are_copies_of_the_file(kind, dtype, tmp_path):
    """All but the tables for lookups is written over in the file. Right values: the logits before
    that, bit for bit."""
    bias = {"attention_bias": True, "mlp_bias": True} if kind == "llama" else {}
    saved(tmp_path, kind, **bias).to(dtype).save_pretrained(tmp_path)
    lm, path = g.load(tmp_path), tmp_path / "model.safetensors"
    model = Transformer(lm.config, lm.weights, dtype)
    [before] = logits_of(model, [TEXT])
    tables = ("wte.weight", "wpe.weight", "embed_tokens.weight")
    kept = {n: t if n.endswith(tables) else t * 0 - 7 for n, t in load_file(path).items()}
    save_file(kept, tmp_path / "other", metadata={"format": "pt"})
    new = (tmp_path / "other").read_bytes()
    assert len(new) == path.stat().st_size
    with path.open("r+b") as file:  # in place
        file.write(new)
    assert torch.equal(logits_of(model, [TEXT])[0], before)
    [after] = logits_of(Transformer(lm.config, g.load(tmp_path).weights, dtype), [TEXT])
    assert not torch.equal(after, before)
