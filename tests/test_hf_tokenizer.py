"""Tokenizers of Hugging Face folders, of the families in use, against the `tokenizers` library.

Each is trained here on a few sentences, with the steps that GPT-2, Llama 3, Llama 2 and Mistral
have in their files. Right values: the ids and texts of that library.
"""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import g2c_serving as g
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer
from g2c_serving.process.streaming import OutputParser
from g2c_serving.sample.grammar_compiler import GrammarCompiler

CORPUS = [
    "Once there was a hen on the road. The hen said hello to the world, and the world said hello.",
    "Zwei \u00e4pfel, drei stra\u00dfen: 12345 + 678 = 13023! the the there then <|user|> <s> user",
    "\u4f60\u597d \u4e16\u754c \U0001f600\U0001f680 caf\u00e9 \n\n  def f(x):\n    return x",
] * 4
LLAMA3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"


def byte_level(names: list[str], splits=None, **options) -> Tokenizer:
    made = Tokenizer(models.BPE(**options))
    made.pre_tokenizer = splits or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, show_progress=False, special_tokens=names
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def gpt2() -> Tokenizer:
    return byte_level(["<|endoftext|>", "<|user|>"])


def llama3() -> Tokenizer:
    splits = [
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made = byte_level([], pre_tokenizers.Sequence(splits), ignore_merges=True)
    made.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("    ", normalized=False)])
    start = "<|begin_of_text|>", made.token_to_id("<|begin_of_text|>")
    single = processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    made.post_processor = processors.Sequence([processors.ByteLevel(), single])
    return made


def qwen2() -> Tokenizer:
    made = gpt2()
    made.normalizer = normalizers.NFC()
    return made


def sentence_piece(**steps) -> Tokenizer:
    """Byte fallback; merges as the training gives them, over blanks written as U+2581."""
    words = [text.replace(" ", "\u2581") for text in CORPUS]
    names = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)]]
    learner = Tokenizer(models.BPE())
    letters = sorted({c for text in words for c in text if c.isascii() or c == "\u2581"} - {"\n"})
    learner.train_from_iterator(
        words,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=names,
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        ),
    )
    spec = json.loads(learner.to_str())
    model = spec["model"] | {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    spec |= {"model": model, "added_tokens": spec["added_tokens"][:3]}
    made = Tokenizer.from_str(json.dumps(spec))
    ends = [("<s>", 1), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ends)
    for name, step in steps.items():
        setattr(made, name, step)
    return made


def llama2() -> Tokenizer:
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentence_piece(
        normalizer=normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        ),
        decoder=decoders.Sequence([*back, decoders.Strip(" ", 1, 0)]),
    )


def mistral() -> Tokenizer:
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentence_piece(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoder=decoders.Sequence([*back, decoders.Strip(" ", 1, 0)]),
    )


FAMILIES = {f.__name__: f for f in (gpt2, llama3, qwen2, llama2, mistral)}
BYTE_LEVEL = ["gpt2", "llama3", "qwen2"]
MADE: dict[str, tuple[Tokenizer, HuggingFaceTokenizer]] = {}


def pair(family: str) -> tuple[Tokenizer, HuggingFaceTokenizer]:
    """The library's tokenizer, and ours of the same file."""
    if family not in MADE:
        theirs = FAMILIES[family]()
        MADE[family] = theirs, HuggingFaceTokenizer.of(theirs)
    return MADE[family]


def has_special(theirs: Tokenizer, text: str) -> bool:
    return any(t.content in text for t in theirs.get_added_tokens_decoder().values())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_the_ids_of_any_text_are_the_librarys(family, text):
    theirs, ours = pair(family)
    if not has_special(theirs, text.replace("\u2581", " ")):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert not set(ours.encode(text)) & set(ours.reserved.values())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_a_text_comes_back(family, text):
    """All but what the file's own steps change: NFC in qwen2, and SentencePiece's blank, which a
    text cannot spell."""
    ours = pair(family)[1]
    ids = ours.encode(text)
    expected = unicodedata.normalize("NFC", text) if family == "qwen2" else text
    if family not in BYTE_LEVEL:
        expected = text.replace("\u2581", " ")
        if family == "mistral" and expected.startswith(" "):
            expected = expected[1:]  # Metaspace writes no blank before one; Strip takes it off
    assert ours.decode(ids) == expected
    assert ours.visible_text(ids).endswith(expected)
    if family in BYTE_LEVEL:
        assert b"".join(map(ours.token_bytes, ids)) == expected.encode()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_random_ids_decode_as_in_the_library(family, seed):
    theirs, ours = pair(family)
    ordinary = [i for i in range(ours.vocab_size) if i not in ours.reserved.values()]
    if family not in BYTE_LEVEL:  # of broken bytes the library writes more U+FFFD than Python
        ordinary = [i for i in ordinary if not theirs.id_to_token(i).startswith("<0x")]
    ids = random.Random(seed).choices(ordinary, k=12)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_special_token_in_a_text_is_text(family):
    """In the library the same text makes the special ids. Right values: what was typed."""
    theirs, ours = pair(family)
    for name, token_id in ours.reserved.items():
        text = f"{name}hello{name} {name}"
        ids = ours.encode(text)
        assert token_id in theirs.encode(text).ids
        assert not set(ids) & set(ours.reserved.values())
        assert ours.decode(ids) == text
        assert ours.decode([token_id]) == name and ours.visible_text([token_id]) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_reserved_parts_make_them(family):
    """Right values: the library's ids for the marker and, by themselves, for the texts."""
    theirs, ours = pair(family)
    name, token_id = next(iter(ours.reserved.items()))
    parts = [g.Reserved(name), f"hello {name}", g.Reserved(name), "the world"]
    encoded = ours.encode_with_origin(parts)
    assert ours.encode_parts(parts) == encoded.token_ids
    assert [i for i in encoded.token_ids if i in ours.reserved.values()] == [token_id] * 2
    whole = theirs.encode(f"{name}the world", add_special_tokens=False).ids
    assert ours.encode_parts([g.Reserved(name), "the world"]) == whole
    for span in encoded.spans[1::2]:
        text = ours.visible_text(encoded.token_ids[span.start : span.end])
        assert text.strip() == parts[span.part_index]


def test_what_the_file_puts_before_a_text():
    """Right values: the post-processors that were set above, and the library's ids with them."""
    openings = {family: [p.name for p in pair(family)[1].opening] for family in FAMILIES}
    start = {"llama3": ["<|begin_of_text|>"], "llama2": ["<s>"], "mistral": ["<s>"]}
    assert openings == {"gpt2": [], "qwen2": []} | start
    for family in ("llama3", "llama2"):
        theirs, ours = pair(family)
        parts = [*ours.opening, "hello the world"]
        assert ours.encode_parts(parts) == theirs.encode("hello the world").ids


def test_text_of_an_added_token_that_is_not_flagged_special_is_text():
    """tokenizers (run here): with `encode_special_tokens=True` the library takes the text of
    special tokens as text, and still makes `<think>` of its own, which was added without that
    flag."""
    theirs, ours = llama3(), pair("llama3")[1]
    theirs.encode_special_tokens = True
    flags = {t.content: t.special for t in theirs.get_added_tokens_decoder().values()}
    assert not flags["<think>"] and flags["<|eot_id|>"]
    text = "a<think>b<|eot_id|>"
    found = theirs.encode(text, add_special_tokens=False).ids
    assert theirs.token_to_id("<think>") in found and theirs.token_to_id("<|eot_id|>") not in found
    assert not set(ours.encode(text)) & set(ours.reserved.values())
    assert ours.decode(ours.encode(text)) == text
    assert ours.encode_parts([g.Reserved("<think>")]) == [theirs.token_to_id("<think>")]


def test_added_tokens_are_reserved_unless_they_are_blank():
    ours = pair("llama3")[1]
    assert set(ours.reserved) == {"<|begin_of_text|>", "<|eot_id|>", "<think>"}
    four = ours.encode("x    y")
    assert pair("llama3")[0].token_to_id("    ") in four and len(four) == 3
    assert ours.decode(four) == "x    y"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vocabulary_that_is_cut(family):
    """Ids from the model's vocabulary on never come. Right values: the text comes back."""
    theirs, whole = pair(family)
    size = whole.vocab_size - 40
    ours = HuggingFaceTokenizer.of(theirs, size)
    text = " ".join(CORPUS)
    ids = ours.encode(text)
    assert ours.vocab_size == size and max(ids) < size <= max(whole.encode(text))
    assert ours.decode(ids) == whole.decode(whole.encode(text))
    with pytest.raises(ValueError, match=f"outside 0 to {size - 1}"):
        ours.token_bytes(size)


def test_a_model_with_more_ids_than_tokens():
    """A padded vocabulary: what the tokenizer lacks has no bytes."""
    ours = HuggingFaceTokenizer.of(gpt2(), 500)
    assert (ours.vocab_size, ours.token_bytes(499)) == (500, b"")
    assert ours.decode([499, *ours.encode("hen"), 450]) == "hen"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_gives_whole_characters(family):
    """Right values: the text, and no piece with half a character in it."""
    ours = pair(family)[1]
    text = "caf\u00e9 \U0001f680\u4f60\u597d \U0001f9d1\u200d\U0001f33e!"
    parser, pieces = OutputParser(ours), []
    for token_id in ours.encode(text):
        before = parser.text()
        parser.feed(token_id)
        pieces.append(parser.text()[len(before) :])
    parser.finish()
    assert parser.text().lstrip() == text
    assert not any("\ufffd" in piece for piece in pieces) and len(pieces) > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grammar_over_it(family):
    """Right values: every text that the mask leads to is JSON of the schema."""
    theirs, whole = pair(family)
    ours = HuggingFaceTokenizer.of(theirs, whole.vocab_size + 30)  # a padded vocabulary
    end = next(iter(ours.reserved.values()))
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    grammar = g.Grammar.json_schema(schema)
    compiler = GrammarCompiler(ours, ours.vocab_size, [end])
    compiled = compiler.submit(grammar).result(timeout=60)
    for seed in range(5):
        rng, state, ids = np.random.default_rng(seed), compiler.state_of(grammar, compiled), []
        bits = np.zeros((1, -(-ours.vocab_size // 32)), dtype=np.int32)
        while not ids or ids[-1] != end:
            state.fill(bits, 0)
            flat = np.unpackbits(bits[0].view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(flat)
            short = [i for i in allowed if len(ids) > 40 and b'"' in ours.token_bytes(i)]
            ids.append(int(rng.choice(short or allowed)))
            state.advance(ids[-1])
        value = json.loads(ours.decode(ids[:-1]))
        assert set(value) == {"name", "n"} and len(value["name"]) <= 6


def test_the_engine_serves_text_through_it():
    """Right values: the library's text of the ids that came."""
    from small_models import random_lm

    theirs, ours = pair("gpt2")
    lm = random_lm(vocab_size=ours.vocab_size)
    lm = g.LanguageModel("mine", lm.config, lm.weights, ours, ours.reserved["<|endoftext|>"])
    params = g.SamplingParams(max_tokens=20, seed=2, temperature=0.9, ignore_eos=True)
    out = g.Engine(lm, g.EngineConfig(num_blocks=16)).generate(["the hen <|user|>"], params)[0]
    assert out.prompt_token_ids == ours.encode("the hen <|user|>")
    expected = [i for i in out.token_ids if i not in ours.reserved.values()]
    assert out.text == theirs.decode(expected)


def folder_of(root: Path, theirs: Tokenizer) -> Path:
    theirs.save(str(root / "tokenizer.json"))
    return root


def test_a_folder_with_a_tokenizer_json(tmp_path):
    theirs, ours = pair("llama3")
    assert not HuggingFaceTokenizer.holds(tmp_path)
    loaded = HuggingFaceTokenizer.load(folder_of(tmp_path, theirs), ours.vocab_size)
    assert HuggingFaceTokenizer.holds(tmp_path)
    assert loaded.encode("the hen") == ours.encode("the hen")
    assert loaded.reserved == ours.reserved


def test_a_folder_with_the_older_files_of_gpt2(tmp_path):
    """Right values: the library's own, with GPT-2's split; another class splits otherwise."""
    theirs, ours = pair("gpt2")
    theirs.model.save(str(tmp_path))
    names = {"eos_token": "<|endoftext|>", "additional_special_tokens": ["<|user|>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    loaded = HuggingFaceTokenizer.load(tmp_path)
    for text in CORPUS:
        assert loaded.encode(text) == ours.encode(text)
    assert loaded.reserved == ours.reserved
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(ValueError, match="Qwen2Tokenizer.*save_pretrained"):
        HuggingFaceTokenizer.load(tmp_path)


def test_a_fast_tokenizer_of_transformers():
    """What `AutoTokenizer` gives is taken too."""
    import transformers

    theirs, ours = pair("gpt2")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs)
    assert HuggingFaceTokenizer.of(fast).encode("the hen") == ours.encode("the hen")


def spec_of(theirs: Tokenizer, **changes) -> str:
    return json.dumps(json.loads(theirs.to_str()) | changes)


def test_files_that_cannot_be_read(tmp_path):
    """What was found, and what to do."""
    with pytest.raises(FileNotFoundError, match="has no tokenizer.json.*copy the tokenizer files"):
        HuggingFaceTokenizer.load(tmp_path)
    path, good = tmp_path / "tokenizer.json", gpt2()
    unigram = Tokenizer(models.Unigram([("a", 0.0), ("b", -1.0)], 0))
    plain = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    lossy = json.loads(llama2().to_str())
    del lossy["model"]["vocab"]["<0x41>"]
    faults = {
        "": "cannot be read",
        good.to_str()[:500]: "cannot be read",
        "[]": "no `model`",
        spec_of(good, model=None): "no `model`",
        unigram.to_str(): "'Unigram', we read BPE",
        plain.to_str(): "neither byte-level",
        json.dumps(lossy): "lacks <0x41>",
    }
    for content, said in faults.items():
        path.write_text(content)
        with pytest.raises(ValueError, match=said) as caught:
            HuggingFaceTokenizer.load(tmp_path)
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_belongs_to_batches_and_training_is_left_out(family):
    """Texts are not cut or filled up, and have the same ids each time. Right values: the library's
    for the same file without those."""
    plain, text = pair(family)[0], "7 red zebras at 9 o.clock, \u4f60!"
    spec = json.loads(plain.to_str())
    spec["truncation"] = {
        "max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
    }  # fmt: skip
    spec["padding"] = {
        "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    spec["model"]["dropout"] = 0.5
    expected = plain.encode(text, add_special_tokens=False).ids
    ours = HuggingFaceTokenizer(spec)
    assert len(expected) > 4
    assert all(ours.encode(text) == expected for _ in range(10))


def test_a_special_token_that_is_in_the_vocabulary_too():
    """With ignore_merges, as in Llama 3, a word of the vocabulary is its id, unmerged."""
    spec = json.loads(pair("llama3")[0].to_str())
    assert spec["model"]["ignore_merges"]
    spec["pre_tokenizer"] = json.loads(pair("gpt2")[0].to_str())["pre_tokenizer"]
    spec["pre_tokenizer"]["use_regex"] = False
    spec["model"]["vocab"]["</s>"] = 500
    spec["added_tokens"].append({
        "id": 500, "content": "</s>", "special": True, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False,
    })  # fmt: skip
    ours = HuggingFaceTokenizer(spec)
    ids = ours.encode("</s>")
    assert 500 not in ids and ours.decode(ids) == "</s>" and ours.reserved["</s>"] == 500


def test_an_unknown_token_that_is_reserved():
    """Right values: the library's ids without one; every byte is spelled, so nothing is unknown."""
    theirs, _ = pair("gpt2")
    spec = json.loads(theirs.to_str())
    spec["model"]["unk_token"] = "<|endoftext|>"
    assert HuggingFaceTokenizer(spec).encode("hen \u4f60") == theirs.encode("hen \u4f60").ids


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix='</w>'"),
        (lambda spec: spec["model"].update(continuing_subword_prefix="##"), "it would lose text"),
        (lambda spec: spec["added_tokens"][0].update(id=-5), "has the id -5, expected 0"),
        (lambda spec: spec["added_tokens"][0].update(id=10**12), "has the id 1000000000000"),
        (lambda spec: spec["added_tokens"][0].update(id=True), "has the id True"),
        (lambda spec: spec["added_tokens"][0].update(id=1), "both have the id 1"),
        (lambda spec: spec["model"]["vocab"].update(a=300), "both have the id 300"),
    ],
)
def test_a_file_that_would_lose_text_or_mix_up_ids(change, said):
    spec = json.loads(pair("gpt2")[0].to_str())
    change(spec)
    with pytest.raises(ValueError, match=said):
        HuggingFaceTokenizer(spec)


def test_text_that_no_token_spells_is_refused():
    """A tokenizer that was trained without all bytes: the library drops them without a word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    made.train_from_iterator(["aaa bbb"], trainers.BpeTrainer(vocab_size=20, show_progress=False))
    ours = HuggingFaceTokenizer.of(made)
    assert ours.decode(ours.encode("aaa bbb")) == "aaa bbb"
    with pytest.raises(ValueError, match="byte 0x63"):
        ours.encode("abc")
    with pytest.raises(ValueError, match="surrogate"):
        ours.encode("\ud800")
