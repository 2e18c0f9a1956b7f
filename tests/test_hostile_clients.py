"""Clients that the server must not trust: web pages in a browser here, requests that are none,
those who read slowly, and too many at once. The others are served meanwhile.

Right values: RFC 9112 for what a request is, RFC 6454 for what a browser says of itself.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from test_openai_server import LM, address, ask, raw

from g2c_serving.lab import openai_server, small_http
from g2c_serving.lab.openai_server import running

__all__ = ["address"]
GET = b"GET /v1/models HTTP/1.1\r\n"
BODY = {"prompt": "Once", "max_tokens": 2}


def status(address: str, *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    try:
        return raw(address, GET + lines.encode("latin-1") + b"\r\n").split(b" ", 2)[1]
    except ConnectionError:  # who is told without being heard may not hear it
        return b"503"


def port_of(address: str) -> int:
    return int(urlsplit(address).port or 0)


# who may ask


def test_it_listens_on_this_machine_alone(monkeypatch):
    """Right value: what the socket is bound to, whatever the port."""
    bound = []
    create = socket.create_server

    def keep(where, *args, **options):
        bound.append(where[0])
        return create(where, *args, **options)

    monkeypatch.setattr(socket, "create_server", keep)
    with running(LM):
        assert bound == ["127.0.0.1"]


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is here on Linux alone")
def test_another_address_of_this_machine_finds_nobody(address):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(address)), timeout=5)


@pytest.mark.parametrize(
    "field",
    [
        "Host: evil.example", "Host: evil.example:8000", "Host: 127.0.0.1.evil.example",
        "Host: localhost.evil.example:80", "Host: 192.168.0.7:8000", "Host: 0.0.0.0:8000", "Host:",
        "Origin: https://evil.example", "Origin: null", "Origin: http://localhost.evil.example",
        "Origin: http://evil.example/?http://localhost", "Origin: file://",
    ],
)  # fmt: skip
def test_a_page_from_somewhere_else_gets_nothing(field, address):
    """Its own name that leads to 127.0.0.1 stands in `Host` (DNS rebinding), its own address in
    `Origin`, also where the browser lets it send without reading the answer."""
    assert status(address, field) == b"403"


@pytest.mark.parametrize(
    "fields",
    [
        [], ["Host: 127.0.0.1:8000"], ["host: LOCALHOST"], ["Host: [::1]:80"],
        ["Host: localhost:9000", "Origin: http://localhost:8888"], ["Origin: http://127.0.0.1"],
    ],
)  # fmt: skip
def test_programs_and_pages_of_this_machine_are_served(fields, address):
    assert status(address, *fields) == b"200"


# what a request is


@pytest.mark.parametrize("length", ["+5", "1_0", "5.0", "0x10", "٣", "5 5", "", "9" * 5000, "1e1"])
def test_a_length_that_is_none(length, address):
    post = b"POST /v1/completions HTTP/1.1\r\nContent-Length: " + length.encode() + b"\r\n\r\n"
    assert raw(address, post).startswith(b"HTTP/1.1 4")


def test_a_body_or_a_head_that_is_too_large_is_not_kept(address):
    most = small_http.MOST_BYTES
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (most + 1)
    assert raw(address, head).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", port_of(address)), timeout=20) as client:
        try:
            for _ in range(200):  # a head of 20 MB: it is cut long before
                client.sendall(b"A: " + b"a" * 100_000 + b"\r\n")
            answer = client.recv(4096)
        except ConnectionError:
            answer = b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""


@pytest.mark.parametrize(
    "field", ["max_tokens", "temperature", "top_k", "seed", "stop", "model", "prompt", "suffix"]
)
def test_what_a_client_sends_is_not_sent_back_whole(field, address):
    """A megabyte of nonsense in any field: a refusal of a few lines."""
    code, content = ask(address, BODY | {field: [["x" * 10**6]]})
    assert code in (400, 404) and len(content) < 2000
    json.loads(content)


# who is slow


def test_a_client_that_does_not_read_is_let_go(monkeypatch):
    """A stream larger than all buffers on its way. Its request ends, its connection too."""
    monkeypatch.setattr(small_http, "MOST_SECONDS", 0.5)
    event = small_http.event
    monkeypatch.setattr(
        openai_server, "event", lambda writer, content: event(writer, content | {"x": "x" * 10**6})
    )
    body = json.dumps({"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with running(LM) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port_of(address)))
        client.sendall((head + body).encode())
        time.sleep(3)
        assert ask(address, BODY)[0] == 200
        client.settimeout(10)
        got = b""
        try:
            while piece := client.recv(1 << 20):
                got = (got + piece)[-100:]
        except ConnectionError:
            pass
        assert not got.endswith(b"0\r\n\r\n")  # it was cut


def test_so_many_clients_and_no_more(monkeypatch):
    """Those above the limit are told; the others, and who comes when they have gone, are served."""
    monkeypatch.setattr(openai_server, "MOST_CLIENTS", 3)
    with running(LM) as address:
        with ExitStack() as stack:
            for _ in range(3):
                client = socket.create_connection(("127.0.0.1", port_of(address)))
                stack.enter_context(client)
            end = time.monotonic() + 10
            while (code := status(address)) == b"200" and time.monotonic() < end:
                time.sleep(0.02)
            assert code == b"503"
        end = time.monotonic() + 10
        while (code := status(address)) != b"200" and time.monotonic() < end:
            time.sleep(0.02)
        assert code == b"200"
