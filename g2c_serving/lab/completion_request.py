"""What a client asks of `openai_server.py`: read, checked, and encoded beside the event loop.

A request that asks for what the server cannot do is refused, where silence would answer something
else. A prompt that no context could hold is refused before it is encoded: that takes seconds for
megabytes, and one client must not stop the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from g2c_serving.backend import opened
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.intake import AnyPrompt, check_length, encode_prompt
from g2c_serving.lab.small_http import BadRequest
from g2c_serving.request import SamplingParams

FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos")
DEFAULTS: dict[str, tuple[Any, ...]] = {  # of what we cannot do, the values that ask for nothing
    "n": (None, 1), "best_of": (None, 1), "echo": (None, False), "logprobs": (None,),
    "suffix": (None, ""),
}  # fmt: skip
MOST_STOPS = 16


@dataclass(frozen=True)
class Asked:
    """A request as the engine takes it. `has_stop`: the answer is shown up to a stop text;
    `cache_salt`: whose cached blocks it may share."""

    prompt_token_ids: list[int]
    params: SamplingParams
    is_stream: bool
    wants_usage: bool
    has_stop: bool
    cache_salt: str


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model.

    parse    how a text becomes a prompt; None: all of it inert
    opening  whether what the tokenizer puts before a text, a <s> for example, is put before it, as
             vLLM's server and transformers do
    """

    lm: LanguageModel
    parse: Callable[[str], AnyPrompt] | None = None
    opening: bool = True

    def read(self, body: bytes) -> Asked:
        """BadRequest with the reason for what cannot be served. May take seconds: call it in a
        thread."""
        asked, name = _fields(body), self.lm.name
        if asked.get("model") not in (None, name):
            wanted = f"the model {asked['model']!r:.60}"
            raise BadRequest("404 Not Found", f"{wanted} is not served: {name}")
        try:
            ids = self._ids(asked.get("prompt"))
            given = {name: asked[name] for name in FIELDS if asked.get(name) is not None}
            params = SamplingParams(**{"max_tokens": 16, **given})
        except (TypeError, ValueError) as err:
            raise BadRequest("400 Bad Request", str(err)) from err
        options = asked.get("stream_options") or {}
        return Asked(
            ids, params, bool(asked.get("stream")), bool(options.get("include_usage")),
            bool(asked.get("stop")), asked.get("cache_salt") or "",
        )  # fmt: skip

    def _ids(self, prompt: Any) -> list[int]:
        """The ids of one prompt, a text or ids; ValueError, TypeError for anything else."""
        if isinstance(prompt, list) and any(isinstance(part, str | list) for part in prompt):
            if len(prompt) > 1:
                raise ValueError(f"prompt has {len(prompt)} prompts: one prompt a request")
            (prompt,) = prompt
        limit = self.lm.config.max_seq_len
        if isinstance(prompt, list) and len(prompt) > limit:
            raise ValueError(f"prompt has {len(prompt):,} tokens; the context limit is {limit:,}")
        if not isinstance(prompt, str):
            return encode_prompt(self.lm.tokenizer, prompt)
        check_length(self.lm.tokenizer, len(prompt), limit)
        found = self.parse(prompt) if self.parse else prompt
        if prompt and self.opening:
            found = opened(self.lm.tokenizer, found)
        return encode_prompt(self.lm.tokenizer, found)


def _fields(body: bytes) -> dict[str, Any]:
    """The object in a body, with the types and values that are checked nowhere else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise BadRequest("400 Bad Request", f"the body is not JSON: {err}") from err
    if not isinstance(found, dict):
        raise BadRequest("400 Bad Request", "the body is not a JSON object")
    if not isinstance(found.get("stream_options") or {}, dict):
        raise BadRequest("400 Bad Request", "stream_options is not a JSON object")
    if not isinstance(found.get("cache_salt"), str | None):
        raise BadRequest("400 Bad Request", "cache_salt is no text: one for each tenant")
    stop = found.get("stop")
    if isinstance(stop, list) and len(stop) > MOST_STOPS:
        raise BadRequest("400 Bad Request", f"stop has {len(stop)} texts; at most {MOST_STOPS}")
    if not isinstance(stop, str | list | None):
        raise BadRequest("400 Bad Request", f"stop is {stop!r:.60}: pass a text or a list of texts")
    for name, nothing in DEFAULTS.items():
        if found.get(name) not in nothing:
            raise BadRequest("400 Bad Request", f"{name}={found[name]!r:.60} is not served here")
    return found
