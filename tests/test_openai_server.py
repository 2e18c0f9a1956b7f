"""Our engine behind OpenAI's completions: whole and streamed answers, refusals, clients that leave.

Right values: the engine itself, asked directly; the interface as OpenAI documents it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

import g2c_serving as g
from g2c_serving.lab import openai_server
from g2c_serving.lab.openai_server import CompletionServer, main, running

LM = g.load("tiny")


@pytest.fixture(scope="module")
def address():
    with running(LM) as found:
        yield found


def ask(address: str, body: object, method: str = "POST", path: str = "/v1/completions"):
    """Status and raw content of one request."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    connection.request(method, path, content)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_models(address):
    status, content = ask(address, b"", "GET", "/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(content)["data"]] == ["tiny"]


def test_a_whole_answer(address):
    """Right values: the engine's text and counts."""
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    status, content = ask(address, body)
    found = json.loads(content)
    params = g.SamplingParams(temperature=0, max_tokens=8)
    (output,) = g.Engine(LM).generate(["Once upon a time"], params)
    (choice,) = found["choices"]
    assert status == 200 and found["object"] == "text_completion"
    assert (choice["text"], choice["finish_reason"]) == (output.text, "length")
    prompt = len(output.prompt_token_ids)
    assert found["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": 8, "total_tokens": prompt + 8,
    }  # fmt: skip


def test_a_stream_adds_up_to_the_whole(address):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.8, "seed": 5}
    _, whole = ask(address, body)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    _, content = ask(address, body | more)
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
    *events, usage = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]" and len(events) == 8
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == json.loads(whole)["choices"][0]["text"]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * 7 + ["length"]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8


def test_ids_and_stop_strings(address):
    ids = LM.tokenizer.encode("Once upon a time")
    status, content = ask(address, {"prompt": ids, "max_tokens": 30, "temperature": 0, "stop": "."})
    found = json.loads(content)
    assert status == 200 and found["choices"][0]["finish_reason"] == "stop"
    assert "." not in found["choices"][0]["text"]


def test_defaults_are_openais(address):
    """Right values: 16 tokens, temperature 1; null is the default too."""
    body = {"prompt": "Once", "ignore_eos": True, "seed": 3, "top_p": None}
    _, content = ask(address, body)
    assert json.loads(content)["usage"]["completion_tokens"] == 16


def test_text_is_inert_unless_markers_are_on(address):
    """Right values: the tokenizer's inert ids, and the reserved token as one id."""
    body = {"prompt": "<|user|>\nHi", "max_tokens": 1}
    _, inert = ask(address, body)
    with running(LM, markers=True) as open_address:
        _, promoted = ask(open_address, body)
    count = len(LM.tokenizer.encode("<|user|>\nHi"))
    assert json.loads(inert)["usage"]["prompt_tokens"] == count
    expected = 1 + len(LM.tokenizer.encode("\nHi"))
    assert json.loads(promoted)["usage"]["prompt_tokens"] == expected < count


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"prompt": "Hi", "model": "gpt-9"}, 404, "the model 'gpt-9' is not served: tiny"),
        ({"prompt": "Hi", "max_tokens": 0}, 400, "max_tokens=0 must be an integer"),
        ({"prompt": "Hi", "temperature": -1}, 400, "temperature=-1"),
        ({"prompt": "Hi", "top_p": 2}, 400, "top_p=2"),
        ({"prompt": ""}, 400, "prompt is empty"),
        ({}, 400, "prompt is None"),
        ({"prompt": {"a": 1}}, 400, "prompt is {'a': 1}"),
        ({"prompt": [99_999]}, 400, "outside the vocabulary"),
        ([1, 2], 400, "not a JSON object"),
        ({"prompt": "Hi", "stream_options": [1]}, 400, "stream_options is not a JSON object"),
        ("{broken", 400, "not JSON"),
    ],
)
def test_refusals(body, status, says, address):
    found, content = ask(address, body)
    error = json.loads(content)["error"]
    assert found == status and says in error["message"]
    assert error["type"] == "invalid_request_error"


def test_other_paths_and_methods(address):
    assert ask(address, b"", "GET", "/v1/completions")[0] == 404
    assert ask(address, {}, "POST", "/v1/chat/completions")[0] == 404


def raw(address: str, content: bytes) -> bytes:
    with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)) as client:
        client.sendall(content)
        return b"".join(iter(lambda: client.recv(4096), b""))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 100_000 + b"\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request(content, status, address):
    try:
        found = raw(address, content)
    except ConnectionError:  # it closed while we still wrote
        found = b"HTTP/1.1 " + status
    assert found.startswith(b"HTTP/1.1 " + status)
    assert ask(address, b"", "GET", "/v1/models")[0] == 200


def test_a_client_that_leaves_gives_its_blocks_back():
    """A request for a whole context, left after its first bytes: soon the engine has nothing to
    do."""
    engines = []

    class Seen(CompletionServer):
        def __init__(self, engine, reader=None):
            super().__init__(engine, reader)
            engines.append(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_server, "CompletionServer", Seen)
        with running(LM) as address:
            body = json.dumps({"prompt": "Once", "max_tokens": 500, "ignore_eos": True,
                               "stream": True}).encode()  # fmt: skip
            head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            parts = urlsplit(address)
            with socket.create_connection((parts.hostname, parts.port)) as client:
                client.sendall(head.encode() + body)
                assert client.recv(20)
            (engine,) = engines
            end = time.monotonic() + 20
            while engine.block_manager.num_used and time.monotonic() < end:
                time.sleep(0.01)
            assert engine.block_manager.num_used == 0
            assert engine.stats.decode_tokens < 490


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_says_so(stream, monkeypatch):
    """The third step fails: a whole answer becomes a 500, a stream an event with the error."""
    step, count = g.AsyncEngine.step, []

    def failing(self):
        count.append(1)
        if len(count) == 3:
            raise MemoryError("no room")
        return step(self)

    monkeypatch.setattr(g.AsyncEngine, "step", failing)
    with running(LM) as address:
        body = {"prompt": "Once", "max_tokens": 50, "ignore_eos": True, "stream": stream}
        status, content = ask(address, body)
        assert status == (200 if stream else 500) and b"no room" in content
        assert ask(address, {"prompt": "Once", "max_tokens": 2})[0] == 200


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["tiny", "--port", str(port)]) == 1
    assert f"not served: port {port} cannot be had here" in capsys.readouterr().err


def test_it_runs_beside_an_event_loop_as_in_a_notebook():
    """The caller's own loop goes on as before."""

    async def cell() -> list[int]:
        with running(LM) as address:
            found = await asyncio.to_thread(ask, address, b"", "GET", "/v1/models")
        await asyncio.sleep(0)
        return [found[0]]

    assert asyncio.run(cell()) == [200]


def test_requests_under_way_end_with_the_server():
    """A client of a server that closes sees its stream cut, and nobody waits for it."""
    with running(LM) as address:
        body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(content)}\r\n\r\n"
        client = socket.create_connection((urlsplit(address).hostname, urlsplit(address).port))
        client.sendall(head.encode() + content)
        assert client.recv(20)
    with client:
        assert not b"".join(iter(lambda: client.recv(65_536), b"")).endswith(b"0\r\n\r\n")


def test_an_unknown_model(capsys):
    assert main(["nobody"]) == 1
    assert "not served: no model 'nobody'" in capsys.readouterr().err
