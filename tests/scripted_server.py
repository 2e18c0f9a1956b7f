"""A server that says what a test tells it to, byte for byte: for clients to be tested against.

`script(path, body)` gives the raw answer, status line included. What it was asked is kept.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Script = Callable[[str, dict[str, Any]], bytes]
MODELS = {"data": [{"id": "small"}, {"id": "large"}]}


class Asked(list[tuple[str, dict[str, str], dict[str, Any]]]):
    """Path, headers and body of each request, in order."""


def answer(content: Any, status: str = "200 OK") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stream(*lines: str, whole: bool = True) -> bytes:
    """A stream in chunks; without `whole` it stops where the next chunk should be."""
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = "".join(f"{len(line) + 2:x}\r\n{line}\n\n\r\n" for line in lines)
    return (head + chunks + ("0\r\n\r\n" if whole else "")).encode()


def piece(text: str = "", reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "text": text, "finish_reason": reason}
    return "data: " + json.dumps({"choices": [choice]} | more)


@contextmanager
def scripted(script: Script) -> Iterator[tuple[str, Asked]]:
    """The address of a server, and what it was asked. `/v1/models` it answers by itself."""
    asked = Asked()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            path = lines.readline().decode().split(" ")[1]
            headers = dict(
                line.decode().strip().split(": ", 1) for line in iter(lines.readline, b"\r\n")
            )
            length = int(headers.get("Content-Length", 0))
            body = json.loads(lines.read(length)) if length else {}
            asked.append((path, headers, body))
            is_models = path == "/v1/models" and not asked_for_models(script)
            client.sendall(answer(MODELS) if is_models else script(path, body))

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # it is closed: the test is over
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", asked
    finally:
        listener.close()


def asked_for_models(script: Script) -> bool:
    """Whether the script answers that path itself."""
    return getattr(script, "answers_models", False)
