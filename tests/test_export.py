"""Export: what transformers reads from the folder is our model and our tokenizer.

Right values: transformers' own forward, `generate` and tokenizer on the files, and our engine.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.export_command import export_gpt2, main
from g2c_serving.forward.inflate import inflate
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.rotary import Rotary
from g2c_serving.paths import DATA
from g2c_serving.process.bpe_spec import byte_of_character
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer
from g2c_serving.process.tokenizer_export import to_hugging_face

transformers = pytest.importorskip("transformers")

SHIPPED = Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")
THEIRS = to_hugging_face(SHIPPED)
FILES = ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def changed(lm: LanguageModel, **weights: torch.Tensor | None) -> LanguageModel:
    """The same model with some weights replaced, or, where None, taken out."""
    kept = {n: w for n, w in {**lm.weights, **weights}.items() if w is not None}
    return LanguageModel(lm.name, lm.config, kept, lm.tokenizer, lm.eos_id)


def shaped(lm: LanguageModel, **fields: Any) -> LanguageModel:
    """The same weights under another shape, which an export must look at."""
    config = dataclasses.replace(lm.config, **fields)
    return LanguageModel(lm.name, config, lm.weights, lm.tokenizer, lm.eos_id)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "tiny"
    assert main(["tiny", "--to", "gpt2", str(folder)]) == 0
    return folder


def test_the_folder_has_the_layout_of_hugging_face(tiny):
    assert sorted(p.name for p in tiny.iterdir()) == sorted([*FILES, "config.json"])
    config = json.loads((tiny / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"] and config["torch_dtype"] == "float32"
    assert json.loads((tiny / "generation_config.json").read_text())["eos_token_id"] == 256


def test_transformers_writes_the_tokens_of_our_engine(tiny):
    """Greedy, to the end of the text or 40 tokens, from texts of the kind that tiny knows."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    assert model.dtype == torch.float32
    texts = ["Once upon a time", "3 + 4 =", "The boy took the coat. He"]
    engine = g.Engine(g.load("tiny"))
    for output in engine.generate(texts, g.SamplingParams(temperature=0, max_tokens=40)):
        ids = tokenizer(texts[output.request_id], return_tensors="pt")
        found = model.generate(**ids, max_new_tokens=40, do_sample=False)[0].tolist()
        assert found == output.prompt_token_ids + output.token_ids


def test_logits_of_a_random_model_come_back(tmp_path):
    """Right values: our forward in float64, against transformers' on the files."""
    lm = random_lm(seed=3)
    export_gpt2(lm, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    prompts = [random_ids(lm, 20, seed) for seed in range(3)]
    config = g.EngineConfig(dtype="float64")
    params = g.SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    for output in g.Engine(lm, config).generate(prompts, params):
        whole = output.prompt_token_ids + output.token_ids
        theirs = model(torch.tensor([whole])).logits[0].log_softmax(dim=-1)
        for k, (token, at) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            row = theirs[len(output.prompt_token_ids) + k - 1]
            assert row.argmax() == token
            assert at.logprob == pytest.approx(row[token].item(), abs=1e-9)


def test_biases_that_are_not_there_are_zeros(tmp_path):
    lm = random_lm()
    absent = {f"blocks.0.{n}.b": None for n in ("attn.q_proj", "ffn.fc1")}
    export_gpt2(changed(lm, **absent), tmp_path)
    block = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).transformer.h[0]
    dim = lm.config.embedding_dim
    assert not block.mlp.c_fc.bias.any() and not block.attn.c_attn.bias[:dim].any()
    torch.testing.assert_close(
        block.attn.c_attn.bias[dim : 2 * dim], lm.weights["blocks.0.attn.k_proj.b"]
    )


def test_it_comes_back_as_one_of_ours(tiny):
    """Right values: the shipped model's own tokens, ids and reserved names."""
    back, first = g.load(tiny), g.load("tiny")
    assert back.config == first.config and back.eos_id == first.eos_id
    assert back.tokenizer.reserved == first.tokenizer.reserved
    params = g.SamplingParams(temperature=0, max_tokens=20)
    texts = ["Once upon a time", "Carl took <|user|>"]
    outputs = [g.Engine(lm).generate(texts, params) for lm in (back, first)]
    for one, other in zip(*outputs, strict=True):
        assert one.prompt_token_ids == other.prompt_token_ids
        assert one.token_ids == other.token_ids


def test_a_tokenizer_that_is_not_ours_is_left_where_it_is(tiny, tmp_path):
    """Its merges lie in the file that it came from: an export of it would cut texts into bytes."""
    back = g.load(tiny)
    with pytest.raises(ValueError, match="HuggingFaceTokenizer, not our own: export without it"):
        export_gpt2(back, tmp_path)
    assert not list(tmp_path.iterdir())
    export_gpt2(back, tmp_path, with_tokenizer=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(
        model.transformer.wte.weight.detach(), g.load("tiny").weights["token_embed.weight"]
    )


# the tokenizer

ordinary = st.text(max_size=60).filter(lambda t: not any(name in t for name in RESERVED_TOKENS))
words = st.lists(st.sampled_from(["Carl ", "took", " the", "\n", "<|", "é", "\U0001f600", "  "]))


@given(ordinary | words.map("".join))
@settings(max_examples=300, deadline=None)
def test_ordinary_text_has_the_same_ids_there(text):
    ids = SHIPPED.encode(text)
    assert THEIRS.encode(text).ids == ids
    assert THEIRS.decode(ids) == text


def test_reserved_tokens_are_special_there(tiny):
    """Right values: our table of reserved ids. Text that spells one makes it, which ours never
    does; the library's own switch turns that off."""
    theirs = transformers.AutoTokenizer.from_pretrained(tiny)
    assert set(theirs.all_special_tokens) == set(RESERVED_TOKENS)
    assert {name: theirs.convert_tokens_to_ids(name) for name in RESERVED_TOKENS} == (
        SHIPPED.reserved
    )
    assert theirs("<|user|>hi")["input_ids"][0] == SHIPPED.reserved["<|user|>"]
    inert = theirs("<|user|>hi", split_special_tokens=True)["input_ids"]
    assert inert == SHIPPED.encode("<|user|>hi")
    assert (theirs.eos_token_id, theirs.pad_token_id) == (256, 263)
    assert len(theirs) == SHIPPED.vocab_size and theirs.model_max_length == 512


def test_every_token_decodes_to_its_bytes():
    """Right values: `token_bytes`, through GPT-2's characters for bytes: byte 0 is U+0100, a space
    is U+0120, and there are 256 different ones."""
    characters = list(byte_of_character())
    assert (characters[0], characters[32], characters[65]) == ("\u0100", "\u0120", "A")
    assert len(set(characters)) == 256
    back = {c: b for b, c in enumerate(characters)}
    for i in range(SHIPPED.vocab_size):
        if i not in SHIPPED.reserved.values():
            spelled = THEIRS.id_to_token(i)
            assert bytes(back[c] for c in spelled) == SHIPPED.token_bytes(i)


def test_two_tokens_of_the_same_bytes_are_refused_and_the_weights_can_go_alone(tmp_path):
    merges = [[97, 97, 266], [97, 266, 267], [266, 97, 268]]
    lm = random_lm(vocab_size=269)
    twins = LanguageModel("twins", lm.config, lm.weights, Tokenizer(merges), None)
    with pytest.raises(ValueError, match=r"tokens 267 and 268 .* b'aaa'.*--no-tokenizer"):
        export_gpt2(twins, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    names = [path.name for path in export_gpt2(twins, tmp_path / "b", with_tokenizer=False)]
    assert names == ["model.safetensors", "generation_config.json", "config.json"]
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").config.n_embd == 32


def test_a_text_token_that_spells_a_reserved_name_is_refused(tmp_path):
    """Merges may build the bytes of `<a>`; with a reserved token of that name nobody could tell."""
    merges = [[60, 97, 257], [257, 62, 258]]
    with pytest.raises(ValueError, match=r"tokens 256 and 258 .* both b'<a>'"):
        to_hugging_face(Tokenizer(merges, ["<a>"]))


# what is refused


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda lm: changed(lm, head_bias=torch.ones(300)), "head_bias of random is not zero"),
        (lambda lm: inflate(lm, 1), "has no attention"),
        (lambda lm: random_lm(window=8, window_layers=(1,)), r"window layers \[1\]"),
        (lambda lm: changed(lm, **{"head.W": torch.zeros(32, 300)}), "a head of its own"),
        (lambda lm: shaped(lm, norm="rms"), "norm='rms': GPT-2 has layer norm"),
        (lambda lm: shaped(lm, gated=True), "gated=True: GPT-2 has no gate"),
        (lambda lm: shaped(lm, rotary=Rotary()), r"rotary=Rotary\(.*: GPT-2 has learned positions"),
        (lambda lm: shaped(lm, num_kv_heads=1), "fewer heads for keys"),
        (lambda lm: shaped(lm, head_size=8), "are not embedding_dim wide"),
    ],
)
def test_what_gpt2_cannot_hold_is_refused_and_nothing_is_written(make, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        export_gpt2(make(random_lm()), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_says_why_and_returns_1(tmp_path, capsys):
    assert main(["tiny-window", str(tmp_path / "w")]) == 1
    assert "window layers" in capsys.readouterr().err
    assert main(["no-such-model", str(tmp_path / "w")]) == 1
    assert "no model 'no-such-model'" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_another_shape_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["tiny", "--to", "llama", str(tmp_path)])
    assert "invalid choice: 'llama'" in capsys.readouterr().err


def test_a_folder_in_use_needs_force_and_keeps_what_is_not_ours(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "config.json").write_text("old")
    with pytest.raises(FileExistsError, match="is not empty: name another folder, or --force"):
        export_gpt2(random_lm(), tmp_path)
    assert (tmp_path / "config.json").read_text() == "old"
    export_gpt2(random_lm(), tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert json.loads((tmp_path / "config.json").read_text())["n_embd"] == 32


def test_a_model_is_not_written_over_itself(tmp_path):
    """Its file is mapped while it is written; a course artifact would lose its config.json."""
    first, artifact = tmp_path / "first", tmp_path / "models" / "Mini"
    export_gpt2(random_lm(), first)
    before = (first / "model.safetensors").read_bytes()
    for same in (first, tmp_path / "models" / ".." / "first"):
        (tmp_path / "models").mkdir(exist_ok=True)
        with pytest.raises(FileExistsError, match="holds the model itself.*another folder"):
            export_gpt2(g.load(first), same, force=True, with_tokenizer=False)
    assert (first / "model.safetensors").read_bytes() == before
    export_gpt2(random_lm(seed=1), first, force=True)  # another one may
    assert (first / "model.safetensors").read_bytes() != before
    artifact.mkdir()
    (artifact / "manifest.json").write_text("{}")
    with pytest.raises(FileExistsError, match="holds an artifact"):
        export_gpt2(random_lm(), artifact, force=True)
    assert [path.name for path in artifact.iterdir()] == ["manifest.json"]


def test_all_ends_of_a_text_are_written(tmp_path):
    """Right values: transformers' generate, which stops at any of them."""
    lm = dataclasses.replace(random_lm(), eos_id=7, other_eos_ids=(3, 9))
    export_gpt2(lm, tmp_path / "a", with_tokenizer=False)
    back = g.load(tmp_path / "a")
    assert (back.eos_id, back.other_eos_ids) == (7, (3, 9))
    ids = [5, 1, 8]
    [whole] = g.Engine(random_lm()).generate([ids], g.SamplingParams(temperature=0, max_tokens=12))
    end = next(i for i in whole.token_ids[3:] if i not in whole.token_ids[:3])
    lm = dataclasses.replace(random_lm(), eos_id=299, other_eos_ids=(end,))
    export_gpt2(lm, tmp_path / "b", with_tokenizer=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    found = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0].tolist()
    [ours] = g.Engine(lm).generate([ids], g.SamplingParams(temperature=0, max_tokens=12))
    assert found[3:] == ours.token_ids and found[-1] == end


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file: name a folder"):
        export_gpt2(random_lm(), tmp_path / "file", force=True)


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        export_gpt2(random_lm(), folder)
        assert (folder / "config.json").is_file()


def test_a_disk_that_fills_up_leaves_no_config(tmp_path, monkeypatch):
    """A folder without config.json is a model to nobody; an older one in it must not stay."""

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    export_gpt2(random_lm(), tmp_path)
    monkeypatch.setattr("g2c_serving.export_command.safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        export_gpt2(random_lm(), tmp_path, force=True)
    assert not (tmp_path / "config.json").exists()
