"""Prompts as parts: what only a program may write, and what any text stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.paths import DATA
from g2c_serving.process.prompt import Prompt, Reserved, Span, Text
from g2c_serving.process.tokenizer import COURSE_SPECIAL_TOKENS, RESERVED_TOKENS, Tokenizer

SHIPPED = DATA / "tokenizers" / "tiny" / "tokenizer.json"
AA = [97, 97, 266], [266, 97, 267], [97, 266, 268]  # two tokens of the same bytes: no fast model

NASTY = (
    *RESERVED_TOKENS,
    "<|",
    "|>",
    "<",
    "think>",
    "<|user",
    "<|us\u200ber|>",
    "\uff1c|user|\uff1e",
)
hostile = st.lists(st.sampled_from(NASTY) | st.text(max_size=8), max_size=8).map("".join)
reserved = st.sampled_from(RESERVED_TOKENS).map(Reserved)
prompts = st.lists(reserved | hostile.map(Text) | hostile, max_size=12)


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.load(SHIPPED)


def merged_with_barriers(parts: Prompt, merges: list[list[int]], ids: dict[str, int]) -> list[int]:
    """The whole prompt as one sequence, from the definition of BPE: reserved ids stand in it and no
    pair with one has a rank, so no merge crosses them. A border between two texts is a barrier."""
    barrier = -1
    found: list[int] = []
    for part in parts:
        found += (
            [ids[part.name]]
            if isinstance(part, Reserved)
            else [barrier, *part.text.encode("utf-8"), barrier]
        )
    ranks = {(a, b): new_id for a, b, new_id in merges}
    while True:
        pairs = zip(found, found[1:], strict=False)
        best = min(((ranks[p], i) for i, p in enumerate(pairs) if p in ranks), default=None)
        if best is None:
            return [i for i in found if i != barrier]
        new_id, i = best
        found[i : i + 2] = [new_id]


@given(parts=prompts)
@settings(max_examples=150, deadline=None)
def test_splitting_at_reserved_ids_loses_nothing(parts, shipped: Tokenizer) -> None:
    merges = json.loads(SHIPPED.read_text(encoding="utf-8"))["merges"]
    prompt = Prompt(parts)
    whole = merged_with_barriers(prompt, merges, shipped.reserved)
    assert shipped.encode_parts(prompt) == whole
    one_by_one = [
        i
        for part in prompt
        for i in (
            [shipped.reserved[part.name]]
            if isinstance(part, Reserved)
            else shipped.encode(part.text)
        )
    ]
    assert one_by_one == whole


@given(parts=prompts)
@settings(max_examples=200, deadline=None)
def test_only_reserved_parts_make_reserved_ids_and_the_text_comes_back(parts, shipped) -> None:
    prompt = Prompt(parts)
    encoded = shipped.encode_with_origin(parts)
    assert encoded.token_ids == shipped.encode_parts(parts)
    assert shipped.decode(encoded.token_ids) == prompt.text
    names = {i: name for name, i in shipped.reserved.items()}
    marked = [(i, names[t]) for i, t in enumerate(encoded.token_ids) if t in names]
    spans = [s for s in encoded.spans if s.is_reserved]
    assert marked == [(s.start, prompt[s.part_index].name) for s in spans]


@given(parts=prompts)
@settings(max_examples=200, deadline=None)
def test_spans_cover_the_ids_part_by_part(parts, shipped) -> None:
    encoded = shipped.encode_with_origin(parts)
    assert [s.part_index for s in encoded.spans] == list(range(len(parts)))
    ends = [0, *(s.end for s in encoded.spans)]
    assert [s.start for s in encoded.spans] == ends[:-1] and ends[-1] == len(encoded.token_ids)
    for span, part in zip(encoded.spans, Prompt(parts), strict=True):
        spelled = part.name if isinstance(part, Reserved) else part.text
        assert shipped.decode(encoded.token_ids[span.start : span.end]) == spelled


@given(st.lists(st.text("a<|>\u00e9", max_size=20), max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_vocabulary_without_a_fast_model_encodes_parts_alike(texts) -> None:
    slow = Tokenizer(AA)
    assert slow._fast is None
    assert slow.encode_parts(texts) == [i for text in texts for i in slow.encode(text)]


def test_spans_by_hand() -> None:
    encoded = Tokenizer(AA).encode_with_origin([Reserved("<|user|>"), "aaa", "", Text("b")])
    assert encoded.token_ids == [258, 267, 98]
    assert encoded.spans == [
        Span(0, 1, 0, True), Span(1, 2, 1, False), Span(2, 2, 2, False), Span(2, 3, 3, False)
    ]  # fmt: skip


def test_a_course_vocabulary_has_no_thought(tmp_path) -> None:
    course = Tokenizer([], COURSE_SPECIAL_TOKENS)
    assert course.encode_parts([Reserved("<|end|>"), "<|end|>"]) == [262, *b"<|end|>"]
    with pytest.raises(ValueError, match=r"part 1: .*'<think>' is not in \['<\|endoftext\|>'"):
        course.encode_parts(["a", Reserved("<think>")])


# ---- the sequence ----


def test_a_prompt_is_an_immutable_sequence_of_parts() -> None:
    user = Reserved("<|user|>")
    prompt = Prompt([user, "hi", Text("there", "user")])
    assert list(prompt) == [user, Text("hi"), Text("there")] and len(prompt) == 3
    assert prompt[1:] == Prompt(["hi", "there"]) and prompt[-1].origin == "user"
    assert prompt.text == "<|user|>hithere"
    assert hash(prompt) == hash(Prompt(list(prompt))) and prompt != list(prompt)
    assert eval(repr(prompt)) == prompt
    with pytest.raises(TypeError):
        prompt[0] = user  # type: ignore[index]


def test_plus_joins() -> None:
    user, text = Reserved("<|user|>"), Text("a")
    assert Prompt([user]) + "a" == Prompt([user]) + text == Prompt([user]) + Prompt(["a"])
    assert "a" + Prompt([user]) == text + Prompt([user]) == Prompt(["a", user])
    assert Prompt() + user == Prompt.of(user)
    with pytest.raises(TypeError):
        Prompt() + 3  # type: ignore[operator]


def test_of_takes_a_str_as_one_text() -> None:
    assert Prompt.of("<|user|>") == Prompt([Text("<|user|>")])
    prompt = Prompt.of(["a", Reserved("<|end|>")])
    assert Prompt.of(prompt) is prompt and len(prompt) == 2


# ---- what is refused ----


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Prompt(["a", 3]), r"part 1 is 3, neither .*Reserved\(name\)"),
        (lambda: Prompt([None]), "part 0 is None"),
        (lambda: Prompt([b"a"]), "part 0 is b'a'"),
        (lambda: Prompt([["a"]]), r"part 0 is \['a'\]"),
        (lambda: Prompt("<|user|>"), r"parts is one str.*Prompt.of"),
        (lambda: Prompt(Reserved("<|user|>")), r"parts is one Reserved.*list"),
        (lambda: Text(b"abc"), r"Text\(text=b'abc'\): text must be a str.*decode"),
        (lambda: Reserved(258), r"Reserved\(name=258\).*str"),
    ],
)
def test_what_is_no_part_is_named(make, message) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_a_lone_surrogate_names_its_part(shipped: Tokenizer) -> None:
    for encode in (shipped.encode_parts, shipped.encode_with_origin):
        with pytest.raises(ValueError, match="part 2: .*surrogate at character 1.*repair"):
            encode(["a", Reserved("<|end|>"), "b\udfff"])
    with pytest.raises(ValueError, match=r"part 1: reserved token '<\|root\|>' is not in"):
        shipped.encode_parts(["a", Reserved("<|root|>")])
