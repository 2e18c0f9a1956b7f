"""The tokenizer against a slow loop written from the definition, and its provenance rule."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.paths import DATA
from g2c_serving.process.prompt import Reserved, Text
from g2c_serving.process.tokenizer import (
    COURSE_SPECIAL_TOKENS,
    RESERVED_TOKENS,
    Tokenizer,
)

SHIPPED = DATA / "tokenizers" / "tiny" / "tokenizer.json"
MERGES_10 = [  # over ids that follow 256 bytes and 10 reserved tokens
    [104, 101, 266],  # he
    [116, 266, 267],  # the
    [32, 267, 268],  # " the"
    [97, 97, 269],  # aa
    [269, 97, 270],  # aaa
    [0xF0, 0x9F, 271],  # the first half of many emoji
    [195, 169, 272],  # e with an acute accent
    [10, 32, 273],
    [60, 124, 274],  # <|
]
EMOJI = "\U0001f600"


def slow_encode(text: str, merges: list[list[int]]) -> list[int]:
    """Byte-level BPE from its definition: find the lowest rank that is present, merge its leftmost
    occurrence, start again."""
    ids = list(text.encode("utf-8"))
    ranks = {(a, b): new_id for a, b, new_id in merges}
    while True:
        found = [(ranks[p], i) for i, p in enumerate(zip(ids, ids[1:], strict=False)) if p in ranks]
        if not found:
            return ids
        new_id, i = min(found)
        ids[i : i + 2] = [new_id]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer(MERGES_10)


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.load(SHIPPED)


texts = st.text(max_size=60) | st.text(alphabet="ahet \n<|é" + EMOJI, max_size=60)


@given(texts)
@settings(max_examples=300, deadline=None)
def test_encode_is_lowest_rank_first(text: str) -> None:
    assert Tokenizer(MERGES_10).encode(text) == slow_encode(text, MERGES_10)


@given(texts)
@settings(max_examples=200, deadline=None)
def test_two_merges_with_the_same_bytes_still_encode_by_rank(text: str) -> None:
    """A course tokenizer can hold "a"+"aa" and "aa"+"a": the fast path cannot, the slow one can."""
    merges = [*MERGES_10, [97, 269, 275], [269, 269, 276]]
    assert Tokenizer(merges).encode(text) == slow_encode(text, merges)


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_round_trip_byte_for_byte(text: str, shipped: Tokenizer) -> None:
    ids = shipped.encode(text)
    assert b"".join(shipped.token_bytes(i) for i in ids) == text.encode("utf-8")
    assert shipped.decode(ids) == text
    assert not set(ids) & set(shipped.reserved.values())


def test_shipped_encode_is_lowest_rank_first(shipped: Tokenizer) -> None:
    merges = json.loads(SHIPPED.read_text(encoding="utf-8"))["merges"]
    text = f'Once upon a time there was a fox. {EMOJI} {{"name": "add"}} naïve\r\n\t <|end|>'
    assert shipped.encode(text) == slow_encode(text, merges)


def test_reserved_strings_in_text_stay_ordinary(shipped: Tokenizer) -> None:
    for name in RESERVED_TOKENS:
        for text in (name, f"a{name}b", name * 3):
            ids = shipped.encode(text)
            assert not set(ids) & set(range(256, 266)), name
            assert shipped.decode(ids) == text
            assert shipped.encode_parts([Text(text)]) == ids == shipped.encode_parts([text])


def test_the_reserved_ids_are_those_of_the_course() -> None:
    reserved = Tokenizer().reserved
    assert [reserved[name] for name in RESERVED_TOKENS] == list(range(256, 266))
    assert reserved["<|endoftext|>"] == 256
    assert reserved["<|end|>"] == 262
    assert reserved["</think>"] == 265


def test_parts_are_encoded_one_by_one(small: Tokenizer) -> None:
    parts = [Reserved("<|user|>"), "t", Text("he"), Reserved("<|end|>")]
    assert small.encode_parts(parts) == [258, 116, 266, 262]  # no merge across "t" and "he"
    assert small.encode("the") == [267]
    assert small.decode([258, 116, 266, 262]) == "<|user|>the<|end|>"


def test_bad_parts_say_what_is_wrong(small: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"<\|root\|>.*not in.*<\|user\|>"):
        small.encode_parts([Reserved("<|root|>")])
    with pytest.raises(TypeError, match=r"list \[text\]"):
        small.encode_parts("the")
    with pytest.raises(TypeError, match="3"):
        small.encode_parts([3])  # type: ignore[list-item]


def test_half_a_character_decodes_to_the_replacement_character(small: Tokenizer) -> None:
    assert small.decode([0xC3]) == "\ufffd"
    assert small.token_bytes(271) == b"\xf0\x9f"


@pytest.mark.parametrize("bad", [-1, 275, 100_000])
def test_ids_outside_the_vocabulary(small: Tokenizer, bad: int) -> None:
    with pytest.raises(ValueError, match=f"{bad}.*0 to 274"):
        small.decode([104, bad])


def test_lone_surrogates_are_refused_with_a_remedy(small: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogate at character 1"):
        small.encode("a\ud800")


def test_a_course_file_with_eight_specials_loads(tmp_path) -> None:
    merges = [[104, 101, 264], [116, 264, 265], [32, 265, 266]]
    content = {"format": "g2c.bpe", "version": 2, "special_tokens": list(COURSE_SPECIAL_TOKENS)}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**content, "merges": merges}), encoding="utf-8")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == 267
    assert "<think>" not in tokenizer.reserved
    assert tokenizer.encode(" the") == [266]
    assert Tokenizer.load(path, vocab_size=266).encode(" the") == [32, 265]
    with pytest.raises(ValueError, match="vocab_size 300.*264 to 267"):
        Tokenizer.load(path, vocab_size=300)


def test_save_and_load(tmp_path, small: Tokenizer) -> None:
    small.save(tmp_path / "new" / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "new" / "tokenizer.json")
    assert again.merges == small.merges and again.reserved == small.reserved
    content = json.loads((tmp_path / "new" / "tokenizer.json").read_text(encoding="utf-8"))
    assert (content["format"], content["version"]) == ("g2c.bpe", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "format"),
        ('{"format": "g2c.bpe", "version": 9, "merges": []}', "version 9"),
        ('{"format": "g2c.bpe", "version": 2}', "merges"),
        ('{"format": "g2c.bpe", "version": 2, "merges": [[1, 2]]}', r"\[1, 2\]"),
        ('{"format": "g2c.bpe", "version": 2, "merges": [[1, 2, 999]]}', "next id, 256"),
        ('{"format": "g2c.bpe", "version": 2, "merges": [[1, 700, 256]]}', "id 700"),
        (
            '{"format": "g2c.bpe", "version": 2, "special_tokens": ["<s>"], '
            '"merges": [[1, 256, 257]]}',
            "reserved",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)


def test_a_missing_file_says_what_to_do(tmp_path) -> None:
    """Our commands bring a shipped one back, and no other."""
    with pytest.raises(FileNotFoundError, match="python -m g2c_serving train tokenizer"):
        Tokenizer.load(DATA / "tokenizers" / "nonsuch" / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match="Copy the folder of that tokenizer again"):
        Tokenizer.load(tmp_path / "tokenizer.json")
