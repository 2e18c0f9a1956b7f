"""What the server makes of a request: prompts, the token before a text, what it cannot do, and one
client that must not stop the others.

Right values: OpenAI's documented interface; transformers' own tokenizer for the ids of a text.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from functools import partial
from urllib.parse import urlsplit

import pytest
import transformers
from small_models import random_lm
from test_hf_tokenizer import llama2, llama3, mistral
from test_openai_server import LM, address, ask, raw

import g2c_serving as g
from g2c_serving.backend import Backend
from g2c_serving.lab import small_http
from g2c_serving.lab.completion_request import Reader
from g2c_serving.lab.openai_server import running
from g2c_serving.lab.promoting import promote
from g2c_serving.process.chat import chat
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer, NoTokenizer

__all__ = ["address"]
POST = b"POST /v1/completions HTTP/1.1\r\n"


def count(content: bytes) -> int:
    return json.loads(content)["usage"]["prompt_tokens"]


# prompts


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]], ["a", 3], [[1], "b"]])
def test_two_prompts_are_refused_and_not_joined(prompt, address):
    status, content = ask(address, {"prompt": prompt, "max_tokens": 2})
    assert status == 400 and b"one prompt a request" in content


@pytest.mark.parametrize(
    ("prompt", "same"), [(["Once upon"], "Once upon"), ([[300, 301]], [300, 301])]
)
def test_a_list_of_one_prompt_is_that_prompt(prompt, same, address):
    found, expected = (
        json.loads(ask(address, {"prompt": one, "max_tokens": 4, "temperature": 0})[1])
        for one in (prompt, same)
    )
    assert found["choices"] == expected["choices"] and found["usage"] == expected["usage"]


# the token that a tokenizer puts before a text


@pytest.fixture(scope="module", params=[llama2, llama3, mistral], ids=lambda f: f.__name__)
def opened_lm(request):
    """A random model behind a tokenizer that puts a token first; and transformers' of the same."""
    raw_tokenizer = request.param()
    ours = HuggingFaceTokenizer.of(raw_tokenizer)
    lm = random_lm(vocab_size=ours.vocab_size, context=128)
    object.__setattr__(lm, "tokenizer", ours)
    return lm, transformers.PreTrainedTokenizerFast(tokenizer_object=raw_tokenizer)


TEXT = "the cat sat"


@pytest.mark.parametrize("markers", [False, True])
def test_the_server_puts_it_there_as_transformers_does(markers, opened_lm):
    lm, theirs = opened_lm
    parse = partial(promote, lm.tokenizer) if markers else None
    assert list(lm.tokenizer.opening)
    body = json.dumps({"prompt": TEXT}).encode()
    assert Reader(lm, parse).read(body).prompt_token_ids == theirs(TEXT).input_ids
    bare = theirs(TEXT, add_special_tokens=False).input_ids
    assert Reader(lm, parse, opening=False).read(body).prompt_token_ids == bare
    with running(lm, markers=markers) as url:
        status, content = ask(url, {"prompt": TEXT, "max_tokens": 1})
    assert status == 200 and count(content) == len(theirs(TEXT).input_ids)


def test_ids_have_nothing_put_before_them(opened_lm):
    lm, _ = opened_lm
    assert Reader(lm).read(b'{"prompt": [5, 6, 7]}').prompt_token_ids == [5, 6, 7]


def test_a_text_that_spells_it_where_markers_are_on_has_it_once(opened_lm):
    lm, theirs = opened_lm
    (first,) = lm.tokenizer.opening
    body = json.dumps({"prompt": first.name + TEXT}).encode()
    ids = Reader(lm, partial(promote, lm.tokenizer)).read(body).prompt_token_ids
    assert ids.count(lm.tokenizer.reserved[first.name]) == 1


def test_a_backend_puts_it_before_a_text_alone(opened_lm):
    lm, theirs = opened_lm
    found = Backend(lm).complete(TEXT, max_new_tokens=1)
    assert (found.prompt, found.prompt_tokens) == (TEXT, len(theirs(TEXT).input_ids))
    bare = theirs(TEXT, add_special_tokens=False).input_ids
    assert Backend(lm, opening=False).complete(TEXT, max_new_tokens=1).prompt_tokens == len(bare)
    assert Backend(lm).complete(bare, max_new_tokens=1).prompt_tokens == len(bare)
    parsed = Backend(lm, parse=lambda text: lm.tokenizer.encode(text))
    assert parsed.complete(TEXT, max_new_tokens=1).prompt_tokens == len(bare)


def test_a_tokenizer_that_puts_nothing_leaves_all_as_it_is():
    body = json.dumps({"prompt": TEXT}).encode()
    assert Reader(LM).read(body).prompt_token_ids == LM.tokenizer.encode(TEXT)
    asked = chat([{"role": "user", "content": "Hi"}])
    expected = len(LM.tokenizer.encode_parts(asked))
    assert Backend(LM).complete(asked, max_new_tokens=1).prompt_tokens == expected


# what it cannot do


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"stop": {"a": 1}}, "stop is {'a': 1}"),
        ({"stop": 3}, "stop is 3"),
        ({"stop": ["a"] * 17}, "stop has 17 texts"),
        ({"stop": [3]}, "stop"),
        ({"n": 2}, "n=2 is not served"),
        ({"n": "1"}, "n='1'"),
        ({"best_of": 3}, "best_of=3"),
        ({"echo": True}, "echo=True"),
        ({"logprobs": 0}, "logprobs=0"),
        ({"suffix": "end"}, "suffix='end'"),
    ],
)
def test_what_would_be_ignored_is_refused(more, says, address):
    status, content = ask(address, {"prompt": "Hi", "max_tokens": 1} | more)
    assert status == 400 and says in json.loads(content)["error"]["message"]


def test_null_is_the_default_of_every_field(address):
    names = (
        "model",
        "n",
        "best_of",
        "echo",
        "logprobs",
        "suffix",
        "stop",
        "stream_options",
        "seed",
    )
    status, _ = ask(address, {"prompt": "Hi", "max_tokens": 1} | dict.fromkeys(names))
    assert status == 200


@pytest.mark.parametrize("body", ["[" * 200_000, '{"a":' * 100_000, b"\xff\xfe"])
def test_json_that_is_none_is_the_clients_fault(body, address):
    status, content = ask(address, body)
    assert status == 400 and b"not JSON" in content


def test_a_body_in_chunks_is_refused_by_its_name(address):
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert raw(address, head).startswith(b"HTTP/1.1 411")


def test_a_client_that_waits_for_leave_gets_it(address):
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as client:
        head = b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body)
        client.sendall(POST + head)
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("start", [b"POST /v1", POST + b"Content-Length: 9\r\n\r\n{", b""])
def test_a_client_that_never_comes_to_an_end_is_let_go(start, address, monkeypatch):
    monkeypatch.setattr(small_http, "MOST_SECONDS", 0.2)
    assert raw(address, start).startswith(b"HTTP/1.1 408")


# one client and the others


@pytest.mark.parametrize("prompt", ["cat " * 800_000, [300] * 400_000])
def test_a_prompt_that_no_context_holds_is_refused_before_it_is_encoded(prompt, monkeypatch):
    def never(*_):
        raise AssertionError("it was encoded")

    monkeypatch.setattr(type(LM.tokenizer), "_encode_all", never)
    with pytest.raises(small_http.BadRequest, match="the context limit"):
        Reader(LM, partial(promote, LM.tokenizer)).read(json.dumps({"prompt": prompt}).encode())


def test_the_longest_text_that_fits_is_not_refused():
    """Right value: the longest token of tiny, as often as its context holds it."""
    tokenizer = LM.tokenizer
    longest = max(range(266, tokenizer.vocab_size), key=lambda i: len(tokenizer.token_bytes(i)))
    text = tokenizer.decode([longest]) * 511
    ids = Reader(LM).read(json.dumps({"prompt": text}).encode()).prompt_token_ids
    assert ids == tokenizer.encode(text)


def test_others_are_served_while_a_prompt_is_encoded(monkeypatch):
    """One prompt's encoding waits until another client has had its whole answer."""
    encode, is_served, began = type(LM.tokenizer).encode, threading.Event(), threading.Event()

    def slow(self, text):
        if text == "slow":
            began.set()
            assert is_served.wait(20)
        return encode(self, text)

    monkeypatch.setattr(type(LM.tokenizer), "encode", slow)
    with running(LM) as url:
        found = []
        body = {"prompt": "slow", "max_tokens": 1}
        waiting = threading.Thread(target=lambda: found.append(ask(url, body)[0]))
        waiting.start()
        assert began.wait(20)
        start = time.monotonic()
        assert ask(url, {"prompt": "Once", "max_tokens": 2})[0] == 200
        assert time.monotonic() - start < 15
        is_served.set()
        waiting.join(20)
    assert found == [200]


def test_a_model_without_a_tokenizer_names_the_remedy(tmp_path):
    lm = random_lm(vocab_size=50)
    object.__setattr__(lm, "tokenizer", NoTokenizer(tmp_path, 50))
    with pytest.raises(small_http.BadRequest, match=r"copy the model's tokenizer\.json"):
        Reader(lm).read(b'{"prompt": "Hi"}')
    assert isinstance(Reader(lm).read(b'{"prompt": [3]}').params, g.SamplingParams)
