"""A client of any server that speaks OpenAI's completions, with the standard library alone.

One call is one request to `/v1/completions` with `stream=true`; what is kept of it is the text and
when each piece of it came (`openai_stream.py` reads it, and trusts nobody). Nothing here raises for
one request's failure: the reply says what went wrong, and the others go on. A key, where the server
wants one, is taken from the environment variable OPENAI_API_KEY and is sent to that server alone.

Left out: retries, which would hide what is measured; the chat interface, whose template is the
server's.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from g2c_serving.lab.openai_stream import KEY, MOST_LINE, Seen, ServerError, key, message_of, read

__all__ = ["KEY", "Reply", "Server", "ServerError"]


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
    deadline    seconds until it fails whatever comes: a server may send comments for ever
    ignore_eos  ask for answers of full length: vLLM, SGLang and ours know that, OpenAI does not
    """

    url: str
    model: str
    timeout: float = 60.0
    deadline: float = 600.0
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
                found = json.loads(response.read(MOST_LINE))
                return [str(model["id"]) for model in found["data"]]
            except (ValueError, KeyError, TypeError, RecursionError) as err:
                raise ServerError(f"{self.url}/models is no list of models ({err!r}): is that the "
                                  "address of an OpenAI-compatible server?") from None  # fmt: skip

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
        sent, seen = time.perf_counter(), Seen()
        try:
            with self._ask("POST", "/completions", body) as response:
                read(response, sent, seen)
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
        """An open response with status 200; everything else is a ServerError, also what goes wrong
        while it is read."""
        scheme, host, port, base = _split(self.url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        headers, secret = {"Content-Type": "application/json"}, key()
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        is_late = threading.Event()
        with ExitStack() as stack:
            try:
                connection = kind(host, port, timeout=self.timeout)
                stack.callback(connection.close)
                connection.connect()
                stack.enter_context(_cut_after(self.deadline, connection.sock, is_late))
                content = None if body is None else json.dumps(body)
                connection.request(method, base + path, content, headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise ServerError(self._refusal(path, response))
                yield response
            except Exception as err:  # its words may be the server's: they are not repeated raw
                raise self._failure(err, is_late.is_set()) from None

    def _failure(self, err: Exception, is_late: bool) -> ServerError:
        """What went wrong, as this module says it."""
        if is_late:
            return ServerError(f"{self.url}: the answer was not over after {self.deadline:g} s")
        if isinstance(err, ServerError):
            return err
        if isinstance(err, TimeoutError):
            return ServerError(f"{self.url}: nothing came for {self.timeout:g} s")
        if isinstance(err, ConnectionRefusedError):
            return ServerError(
                f"nobody listens at {self.url}: is the server up, and is that its port?"
            )
        return ServerError(f"{self.url} cannot be reached: {err or type(err).__name__}")

    def _refusal(self, path: str, response: http.client.HTTPResponse) -> str:
        """What a status other than 200 means, in the server's words where it has some."""
        words = message_of(response.read(65_536))
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


@contextmanager
def _cut_after(seconds: float, sock: socket.socket, is_late: threading.Event) -> Iterator[None]:
    """Within the block: after that time whoever reads from the socket finds it at its end. A limit
    between two bytes alone is none."""

    def cut() -> None:
        is_late.set()
        with suppress(OSError):  # it is closed already
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS too: it is not ours to end

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _split(url: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path. ServerError for what is no such address, without repeating what
    may be a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ServerError("that is no address: write it as http://host:port/v1") from None
    if "@" in (parts.netloc or url) or parts.query or parts.fragment:
        raise ServerError(f"an address is http://host:port/v1 alone; a key belongs in {KEY}")
    try:
        port = parts.port
    except ValueError as err:
        raise ServerError(f"{url!r} is no address: {err}") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerError(f"{url!r} is no address: write it as http://host:port/v1")
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")
