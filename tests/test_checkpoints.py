"""Loading: an artifact of the parent course, a live course model, and what is not loadable.

The artifacts are written here, from the course's description of its format; the reference logits
come from transformers' GPT-2, filled from the same list of tensors by the tests' own mapping.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import transformers
from course_files import fill_gpt2

import g2c_serving as g
from g2c_serving.forward import checkpoints, course_artifacts
from g2c_serving.forward.language_model import param_shapes

DIM, LAYERS, HEADS, CONTEXT, HIDDEN, VOCAB = 16, 2, 2, 32, 48, 268
MODEL_CONFIG = {
    "embedding_dim": DIM,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "max_seq_len": CONTEXT,
    "hidden_dim": HIDDEN,
}
SPECIALS = [f"<|{name}|>" for name in (
    "endoftext", "system", "user", "assistant", "tool_call", "tool_result", "end", "pad"
)]  # fmt: skip
MERGES = [[104, 101, 264], [116, 264, 265], [32, 265, 266], [97, 97, 267], [98, 98, 268]]
LN, ATTN, FFN = ("gamma", "beta"), ("q_proj", "k_proj", "v_proj", "out_proj"), ("fc1", "fc2")


def course_params(seed: int = 0) -> list[torch.Tensor]:
    """The `params` list of a course model.pt: for each layer ln1, q, k, v, out, ln2, fc1, fc2, each
    (W, b) or (gamma, beta), between the embeddings and the final norm with the head bias."""
    generator = torch.Generator().manual_seed(seed)
    block = [(DIM,), (DIM,), *([(DIM, DIM), (DIM,)] * 4), (DIM,), (DIM,)]
    block += [(DIM, HIDDEN), (HIDDEN,), (HIDDEN, DIM), (DIM,)]
    shapes = [(VOCAB, DIM), (CONTEXT, DIM), *(block * LAYERS), (DIM,), (DIM,), (VOCAB,)]
    params = [0.4 * torch.randn(shape, generator=generator) for shape in shapes]
    params[-1].zero_()  # GPT-2, the reference, has no head bias
    return params


def gpt2_logits(params: list[torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Logits (T, V) from transformers."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=HIDDEN,
        activation_function="gelu",
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    fill_gpt2(model, params)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def write_artifact(root, name="Mine-1M-base", params=None, **manifest):
    """artifacts/models/<name>/ and artifacts/tokenizers/Mine/, as the course saves them."""
    folder, tokenizer = root / "models" / name, root / "tokenizers" / "Mine"
    folder.mkdir(parents=True)
    tokenizer.mkdir(parents=True, exist_ok=True)
    training = {"lr": 3e-4}
    content = {"vocab_size": VOCAB, "model_config": MODEL_CONFIG, "params": params}
    torch.save(content, folder / "model.pt")
    config = {"model_config": MODEL_CONFIG, "training_config": training}
    (folder / "config.json").write_text(json.dumps(config))
    manifest = {"name": name, "tokenizer_artifact": "Mine", "vocab_size": VOCAB, **manifest}
    (folder / "manifest.json").write_text(json.dumps(manifest | config))
    words = {"format": "g2c.bpe", "version": 2, "special_tokens": SPECIALS, "merges": MERGES}
    (tokenizer / "tokenizer.json").write_text(json.dumps(words))
    return folder


@pytest.fixture
def artifact(tmp_path):
    return write_artifact(tmp_path / "artifacts", params=course_params())


def logits_of(lm: g.LanguageModel, ids: list[int]) -> torch.Tensor:
    """Logits (V,) after `ids`, through the engine's own forward pass."""
    seen = []
    engine = g.Engine(lm, g.EngineConfig(num_blocks=4))
    draw = engine._sample
    engine._sample = lambda step, logits: seen.append(logits) or draw(step, logits)
    engine.generate([ids], g.SamplingParams(max_tokens=1))
    return seen[0][0]


IDS = [5, 264, 12, 267, 90, 3, 3, 200]


def test_a_course_artifact_gives_the_reference_logits(artifact):
    """Right values: transformers, from the same list of tensors."""
    lm = g.load(artifact)
    expected = gpt2_logits(course_params(), IDS)[-1]
    torch.testing.assert_close(logits_of(lm, IDS), expected, rtol=0, atol=1e-4)
    assert (lm.name, lm.vocab_size) == ("Mine-1M-base", VOCAB)
    assert lm.num_parameters == sum(p.numel() for p in course_params())
    assert torch.equal(logits_of(g.load(str(artifact)), IDS), logits_of(lm, IDS))


def test_its_tokenizer_is_cut_to_the_models_vocabulary(artifact):
    """The course trains small models on the first ids of a larger tokenizer. Right values: the
    merges by hand, "bb" being the one beyond the model."""
    lm = g.load(artifact)
    assert lm.tokenizer.vocab_size == VOCAB
    assert lm.tokenizer.encode("the theaabb") == [265, 266, 267, 98, 98]


@pytest.mark.parametrize(
    ("name", "end"),
    [("Mine-1M-base", "<|endoftext|>"), ("Mine-1M-SFT", "<|end|>"), ("Mine-1M-DPO", "<|end|>")],
)
def test_the_end_of_text_goes_by_the_stage(tmp_path, name, end):
    """Right values: the course's rule, <|endoftext|> for base models, <|end|> for chat models."""
    lm = g.load(write_artifact(tmp_path, name, course_params()))
    assert lm.eos_id == 256 + SPECIALS.index(end)


def live_model(params: list[torch.Tensor]) -> SimpleNamespace:
    """What a live TransformerLM looks like from outside: attributes and leaf tensors alone."""
    left = iter([p.clone().requires_grad_() for p in params])

    def pair(*names: str) -> SimpleNamespace:
        return SimpleNamespace(**{name: next(left) for name in names})

    model = SimpleNamespace(vocab_size=VOCAB, **MODEL_CONFIG)
    model.token_embed, model.pos_embed = pair("weight"), pair("weight")
    model.blocks = []
    for _ in range(LAYERS):
        block = SimpleNamespace(ln1=pair(*LN))
        block.attn = SimpleNamespace(**{name: pair("W", "b") for name in ATTN})
        block.ln2 = pair(*LN)
        block.ffn = SimpleNamespace(**{name: pair("W", "b") for name in FFN})
        model.blocks.append(block)
    model.ln_final, model.head_bias = pair(*LN), next(left)
    return model


def live_tokenizer() -> SimpleNamespace:
    merges = {(a, b): new_id for a, b, new_id in MERGES}
    return SimpleNamespace(special_tokens=SPECIALS, merges=merges)


def test_a_live_model_is_copied_at_load(artifact):
    """Right values: transformers, also after the learner has trained on; and the same fingerprint
    as the saved artifact, since the weights are the same."""
    model = live_model(course_params())
    lm = g.load(model, tokenizer=live_tokenizer())
    with torch.no_grad():
        model.token_embed.weight.zero_()
        model.blocks[0].attn.q_proj.W.add_(1)
    expected = gpt2_logits(course_params(), IDS)[-1]
    torch.testing.assert_close(logits_of(lm, IDS), expected, rtol=0, atol=1e-4)
    assert not any(w.requires_grad for w in lm.weights.values())
    assert lm.tokenizer.encode("the theaabb") == [265, 266, 267, 98, 98]
    assert lm.fingerprint == g.load(artifact).fingerprint
    assert lm.fingerprint != g.load(model, tokenizer=live_tokenizer()).fingerprint


@pytest.mark.parametrize("tokenizer", [g.Tokenizer(), 5, object()])
def test_a_live_model_wants_its_own_tokenizer(tokenizer):
    """One with fewer tokens than the model would fail only when the text is decoded."""
    with pytest.raises((ValueError, TypeError), match="tokenizer"):
        g.load(live_model(course_params()), tokenizer=tokenizer)


def test_an_artifact_has_its_tokenizer(artifact):
    with pytest.raises(ValueError, match="names its own"):
        g.load(artifact, tokenizer=live_tokenizer())


def test_other_kinds_of_model_are_refused():
    """Neither the course's nor one of transformers, by itself or as the `inner` of a wrapper."""
    wrapper = SimpleNamespace(inner=torch.nn.Linear(2, 2), vocab_size=10)
    for other in (wrapper, torch.nn.Linear(2, 2), 5, None, {"params": []}):
        with pytest.raises(TypeError, match="cannot serve a .*TransformerLM has"):
            g.load(other, tokenizer=live_tokenizer())
    with pytest.raises(ValueError, match="needs its tokenizer"):
        g.load(live_model(course_params()))
    half = live_model(course_params())
    del half.blocks[1].attn.k_proj
    with pytest.raises(TypeError, match=r"has no blocks\.1\.attn\.k_proj\.W"):
        g.load(half, tokenizer=live_tokenizer())


@pytest.mark.parametrize("change", [{"dtype": torch.float8_e4m3fn}, {"device": "meta"}])
def test_weights_that_are_no_numbers_we_serve_are_refused(change):
    model = live_model(course_params())
    model.ln_final.gamma = model.ln_final.gamma.detach().to(**change)
    with pytest.raises(ValueError, match="ln_final.gamma does not hold floating-point numbers of"):
        g.load(model, tokenizer=live_tokenizer())


def test_what_the_courses_own_loader_returns_is_taken():
    """Its model with its tokenizer, under its name; an SFT model ends a turn. Right values: the
    same model by itself."""
    loaded = SimpleNamespace(
        name="Mine-1M-SFT", model=live_model(course_params()), tokenizer=live_tokenizer()
    )
    loaded.manifest = {"base_artifact": "Mine-1M-base"}
    lm, alone = g.load(loaded), g.load(loaded.model, tokenizer=live_tokenizer())
    assert (lm.name, lm.eos_id, alone.eos_id) == ("Mine-1M-SFT", 262, 256)
    assert lm.fingerprint == alone.fingerprint


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(FileNotFoundError, match="no model 'nonsuch'.*python -m g2c_serving train"):
        g.load("nonsuch")


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def wrong_shape(path):
    params = course_params()
    params[3] = torch.zeros(DIM + 1)
    torch.save({"params": params}, path)


def one_tensor_less(path):
    torch.save({"params": course_params()[:-1]}, path)


def no_params(path):
    torch.save({"weights": course_params()}, path)


def no_embedding_dim(path):
    content = json.loads(path.read_text())
    del content["model_config"]["embedding_dim"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("file", ["config.json", "manifest.json", "model.pt", "tokenizer.json"])
@pytest.mark.parametrize("fault", [truncate, lambda path: path.write_bytes(b"")])
def test_a_damaged_file_is_named(artifact, file, fault):
    path = find(artifact, file)
    fault(path)
    with pytest.raises(ValueError, match=r"(?s)is damaged") as caught:
        g.load(artifact)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("model.pt", wrong_shape),
        ("model.pt", one_tensor_less),
        ("model.pt", no_params),
        ("config.json", no_embedding_dim),
        ("config.json", lambda path: path.write_text("[1]")),
        ("config.json", lambda path: path.write_text('{"model_config": {}}')),
        ("config.json", lambda path: path.write_text('{"model_config": 3}')),
        ("manifest.json", lambda path: path.write_text("[1]")),
        ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe")),
    ],
)
def test_a_file_that_says_something_else_is_named(artifact, file, fault):
    path = find(artifact, file)
    fault(path)
    with pytest.raises(ValueError, match="is damaged.*save the artifact again") as caught:
        g.load(artifact)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("field", list(MODEL_CONFIG))
@pytest.mark.parametrize("value", [0, -1, 2.5, "16", None, 5])
def test_sizes_that_cannot_be(artifact, field, value):
    """No size of 0, below, broken or not a number; 5 is a number that the rest does not fit."""
    path = artifact / "config.json"
    path.write_text(json.dumps({"model_config": MODEL_CONFIG | {field: value}}))
    with pytest.raises(ValueError, match="is damaged.*save the artifact again"):
        g.load(artifact)


@pytest.mark.parametrize("file", ["config.json", "manifest.json", "model.pt", "tokenizer.json"])
def test_a_missing_file_is_named(artifact, file):
    path = find(artifact, file)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        g.load(artifact)
    name = "model.safetensors" if file == "model.pt" else path.name
    assert name in str(caught.value)


def test_a_shipped_model_says_how_it_comes_back(tmp_path, monkeypatch):
    """Right values: our own commands, for a model under data/."""
    for module in (checkpoints, course_artifacts):
        monkeypatch.setattr(module, "DATA", tmp_path)
    folder = write_artifact(tmp_path, "tiny", course_params())
    names = [name for name, _ in param_shapes(g.load("tiny").config)]
    (folder / "model.pt").unlink()
    halves = {n: p.half() for n, p in zip(names, course_params(), strict=True)}
    safetensors.torch.save_file(halves, folder / "model.safetensors")
    lm = g.load("tiny")
    assert all(w.dtype == torch.float32 for w in lm.weights.values())
    expected = gpt2_logits([p.half().float() for p in course_params()], IDS)[-1]
    torch.testing.assert_close(logits_of(lm, IDS), expected, rtol=0, atol=1e-4)
    truncate(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged.*git checkout -- data"):
        g.load("tiny")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"safetensors is missing.*g2c_serving train tiny"):
        g.load("tiny")


def find(folder, file):
    if file == "tokenizer.json":
        return folder.parent.parent / "tokenizers" / "Mine" / file
    return folder / file
