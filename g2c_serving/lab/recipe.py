"""Our encoding against DeepSeek's own, where the package `deepseek-recipe` is installed.

Their library renders a conversation to one string and records which ranges of it are special
tokens; it encodes the text between them without the added vocabulary. Ours builds parts. Here both
get the same conversations, full of spelled markers, with our vocabulary in both. Their layout (V4)
is not ours, so this file writes it a second time, as parts: where the ids agree, our idea of what
is a marker and theirs agree too. Brief, section 5.

V4's tool results stand between `<tool_result>` and `</tool_result>`, which are text: what a tool
returns can spell them. Left out: thoughts, reminders, images, tool descriptions.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from g2c_serving.lab.promoting import encode_promoting, reserved_in
from g2c_serving.process.prompt import Part, Prompt, Reserved, Text
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer

INSTALL = "pip install deepseek-recipe"  # no wheel for Windows
NAMES = {  # V4's kinds of special tokens, in our vocabulary
    "bos": "<|endoftext|>",
    "eos": "<|end|>",
    "thinking_start": "<think>",
    "thinking_end": "</think>",
    "system": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "dsml": "<|tool_call|>",  # opens and closes the tags of a tool call
}
HOSTILE = (
    *RESERVED_TOKENS, *("<|", "|>", "<", "</", "think>", "\n", "\n\n", " ", "</tool_result>"),
    *("<\uff5cUser\uff5c>", "\uff5cDSML\uff5c", "\\u003c|user|\\u003e", '"', "\\", "}"),
    *("\U0001f49b", "e\u0301", "\u200b", "\x00", "Once upon a time", " the red kite", "42"),
)  # fmt: skip

Messages = Sequence[Mapping[str, Any]]


def is_installed() -> bool:
    return importlib.util.find_spec("deepseek_recipe") is not None


# ---- the same conversation for both ----


def v4_prompt(messages: Messages) -> Prompt:
    """Messages as `chat` takes them, in V4's layout without thoughts, as parts of ours."""
    mark = {kind: Reserved(name) for kind, name in NAMES.items()}
    system = [m["content"] for m in messages if m["role"] == "system"]
    parts: list[Part] = [mark["bos"], Text("\n\n".join(system))]
    before = "system"
    for message in messages:
        role = message["role"]
        if role == "assistant":
            parts += [mark["assistant"], mark["thinking_end"], Text(message.get("content") or "")]
            parts += [*_v4_calls(message.get("tool_calls") or (), mark["dsml"]), mark["eos"]]
        elif role != "system":
            text = message["content"]
            if role == "tool":
                text = f"<tool_result>{text}</tool_result>"
            parts += [Text("\n\n") if before in ("user", "tool") else mark["user"], Text(text)]
        before = role
    return _join([*parts, mark["assistant"], mark["thinking_end"]])


def _v4_calls(calls: Messages, dsml: Reserved) -> list[Part]:
    parts: list[Part] = ["\n\n<", dsml, "tool_calls>\n"] if calls else []
    for call in calls:
        parts += ["<", dsml, f'invoke name="{call["name"]}">\n']
        for key, value in call["arguments"].items():
            is_text = isinstance(value, str)
            shown = value if is_text else json.dumps(value, ensure_ascii=False)
            parts += ["<", dsml, f'parameter name="{key}" string="{json.dumps(is_text)}">{shown}']
            parts += ["</", dsml, "parameter>\n"]
        parts += ["</", dsml, "invoke>\n"]
    return [*parts, "</", dsml, "tool_calls>"] if calls else []


def _join(parts: Sequence[Part]) -> Prompt:
    """Texts that follow each other as one: recipe cuts at special tokens alone, so may merges."""
    joined: list[Reserved | Text] = []
    for part in Prompt(parts):
        if joined and isinstance(part, Text) and isinstance(joined[-1], Text):
            joined[-1] = Text(joined[-1].text + part.text)
        else:
            joined.append(part)
    return Prompt(joined)


def conversation(messages: Messages) -> Any:
    """The same messages as deepseek_recipe's Conversation."""
    import deepseek_recipe as recipe

    made: list[Any] = []
    for message in messages:
        content, role = message.get("content") or "", message["role"]
        if role == "assistant":
            calls = [
                recipe.ToolCall(str(i), call["name"], json.dumps(call["arguments"]))
                for i, call in enumerate(message.get("tool_calls") or ())
            ]
            made.append(recipe.AssistantMessage(content, tool_calls=calls or None))
        elif role == "tool":
            made.append(recipe.ToolMessage(content))
        else:
            kinds = {"system": recipe.SystemMessage, "user": recipe.UserMessage}
            made.append(kinds[role](content))
    return recipe.Conversation(made, thinking_mode=False)


def random_messages(rng: random.Random) -> list[dict[str, Any]]:
    """One to four turns with hostile text in every field."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": _hostile(rng)})
    for _ in range(rng.randint(0, 3)):
        messages.append({"role": "user", "content": _hostile(rng)})
        calls = [
            {"name": _hostile(rng), "arguments": {_hostile(rng): _value(rng) for _ in range(n)}}
            for n in rng.choices((0, 1, 2), k=rng.choice((0, 0, 1, 2)))
        ]
        messages.append({"role": "assistant", "content": _hostile(rng), "tool_calls": calls})
        messages += [{"role": "tool", "content": _hostile(rng)} for _ in calls]
    return [*messages, {"role": "user", "content": _hostile(rng)}]


def _hostile(rng: random.Random) -> str:
    return "".join(rng.choices(HOSTILE, k=rng.randint(1, 8)))


def _value(rng: random.Random) -> Any:
    text = _hostile(rng)
    return rng.choice([text, [text, 3], {"deep": text}, rng.randint(0, 99), True, None])


# ---- their encoding with our vocabulary ----


def encoding(tokenizer: Tokenizer) -> Any:
    """deepseek_recipe's V4 encoding with our tokenizer and our spelling of its special tokens."""
    import deepseek_recipe as recipe

    names = recipe.SpecialTokens(**NAMES)
    vocabulary = recipe.Tokenizer.from_str(hugging_face_json(tokenizer))
    return recipe.DeepseekV4Encoding().with_special_tokens(names).with_tokenizer(vocabulary)


def hugging_face_json(tokenizer: Tokenizer) -> str:
    """Our vocabulary as the text of a Hugging Face `tokenizer.json`: byte-level, no pattern splits,
    the reserved names as added special tokens."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these bytes stand for
    others = [b for b in range(256) if b not in visible]  # themselves, these for 256 and up
    letter = {b: chr(b) for b in visible} | {b: chr(256 + n) for n, b in enumerate(others)}
    spelled = {
        i: "".join(letter[b] for b in tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)
    }
    spelled |= {i: name for name, i in tokenizer.reserved.items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}  # fmt: skip
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": i, "content": name, "special": True, **flags}
        for name, i in tokenizer.reserved.items()
    ]
    model = {
        "type": "BPE",
        "vocab": {text: i for i, text in spelled.items()},
        "merges": [[spelled[a], spelled[b]] for a, b, _ in tokenizer.merges],
    }
    return json.dumps({"version": "1.0", "added_tokens": added, "model": model,
                       "pre_tokenizer": byte_level, "decoder": byte_level})  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Of `count` random conversations: how many come out id for id as theirs, and how many the
    promoting path gets right; `spelled` counts the markers that their texts spell."""

    count: int
    equal: int
    promoting_equal: int
    spelled: int

    def __str__(self) -> str:
        return (
            f"{self.equal:,} of {self.count:,} random conversations: our ids are deepseek-recipe's."
            f" Their texts spell {self.spelled:,} markers; the promoting path agrees in "
            f"{self.promoting_equal:,}."
        )


def compare(tokenizer: Tokenizer, count: int = 1_000, seed: int = 0) -> Comparison:
    """Encode so many random conversations on all three paths."""
    theirs, rng = encoding(tokenizer), random.Random(seed)
    equal = promoting = spelled = 0
    for _ in range(count):
        messages = random_messages(rng)
        wanted, prompt = theirs.encode(conversation(messages)), v4_prompt(messages)
        promoted = encode_promoting(tokenizer, prompt.text)
        equal += tokenizer.encode_parts(prompt) == wanted
        promoting += promoted == wanted
        spelled += len(reserved_in(tokenizer, promoted)) - len(reserved_in(tokenizer, wanted))
    return Comparison(count, equal, promoting, spelled)
