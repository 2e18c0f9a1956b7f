"""A chat template: messages become a `Prompt`, and only the template writes reserved tokens.

The layout is the one that our models are trained on, which is the parent course's with tools and
thoughts added:

    <|system|>\\n...\\n<|user|>\\n...\\n<|assistant|>\\n<think>...</think>...<|end|>
    <|assistant|>\\n<|tool_call|>{"name": ..., "arguments": {...}}<|end|><|tool_result|>\\n...\\n

What a message contains is a `Text` part always, whoever wrote it: the system's text, a tool's
result and a tool's arguments as well as a user's. Brief, section 5. DeepSeek's recipe renders its
own layout in the same way. Left out: images, several templates, a template language.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from g2c_serving.process.prompt import Part, Prompt, Reserved, Text
from g2c_serving.process.utf8 import as_utf8

MARKERS = {"system": "<|system|>", "user": "<|user|>", "tool": "<|tool_result|>"}
ASSISTANT, END = Reserved("<|assistant|>"), Reserved("<|end|>")
THINK, END_THINK = Reserved("<think>"), Reserved("</think>")
TOOL_CALL = Reserved("<|tool_call|>")
ROLES = ("system", "user", "assistant", "tool")
TEMPLATE = "template"  # the origin of what is neither a message's nor a tool's


def chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    think: bool = False,
) -> Prompt:
    """The prompt of a conversation. Each text part names its role in `origin`.

    messages: dicts with "role" (system, user, assistant or tool) and "content" (a str); an
    assistant's may have "reasoning" (a str) and "tool_calls", a list of {"name", "arguments"}, the
    arguments a dict or the JSON text of an object; then its content may be left out.
    tools: descriptions, dicts with a "name", which become a system turn of one JSON line each. (Our
    models know five tools without it.)
    add_generation_prompt opens the assistant's turn; `think` opens its thought too.

    ValueError names the message, the field, the value and the remedy.
    """
    if isinstance(messages, str | Mapping | Prompt) or not isinstance(messages, Sequence):
        raise ValueError(f'messages={messages!r} must be a list of {{"role", "content"}} dicts')
    if not messages:
        raise ValueError("messages is empty: give at least one message")
    if think and not add_generation_prompt:
        raise ValueError("think=True opens the assistant's turn: it needs add_generation_prompt")
    parts: list[Part] = _describe(tools) if tools else []
    calls_open = False
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = _check(message, where)
        if role == "tool" and not calls_open:
            raise ValueError(
                f"{where} has role 'tool', but no assistant message with tool_calls stands before "
                "it: add that message, or pass the text with role 'user'"
            )
        calls_open = calls_open if role == "tool" else bool(message.get("tool_calls"))
        parts += _assistant(message, where) if role == "assistant" else _turn(message, where)
    if add_generation_prompt:
        parts += [ASSISTANT, Text("\n", TEMPLATE), *[THINK] * think]
    return Prompt(parts)


def _turn(message: Mapping[str, Any], where: str) -> list[Part]:
    role = message["role"]
    content = _text(message, "content", where)
    return [Reserved(MARKERS[role]), Text(f"\n{content}\n", role)]


def _assistant(message: Mapping[str, Any], where: str) -> list[Part]:
    parts: list[Part] = [ASSISTANT, Text("\n", TEMPLATE)]
    calls = _tool_calls(message, where)
    if message.get("reasoning") is not None:
        parts += [THINK, Text(_text(message, "reasoning", where), "assistant"), END_THINK]
    if not calls or message.get("content") is not None:
        content = _text(message, "content", where)
        parts += [Text(content, "assistant")] if content else []
    for call in calls:
        parts += [TOOL_CALL, Text(call, "assistant")]
    return [*parts, END]


def _tool_calls(message: Mapping[str, Any], where: str) -> list[str]:
    """The JSON text of each call, as the models write it."""
    calls = message.get("tool_calls") or []
    if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
        raise ValueError(
            f'{where}["tool_calls"]={calls!r} must be a list of {{"name", "arguments"}} dicts'
        )
    return [_tool_call(call, f'{where}["tool_calls"][{i}]') for i, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> str:
    if not isinstance(call, Mapping) or not {"name", "arguments"} == set(call):
        raise ValueError(f'{where}={call!r} must be a dict with "name" and "arguments"')
    name, arguments = _text(call, "name", where), call["arguments"]
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(value, Mapping):
            raise TypeError("not an object")
        return json.dumps({"name": name, "arguments": dict(value)}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as err:
        raise ValueError(
            f'{where}["arguments"]={arguments!r} must be a dict that JSON can write, or the JSON '
            f"text of an object ({err})"
        ) from None


def _describe(tools: Sequence[Mapping[str, Any]]) -> list[Part]:
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise ValueError(f'tools={tools!r} must be a list of dicts with a "name"')
    lines = []
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            raise ValueError(f'tools[{i}]={tool!r} must be a dict with a "name" (a str)')
        try:
            lines.append(json.dumps(dict(tool), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as err:
            raise ValueError(f"tools[{i}]={tool!r} must be writable as JSON ({err})") from None
    text = "\n".join(["Tools:", *lines])
    return [Reserved(MARKERS["system"]), Text(f"\n{text}\n", "system")]


def _check(message: Any, where: str) -> str:
    """The role of a message whose keys fit it."""
    if not isinstance(message, Mapping):
        raise ValueError(f'{where}={message!r} must be a dict with "role" and "content"')
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f'{where}["role"]={role!r} must be one of {", ".join(ROLES)}')
    allowed = {"role", "content"} | ({"reasoning", "tool_calls"} if role == "assistant" else set())
    for key in message:
        if key not in allowed:
            raise ValueError(
                f"{where}[{key!r}]={message[key]!r} does not belong to a message of role {role!r}: "
                f"it may have {', '.join(sorted(allowed))}"
            )
    return role


def _text(message: Mapping[str, Any], name: str, where: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise ValueError(f'{where}["{name}"]={value!r} must be a str')
    as_utf8(f'{where}["{name}"]={value!r}', value)
    return value
