"""Artifacts of the parent course in the shapes of its six models, served as they lie on the disk.

They are written by `course_files.py`; what they must write comes from transformers, the counts of
parameters from the course.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from pathlib import Path

import course_files
import pytest
import torch
from course_files import SHAPES, Shape

import g2c_serving as g

SMALL = [name for name, shape in SHAPES.items() if shape.num_parameters < 2e6]
LARGE = [name for name in SHAPES if name not in SMALL]
MINI = Shape(300, 16, 2, 2, 32, 48, tokenizer_size=340)
GREEDY = g.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TEXT = "Once there was a hen on the road. "


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The two smallest artifacts, in one folder."""
    root = tmp_path_factory.mktemp("artifacts")
    for seed, name in enumerate(SMALL):
        course_files.write(root, name, seed=seed)
    return root


def mini(root: Path, name: str = "Mini-1M-base", **manifest) -> Path:
    return course_files.write(root, name, MINI, **manifest)


def serves(folder: Path, name: str, seed: int) -> None:
    """Right values: transformers over the same tensors, the course's count of parameters."""
    shape = SHAPES[name]
    lm = g.load(folder)
    assert lm.num_parameters == shape.num_parameters
    assert (lm.name, lm.vocab_size, lm.eos_id) == (name, shape.vocab_size, 256)
    assert lm.tokenizer.vocab_size == shape.vocab_size
    assert lm.tokenizer.decode(lm.tokenizer.encode(TEXT)) == TEXT
    prompt = lm.tokenizer.encode(TEXT)
    out = g.Engine(lm, g.EngineConfig(num_blocks=64)).generate([prompt], GREEDY)[0]
    reference = course_files.Reference(shape, course_files.params(shape, seed))
    assert out.token_ids == reference.greedy(prompt, 12)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_artifact_of_the_course(made, name):
    serves(made / "models" / name, name, SMALL.index(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_artifact_of_the_course(tmp_path, name):
    serves(course_files.write(tmp_path, name, seed=5), name, 5)


@pytest.mark.parametrize("name", SMALL)
def test_a_request_ends_at_the_context_limit(made, name):
    """Right value: the course's `generate_cached` stops at max_seq_len."""
    lm, limit = g.load(made / "models" / name), SHAPES[name].max_seq_len
    params = g.SamplingParams(max_tokens=1000, seed=1, ignore_eos=True)
    out = g.Engine(lm).generate([[65] * (limit - 9)], params)[0]
    assert (out.finish_reason, len(out.token_ids)) == ("length", 9)
    with pytest.raises(ValueError, match=f"context limit of {name} is {limit}"):
        g.Engine(lm).generate([[65] * limit])


@pytest.mark.parametrize("block_size", [1, 7, 128, 512])
@pytest.mark.parametrize("caching", [False, True])
def test_blocks_of_any_size_fit_a_short_context(tmp_path, block_size, caching):
    """Also one that is longer than the context of 128. Right values: the default of 16."""
    shape = dataclasses.replace(MINI, max_seq_len=128)
    lm = g.load(course_files.write(tmp_path, "Mini-1M-base", shape))
    params = g.SamplingParams(temperature=1.0, seed=3, max_tokens=200, ignore_eos=True)
    ids = [[72] * 100, [72] * 100 + [73] * 20, [74]]

    def run(size: int) -> list[list[int]]:
        blocks = -(-384 // size) + 3
        config = g.EngineConfig(
            num_blocks=blocks, block_size=size, dtype="float64", enable_prefix_caching=caching
        )
        engine = g.Engine(lm, config)
        outs = [o.token_ids for _ in range(2) for o in engine.generate(ids, params)]
        engine.block_manager.check()
        return outs

    assert run(block_size) == run(16)


def test_a_chat_model_ends_a_turn(tmp_path):
    """The stage is in the name; a legacy name has none, but the manifest names what it was trained
    from. Right values: the course's rule."""
    names = {"Mini-1M-SFT": 262, "Mini-1M-DPO": 262, "Mini-1M-base": 256}
    assert {name: g.load(mini(tmp_path, name)).eos_id for name in names} == names
    legacy = mini(tmp_path, "MiniChat", base_artifact="Mini-1M-base")
    assert g.load(legacy).eos_id == 262


def test_where_a_model_is_looked_for(made, monkeypatch, tmp_path):
    """A path with ~, a relative one, the folder that one is in, and a link to it from elsewhere."""
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("USERPROFILE", str(made))
    monkeypatch.chdir(made / "tokenizers")
    name = SMALL[0]
    for path in (f"~/models/{name}", f"../models/{name}"):
        assert g.load(path).vocab_size == 264
    monkeypatch.chdir(made / "models" / name)
    assert g.load(".").name == name
    if os.name != "nt":  # there a link asks for rights
        (tmp_path / "link").symlink_to(made / "models" / name)
        assert g.load(tmp_path / "link").vocab_size == 264


def refusal(source) -> str:
    with pytest.raises((OSError, ValueError, TypeError)) as caught:
        g.load(source)
    readers = ("checkpoints.py", "course_artifacts.py", "checkpoint_files.py")
    assert caught.traceback[-1].path.name in readers
    return str(caught.value)


def test_a_path_that_is_not_a_model(made):
    """What was found, what was expected, what to do."""
    model = made / "models" / SMALL[1]
    for above in (made, made / "models"):
        assert str(model) in refusal(above) and "pass one of" in refusal(above)
    for file in ("model.pt", "config.json"):
        said = refusal(model / file)
        assert "is a file; expected a folder with config.json" in said and str(model) in said
    assert "Did you mean 'StoryLM-1M-base'?" in refusal(made / "models" / "StoryLM-1m-base")
    assert f"{made / 'nowhere'} does not exist" in refusal(made / "nowhere" / "models" / "x")
    said = refusal(made / "tokenizers" / "StoryTokenizer")
    assert "found ['tokenizer.json']" in said and "expected a folder with config.json" in said
    assert "no model ''" in refusal("")
    assert "no model 'StoryLM'" in refusal("StoryLM") and "'tiny'" in refusal("StoryLM")


def test_a_tokenizer_that_lies_elsewhere(tmp_path):
    folder = mini(tmp_path)
    path = tmp_path / "tokenizers" / "StoryTokenizer" / "tokenizer.json"
    course_files.write_tokenizer(tmp_path, "Other", 400)
    path.unlink()
    said = refusal(folder)
    assert str(path) in said and "['Other']" in said and "beside models/" in said
    path.write_text('{"format": "g2c.bpe", "version": 2, "special_tokens": [], "merges": [[1]]}')
    assert str(path) in refusal(folder) and "git checkout" not in refusal(folder)
    (folder / "manifest.json").write_text(json.dumps({"vocab_size": 300}))
    assert "names no tokenizer_artifact" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["../tokenizers/Other", "..", ".", "", "a\\b", "C:x", "x" * 5000, 5, None, ["Other"]]
)
def test_a_tokenizer_is_named_not_pointed_to(tmp_path, name):
    folder = mini(tmp_path)
    course_files.write_tokenizer(tmp_path, "Other", 400)
    manifest = {"vocab_size": 300, "tokenizer_artifact": name}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert f"names no tokenizer_artifact: found {name!r}" in refusal(folder)


@pytest.mark.parametrize("size", [299, 264])
def test_a_tokenizer_that_is_too_small_for_the_weights(tmp_path, size):
    folder = mini(tmp_path)
    course_files.write_tokenizer(tmp_path, "StoryTokenizer", size)
    said = refusal(folder)
    assert "Mini-1M-base" in said and "vocab_size 300" in said and f"264 to {size}" in said


def damaged(folder: Path, content: object) -> str:
    torch.save(content, folder / "model.pt")
    said = refusal(folder)
    assert f"{folder / 'model.pt'} is damaged" in said and "save the artifact again" in said
    return said


@pytest.mark.parametrize(
    ("field", "value"),
    [("gated", True), ("norm", "rms"), ("rotary", {}), ("num_kv_heads", 1), ("dropout", 0.1)],
)
def test_a_shape_that_the_course_does_not_have(tmp_path, field, value):
    """Its list of tensors says which is which by their order alone."""
    folder = mini(tmp_path)
    sizes = {"vocab_size": 300, "model_config": MINI.model_config | {field: value}}
    (folder / "config.json").write_text(json.dumps(sizes))
    said = refusal(folder)
    assert field in said and str(folder / "config.json") in said


@pytest.mark.parametrize("file", ["config.json", "manifest.json", "tokenizer.json"])
def test_json_that_is_nested_too_deeply(tmp_path, file):
    folder = mini(tmp_path)
    named = tmp_path / "tokenizers" / "StoryTokenizer" / file
    path = named if file == "tokenizer.json" else folder / file
    path.write_text('{"a": ' + "[" * 200_000)
    said = refusal(folder)
    assert f"{path} is damaged" in said


@pytest.mark.parametrize("field", ["embedding_dim", "num_heads", "max_seq_len", "hidden_dim"])
def test_a_size_beyond_all_machines(tmp_path, field):
    folder = mini(tmp_path)
    sizes = {"vocab_size": 300, "model_config": MINI.model_config | {field: 2**31}}
    (folder / "config.json").write_text(json.dumps(sizes))
    assert f"{field}=2147483648 must be an integer, from 1 to 2147483647" in refusal(folder)


@pytest.mark.parametrize("layers", [10_000, 10**8, 10**400])
def test_more_layers_than_there_are(tmp_path, layers):
    folder = mini(tmp_path)
    sizes = {"vocab_size": 300, "model_config": MINI.model_config | {"num_layers": layers}}
    (folder / "config.json").write_text(json.dumps(sizes))
    said = refusal(folder)
    assert ("from 1 to 10000" if layers > 10_000 else "config.json says 10000") in said


def test_weights_that_are_not_those_of_the_sizes(tmp_path):
    folder, tensors = mini(tmp_path), course_files.params(MINI)
    assert "36 tensors, 2 layers ask for 37" in damaged(folder, {"params": tensors[:-1]})
    one_layer = {"params": tensors[:18] + tensors[-3:]}
    assert "21 tensors, 2 layers ask for 37" in damaged(folder, one_layer)
    sizes = {"model_config": MINI.model_config | {"num_heads": 4}}
    assert "num_heads=4, config.json says 2" in damaged(folder, sizes | {"params": tensors})
    swapped = {"params": [*tensors[:-2], tensors[-1], tensors[-2]]}
    assert "ln_final.beta has shape (300,), expected (16,)" in damaged(folder, swapped)
    for bad in (float("nan"), float("inf")):
        worse = [tensor.clone() for tensor in tensors]
        worse[5].flatten()[7] = bad
        assert "blocks.0.attn.q_proj.b does not hold finite" in damaged(folder, {"params": worse})
    integers = [t.long() if i == 3 else t for i, t in enumerate(tensors)]
    assert "blocks.0.ln1.beta does not hold floating" in damaged(folder, {"params": integers})
    assert "ln1.beta" in damaged(folder, {"params": [*tensors[:3], 5, *tensors[4:]]})
    # a run's rolling checkpoint, and a bare list
    assert "found ['extra', 'model_params']" in damaged(folder, {"model_params": [], "extra": {}})
    assert "found list" in damaged(folder, tensors)


def test_a_file_that_would_run_code_does_not(tmp_path):
    """weights_only; and the error does not say how to switch it off, as torch's does."""
    folder = mini(tmp_path)

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    said = damaged(folder, {"params": [Evil()]})
    assert not (tmp_path / "ran").exists() and "weights_only" not in said
    protocol = 2  # torch warns of others
    (folder / "model.pt").write_bytes(pickle.dumps({"params": [Evil()]}, protocol))
    assert "is damaged" in refusal(folder) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_at_another_precision(tmp_path, dtype):
    """Right values: torch's conversion of each tensor."""
    folder, tensors = mini(tmp_path), course_files.params(MINI)
    torch.save({"params": [t.to(dtype) for t in tensors]}, folder / "model.pt")
    lm = g.load(folder)
    expected = [t.to(dtype).float() for t in tensors]
    assert all(torch.equal(a, b) for a, b in zip(lm.weights.values(), expected, strict=True))


def test_the_old_format_of_torch_save(tmp_path):
    folder, tensors = mini(tmp_path), course_files.params(MINI)
    expected = g.load(folder).fingerprint
    content = {"params": tensors, "vocab_size": 300, "model_config": MINI.model_config}
    torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=False)
    assert g.load(folder).fingerprint == expected
