"""How our server ends: an answer, a connection, a stream's last character, and the server itself.

Right values: HTTP's rules for an answer's end, OpenAI's for a stream's, and the engine asked
directly.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import openai_server, small_http
from g2c_serving.lab.openai_server import CompletionServer, running

LM = random_lm(vocab_size=266)
BODY = {"prompt": [65, 66, 67], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def address():
    with running(LM) as found:
        yield found


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((str(parts.hostname), parts.port), timeout=20)


def post(body: dict) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(content) + content


def answer(address: str, request: bytes) -> tuple[bytes, bytes]:
    """Head and body, up to where the server closes: without that the read ends in a timeout."""
    with connect(address) as client:
        client.sendall(request)
        content = b"".join(iter(lambda: client.recv(65_536), b""))
    head, _, body = content.partition(b"\r\n\r\n")
    return head, body


def chunks(body: bytes) -> list[bytes]:
    """The chunks of a body, by their lengths."""
    found = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n" or not length
        found.append(rest[:length])
        body = rest[length + 2 :]
    return found


@pytest.mark.parametrize(
    "request_", [b"GET /v1/models HTTP/1.1\r\n\r\n", b"GET /no HTTP/1.1\r\n\r\n"]
)
def test_an_answer_is_as_long_as_it_says_and_the_connection_closes(address, request_):
    head, body = answer(address, request_)
    fields = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:])
    assert fields[b"connection"] == b"close" and int(fields[b"content-length"]) == len(body)
    assert isinstance(json.loads(body), dict)


def test_a_stream_ends_with_an_empty_chunk_and_a_count_where_that_is_asked_for(address):
    asked = BODY | {"max_tokens": 5, "stream": True}
    for options, counts in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        _, body = answer(address, post(asked | options))
        *events, done, end = chunks(body)
        assert (done, end) == (b"data: [DONE]\n\n", b"")
        told = [json.loads(one.removeprefix(b"data: ")) for one in events]
        assert [one["choices"] == [] for one in told].count(True) == counts
        assert ["usage" in one for one in told].count(True) == counts


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_at_the_end_is_shown_as_one_that_is_broken(address, stream):
    """As many tokens as end in a byte that begins a character of two or more."""
    greedy = g.SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (output,) = g.Engine(LM).generate([BODY["prompt"]], greedy)
    count = 1 + next(k for k, i in enumerate(output.token_ids) if 0xC2 <= i <= 0xF4)
    expected = LM.tokenizer.decode(output.token_ids[:count])
    assert expected.endswith("\N{REPLACEMENT CHARACTER}")
    _, body = answer(address, post(BODY | {"max_tokens": count, "stream": stream}))
    if stream:
        pieces = [json.loads(one.removeprefix(b"data: ")) for one in chunks(body)[:-2]]
        text = "".join(one["choices"][0]["text"] for one in pieces)
    else:
        text = json.loads(body)["choices"][0]["text"]
    assert text.endswith("\N{REPLACEMENT CHARACTER}") and text == expected


def test_a_client_that_leaves_ends_its_request_whoever_else_holds_the_stream(monkeypatch):
    """The server ends it; it does not wait until nobody has it any more."""
    kept, engines, stream = [], [], g.AsyncEngine.stream

    def keeping(self, *args, **options):
        engines.append(self)
        kept.append(stream(self, *args, **options))
        return kept[-1]

    monkeypatch.setattr(g.AsyncEngine, "stream", keeping)
    with running(random_lm(vocab_size=266, context=5000)) as address:
        with connect(address) as client:
            client.sendall(post(BODY | {"max_tokens": 4990, "stream": True}))
            assert client.recv(20)
        end = time.monotonic() + 20
        while engines[0].block_manager.num_used and time.monotonic() < end:
            time.sleep(0.01)
        assert engines[0].block_manager.num_used == 0 and len(kept) == 1
        assert engines[0].stats.decode_tokens < 4500


def test_what_a_client_does_not_read_is_thrown_away(monkeypatch):
    """Else it would stay with its connection for as long as the client likes."""
    writers, serve, event = [], CompletionServer._serve, small_http.event

    async def keeping(self, reader, writer):
        writers.append(writer)
        await serve(self, reader, writer)

    def large(writer, content):
        event(writer, content | {"x": "x" * 10**6})

    monkeypatch.setattr(small_http, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(CompletionServer, "_serve", keeping)
    monkeypatch.setattr(openai_server, "event", large)
    with running(LM) as address, connect(address) as client:
        client.sendall(post(BODY | {"max_tokens": 50, "stream": True}))
        end = time.monotonic() + 20
        while not (writers and writers[0].is_closing()) and time.monotonic() < end:
            time.sleep(0.02)
        assert writers[0].is_closing() and writers[0].transport.get_write_buffer_size() == 0


def test_nothing_is_left_of_a_server():
    """Neither its threads nor its port, also with a client in the middle of a stream."""
    before = set(threading.enumerate())
    with running(LM) as address:
        client = connect(address)
        client.sendall(post(BODY | {"max_tokens": 60, "stream": True}))
        assert client.recv(20)
    client.close()
    end = time.monotonic() + 20
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left
    with pytest.raises(ConnectionError):
        connect(address)
    with running(LM, port=urlsplit(address).port) as again:
        assert (
            again == address and b"random" in answer(again, b"GET /v1/models HTTP/1.1\r\n\r\n")[1]
        )
