"""From generated ids to what a user may see, token by token: channels, characters, stop strings.

A reserved id ends what came before it and says the channel of what follows: `<think>` the
reasoning, `<|tool_call|>` a tool call, any other one (`</think>`, `<|end|>`, a role) the answer.
Ids alone do that. A model that spells `</think>` out of ordinary tokens has written seven
characters and goes on thinking.

What was shown is never taken back, and the result is the same however the stream is cut. So two
things wait: the bytes of a character that is not whole (utf8.py) and, in the answer, the beginning
of a stop string (stop_strings.py). Neither crosses a reserved id: a character that is cut by one,
or by the end of the output, is shown as U+FFFD, and a stop string does not match across a thought.

Mirrors the streaming output parser of deepseek-recipe, as far as the Brief tells of it (section 5).
Left out: names and arguments of a tool call as they arrive (a call is text until you read it).
"""

from __future__ import annotations

import copy
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from g2c_serving.checks import as_int
from g2c_serving.process.stop_strings import StopStrings
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.process.utf8 import Utf8Stream

ANSWER, REASONING, TOOL_CALL = "answer", "reasoning", "tool_call"
CHANNELS = (ANSWER, REASONING, TOOL_CALL)
OPENS = {"<think>": REASONING, "<|tool_call|>": TOOL_CALL}  # every other reserved id: the answer
FINISH = math.inf  # the `at` of what finish() gives out


@dataclass(frozen=True)
class Piece:
    """Some text of one channel, given out when `at` tokens had been fed; `FINISH` at the end.
    A tool call's pieces carry its number; it begins with an empty one."""

    channel: str
    text: str
    at: float
    call: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """What the model wrote after `<|tool_call|>`. `is_whole`: a reserved id ended it, so that it
    was not cut off by a length limit."""

    text: str
    is_whole: bool

    def value(self) -> Any:
        """The call as JSON. ValueError where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError) as error:
            remedy = "a grammar holds it to a schema" if self.is_whole else "raise max_tokens"
            state = "is no JSON" if self.is_whole else "was cut off and is no JSON"
            raise ValueError(
                f"tool call {self.text[:80]!r} {state} ({error or 'nested too deeply'}): {remedy}"
            ) from None


class OutputParser:
    """Reads the generated ids of one request in order; `pieces` is all that it has given out.

    channel        where the output begins, see `initial_channel`
    before         bytes of a half character at the prompt's end, see `open_bytes`
    stopped_by     the stop string that ended the answer, or None
    broken_bytes   bytes that were no UTF-8, up to the token of the stop string if there is one
    first_broken   index of the token with the first of them, or None
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: str | Sequence[str] = (),
        channel: str = ANSWER,
        before: bytes = b"",
    ) -> None:
        if channel not in CHANNELS:
            raise ValueError(f"channel={channel!r} must be one of {', '.join(CHANNELS)}")
        self._tokenizer, self._utf8, self._stops = tokenizer, Utf8Stream(before), StopStrings(stop)
        self._names = {token_id: name for name, token_id in tokenizer.reserved.items()}
        self.num_fed, self.is_finished = 0, False
        self.stopped_by: str | None = None
        self.pieces: list[Piece] = []
        self._call_ends: list[float | None] = []  # of each tool call: `at`, None while it is open
        self._open(channel)

    @classmethod
    def after(
        cls, prompt_ids: Sequence[int], tokenizer: Tokenizer, stop: str | Sequence[str] = ()
    ) -> OutputParser:
        """The parser of what a model writes after this prompt."""
        channel = initial_channel(prompt_ids, tokenizer)
        return cls(tokenizer, stop, channel, open_bytes(prompt_ids, tokenizer))

    @property
    def broken_bytes(self) -> int:
        return self._utf8.broken_bytes

    @property
    def first_broken(self) -> int | None:
        return self._utf8.first_broken

    @property
    def held(self) -> tuple[str, bytes]:
        """What waits: text that may become a stop string, then bytes of half a character."""
        return self._stops.held, self._utf8.held

    def feed(self, token_id: int) -> str | None:
        """Read one token. Returns the stop string that it completed: then the output is over."""
        token_id = as_int("token_id", token_id, 0, self._tokenizer.vocab_size - 1)
        if self.is_finished or self.stopped_by is not None:
            why = f"it stopped at {self.stopped_by!r}" if self.stopped_by else "finish() was called"
            raise ValueError(f"token_id={token_id} comes after the end ({why}): make a new parser")
        self.num_fed += 1
        if token_id in self._names:
            self._end_segment(self.num_fed)
            if self.stopped_by is None:
                self._open(OPENS.get(self._names[token_id], ANSWER))
        else:
            data = self._tokenizer.token_bytes(token_id)
            self._read(self._utf8.feed(data, self.num_fed - 1), self.num_fed)
        return self.stopped_by

    def finish(self) -> str | None:
        """No token follows: what waits is given out. Returns `stopped_by`: a character that is cut
        by the end becomes U+FFFD, which may complete a stop string that has one."""
        if not self.is_finished and self.stopped_by is None:
            self._end_segment(FINISH)
        self.is_finished = True
        return self.stopped_by

    def text(self, channel: str = ANSWER, upto: float | None = None) -> str:
        """All of a channel, or as it stood after the first `upto` tokens."""
        if channel not in CHANNELS:
            raise ValueError(f"channel={channel!r} must be one of {', '.join(CHANNELS)}")
        return "".join(piece.text for piece in self._until(upto) if piece.channel == channel)

    def tool_calls(self, upto: float | None = None) -> list[ToolCall]:
        """All tool calls, or as they stood after the first `upto` tokens."""
        texts: dict[int, list[str]] = {}
        for piece in self._until(upto):
            if piece.call is not None:
                texts.setdefault(piece.call, []).append(piece.text)
        return [ToolCall("".join(some), self._is_over(i, upto)) for i, some in texts.items()]

    def fork(self) -> OutputParser:
        """A parser of the same tokens so far that goes its own way."""
        other = copy.copy(self)
        other._utf8, other._stops = copy.copy(self._utf8), self._stops.fork()
        other.pieces, other._call_ends = list(self.pieces), list(self._call_ends)
        return other

    def _is_over(self, call: int, upto: float | None) -> bool:
        end = self._call_ends[call]
        return end is not None and (upto is None or end <= upto)

    def _until(self, upto: float | None) -> list[Piece]:
        end = len(self.pieces)
        if upto is not None:
            end = bisect_right(self.pieces, upto, key=lambda piece: piece.at)
        return self.pieces[:end]

    def _read(self, text: str, at: float) -> None:
        """Text of the open channel. In the answer, a stop string ends the output."""
        if self.channel == ANSWER and self._stops.stops:
            text, self.stopped_by = self._stops.feed(text)
        self._give(text, at)

    def _end_segment(self, at: float) -> None:
        """Half a character becomes U+FFFD, and held text is no stop string any more."""
        self._read(self._utf8.feed(b"", self.num_fed, final=True), at)
        self._give(self._stops.reset(), at)
        if self._call is not None and at != FINISH:
            self._call_ends[self._call] = at

    def _open(self, channel: str) -> None:
        self.channel, self._call = channel, None
        if channel == TOOL_CALL:
            self._call = len(self._call_ends)
            self._call_ends.append(None)
            self.pieces.append(Piece(channel, "", self.num_fed, self._call))

    def _give(self, text: str, at: float) -> None:
        if text:
            self.pieces.append(Piece(self.channel, text, at, self._call))


def initial_channel(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The channel in which the output of this prompt begins: its last reserved id says it."""
    names = {token_id: name for name, token_id in tokenizer.reserved.items()}
    last = next((names[i] for i in reversed(prompt_ids) if i in names), "")
    return OPENS.get(last, ANSWER)


def open_bytes(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> bytes:
    """The bytes of the character inside which the prompt ends, at most 3; none after a reserved id.
    With them the parser gives out that character whole, once, and nothing else of the prompt."""
    reserved, tail = set(tokenizer.reserved.values()), b""
    for token_id in reversed(prompt_ids):
        if token_id in reserved or len(tail) > 3:
            break
        tail = tokenizer.token_bytes(token_id) + tail
    stream = Utf8Stream()
    stream.feed(tail[-4:], 0)
    return stream.held
