"""An application to be attacked: it looks for markers, and all the same a role can be forged in it.

It refuses messages whose contents or tool arguments spell a marker when they arrive. Then it
renders the conversation with its template and normalises Unicode (NFKC), as many do so that equal
texts are found. At last it encodes: as one string, the naive path, or in parts, ours.

The learner writes the eleventh attack; `judge` runs it on both paths.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from g2c_serving.lab.answers import Unreadable, brief
from g2c_serving.lab.attack_paths import Refused, Result, pattern, read_prompt, refuse_markers
from g2c_serving.lab.attempts import made
from g2c_serving.lab.promoting import encode_promoting
from g2c_serving.paths import DATA
from g2c_serving.process.chat import chat
from g2c_serving.process.prompt import Prompt, Reserved, Text
from g2c_serving.process.tokenizer import Tokenizer

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool_result|>")
Messages = Sequence[Mapping[str, Any]]


def checked(tokenizer: Tokenizer, messages: Messages) -> Messages:
    """The messages as they are. Refused where a content or an argument spells a marker."""
    for where, text in _looked_at(messages):
        try:
            refuse_markers(tokenizer, text)
        except Refused as error:
            raise Refused(f"{where}: {error}") from None
    return messages


def prepare(tokenizer: Tokenizer, messages: Messages) -> Prompt:
    """What the application encodes: checked, in its template, every text normalised."""
    prompt = chat(checked(tokenizer, messages))
    return Prompt(p if isinstance(p, Reserved) else _normalised(p) for p in prompt)


def _normalised(part: Text) -> Text:
    return Text(unicodedata.normalize("NFKC", part.text), part.origin)


def naive(tokenizer: Tokenizer, messages: Messages) -> Result:
    prompt = prepare(tokenizer, messages)
    return read_prompt(tokenizer, encode_promoting(tokenizer, prompt.text), prompt)


def ours(tokenizer: Tokenizer, messages: Messages) -> Result:
    prompt = prepare(tokenizer, messages)
    return read_prompt(tokenizer, tokenizer.encode_parts(prompt), prompt)


def _looked_at(messages: Messages) -> Iterator[tuple[str, str]]:
    for i, message in enumerate(messages):
        if isinstance(message.get("content"), str):
            yield f'messages[{i}]["content"]', message["content"]
        for call in message.get("tool_calls") or ():
            arguments = call["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield f'the arguments in messages[{i}]["tool_calls"]', text


# ---- the check ------------------------------------------------------------------------------


@cache
def tiny() -> Tokenizer:
    return Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")


def judge(answer: Any) -> tuple[bool, str]:
    """Run the learner's messages, or the function that makes them, on both paths: is a role forged
    on the naive one, in a way that is not among the ten? And what happened. Raises Unreadable."""
    tokenizer, messages = tiny(), _messages(answer)
    try:
        chat(messages)
    except ValueError as error:
        return False, f"the template does not take that: {error}."
    try:
        by_text, by_parts = naive(tokenizer, messages), ours(tokenizer, messages)
    except Refused as error:
        return False, (
            f"the application refuses it, in {error}. It looks at contents and arguments, once, "
            "when they arrive. Where does it not look? And what does it do to a text afterwards?"
        )
    return _compare(tokenizer, messages, by_text, by_parts)


def _compare(
    tokenizer: Tokenizer, messages: Messages, by_text: Result, by_parts: Result
) -> tuple[bool, str]:
    names = list(by_text.forged.values())
    if not names:
        return False, (
            f"it passes the check, but the {len(by_text.acts)} reserved ids on the naive path are "
            "all the template's own. Your text must spell a marker when it is encoded."
        )
    if not set(names) & set(ROLES):
        return False, f"that forges {', '.join(names)}, and none of the roles {', '.join(ROLES)}."
    if _is_number_five(tokenizer, messages):
        return False, (
            f"that forges {', '.join(names)}, but it is number five: escapes in a tool call's "
            "arguments. Find one that works without."
        )
    if by_parts.forged:  # never: ids of a text part are ordinary ones
        return False, f"and on our path too: {by_parts.forged}. That is a bug of ours: please tell."
    at = ", ".join(f"{name} at token {i}" for i, name in by_text.forged.items())
    return True, (
        f"{_how(tokenizer, messages)} Naive path: {len(by_text.token_ids)} ids, forged: {at}. "
        f"Ours: the same text in {len(by_parts.token_ids)} ids, and its {len(by_parts.acts)} "
        "reserved ones are the template's."
    )


def _messages(answer: Any) -> list[dict[str, Any]]:
    if callable(answer):
        answer = made(answer, "Your function")
    if not isinstance(answer, list | tuple) or not all(isinstance(m, Mapping) for m in answer):
        raise Unreadable(
            'Answer with a list of messages, such as [{"role": "user", "content": "Hello!"}], or '
            f"with a function that returns one; this is {brief(answer)}."
        )
    return [dict(message) for message in answer]


def _is_number_five(tokenizer: Tokenizer, messages: Messages) -> bool:
    """Do the arguments spell a marker once their escapes are read?"""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    texts = [call["arguments"] for call in calls if isinstance(call["arguments"], str)]
    spelled = (json.dumps(json.loads(text), ensure_ascii=False) for text in texts)
    return any(pattern(tokenizer).search(text) for text in spelled)


def _how(tokenizer: Tokenizer, messages: Messages) -> str:
    """Was the marker there from the beginning, where nobody looks, or made afterwards?"""
    before = chat(messages)
    if any(isinstance(p, Text) and pattern(tokenizer).search(p.text) for p in before):
        return "The check does not look into that field."
    return "It is no marker when it is checked, and NFKC makes one of it."
