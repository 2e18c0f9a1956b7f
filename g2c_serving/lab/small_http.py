"""As much of HTTP as a small server needs: one request a connection, answers whole or in chunks.

A stream goes out in chunks, each with its length, and an empty one at the end: so a client can tell
an end from a cut. A server on this machine is within reach of the web pages that a browser here has
open: what they send is refused, as is what takes too long or is too large. Left out: everything
else, for which there are real servers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 4 << 20  # of a request's body
MOST_SECONDS = 60.0  # for a client to send its request, and to take a piece of the answer
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HERE = re.compile(r"(https?://)?(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


class BadRequest(Exception):
    """A request that gets an error with a status."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, str, bytes]:
    """Method, path and body of one HTTP request. A client that waits for leave to send the body
    gets it; one that does not come to an end is refused."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            return await _read(reader, writer)
    except TimeoutError as err:
        raise BadRequest(
            "408 Request Timeout", f"the request was not over after {MOST_SECONDS:g} s"
        ) from err


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, str, bytes]:
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        parts = (line.partition(":") for line in lines)
        fields = {name.lower(): value.strip() for name, _, value in parts}
        length = _length(fields.get("content-length", "0"))
    except (ValueError, asyncio.LimitOverrunError) as err:
        raise BadRequest("400 Bad Request", f"that is no HTTP request: {err}") from err
    _check_local(fields)
    if "transfer-encoding" in fields:
        raise BadRequest("411 Length Required", "a body needs a Content-Length; no chunks here")
    if not 0 <= length <= MOST_BYTES:
        raise BadRequest("413 Content Too Large", f"a body may have {MOST_BYTES:,} bytes")
    if fields.get("expect", "").lower() == "100-continue":
        writer.write(CONTINUE)
    return method, path.partition("?")[0], await reader.readexactly(length)


def _length(digits: str) -> int:
    """A Content-Length. ValueError for what only Python takes for a number, such as +1_0."""
    if not re.fullmatch(r"-?[0-9]{1,18}", digits):
        raise ValueError(f"its Content-Length is {digits!r:.60}")
    return int(digits)


def _check_local(fields: Mapping[str, str]) -> None:
    """BadRequest for a request out of a web page of somewhere else: a browser says in `Origin`
    whose it is, and in `Host` by which name it found us."""
    for name in ("host", "origin"):
        if name in fields and not HERE.fullmatch(fields[name]):
            words = f"the {name} {fields[name]!r:.60} is not this machine"
            raise BadRequest("403 Forbidden", words)


async def drained(writer: asyncio.StreamWriter) -> None:
    """Wait until the client has taken most of what was written. TimeoutError, and the connection is
    cut, for one that does not."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()
        raise


def head(status: str, kind: str, more: str) -> bytes:
    """The lines before a body of the kind; `more` says how long that is."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}\r\nConnection: close\r\n\r\n"
    ).encode()


def whole(writer: asyncio.StreamWriter, status: str, content: dict[str, Any]) -> None:
    """A whole answer, as JSON."""
    body = json.dumps(content).encode()
    writer.write(head(status, "application/json", f"Content-Length: {len(body)}") + body)


def event(writer: asyncio.StreamWriter, content: dict[str, Any]) -> None:
    """One event of a stream, in a chunk of its own."""
    writer.write(chunk(b"data: " + json.dumps(content).encode() + b"\n\n"))


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"
