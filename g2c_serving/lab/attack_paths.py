"""One text, two paths: by its spelling and by its tokens; and what was forged on each.

Towards the model a path gives token ids: a marker is forged where an id is reserved and the
application's template put none there. From the model a path gives channels: a marker is forged
where the channel changes at a token that is no reserved id. Both are decided by the ids alone.

Brief, section 5. The naive path is an application as many are written: it renders a conversation to
one string, encodes that with the parent course's rule, and reads the output with a pattern. It may
look for markers in what it gets; where it does, and when, is what the attacks are about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from g2c_serving.lab.promoting import encode_promoting
from g2c_serving.process.prompt import Prompt, Reserved
from g2c_serving.process.streaming import ANSWER, OPENS, OutputParser
from g2c_serving.process.tokenizer import Tokenizer

Checked = TypeVar("Checked", str, bytes)


@dataclass(frozen=True)
class Result:
    """Token ids on one path.

    acts      index of a token -> the marker on which this path acts there
    placed    indices where a marker is genuine: the template's, or a reserved id of the model's
    """

    token_ids: tuple[int, ...]
    acts: Mapping[int, str]
    placed: frozenset[int]

    @property
    def forged(self) -> dict[int, str]:
        """The markers on which the path acts though nobody who may has placed them."""
        return {i: name for i, name in self.acts.items() if i not in self.placed}


class Refused(ValueError):
    """The application looked, and found a marker."""


def pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Every reserved name, the longer before the shorter."""
    names = sorted(tokenizer.reserved, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def refuse_markers(tokenizer: Tokenizer, text: Checked) -> Checked:
    """An application's check: `text` as it is, or Refused where it spells a marker."""
    spelled = text if isinstance(text, str) else text.decode("latin-1")
    if found := pattern(tokenizer).search(spelled):
        raise Refused(f"the text spells {found[0]!r} at character {found.start()}")
    return text


def strip_markers(tokenizer: Tokenizer, text: str) -> str:
    """An application's filter: every marker taken out, in one pass."""
    return pattern(tokenizer).sub("", text)


# ---- towards the model ----------------------------------------------------------------------


def read_prompt(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Prompt) -> Result:
    """What the model acts on: every reserved id. The template's are those that stand at the byte
    where the prompt has a `Reserved` part. ValueError where the ids spell something else."""
    if tokenizer.decode(token_ids) != prompt.text:
        raise ValueError(f"the ids spell {tokenizer.decode(token_ids)!r}, not {prompt.text!r}")
    names = {token_id: name for name, token_id in tokenizer.reserved.items()}
    acts = {i: names[token_id] for i, token_id in enumerate(token_ids) if token_id in names}
    spelled = [part.name if isinstance(part, Reserved) else part.text for part in prompt]
    starts = _starts([len(text.encode()) for text in spelled])
    marks = {at for at, part in zip(starts, prompt, strict=True) if isinstance(part, Reserved)}
    bytes_at = _starts([len(tokenizer.token_bytes(token_id)) for token_id in token_ids])
    placed = frozenset(i for i in acts if bytes_at[i] in marks)
    return Result(tuple(token_ids), acts, placed)


def read_plain(
    tokenizer: Tokenizer, token_ids: Sequence[int], delimiters: Sequence[str], placed: Sequence[int]
) -> Result:
    """A template whose delimiters are words: the model acts on every one that it reads. `placed`:
    the bytes at which the template wrote them."""
    data = tokenizer.decode(token_ids).encode()
    starts = _starts([len(tokenizer.token_bytes(token_id)) for token_id in token_ids])
    acts, genuine = {}, set()
    for found in re.finditer("|".join(map(re.escape, delimiters)).encode(), data):
        token = max(i for i, at in enumerate(starts) if at <= found.start())
        acts[token] = found[0].decode()
        if found.start() in placed:
            genuine.add(token)
    return Result(tuple(token_ids), acts, frozenset(genuine))


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1] if lengths else []


# ---- from the model -------------------------------------------------------------------------


def channel_by_text(tokenizer: Tokenizer, text: str) -> str:
    """The channel at the end of `text` for a reader that knows no ids: the last marker says it."""
    found = pattern(tokenizer).findall(text)
    return OPENS.get(found[-1], ANSWER) if found else ANSWER


def channels_by_text(
    tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], filtered: bool = False
) -> list[str]:
    """After each token, the channel for a client that joins the text of chunks and looks for
    markers in it. `filtered`: the server takes the markers out of every chunk first."""
    sent, found = "", []
    for chunk in chunks:
        for end in range(1, len(chunk) + 1):
            text = tokenizer.decode(chunk[:end])
            text = strip_markers(tokenizer, text) if filtered else text
            found.append(channel_by_text(tokenizer, sent + text))
        sent += text if chunk else ""
    return found


def channels_by_id(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """After each token, the channel in which the engine's parser is."""
    parser, found = OutputParser(tokenizer), []
    for token_id in token_ids:
        parser.feed(token_id)
        found.append(parser.channel)
    return found


def read_output(tokenizer: Tokenizer, token_ids: Sequence[int], channels: Sequence[str]) -> Result:
    """Where a reader of the output acts: at each token after which `channels` has another one."""
    names = {token_id: name for name, token_id in tokenizer.reserved.items()}
    acts, before = {}, ANSWER
    for i, channel in enumerate(channels):
        if channel != before:
            spelled = pattern(tokenizer).findall(tokenizer.decode(token_ids[: i + 1]))
            acts[i] = names.get(token_ids[i], spelled[-1] if spelled else channel)
        before = channel
    placed = frozenset(i for i, token_id in enumerate(token_ids) if token_id in names)
    return Result(tuple(token_ids), acts, placed)


# ---- an attack ------------------------------------------------------------------------------

Lines = tuple[tuple[str, str], ...]  # who, and what arrives from them
Read = Callable[[Tokenizer], Result]


@dataclass(frozen=True)
class Attack:
    """`tries` is one sentence; `guard` another: what is done about markers; `lines` are
    what arrives, and from whom; `naive` and `ours` run the two paths."""

    name: str
    tries: str
    guard: str
    lines: Lines
    naive: Read
    ours: Read
    prompt: Callable[[Tokenizer], Prompt] | None = None  # of an attack towards the model


def into_prompt(
    name: str, tries: str, guard: str, lines: Lines, prompt: Callable[[Tokenizer], Prompt]
) -> Attack:
    """An attack towards the model: both paths encode the same prompt, as one string or in parts."""

    def naive(tokenizer: Tokenizer) -> Result:
        made = prompt(tokenizer)
        return read_prompt(tokenizer, encode_promoting(tokenizer, made.text), made)

    def ours(tokenizer: Tokenizer) -> Result:
        made = prompt(tokenizer)
        return read_prompt(tokenizer, tokenizer.encode_parts(made), made)

    return Attack(name, tries, guard, lines, naive, ours, prompt)


def from_model(
    name: str, tries: str, guard: str, lines: Lines, chunks: Sequence[Prompt], filtered: bool
) -> Attack:
    """An attack on those who read the output. `chunks` are the tokens that the model writes, as a
    naive server sends them on."""

    def naive(tokenizer: Tokenizer) -> Result:
        sent = [tokenizer.encode_parts(chunk) for chunk in chunks]
        token_ids = [token_id for chunk in sent for token_id in chunk]
        return read_output(tokenizer, token_ids, channels_by_text(tokenizer, sent, filtered))

    def ours(tokenizer: Tokenizer) -> Result:
        token_ids = [i for chunk in chunks for i in tokenizer.encode_parts(chunk)]
        return read_output(tokenizer, token_ids, channels_by_id(tokenizer, token_ids))

    return Attack(name, tries, guard, lines, naive, ours)
