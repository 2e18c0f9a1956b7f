"""Our engine behind the interface that everybody speaks: OpenAI's completions, streamed.

    python -m g2c_serving.lab.openai_server tiny --port 8000

A server is a thin shell around `engine.stream`: it reads a request, streams what comes, and drops
the request when its client is gone. What real ones add is around that: many processes, keys,
limits, chat templates, metrics. This one listens on this machine alone, serves one model, and knows
GET /v1/models and POST /v1/completions with `prompt` (a text or token ids), `max_tokens`,
`temperature`, `top_p`, `top_k`, `seed`, `stop`, `ignore_eos`, `cache_salt`, `stream`,
`stream_options` (`completion_request.py`); most other fields it does not look at. The event loop is
one thread, the engine's driver another, and prompts are encoded in others.

Text is text, whatever it spells (Brief, section 5). With --markers a spelled reserved name becomes
the token, as in servers that render templates to text: for trusted clients. Where the tokenizer
puts a token before a text, a <s> for example, so does the server; --no-opening leaves it out.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.config import EngineConfig
from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.completion_request import Asked, Reader
from g2c_serving.lab.promoting import promote
from g2c_serving.lab.small_http import BadRequest, chunk, drained, event, head, read_request, whole
from g2c_serving.output import RequestOutput

MOST_CLIENTS = 256  # at a time


class CompletionServer:
    """One engine, many clients. What they ask for is read by `reader`; None: any text is inert."""

    def __init__(self, engine: AsyncEngine, reader: Reader | None = None) -> None:
        self.engine, self._reader = engine, reader or Reader(engine.lm)
        self._num_clients = 0

    async def serve(self, listener: socket.socket, is_over: asyncio.Event) -> None:
        """Answer who connects, until it is over."""
        server = await asyncio.start_server(self._serve, sock=listener)
        await is_over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        self._num_clients += 1
        try:
            try:
                if self._num_clients > MOST_CLIENTS:
                    raise BadRequest("503 Service Unavailable", f"{MOST_CLIENTS} clients are here")
                await self._answer(*await read_request(reader, writer), writer)
            except BadRequest as err:
                error = {"message": str(err), "type": "invalid_request_error"}
                whole(writer, err.status, {"error": error})
            except RuntimeError as err:  # the engine failed
                whole(writer, "500 Internal Server Error", {"error": {"message": str(err)}})
            await drained(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client is gone, or does not read: closing the stream aborted its request
        finally:
            self._num_clients -= 1
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if (method, path) == ("GET", "/v1/models"):
            model = {"id": self.engine.lm.name, "object": "model", "owned_by": "g2c_serving"}
            whole(writer, "200 OK", {"object": "list", "data": [model]})
        elif (method, path) == ("POST", "/v1/completions"):
            await self._complete(body, writer)
        else:
            raise BadRequest("404 Not Found", f"there is no {method} {path} here")

    async def _complete(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        asked = await asyncio.to_thread(self._reader.read, body)  # others are served meanwhile
        try:
            stream = self.engine.stream(asked.prompt_token_ids, asked.params, asked.cache_salt)
            output = await anext(stream)
        except (TypeError, ValueError) as err:
            raise BadRequest("400 Bad Request", str(err)) from err
        try:
            if asked.is_stream:
                await self._stream(output, stream, asked, writer)
            else:
                async for later in stream:
                    output = later
                text = self._text(output, asked)
                whole(writer, "200 OK", self._event(output, text) | _usage(output))
        finally:
            await stream.aclose()

    async def _stream(self, output: RequestOutput, stream: Any, asked: Asked, writer: Any) -> None:
        """An event for each output, with its new text, which may be none; each an HTTP chunk, so
        that a client can tell an end from a cut."""
        writer.write(head("200 OK", "text/event-stream", "Transfer-Encoding: chunked"))
        shown = 0
        while True:
            text = self._text(output, asked)
            event(writer, self._event(output, text[shown:]))
            shown = len(text)
            await drained(writer)
            if output.finish_reason:
                break
            try:
                output = await anext(stream)
            except RuntimeError as err:  # the engine failed
                event(writer, {"error": {"message": str(err)}})
                break
        if asked.wants_usage:
            event(writer, self._event(output, "") | {"choices": []} | _usage(output))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _text(self, output: RequestOutput, asked: Asked) -> str:
        """All that was written, thoughts and tool calls too, as this interface has it; with `stop`
        the answer alone, up to there."""
        if asked.has_stop:
            return output.text
        is_over = output.finish_reason is not None
        return self.engine.lm.tokenizer.visible_text(output.token_ids, final=is_over)

    def _event(self, output: RequestOutput, text: str) -> dict[str, Any]:
        """A piece of an answer, as OpenAI's interface has it."""
        reason = output.finish_reason
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        about = {"id": f"cmpl-{output.request_id}", "object": "text_completion",
                 "created": int(time.time()), "model": self.engine.lm.name}  # fmt: skip
        if reason == "error":
            return about | {"error": {"message": output.message}, "choices": [choice]}
        return about | {"choices": [choice]}


@contextmanager
def running(
    lm: LanguageModel,
    config: EngineConfig | None = None,
    port: int = 0,
    markers: bool = False,
    opening: bool = True,
) -> Iterator[str]:
    """A server in a thread of its own, while the block runs; its address."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as err:
        raise OSError(f"port {port} cannot be had here ({err}): name another one") from err
    engine = AsyncEngine(lm, config or EngineConfig(enable_prefix_caching=True))
    parse = partial(promote, lm.tokenizer) if markers else None
    server = CompletionServer(engine, Reader(lm, parse, opening))
    started = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        is_over = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), is_over))
        await server.serve(listener, is_over)

    thread = Thread(target=lambda: asyncio.run(serve()), name="server", daemon=True)
    thread.start()
    loop, is_over = started.result()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        engine.close()


def main(argv: list[str] | None = None) -> int:
    """Serve until Ctrl+C."""
    parser = argparse.ArgumentParser("python -m g2c_serving.lab.openai_server")
    parser.add_argument("model", nargs="?", default="tiny", help="a shipped model or a folder")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--markers", action="store_true",
                        help="reserved names spelled in a prompt become tokens")  # fmt: skip
    parser.add_argument("--no-opening", action="store_true",
                        help="put no token of the tokenizer's before a text")  # fmt: skip
    choice = parser.parse_args(argv)
    options = {"markers": choice.markers, "opening": not choice.no_opening}
    try:
        with running(load(choice.model), port=choice.port, **options) as address:
            print(f"{choice.model} at {address}; Ctrl+C ends it", flush=True)
            Event().wait()
    except KeyboardInterrupt:
        return 0
    except (OSError, TypeError, ValueError) as err:
        print(f"not served: {err}", file=sys.stderr)
    return 1


def _usage(output: RequestOutput) -> dict[str, Any]:
    asked, written = len(output.prompt_token_ids), len(output.token_ids)
    counts = {"prompt_tokens": asked, "completion_tokens": written}
    return {"usage": counts | {"total_tokens": asked + written}}


if __name__ == "__main__":
    sys.exit(main())
