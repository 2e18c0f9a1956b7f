"""Hugging Face folders of GPT-2 and Llama shape: logits and tokens are those of transformers."""

from __future__ import annotations

import json
import random
import sys

import pytest
import torch
import transformers
from hugging_faces import CONTEXT, SHAPES, logits, saved
from small_models import ragged_plan
from test_model import CHUNKS, DECODE, ONE_GO, PREFILL_THEN_DECODE, through_pages

import g2c_serving as g
from g2c_serving.forward.checkpoint_files import INDEX
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.rotary import Rotary
from g2c_serving.lab.scoring import logits_of

# float64: cosines are float32 in transformers and here, and differ in their last bit
TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-4}
PLANS = {
    "one go": ONE_GO,
    "chunks": CHUNKS,
    "decode": DECODE,
    "prefill then decode": PREFILL_THEN_DECODE,
}


@pytest.fixture(scope="module", params=SHAPES)
def both(request, tmp_path_factory):
    """The model of transformers, and ours of its folder."""
    kind, fields = SHAPES[request.param]
    folder = tmp_path_factory.mktemp("models") / kind
    model = saved(folder, kind, **fields)
    return model, g.load(folder)


def ids_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 131, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("plan", PLANS)
def test_logits_are_those_of_transformers(both, plan, dtype):
    """Three texts, whole, in chunks, token by token, and mixed. Right values: transformers, each
    text by itself."""
    model, lm = both
    texts = [ids_of(count, seed=count) for count in (40, 17, 1)]
    found = through_pages(lm, texts, PLANS[plan], 4, dtype)
    for text, ours in zip(texts, found, strict=True):
        torch.testing.assert_close(ours, logits(model, text, dtype), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("seed", range(3))
def test_logits_of_any_ragged_mix_are_those_of_transformers(both, seed):
    """Texts cut and mixed at random, up to the last position of the context."""
    (model, lm), rng = both, random.Random(seed)
    texts = [ids_of(count, seed) for count in (CONTEXT, rng.randint(1, 64), rng.randint(1, 64))]
    plan = ragged_plan([len(text) for text in texts], rng)
    found = through_pages(lm, texts, plan, rng.choice([1, 3, 8, 16]), torch.float64)
    for text, ours in zip(texts, found, strict=True):
        expected = logits(model, text, torch.float64)
        torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE[torch.float64])


def test_an_engine_writes_the_tokens_of_transformers(both):
    """Greedy, three prompts at once, in float64. Right values: transformers' arg max, token by
    token, each prompt by itself."""
    model, lm = both
    prompts = [ids_of(count, seed=count) for count in (3, 20, 33)]
    engine = g.Engine(lm, g.EngineConfig(dtype="float64", max_num_batched_tokens=24))
    outputs = engine.generate(prompts, g.SamplingParams(temperature=0, max_tokens=12))
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(logits(model, ids, torch.float64)[-1].argmax()))
        assert output.token_ids == ids[len(prompt) :] and output.finish_reason == "length"


def test_bfloat16_is_as_close_to_float32_as_that_of_transformers(both):
    """Root mean square distance from transformers' float32 logits. Right value: that of its own
    bfloat16, and half as much again for another order of rounding."""
    model, lm = both
    text = ids_of(CONTEXT)
    exact = logits(model, text).float()
    theirs = (logits(model, text, torch.bfloat16).float() - exact).square().mean().sqrt()
    [found] = through_pages(lm, [text], [[(0, 40)], *([[(0, 1)]] * 24)], 8, torch.bfloat16)
    ours = (found.float() - exact).square().mean().sqrt()
    assert found.dtype == torch.bfloat16 and ours < 1.5 * theirs
    assert theirs < 0.1 * exact.square().mean().sqrt()  # or the comparison says nothing


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_files_of_any_float_type(kind, stored, tmp_path):
    """Right values: transformers' logits in float32 with the weights that the file holds."""
    model = saved(tmp_path, kind)
    model.to(stored).save_pretrained(tmp_path)
    lm, text = g.load(tmp_path), ids_of(30)
    assert {w.dtype for w in lm.weights.values()} == {stored}
    expected = logits(model, text)
    torch.testing.assert_close(logits_of(lm.model, [text])[0], expected, rtol=0, atol=2e-4)
    assert lm.num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_shards(kind, tmp_path):
    """The same model in several files. Right values: the weights of the one file, bit for bit."""
    saved(tmp_path / "whole", kind)
    saved(tmp_path / "cut", kind, shard="60KB")
    assert (tmp_path / "cut" / INDEX).is_file() and not (
        tmp_path / "cut/model.safetensors"
    ).exists()
    whole, cut = g.load(tmp_path / "whole"), g.load(tmp_path / "cut")
    assert whole.weights.keys() == cut.weights.keys()
    assert all(torch.equal(w, cut.weights[name]) for name, w in whole.weights.items())
    assert whole.fingerprint == cut.fingerprint


def test_the_inner_model_alone(tmp_path):
    """GPT-2's own files have no "transformer." before the names, and hold masks. Right values: the
    model with its head, whose head is the token embedding."""
    model = saved(tmp_path / "whole", "gpt2")
    inner = model.transformer.state_dict()
    inner["h.0.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.uint8)
    inner["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    model.transformer.save_pretrained(tmp_path / "inner", state_dict=inner)
    whole, alone = g.load(tmp_path / "whole"), g.load(tmp_path / "inner")
    assert whole.fingerprint == alone.fingerprint


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("differs", [True, False])
def test_a_head_of_its_own_that_the_config_says_is_tied(kind, differs, tmp_path):
    """The file has both. Right values: transformers, which ties them where they are equal alone."""
    model = saved(tmp_path, kind, tie_word_embeddings=False)
    if not differs:
        embedding = model.get_input_embeddings().weight.detach()
        model.lm_head.weight = torch.nn.Parameter(embedding.clone())
        model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    lm, text = g.load(tmp_path), ids_of(20)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(theirs, text), logits(model, text))
    expected = logits(theirs, text)
    torch.testing.assert_close(logits_of(lm.model, [text])[0], expected, rtol=0, atol=2e-4)
    assert ("head.W" in lm.weights) == differs


@pytest.mark.parametrize("absent", ["max_window_layers", "use_sliding_window", "rms_norm_eps"])
def test_a_field_that_is_absent_has_the_value_of_transformers(absent, tmp_path):
    """Right values: transformers' own reading of the same file."""
    windows = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    saved(tmp_path, "qwen2", **windows, rms_norm_eps=1e-3)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    del fields["layer_types"], fields[absent]  # which would say what the others do
    path.write_text(json.dumps(fields))
    theirs, ours = transformers.AutoConfig.from_pretrained(tmp_path), g.load(tmp_path).config
    kinds = enumerate(theirs.layer_types)
    windowed = tuple(i for i, kind in kinds if kind == "sliding_attention")
    assert (ours.window_layers, ours.window) == (windowed, 7 if windowed else 0)
    assert ours.norm_eps == theirs.rms_norm_eps


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_biases_that_an_architecture_does_not_ask_for(kind, tmp_path):
    """Llama's fields alone: transformers passes over them in the others. Right values: its own."""
    saved(tmp_path, kind)
    path = tmp_path / "config.json"
    biases = {"attention_bias": True, "mlp_bias": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | biases))
    theirs, text = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), ids_of(20)
    found = logits_of(g.load(tmp_path).model, [text])[0]
    torch.testing.assert_close(found, logits(theirs, text), rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_config_of_transformers_4(kind, tmp_path):
    """It writes rope_theta and rope_scaling, whose kind was called type at first."""
    saved(tmp_path, kind, rope_theta=700.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
    new = g.load(tmp_path)
    assert new.config.rotary == Rotary(700.0, "linear", 2.0)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    fields.pop("rope_parameters", None)
    fields |= {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    path.write_text(json.dumps(fields))
    assert g.load(tmp_path).config == new.config
    path.write_text(json.dumps(fields | {"rope_scaling": None}))
    assert g.load(tmp_path).config.rotary == Rotary(700.0)


def test_a_window_beyond_the_context_is_none(tmp_path):
    saved(tmp_path, "mistral", sliding_window=CONTEXT)
    assert g.load(tmp_path).config.window == 0


@pytest.mark.parametrize(
    ("config", "generation", "found"),
    [
        (5, None, (5, ())),
        ([7, 8], None, (7, (8,))),
        (5, 9, (9, ())),
        (5, [9, 3, 131], (9, (3,))),
        (None, None, (None, ())),
        (131, None, (None, ())),
        ([], None, (None, ())),
    ],
)
def test_the_end_of_a_text(config, generation, found, tmp_path):
    saved(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": config}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    lm = g.load(tmp_path)
    assert (lm.eos_id, lm.other_eos_ids) == found


def test_each_of_several_ends_ends_a_text(tmp_path):
    """Right values: the same text where nothing ends it, cut after the end."""
    model = saved(tmp_path, "llama")
    greedy = g.SamplingParams(temperature=0, max_tokens=12)
    [whole] = g.Engine(g.load(tmp_path)).generate([[1, 2]], greedy)
    end = next(i for i in whole.token_ids[3:] if i not in whole.token_ids[:3])
    unused = next(i for i in range(131) if i not in whole.token_ids)
    model.generation_config.eos_token_id = [unused, end]
    model.generation_config.save_pretrained(tmp_path)
    [cut] = g.Engine(g.load(tmp_path)).generate([[1, 2]], greedy)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert cut.finish_reason == "stop"


def test_no_tokenizer_serves_ids(tmp_path):
    saved(tmp_path, "llama")
    engine = g.Engine(g.load(tmp_path))
    [output] = engine.generate([[1, 2, 130]], g.SamplingParams(max_tokens=5, seed=1))
    assert len(output.token_ids) == 5 and output.text == ""
    with pytest.raises(ValueError, match="no tokenizer.*pass a prompt of token ids"):
        engine.generate(["Once"])
    with pytest.raises(ValueError, match=r"stop=.*'e'.* can never match.*pass stop_token_ids"):
        engine.generate([[1, 2]], g.SamplingParams(stop=("e",)))
    assert not engine.has_unfinished


def test_weights_are_read_when_asked_for(tmp_path):
    """A tensor may be written to, as one in memory may; the file and the next reader see nothing of
    it."""
    model = saved(tmp_path, "llama")
    weights = g.load(tmp_path).weights
    name, theirs = "blocks.1.attn.k_proj.W", model.model.layers[1].self_attn.k_proj.weight.T
    assert torch.equal(weights[name], theirs)
    weights[name].zero_()
    assert torch.equal(weights[name], theirs)
    assert "head.W" in weights and "head_bias" not in weights and "pos_embed.weight" not in weights


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is mapped stays there")
def test_a_model_outlives_its_file(tmp_path):
    """Built in memory of its own; the table of a tied head alone may stay in the file, which others
    replace by a new one."""
    model, text = saved(tmp_path, "llama", tie_word_embeddings=True), ids_of(20)
    lm = g.load(tmp_path)
    ours = Transformer(lm.config, lm.weights)
    (tmp_path / "model.safetensors").rename(tmp_path / "old")
    (tmp_path / "old").unlink()
    torch.testing.assert_close(logits_of(ours, [text])[0], logits(model, text), rtol=0, atol=2e-4)
    with pytest.raises(ValueError, match="cannot be read any more.*load it again"):
        lm.weights["head.W" if "head.W" in lm.weights else "token_embed.weight"]
