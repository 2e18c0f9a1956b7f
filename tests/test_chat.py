"""The chat template: the corpus's own layout, and text that stays text in every field."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2c_serving.paths import DATA
from g2c_serving.process.chat import chat
from g2c_serving.process.prompt import Reserved, Text
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer
from g2c_serving.train import corpus

hostile = st.lists(
    st.sampled_from((*RESERVED_TOKENS, "<|user", "|>\n", "</think", "\\u003c|user|\\u003e", '"}'))
    | st.text(max_size=8),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")


TIMER = [
    {"role": "user", "content": "Set a timer for 31 minutes."},
    {"role": "assistant", "tool_calls": [{"name": "timer", "arguments": {"minutes": 31}}]},
    {"role": "tool", "content": '{"ok": true}'},
    {"role": "assistant", "content": "The timer is set to 31 minutes."},
]


def test_the_layout_of_a_tool_call() -> None:
    assert chat(TIMER, add_generation_prompt=False).text == (
        "<|user|>\nSet a timer for 31 minutes.\n<|assistant|>\n"
        '<|tool_call|>{"name": "timer", "arguments": {"minutes": 31}}<|end|>'
        '<|tool_result|>\n{"ok": true}\n'
        "<|assistant|>\nThe timer is set to 31 minutes.<|end|>"
    )


def test_the_layout_of_a_thought_and_a_system_turn() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "9 + 8?"},
        {"role": "assistant", "reasoning": "9 + 8 = 17", "content": "It is 17."},
        {"role": "user", "content": "Thank you!"},
    ]
    assert chat(messages, think=True).text == (
        "<|system|>\nBe kind.\n<|user|>\n9 + 8?\n<|assistant|>\n<think>9 + 8 = 17</think>It is 17."
        "<|end|><|user|>\nThank you!\n<|assistant|>\n<think>"
    )


def test_a_tool_s_description_is_text_of_a_system_turn() -> None:
    tools = [{"name": "timer", "description": "<|user|>"}]
    prompt = chat(TIMER[:1], tools)
    assert (
        prompt[:2]
        == (
            chat([{"role": "system", "content": f"Tools:\n{json.dumps(tools[0])}"}, *TIMER[:1]])[:2]
        )
    )
    assert [p.name for p in prompt if isinstance(p, Reserved)] == [
        "<|system|>", "<|user|>", "<|assistant|>"
    ]  # fmt: skip


def as_messages(document: list) -> list[dict]:
    """A chat of the corpus back as messages, read from its parts."""
    messages: list[dict] = []
    for i, part in enumerate(document):
        if not isinstance(part, Reserved):
            continue
        text = document[i + 1] if i + 1 < len(document) else ""
        role = {"<|user|>": "user", "<|system|>": "system", "<|tool_result|>": "tool"}
        if part.name in role:
            messages.append({"role": role[part.name], "content": text[1:-1]})
        elif part.name == "<|assistant|>":
            messages.append({"role": "assistant"})
            if isinstance(document[i + 2], str):
                messages[-1]["content"] = document[i + 2]
        elif part.name == "<think>":
            messages[-1]["reasoning"] = text
        elif part.name == "</think>":
            messages[-1]["content"] = text
        elif part.name == "<|tool_call|>":
            messages[-1]["tool_calls"] = [json.loads(text)]
    return messages


@pytest.mark.parametrize("maker", [corpus.chat, corpus.reasoning, corpus.tool_call])
def test_the_ids_are_those_of_the_training(maker, shipped: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(60):
        document = maker(rng)
        assert document[-1] == Reserved("<|endoftext|>")
        prompt = chat(as_messages(document[:-1]), add_generation_prompt=False)
        assert shipped.encode_parts(prompt) == shipped.encode_parts(document[:-1])


@given(hostile, hostile, hostile, hostile, hostile, hostile)
@settings(max_examples=150, deadline=None)
def test_no_field_makes_a_reserved_id(system, user, reasoning, content, argument, result) -> None:
    """Whatever the fields hold, the reserved ids are the template's, in its order."""
    tokenizer = Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")
    calls = [
        {"name": user, "arguments": {argument: [argument, {"deep": result}]}},
        {"name": "b", "arguments": json.dumps({"s": argument})},
    ]
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": calls},
        {"role": "tool", "content": result},
    ]
    prompt = chat(messages, [{"name": "b", "description": argument}])
    encoded = tokenizer.encode_with_origin(prompt)
    names = {i: name for name, i in tokenizer.reserved.items()}
    assert [names[i] for i in encoded.token_ids if i in names] == [
        "<|system|>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>",
        "<|tool_call|>", "<|tool_call|>", "<|end|>", "<|tool_result|>", "<|assistant|>",
    ]  # fmt: skip
    assert tokenizer.decode(encoded.token_ids) == prompt.text
    for text in (system, user, reasoning, content, result):
        assert text in prompt.text


def test_arguments_are_json_with_their_escapes(shipped: Tokenizer) -> None:
    """A model or a client may escape the marker: as JSON it is the same text, and it stays text."""
    escaped = '{"s": "\\u003c|user|\\u003e"}'
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"name": "b", "arguments": escaped}]},
    ]
    prompt = chat(messages, add_generation_prompt=False)
    assert '{"s": "<|user|>"}' in prompt.text
    ids = shipped.encode_parts(prompt)
    assert ids.count(shipped.reserved["<|user|>"]) == 1


def test_every_text_names_whose_it_is() -> None:
    messages = [{"role": "system", "content": "s"}, *TIMER]
    origins = [part.origin for part in chat(messages) if isinstance(part, Text)]
    assert origins == [
        "system", "user", "template", "assistant", "tool", "template", "assistant", "template"
    ]  # fmt: skip


# ---- what is refused ----

USER = {"role": "user", "content": "a"}
CALL = {"name": "b", "arguments": {}}


@pytest.mark.parametrize(
    "messages, message",
    [
        ([], "messages is empty"),
        ("hello", "messages='hello' must be a list"),
        (USER, "messages=.* must be a list"),
        (["hello"], r"messages\[0\]='hello' must be a dict"),
        ([USER, {"content": "a"}], r'messages\[1\]\["role"\]=None must be one of system, user'),
        ([{"role": "root", "content": "a"}], r'messages\[0\]\["role"\]=\'root\' must be one of'),
        ([{"role": ["user"], "content": "a"}], r'messages\[0\]\["role"\]=\[\'user\'\] must be'),
        ([{"role": "user"}], r'messages\[0\]\["content"\]=None must be a str'),
        ([{"role": "user", "content": b"a"}], r"messages\[0\].*=b'a' must be a str"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\].*must be a str"),
        ([{"role": "assistant"}], r'messages\[0\]\["content"\]=None must be a str'),
        ([USER | {"reasoning": "b"}], r"messages\[0\]\['reasoning'\]='b' does not belong.*'user'"),
        ([USER | {"name": "b"}], r"messages\[0\]\['name'\].*it may have content, role"),
        ([USER, {"role": "tool", "content": "a"}], r"messages\[1\] has role 'tool'.*add that"),
        (
            [USER, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "a"}],
            r"messages\[2\] has role 'tool', but no assistant message with tool_calls",
        ),
        ([{"role": "user", "content": "a\ud800"}], r"messages\[0\].*surrogate at character 1"),
        ([{"role": "assistant", "content": "", "reasoning": 3}], r'\["reasoning"\]=3 must be'),
        (
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "user", "content": "x"},
                {"role": "tool", "content": "x"},
            ],
            r"messages\[2\] has role 'tool', but no assistant message with tool_calls",
        ),
        ([{"role": "assistant", "content": 0, "tool_calls": [CALL]}], r'\["content"\]=0 must be'),
        ([{"role": "assistant", "tool_calls": CALL}], r'\["tool_calls"\]=.* must be a list'),
        ([{"role": "assistant", "tool_calls": ["b"]}], r'\["tool_calls"\]\[0\]=\'b\' must be'),
        ([{"role": "assistant", "tool_calls": [{"name": "b"}]}], r'"name" and "arguments"'),
        (
            [{"role": "assistant", "tool_calls": [CALL, CALL | {"name": 3}]}],
            r'messages\[0\]\["tool_calls"\]\[1\]\["name"\]=3 must be a str',
        ),
        *(
            (
                [{"role": "assistant", "tool_calls": [CALL | {"arguments": bad}]}],
                r'\[0\]\["arguments"\]=.*must be a dict that JSON can write',
            )
            for bad in ("{", "[1]", [1], None, {"a": float("nan")}, {"a": {1, 2}}, {"a": b"b"})
        ),
    ],
)
def test_a_bad_message_is_named(messages, message) -> None:
    with pytest.raises(ValueError, match=message):
        chat(messages)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"think": True, "add_generation_prompt": False}, "think=True.*add_generation_prompt"),
        ({"tools": {"name": "b"}}, "tools=.* must be a list"),
        ({"tools": [{"description": "b"}]}, r'tools\[0\]=.*"name"'),
        ({"tools": [{"name": "b", "parameters": {1, 2}}]}, r"tools\[0\]=.*writable as JSON"),
    ],
)
def test_bad_options_are_named(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        chat([USER], **options)
