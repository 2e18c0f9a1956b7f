"""The client against servers that nobody should trust: keys, limits, deadlines, odd contents.

Right values: by hand; what must never be printed is looked for in the whole traceback.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import traceback

import pytest
from scripted_server import answer, piece, scripted, stream
from test_openai_client import DONE, all_models, ask

from g2c_serving.lab import openai_client, openai_stream
from g2c_serving.lab.openai_client import KEY, Server, ServerError
from g2c_serving.lab.openai_stream import MOST_LINE


@pytest.mark.parametrize("ending", ["\n", "\r\n", " \n\n"])
def test_the_line_break_at_the_end_of_a_key_is_not_part_of_it(ending, monkeypatch):
    monkeypatch.setenv(KEY, "Zq7-secret" + ending)
    with scripted(lambda path, body: stream(piece("a", "stop"), DONE)) as (url, asked):
        assert Server.at(url).complete("Hi", 3).error is None
        assert asked[-1][1]["Authorization"] == "Bearer Zq7-secret"


@pytest.mark.parametrize("bad", ["Zq7-Zq\n8Zq9", "Zq7-Zq9\u00e9", "Zq7\u20acZq9", "Zq7\x1bZq9"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(bad, monkeypatch):
    monkeypatch.setenv(KEY, bad)
    with pytest.raises(ServerError) as caught:
        Server.at("http://127.0.0.1:9/v1")
    printed = "".join(traceback.format_exception(caught.value))
    assert f"the key in {KEY} has a line break" in printed
    assert "Zq7" not in printed and "Zq9" not in printed


def echoes():
    """Ways of a server to send the key back, each a function of the request's headers."""

    def words(headers):
        return {"error": {"message": f"bad header {headers['Authorization']} here"}}

    yield "body", lambda h: answer(words(h), "401 Unauthorized")
    yield "cut in it", lambda h: answer({"error": "x" * 295 + h["Authorization"][7:]}, "403 No")
    yield "reason", lambda h: answer({}, f"500 {h['Authorization']}")
    yield "status line", lambda h: f"{h['Authorization']}\r\n\r\n".encode()
    yield "event", lambda h: stream("data: " + json.dumps(words(h)))
    yield "field", lambda h: stream("data: " + json.dumps({h["Authorization"]: 1, "choices": 3}))


@pytest.mark.parametrize(("how", "script"), list(echoes()))
def test_a_key_that_comes_back_is_masked(how, script, monkeypatch):
    monkeypatch.setenv(KEY, "Zq7-secret")
    with scripted(lambda path, body: script(asked[-1][1])) as (url, asked):
        error = str(Server.at(url).complete("Hi", 3).error)
    assert error != "None" and "Zq7-s" not in error


def test_a_key_among_the_models_is_masked(monkeypatch):
    monkeypatch.setenv(KEY, "Zq7-secret")
    with (
        scripted(all_models(answer({"data": [{"id": "Zq7-secret"}]}))) as (url, _),
        pytest.raises(ServerError, match=r"serves \['\*\*\*'\]") as caught,
    ):
        Server.at(url, "other")
    assert "Zq7-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "raw",
    [
        answer({"error": {"message": "\x1b[2Jgone\r\n"}}, "400 Bad Request"),
        answer({}, "500 \x1b[2Jgone"),
        stream('data: {"error": {"message": "\\u001b[2Jgone\\u202e"}}'),
        b"\x1b[2Jgone\r\n\r\n",
    ],
)
def test_a_servers_words_cannot_move_the_cursor(raw):
    error = str(ask(raw).error)
    assert "[2Jgone" in error and error.isprintable()


def drip(head: bytes, one: bytes):
    """The address of a server that sends `one` every 50 ms for ever."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65_536)
            try:
                client.sendall(head)
                while True:
                    client.sendall(one)
                    time.sleep(0.05)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "one"),
    [
        (CHUNKED, b"e\r\n: keep-alive\n\n\r\n"),
        (PLAIN, b": keep-alive\n\n"),
        (PLAIN, b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (b"", b"H"),
    ],
)
def test_a_server_that_drips_for_ever_meets_a_deadline(head, one):
    listener, url = drip(head, one)
    start = time.perf_counter()
    with listener:
        reply = Server(url, "m", timeout=30, deadline=0.4).complete("Hi", 3)
    assert "the answer was not over after 0.4 s" in str(reply.error)
    assert 0.4 <= time.perf_counter() - start < 5


def test_a_line_without_end_is_not_kept():
    reply = ask(PLAIN + b"data: " + b"x" * (MOST_LINE + 1))
    assert f"a line {MOST_LINE:,}" in str(reply.error)


def test_a_stream_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(openai_stream, "MOST_STREAM", 1000)
    assert "may have 1,000 bytes" in str(ask(stream(*[": nothing"] * 200, DONE)).error)


@pytest.mark.parametrize(
    "line",
    [
        piece(5),
        piece(["a"]),
        piece("a", 7),
        "data: " + "[" * 100_000,
        'data: {"usage": 3}',
        'data: {"usage": {"completion_tokens": ' + "9" * 5000 + "}}",
    ],
)
def test_an_event_with_other_contents_is_one_requests_failure(line):
    reply = ask(stream(piece("a"), line, DONE))
    assert "is none of OpenAI's interface" in str(reply.error) and reply.text == "a"


def test_what_nobody_thought_of_is_one_requests_failure(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(openai_client, "read", fails)
    assert "by chance" in str(ask(stream(DONE)).error)


def test_an_error_that_is_null_is_none():
    assert ask(stream(piece("a", "stop", error=None), DONE)).error is None


@pytest.mark.parametrize("count", [-9, "9", 1.5, True, None, [9], 10**400])
def test_a_count_that_is_none_is_not_believed(count):
    usage = "data: " + json.dumps({"choices": [], "usage": {"completion_tokens": count}})
    assert ask(stream(piece("a"), piece("b", "stop"), usage, DONE)).tokens == 2


@pytest.mark.parametrize(
    "url", ["http://exa mple/v1", "http://a..b/v1", "http://127.0.0.1:9/\u00fc"]
)
def test_an_address_that_no_connection_can_be_made_to(url):
    with pytest.raises(ServerError, match=r"cannot be reached|nobody listens"):
        Server.at(url, timeout=5)


@pytest.mark.parametrize(
    "url",
    [
        "http://:Zq9x@host/v1", "http://Zq9x@host:port/v1", "me:Zq9x@host/v1",
        "ftp://Zq9x@host", "http://host:port/v1?key=Zq9x", "http://[x:Zq9x@host/v1",
    ],
)  # fmt: skip
def test_a_key_in_an_address_is_not_repeated(url):
    with pytest.raises(ServerError) as caught:
        Server.at(url)
    assert "Zq9x" not in "".join(traceback.format_exception(caught.value))
