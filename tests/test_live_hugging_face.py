"""Live models of transformers, the course's BaseLM around one, and its artifacts on the disk.

Right values: transformers' own greedy tokens, on small random models.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from test_hf_tokenizer import gpt2

import g2c_serving as g
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer

SIZES = dict(
    vocab_size=420,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
GPT2 = dict(vocab_size=420, n_positions=64, n_embd=32, n_layer=2, n_head=2, eos_token_id=3)
IDS = [5, 7, 200, 31]


def model(kind: str) -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    tied = SIZES | {"tie_word_embeddings": True}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**tied)).eval()


def greedy(inner: transformers.PreTrainedModel) -> list[int]:
    how = dict(max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
    return inner.generate(torch.tensor([IDS]), **how)[0, len(IDS) :].tolist()


def served(lm: g.LanguageModel) -> list[int]:
    params = g.SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    return g.Engine(lm, g.EngineConfig(num_blocks=8)).generate([IDS], params)[0].token_ids


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_a_live_model_is_copied_at_load(kind):
    inner = model(kind)
    expected, lm = greedy(inner), g.load(inner)
    with torch.no_grad():
        for weight in inner.parameters():
            weight.add_(1)
    assert served(lm) == expected
    assert lm.eos_id == {"gpt2": 3, "llama": 2, "qwen2": None}[kind]
    assert not any(w.requires_grad for w in lm.weights.values())
    with pytest.raises(ValueError, match="has no tokenizer.*prompt of token ids"):
        g.Engine(lm).add("text")


def test_the_inner_model_of_a_wrapper_is_served():
    """The course's BaseLM: `HuggingFaceCausalLMAdapter`, a module with `inner`."""
    adapter = torch.nn.Module()
    adapter.inner, adapter.vocab_size = model("llama"), 420
    assert served(g.load(adapter, tokenizer=gpt2())) == greedy(adapter.inner)


def test_an_architecture_that_is_not_ours_is_refused():
    """By its name, with those that are."""
    config = transformers.OPTConfig(
        vocab_size=420, hidden_size=32, ffn_dim=64, num_hidden_layers=1, num_attention_heads=2
    )
    adapter = SimpleNamespace(inner=transformers.OPTForCausalLM(config))
    with pytest.raises(ValueError, match="OPTForCausalLM.*'opt'.*expected one of .*'llama'"):
        g.load(adapter)


def test_weights_that_are_no_numbers_we_serve_are_refused():
    with pytest.raises(ValueError, match=r"stored as torch.float8_e4m3fn, expected one of .*BF16"):
        g.load(model("llama").to(torch.float8_e4m3fn))
    with pytest.raises(ValueError, match=r"no numbers in .*model.embed_tokens.weight.* meta dev"):
        g.load(model("llama").to("meta"))


def test_a_live_model_with_a_head_of_its_own_that_its_config_says_is_tied():
    inner = model("qwen2")
    assert "head.W" not in g.load(inner).weights
    inner.lm_head.weight = torch.nn.Parameter(torch.randn(420, 32))
    assert served(g.load(inner)) == greedy(inner)


def test_a_tokenizer_in_any_of_its_wrappings(tmp_path):
    """Right values: the ids of the bare one."""
    theirs, inner = gpt2(), model("gpt2")
    theirs.save(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs)
    ours = HuggingFaceTokenizer.of(theirs)
    expected = theirs.encode("the hen said").ids
    for one in (theirs, fast, ours, tmp_path, str(tmp_path), SimpleNamespace(inner=fast)):
        lm = g.load(inner, tokenizer=one)
        assert lm.tokenizer.encode("the hen said") == expected
        assert lm.tokenizer.vocab_size == lm.vocab_size == 420
    with pytest.raises(TypeError, match="pass the course's BPETokenizer, one of ours, or a fast"):
        g.load(inner, tokenizer=object())


def base_lm(root: Path, **manifest) -> Path:
    folder = root / "models" / "BaseLM-135M"
    folder.mkdir(parents=True)
    says = {"kind": "huggingface_causal_lm", "source": "org/some-model"} | manifest
    (folder / "manifest.json").write_text(json.dumps(says))
    return folder


def test_a_base_lm_artifact_with_its_weights(tmp_path):
    folder, inner = base_lm(tmp_path), model("llama")
    inner.save_pretrained(folder / "hf_model")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=gpt2())
    fast.save_pretrained(folder / "hf_tokenizer")
    lm = g.load(folder)
    assert served(lm) == greedy(inner)
    assert (lm.name, lm.eos_id) == ("BaseLM-135M", 2)
    assert lm.tokenizer.encode("the hen said") == gpt2().encode("the hen said").ids
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert served(g.load(folder)) == greedy(inner)


def test_a_base_lm_artifact_without_its_weights(tmp_path):
    folder = base_lm(tmp_path)
    said = r"hf_model/ is missing.*'org/some-model'.*save_pretrained\("
    with pytest.raises(FileNotFoundError, match=said):
        g.load(folder)
    (folder / "hf_model").mkdir()
    with pytest.raises(FileNotFoundError, match="config.json is missing"):
        g.load(folder)
