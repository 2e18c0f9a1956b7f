"""A client of any server that speaks OpenAI's completions, with the standard library alone.

One call is one request to `/v1/completions` with `stream=true`; what is kept of it is the text and
when each piece of it came. Nothing here raises for one request's failure: the reply says what went
wrong, and the others go on. A key, where the server wants one, is taken from the environment
variable OPENAI_API_KEY and is sent to that server alone.

Left out: retries, which would hide what is measured; the chat interface, whose template is the
server's.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

KEY = "OPENAI_API_KEY"
MOST_WORDS = 300  # characters of a server's own message


class ServerError(RuntimeError):
    """The server cannot be used, or a request failed; the message says why and what helps."""


@dataclass(frozen=True)
class Reply:
    """What came of one request; times in seconds from when it was sent.

    times   when each piece came: one step of the server, often one token, sometimes without text
    ended   when the stream was over
    tokens  as the server counts them at the end, else as many as there were pieces
    error   None, or why the request failed; what came before it is kept
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Server:
    """One server and one of its models.

    timeout     seconds without a byte until a request fails
    ignore_eos  ask for answers of full length: vLLM, SGLang and ours know that, OpenAI does not
    """

    url: str
    model: str
    timeout: float = 60.0
    ignore_eos: bool = True

    @classmethod
    def at(cls, url: str, model: str | None = None, **options: Any) -> Server:
        """The server at an address such as http://localhost:8000/v1, once it has answered.

        model  one that it serves; None: its first. ServerError for all that does not work out.
        """
        _split(url)
        names = cls(url.rstrip("/"), "", **options).models()
        if model is not None and model not in names:
            raise ServerError(f"{url} serves {names}, not {model!r}: name one with --peer-model")
        if not names:
            raise ServerError(f"{url} serves no model")
        return cls(url.rstrip("/"), model or names[0], **options)

    def models(self) -> list[str]:
        """The names of the models that it serves."""
        with self._ask("GET", "/models") as response:
            try:
                return [str(model["id"]) for model in json.load(response)["data"]]
            except (ValueError, KeyError, TypeError) as err:
                raise ServerError(f"{self.url}/models is no list of models ({err!r}): is that the "
                                  "address of an OpenAI-compatible server?") from err  # fmt: skip

    def complete(self, prompt: str, max_tokens: int) -> Reply:
        """Stream one greedy completion to its end, or to what ends it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        sent, seen = time.perf_counter(), _Seen()
        try:
            with self._ask("POST", "/completions", body) as response:
                _read(response, sent, seen)
        except ServerError as err:
            seen.error = str(err)
        return Reply(
            "".join(seen.pieces), seen.times, time.perf_counter() - sent,
            seen.tokens or len(seen.times), seen.reason, seen.error,
        )  # fmt: skip

    @contextmanager
    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An open response with status 200; everything else is a ServerError."""
        scheme, host, port, base = _split(self.url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(host, port, timeout=self.timeout)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, base + path, content, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(self._refusal(path, response))
            yield response
        except TimeoutError as err:
            raise ServerError(f"{self.url}: nothing came for {self.timeout:g} s") from err
        except ConnectionRefusedError as err:
            raise ServerError(
                f"nobody listens at {self.url}: is the server up, and is that its port?"
            ) from err
        except (OSError, http.client.HTTPException) as err:
            raise ServerError(f"{self.url} cannot be reached: {err or type(err).__name__}") from err
        finally:
            connection.close()

    def _refusal(self, path: str, response: http.client.HTTPResponse) -> str:
        """What a status other than 200 means, in the server's words where it has some."""
        words = _message(response.read(65_536))
        said = f"{self.url}{path} answers {response.status} {response.reason}"
        if words:
            said += f": {words}"
        if response.status in (401, 403):
            return f"{said}. Put its key into the environment variable {KEY}"
        if response.status == 400 and "ignore_eos" in words:
            return f"{said}. It does not know that field: --peer-stops-early leaves it out"
        if response.status == 404 and not words:
            return f"{said}. The address should end where /models and /completions begin, as in /v1"
        return said


@dataclass
class _Seen:
    """A stream so far."""

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    reason: str | None = None
    error: str | None = None


def _read(response: http.client.HTTPResponse, sent: float, seen: _Seen) -> None:
    """The events of a stream, each a line `data: {...}`; `data: [DONE]` is the last. ServerError
    for a stream that was cut, or is none."""
    try:
        for line in _lines(response):
            if line == "[DONE]":
                return
            _take(json.loads(line), time.perf_counter() - sent, seen)
    except http.client.IncompleteRead:
        pass
    except (ValueError, TypeError, AttributeError) as err:
        raise ServerError(f"an event of the stream is none of OpenAI's interface: {err}") from err
    if seen.reason is None:
        raise ServerError(f"the stream was cut after {len(seen.times)} pieces, without an end")


def _take(event: dict[str, Any], now: float, seen: _Seen) -> None:
    if "error" in event:
        raise ServerError(f"the server ended the stream: {_message(json.dumps(event).encode())}")
    seen.tokens = (event.get("usage") or {}).get("completion_tokens", seen.tokens)
    for choice in event.get("choices") or ():
        seen.reason = choice.get("finish_reason") or seen.reason
        if choice.get("text") or not choice.get("finish_reason"):
            seen.pieces.append(choice.get("text") or "")
            seen.times.append(now)


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    """The contents of the events; comments, blank lines and other fields are skipped."""
    while line := response.readline():
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("data:"):
            yield text.removeprefix("data:").strip()


def _message(content: bytes) -> str:
    """The words of an error's body: OpenAI's form, a simpler one, or nothing."""
    try:
        found = json.loads(content)
        error = found.get("error", found)
        words = error if isinstance(error, str) else error.get("message") or error.get("detail")
        return str(words or "")[:MOST_WORDS]
    except (ValueError, AttributeError):
        return ""


def _split(url: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path. ServerError for what is no such address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        raise ServerError(f"{url!r} is no address: {err}") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerError(f"{url!r} is no address: write it as http://host:port/v1")
    if parts.username or parts.query or parts.fragment:
        raise ServerError(f"an address is http://host:port/v1 alone; a key belongs in {KEY}")
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")
