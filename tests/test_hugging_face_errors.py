"""Hugging Face folders that are damaged, do not fit together, or hold what is not served: what was
found, what was expected, and what to do."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hugging_faces import LLAMA3, YARN, saved
from safetensors.torch import load_file, save_file

import g2c_serving as g
from g2c_serving.forward.checkpoint_files import INDEX, WHOLE


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    saved(folder / "llama", "llama")
    saved(folder / "gpt2", "gpt2")
    saved(folder / "sharded", "llama", shard="60KB")
    return folder


@pytest.fixture
def llama(made, tmp_path) -> Path:
    return shutil.copytree(made / "llama", tmp_path / "llama")


@pytest.fixture
def gpt2(made, tmp_path) -> Path:
    return shutil.copytree(made / "gpt2", tmp_path / "gpt2")


@pytest.fixture
def sharded(made, tmp_path) -> Path:
    return shutil.copytree(made / "sharded", tmp_path / "sharded")


def change(folder: Path, **fields: Any) -> Path:
    """Other fields in config.json; None takes one away."""
    path = folder / "config.json"
    kept = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: v for name, v in kept.items() if v is not None}))
    return folder


def refuse(folder: Path, *words: str, error: type[Exception] = ValueError) -> None:
    """`load` names what is at fault and the folder."""
    with pytest.raises(error) as caught:
        g.load(folder)
    message = str(caught.value)
    assert all(word in message for word in (str(folder), *words)), message


# config.json


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"model_type": "mamba"},
            ["model_type='mamba'", "'gpt2', 'llama'", "transformers or vLLM"],
        ),
        ({"model_type": None}, ["model_type=None", "LlamaForCausalLM"]),
        ({"hidden_size": None}, ["no hidden_size"]),
        ({"num_hidden_layers": 2.5}, ["num_hidden_layers=2.5", "integer"]),
        ({"num_hidden_layers": "3"}, ["num_hidden_layers='3'"]),
        ({"num_hidden_layers": 10**7}, ["num_hidden_layers=10000000", "from 1 to 10000"]),
        ({"num_hidden_layers": 10**400}, ["num_hidden_layers=1000", "from 1 to 10000"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"max_position_embeddings": -1}, ["max_position_embeddings=-1"]),
        ({"num_key_value_heads": 4}, ["num_kv_heads=4 must divide num_heads=6"]),
        ({"head_dim": 7}, ["7 numbers", "even"]),
        ({"head_dim": None, "num_attention_heads": 5, "num_key_value_heads": 5}, ["must divide"]),
        ({"hidden_act": "relu"}, ["hidden_act='relu'", "silu"]),
        ({"hidden_act": ["silu"]}, ["hidden_act=['silu']"]),
        ({"rms_norm_eps": 0}, ["norm_eps=0"]),
        ({"rms_norm_eps": "small"}, ["norm_eps='small'"]),
        ({"tie_word_embeddings": "false"}, ["tie_word_embeddings='false'", "true or false"]),
        ({"attention_bias": "false"}, ["attention_bias='false'"]),
        ({"mlp_bias": 0}, ["mlp_bias=0"]),
        ({"model_type": "qwen2", "use_sliding_window": "no"}, ["use_sliding_window='no'"]),
        ({"model_type": "mistral", "sliding_window": "9"}, ["sliding_window='9'"]),
        ({"num_key_value_heads": 0}, ["num_key_value_heads=0"]),
        ({"num_key_value_heads": ""}, ["num_key_value_heads=''"]),
        ({"head_dim": 0}, ["head_dim=0"]),
        ({"layer_types": ["full_attention"] * 99}, ["layer_types", "expected a list of 3"]),
        ({"layer_types": "full_attention"}, ["layer_types='full_attention'"]),
        ({"rope_parameters": []}, ["rope_parameters=[]"]),
        ({"rope_parameters": YARN | {"truncate": "no"}}, ["truncate='no'"]),
        (
            {"rope_parameters": YARN | {"original_max_position_embeddings": 10**400}},
            ["original_max_position_embeddings=1000"],
        ),
        ({"quantization_config": {"bits": 4}}, ["quantization_config={'bits': 4}"]),
        ({"layer_types": ["full_attention", "linear_attention"]}, ["linear_attention"]),
        ({"rope_parameters": [1]}, ["rope_parameters=[1]"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_type='longrope'", "'yarn'"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["rope_type='linear' has no factor"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, ["factor=0.5"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, ["factor='2'"]),
        ({"rope_parameters": {"rope_theta": 0}}, ["base=0"]),
        ({"rope_parameters": {"rope_theta": None}}, ["base=None"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor=0.5"]),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}}, ["low_freq_factor=5.0"]),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": None}}, ["no high_freq_factor"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, ["mscale=1.0"]),
    ],
)
def test_a_config_that_is_not_served(llama, fields, words):
    refuse(change(llama, **fields), "config.json", *words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx=True"]),
        ({"scale_attn_weights": False}, ["scale_attn_weights=False"]),
        ({"add_cross_attention": True}, ["add_cross_attention=True"]),
        ({"activation_function": "relu"}, ["activation_function='relu'", "gelu_new"]),
        ({"n_positions": None}, ["no n_positions"]),
        ({"n_layer": 10**9}, ["n_layer=1000000000", "from 1 to 10000"]),
        ({"n_head": 7}, ["num_heads=7 must divide embedding_dim=48"]),
    ],
)
def test_a_gpt2_that_is_not_served(gpt2, fields, words):
    refuse(change(gpt2, **fields), "config.json", *words)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"gpt2"', '{"model_type": '])
def test_a_damaged_config(llama, text):
    (llama / "config.json").write_text(text)
    refuse(llama, "config.json is damaged", "copy the whole folder again")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
def test_json_that_is_nested_too_deeply(llama, file):
    (llama / file).write_text('{"a": ' + "[" * 200_000)
    refuse(llama, file.split(".")[0])


def test_a_damaged_generation_config(llama):
    (llama / "generation_config.json").write_text("{")
    refuse(llama, "generation_config.json is damaged")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("found", ["</s>", {}, [1, "</s>"], True, 1.5])
def test_an_end_that_is_no_id(llama, file, found):
    """Silently left out, no text would ever end."""
    (llama / "generation_config.json").unlink()
    path = llama / file
    fields = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(fields | {"eos_token_id": found}))
    refuse(llama, f"eos_token_id={found!r}", file, "a list of ids or null")


def test_bytes_that_are_no_text(llama):
    (llama / "config.json").write_bytes(b"\xff\xfe{}")
    refuse(llama, "config.json is damaged")


def test_odd_values_in_any_field(llama):
    """Each either changes nothing that matters, and the model runs, or is refused."""
    change(llama, rope_parameters={"rope_theta": 1e4, **YARN, "low_freq_factor": 1.0})
    fields, served = json.loads((llama / "config.json").read_text()), 0
    rotary, odds = fields["rope_parameters"], (None, -1, 0, 1.5, "x", {}, math.inf, 10**30, [1])
    tries = [{name: odd} for name in fields for odd in odds]
    tries += [{"rope_parameters": rotary | {name: odd}} for name in rotary for odd in odds]
    for one in tries:
        (llama / "config.json").write_text(json.dumps(fields | one))
        try:
            lm = g.load(llama)
        except ValueError as err:
            assert str(llama) in str(err), one
            continue
        served += 1
        engine = g.Engine(lm, g.EngineConfig(num_blocks=2))
        [output] = engine.generate([[1, 2, 3]], g.SamplingParams(max_tokens=2, seed=1))
        assert len(output.token_ids) == 2, one
    assert 50 < served < len(tries) - 50


# tensors


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WHOLE)
    change(tensors)
    save_file(tensors, folder / WHOLE)


def test_a_missing_tensor(llama, gpt2):
    rewrite(llama, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refuse(llama, "no tensor model.layers.1.mlp.up_proj.weight", "config.json asks for")
    rewrite(gpt2, lambda tensors: tensors.pop("transformer.h.2.ln_1.bias"))
    refuse(gpt2, "no tensor transformer.h.2.ln_1.bias")


def test_a_missing_head(llama):
    rewrite(llama, lambda tensors: tensors.pop("lm_head.weight"))
    refuse(llama, "no tensor lm_head.weight")


def test_a_tensor_of_another_shape(llama):
    name = "model.layers.0.self_attn.k_proj.weight"
    rewrite(llama, lambda tensors: tensors.update({name: torch.zeros(48, 48)}))
    refuse(llama, name, "shape (48, 48), expected (16, 48)", "do not belong together")


def test_the_config_of_another_model(llama):
    refuse(change(llama, vocab_size=130), "(131, 48), expected (130, 48)")


def test_fewer_layers_than_there_are(llama):
    refuse(change(llama, num_hidden_layers=2), "9 tensors", "no place for", "model.layers.2.")


def test_more_layers_than_there_are(llama, gpt2):
    """The most that are let through are looked for in a moment."""
    refuse(change(llama, num_hidden_layers=10_000), "no tensor model.layers.3.")
    refuse(change(gpt2, n_layer=10_000), "no tensor transformer.h.3.")


def test_a_part_that_is_not_served(llama):
    """The norms of queries and keys that Qwen3 has: left out, the model would write nonsense."""
    extra = {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
    rewrite(llama, lambda tensors: tensors.update(extra))
    refuse(llama, "q_norm.weight", "no place for")


def test_biases_that_the_config_does_not_mention(llama):
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}
    rewrite(llama, lambda tensors: tensors.update(extra))
    refuse(llama, "q_proj.bias", "no place for")


def test_quantised_tensors(llama):
    name = "model.layers.0.mlp.up_proj.weight"
    whole = torch.zeros(80, 48, dtype=torch.int8)
    rewrite(llama, lambda tensors: tensors.update({name: whole}))
    refuse(llama, name, "I8", "'BF16'", "quantised")


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_weights_that_are_no_floats(llama, name, dtype):
    """Masks may be stored in such types, weights not, though a model could run with them."""
    rewrite(llama, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    refuse(llama, f"{name} in", "is stored as", "'BF16'")


def test_masks_and_speeds_in_old_files_are_left_alone(llama):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    extra["model.layers.1.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    before = g.load(llama).fingerprint
    rewrite(llama, lambda tensors: tensors.update(extra))
    assert g.load(llama).fingerprint == before


@pytest.mark.parametrize("size", [0, 4, 100, 5_000, 20_000])
def test_a_file_that_is_cut_short(llama, size):
    path = llama / WHOLE
    path.write_bytes(path.read_bytes()[:size])
    refuse(llama, WHOLE, f"{size:,} bytes, is damaged", "copy the whole folder again")


def test_no_weights(llama):
    (llama / WHOLE).unlink()
    refuse(llama, WHOLE, INDEX, "found ['config.json'", error=FileNotFoundError)


def test_pickled_weights_are_not_read(llama):
    (llama / WHOLE).rename(llama / "pytorch_model.bin")
    refuse(llama, "pytorch_model.bin", "save_pretrained", error=FileNotFoundError)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_named_when_a_request_meets_it(llama, bad):
    """A large file is not read for it before."""
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(llama, lambda tensors: tensors[name].view(-1)[7:8].fill_(bad))
    [output] = g.Engine(g.load(llama)).generate([[1, 2]], g.SamplingParams(max_tokens=2))
    assert output.finish_reason == "error" and "not numbers" in output.message
    assert "its weight blocks.1.ffn.fc1.W has some that are inf or nan" in output.message


# shards


def test_a_missing_shard(sharded):
    gone = sorted(sharded.glob("model-*.safetensors"))[1]
    gone.unlink()
    refuse(sharded, gone.name, "lacks 1 of the", error=FileNotFoundError)


def test_a_shard_of_another_model(sharded, llama):
    one, two = sorted(sharded.glob("model-*.safetensors"))[:2]
    shutil.copy(one, two)
    refuse(sharded, two.name, "which model.safetensors.index.json says is in it")


def test_a_damaged_shard(sharded):
    one = sorted(sharded.glob("model-*.safetensors"))[0]
    one.write_bytes(one.read_bytes()[:-1])
    refuse(sharded, one.name, "is damaged")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../b"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": "b\\\\c"}}',
        '{"weight_map": {"a": "C:b"}}',
        f'{{"weight_map": {{"a": "{"b" * 5000}"}}}}',
        '{"weight_map": ' + "[" * 200_000,
    ],
)
def test_a_damaged_index(sharded, text):
    (sharded / INDEX).write_text(text)
    refuse(sharded, INDEX, "damaged")


def test_an_index_that_forgets_a_tensor(sharded):
    path = sharded / INDEX
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    refuse(sharded, "no tensor model.norm.weight")


# the tokenizer


def test_a_damaged_tokenizer(llama):
    (llama / "tokenizer.json").write_text("{")
    refuse(llama, "tokenizer")
