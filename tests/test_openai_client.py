"""The client of OpenAI-compatible servers against a scripted one: streams, and all that goes wrong.

Right values: what the script sends, by hand; the interface as OpenAI and vLLM document it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time

import pytest
from scripted_server import answer, piece, scripted, stream

from g2c_serving.lab.openai_client import KEY, Server, ServerError

DONE = "data: [DONE]"
USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 7}}'


def ask(raw: bytes, **options):
    """The reply of a server that answers a completion with `raw`."""
    with scripted(lambda path, body: raw) as (url, _):
        return Server.at(url, **options).complete("Hello", 8)


def all_models(raw: bytes):
    def script(path, body):
        return raw

    script.answers_models = True
    return script


def test_a_stream_is_read_to_its_end():
    reply = ask(stream(piece("Once "), piece("upon"), piece("", "length"), USAGE, DONE))
    assert (reply.text, reply.finish_reason, reply.error) == ("Once upon", "length", None)
    assert reply.tokens == 7 and len(reply.times) == 2
    assert 0 < reply.times[0] <= reply.times[1] <= reply.ended


def test_a_request_leaves_no_thread_that_waits_for_its_deadline():
    """Neither one that was answered nor one that failed."""
    for raw in (stream(piece("a", "stop"), DONE), b"HTTP/1.1 500 No\r\n\r\n", b""):
        ask(raw, deadline=500.0)
    for one in threading.enumerate():
        if isinstance(one, threading.Timer):
            one.join(10)
            assert not one.is_alive()


def test_the_options_of_an_address_are_those_of_its_requests():
    options = {"timeout": 7.0, "deadline": 9.0, "ignore_eos": False}
    with scripted(lambda path, body: stream(DONE)) as (url, _):
        server = Server.at(url, **options)
    assert {name: getattr(server, name) for name in options} == options


def test_without_usage_the_pieces_count():
    assert ask(stream(piece("a"), piece(""), piece("b", "stop"), DONE)).tokens == 3


def test_comments_and_other_fields_are_skipped():
    lines = [": keep alive", "event: message", piece("a", "stop"), DONE]
    assert ask(stream(*lines)).text == "a"


def test_a_server_that_closes_without_done_is_fine_if_it_gave_a_reason():
    assert ask(stream(piece("a", "stop"))).error is None


def test_what_is_sent():
    """Right values: the fields of the interface; a key only where the environment has one."""
    with scripted(lambda path, body: stream(piece("a", "stop"), DONE)) as (url, asked):
        server = Server.at(url + "/", "large", ignore_eos=False)
        server.complete("Hi", 3)
        path, headers, body = asked[-1]
        assert path == "/v1/completions" and headers["Content-Type"] == "application/json"
        assert body == {
            "model": "large", "prompt": "Hi", "max_tokens": 3, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        assert "Authorization" not in headers
        Server.at(url).complete("Hi", 3)
        assert asked[-1][2]["model"] == "small" and asked[-1][2]["ignore_eos"] is True


def test_the_key_goes_along_and_never_into_a_message(monkeypatch):
    monkeypatch.setenv(KEY, "sk-secret")
    refused = answer({"error": {"message": "Incorrect API key"}}, "401 Unauthorized")
    with scripted(lambda path, body: refused) as (url, asked):
        reply = Server.at(url).complete("Hi", 3)
        assert asked[-1][1]["Authorization"] == "Bearer sk-secret"
    words = "answers 401 Unauthorized: Incorrect API key. Put its key into the environment variable"
    assert f"{words} {KEY}" in str(reply.error)
    assert "sk-secret" not in str(reply.error)


# what goes wrong with one request: the reply says so, and keeps what came


def test_a_cut_stream_keeps_what_came():
    reply = ask(stream(piece("a"), piece("b"), whole=False))
    assert reply.text == "ab" and len(reply.times) == 2
    assert "cut after 2 pieces" in str(reply.error)


def test_an_end_without_a_reason_is_a_cut():
    assert "cut after 1 pieces, without an end" in str(ask(stream(piece("a"))).error)


def test_an_error_inside_a_stream():
    line = 'data: {"error": {"message": "out of blocks"}}'
    reply = ask(stream(piece("a"), line, DONE))
    assert "the server ended the stream: out of blocks" in str(reply.error)


@pytest.mark.parametrize("line", ["data: {broken", "data: 3", 'data: {"choices": [7]}'])
def test_an_event_of_another_kind(line):
    assert "is none of OpenAI's interface" in str(ask(stream(line, DONE)).error)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            "404 Not Found",
            {"error": {"message": "The model `x` does not exist."}},
            "does not exist",
        ),
        ("404 Not Found", b"nothing", "The address should end where /models and /completions"),
        ("400 Bad Request", {"message": "too long"}, "answers 400 Bad Request: too long"),
        ("400 Bad Request", {"error": "Unrecognized argument: ignore_eos"}, "--peer-stops-early"),
        ("503 Service Unavailable", {"detail": "busy"}, "503 Service Unavailable: busy"),
        ("500 Internal Server Error", b"<html>", "answers 500 Internal Server Error"),
        ("301 Moved Permanently", b"", "answers 301 Moved Permanently"),
        ("401 Unauthorized", b"", f"environment variable {KEY}"),
        ("403 Forbidden", {"error": "not yours"}, f"not yours. Put its key into .* {KEY}"),
    ],
)
def test_a_status_is_told_in_the_servers_words(status, body, says):
    said = str(ask(answer(body, status)).error)
    assert says in said or re.search(says, said)


def test_a_server_that_falls_silent():
    """A stream whose next piece never comes: the reply is an error after the timeout."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    start = time.perf_counter()
    with listener:
        reply = Server(url, "m", timeout=0.2).complete("Hi", 3)
    assert "nothing came for 0.2 s" in str(reply.error)
    assert time.perf_counter() - start < 5


def test_a_connection_that_is_dropped():
    with scripted(lambda path, body: b"") as (url, _):
        assert "cannot be reached" in str(Server.at(url).complete("Hi", 3).error)


# what cannot work at all


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match="nobody listens at .*: is the server up"):
        Server.at(f"http://127.0.0.1:{port}/v1")


def test_a_host_that_is_none():
    with pytest.raises(ServerError, match=r"no\.such\.host\.invalid.* cannot be reached"):
        Server.at("http://no.such.host.invalid/v1", timeout=5)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:8000/v1", "write it as http://host:port/v1"),
        ("ftp://host/v1", "write it as"),
        ("http:///v1", "write it as"),
        ("http://host:port/v1", "is no address"),
        ("http://me:sk-key@host/v1", f"a key belongs in {KEY}"),
        ("http://host/v1?key=1", "alone"),
    ],
)
def test_bad_addresses(url, says):
    with pytest.raises(ServerError, match=says):
        Server.at(url)


def test_a_model_that_is_not_served():
    with scripted(lambda path, body: b"") as (url, _):
        message = r"serves \['small', 'large'\], not 'gpt-9': name one with --peer-model"
        with pytest.raises(ServerError, match=message):
            Server.at(url, "gpt-9")


@pytest.mark.parametrize("content", [{"data": "x"}, {"models": []}, [1], b"<html>"])
def test_an_answer_that_is_no_list_of_models(content):
    with (
        scripted(all_models(answer(content))) as (url, _),
        pytest.raises(ServerError, match="is no list of models"),
    ):
        Server.at(url)


def test_a_server_without_a_model():
    with (
        scripted(all_models(answer({"data": []}))) as (url, _),
        pytest.raises(ServerError, match="serves no model"),
    ):
        Server.at(url)


def test_a_long_message_is_cut():
    words = json.dumps({"error": {"message": "x" * 5_000}}).encode()
    assert len(str(ask(answer(words, "400 Bad Request")).error)) < 500
