"""What a server says, read without trust: the events of a stream, and the words of an error.

A stream is lines `data: {...}`, the last of them `data: [DONE]`. A server may be broken, hostile or
somebody else's, so sizes have limits, every field is checked before it is used, and what is printed
of its words has neither the key that we sent it nor a character that moves the cursor.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KEY = "OPENAI_API_KEY"
LEAST_KEY = 4  # characters: a shorter key is no secret, and hiding it would garble every message
MOST_WORDS = 300  # characters of a server's own message
MOST_LINE, MOST_STREAM = 1 << 20, 64 << 20  # bytes
MOST_TOKENS = 1 << 31


class ServerError(RuntimeError):
    """The server cannot be used, or a request failed; the message says why and what helps."""

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


@dataclass
class Seen:
    """A stream so far; times in seconds from when it was asked for."""

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    reason: str | None = None
    error: str | None = None


def read(response: http.client.HTTPResponse, sent: float, seen: Seen) -> None:
    """All events into `seen`. ServerError for a stream that was cut, or is none."""
    try:
        for line in _lines(response):
            if line == "[DONE]":
                return
            _take(json.loads(line), time.perf_counter() - sent, seen)
    except http.client.IncompleteRead:
        pass
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise ServerError(f"an event of the stream is none of OpenAI's interface: {err}") from None
    if seen.reason is None:
        raise ServerError(f"the stream was cut after {len(seen.times)} pieces, without an end")


def message_of(content: bytes) -> str:
    """The words of an error's body: OpenAI's form, a simpler one, or nothing."""
    try:
        found = json.loads(content)
        error = found.get("error", found)
        words = error if isinstance(error, str) else error.get("message") or error.get("detail")
        return plain(str(words or ""))[:MOST_WORDS]
    except (ValueError, AttributeError, RecursionError):
        return ""


def key() -> str:
    """The key of the environment, without the line break that a file may have left at its end; ""
    for none. ServerError, which does not repeat it, where no header can hold it."""
    found = os.environ.get(KEY, "").strip()
    if not (found.isascii() and found.isprintable()):
        raise ServerError(
            f"the key in {KEY} has a line break or another character that no header may hold: set "
            "it again, from one line of plain letters"
        )
    return found


def plain(words: str) -> str:
    """The words fit to be printed: the key masked, control characters spelled."""
    secret = os.environ.get(KEY, "").strip()
    if len(secret) >= LEAST_KEY:
        words = words.replace(secret, "***")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def _take(event: dict[str, Any], now: float, seen: Seen) -> None:
    if event.get("error"):
        raise ServerError(f"the server ended the stream: {message_of(json.dumps(event).encode())}")
    seen.tokens = _count((event.get("usage") or {}).get("completion_tokens"), seen.tokens)
    for choice in event.get("choices") or ():
        text, reason = choice.get("text"), choice.get("finish_reason")
        for name, value in (("text", text), ("finish_reason", reason)):
            if not isinstance(value, str | None):
                raise TypeError(f"{name} is a {type(value).__name__}")
        seen.reason = reason or seen.reason
        if text or not reason:
            seen.pieces.append(text or "")
            seen.times.append(now)


def _count(value: object, otherwise: int) -> int:
    """A server's count of tokens, where it can be one."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS
    return int(value) if is_count else otherwise  # type: ignore[call-overload]


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    """The contents of the events; comments, blank lines and other fields are skipped."""
    total = 0
    while line := response.readline(MOST_LINE):
        total += len(line)
        if total > MOST_STREAM or (len(line) == MOST_LINE and not line.endswith(b"\n")):
            raise ServerError(f"a stream may have {MOST_STREAM:,} bytes, a line {MOST_LINE:,}")
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("data:"):
            yield text.removeprefix("data:").strip()
