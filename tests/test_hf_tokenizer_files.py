"""Tokenizer files of Hugging Face folders: what stands in them beside the vocabulary.

Two are written here by hand, so that the right ids are known by hand: byte-level, in which a byte's
id is its number, and SentencePiece, in which it is its number and 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from g2c_serving.process.bpe_spec import byte_of_character
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer
from g2c_serving.process.prompt import Reserved

HEN, END = 257, 258
Spec = dict[str, Any]


def added(name: str, token_id: int, special: bool = True) -> Spec:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, "special": special, **flags}


def byte_level() -> Spec:
    """he 256, hen 257; </s> 258 is special. GPT-2's own file has the two empty strings too."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {
        "type": "BPE",
        "vocab": byte_of_character() | {"he": 256, "hen": HEN},
        "merges": ["h e", "he n"],
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
    }
    parts = {"normalizer": None, "pre_tokenizer": level | {"use_regex": False}}
    return {**parts, "model": model, "decoder": level, "added_tokens": [added("</s>", END)]}


def sentence_piece() -> Spec:
    """As Llama 2's: <unk> 0, <s> 1 and </s> 2 stand in the vocabulary and are special; bytes from
    3, h 259, e 260, he 261."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "h", "e", "he"]
    model = {
        "type": "BPE",
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": ["h e"],
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    special = [added(name, i) for i, name in enumerate(names[:3])]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    parts = {"normalizer": None, "pre_tokenizer": None}
    return {**parts, "model": model, "decoder": decoder, "added_tokens": special}


def written(folder: Path, spec: Spec) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    return folder


def test_the_two_files_by_hand(tmp_path):
    ours = HuggingFaceTokenizer.load(written(tmp_path, byte_level()))
    assert ours.encode("a hen") == [97, 32, HEN] and ours.decode([HEN, END]) == "hen</s>"
    ours = HuggingFaceTokenizer.load(written(tmp_path, sentence_piece()))
    assert ours.encode("hea") == [261, 3 + 97] and ours.decode([261, 3 + 97]) == "hea"


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_a_file_that_was_saved_for_batches_and_in_training(make, tmp_path):
    """The library cuts the text and fills it up; we do neither. Nor are merges left out at random.
    Right values: as many times what one word has."""
    spec = make()
    plain = Tokenizer.from_str(json.dumps(spec))
    plain.enable_truncation(max_length=4)
    plain.enable_padding(length=40)
    text = "he" * 13
    assert len(plain.encode(text).ids) == 40
    spec = json.loads(plain.to_str())
    spec["model"]["dropout"] = 0.5
    ours = HuggingFaceTokenizer.load(written(tmp_path, spec))
    once = [256] if make is byte_level else [261]
    assert all(ours.encode(text) == once * 13 for _ in range(5))


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_no_text_gives_a_special_token_that_is_in_the_vocabulary(ignore_merges, tmp_path):
    """A whole word of the vocabulary is its id where ignore_merges says so, as in Llama 3. Right
    values: the four bytes; the library, asked the same, gives the special token."""
    spec = byte_level()
    spec["model"] |= {"ignore_merges": ignore_merges}
    spec["model"]["vocab"]["</s>"] = END
    theirs = Tokenizer.from_str(json.dumps(spec))
    assert theirs.encode("</s>").ids == [END]
    ours = HuggingFaceTokenizer.load(written(tmp_path, spec))
    assert ours.encode("</s>") == list(b"</s>")
    assert ours.encode_parts(["hen", Reserved("</s>"), "</s>"]) == [HEN, END, *b"</s>"]


def test_no_text_gives_the_unknown_token(tmp_path):
    """It is reserved in a file of SentencePiece. Right values: the bytes of UTF-8, each and 3."""
    ours = HuggingFaceTokenizer.load(written(tmp_path, sentence_piece()))
    for text in ("<unk>", "</s>", "\u4f60", "z"):
        assert ours.encode(text) == [3 + b for b in text.encode()]
    assert ours.reserved == {"<unk>": 0, "<s>": 1, "</s>": 2}


def test_a_token_that_is_added_under_the_id_that_it_has_is_no_other(tmp_path):
    """Files may name one token twice, by one id."""
    spec = byte_level()
    spec["added_tokens"] += [added("</s>", END), added("hen", HEN, special=False)]
    ours = HuggingFaceTokenizer.load(written(tmp_path, spec))
    assert ours.reserved == {"</s>": END, "hen": HEN} and ours.vocab_size == END + 1
    assert ours.encode("hen") == [256, 110]


@pytest.mark.parametrize("affix", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_an_affix_is_refused_unless_it_is_empty(affix, tmp_path):
    """Decoding would take it away, or leave it in. Empty it is in GPT-2's own file, absent in
    others."""
    for nothing in ("", None):
        spec = byte_level()
        spec["model"][affix] = nothing
        assert HuggingFaceTokenizer.load(written(tmp_path, spec)).encode("hen") == [HEN]
    spec["model"][affix] = "</w>"
    _refused(written(tmp_path, spec), affix)


@pytest.mark.parametrize("bad", [-5, 2**40, True, "7", 1.0, None])
def test_an_id_that_is_none_is_refused(bad, tmp_path):
    spec = byte_level()
    spec["added_tokens"][0]["id"] = bad
    _refused(written(tmp_path, spec), repr(bad))
    spec = byte_level()
    spec["model"]["vocab"]["hen"] = bad
    _refused(written(tmp_path, spec), repr(bad))


def test_an_id_of_two_tokens_is_refused(tmp_path):
    spec = byte_level()
    spec["added_tokens"].append(added("<s>", HEN))
    _refused(written(tmp_path, spec), str(HEN), "hen", "<s>")
    spec = byte_level()
    spec["model"]["vocab"]["he"] = HEN
    _refused(written(tmp_path, spec), str(HEN), "he", "hen")


def _refused(folder: Path, *words: str) -> None:
    """By name of the folder, with what was found and the remedy."""
    with pytest.raises(ValueError, match="copy the tokenizer files") as caught:
        HuggingFaceTokenizer.load(folder)
    message = str(caught.value)
    assert all(word in message for word in (str(folder), *words)), message


def test_its_own_files_are_copied_and_not_written_anew(tmp_path):
    """A file of ours could not say how theirs splits a text."""
    with pytest.raises(TypeError, match="copy the files"):
        HuggingFaceTokenizer(byte_level()).save(tmp_path / "tokenizer.json")
    assert not list(tmp_path.iterdir())
