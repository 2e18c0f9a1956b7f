"""What a step reports of a request. The name is vLLM's.

It holds no text: tokens are read when somebody asks for the text, by the request's own parser, and
up to where the request stood when the step ended.
"""

from __future__ import annotations

from g2c_serving.process.streaming import OutputParser, ToolCall
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import Request
from g2c_serving.sample.logprobs import TokenLogprobs


class RequestOutput:
    """A request as it stood when a step ended; later steps do not change it.

    finish_reason   None while it runs; then stop, length (max_tokens or the context limit),
                    abort, or error
    message         which stop string or limit ended it, what the error is and which option helps,
                    or what of the text was no text
    token_ids       the generated ids, an end-of-text id and those of a stop string included
    text            the answer, as a user may see it: no reserved token, no half character, and
                    nothing of a stop string. What was shown once stays
    reasoning       the text between `<think>` and `</think>`
    tool_calls      a `ToolCall` for each `<|tool_call|>`: its text, and whether it is whole
    seed            the seed in effect: with n=1 it replays this very output. That of a fork replays
                    what it drew itself: take the tokens it was forked with to the prompt
    num_cached_tokens   prompt tokens that were found in the cache when it was first admitted; 0 for
                    a fork, and for the samples after the first: they share, they do not find
    logprobs        a `TokenLogprobs` for each generated token; None where they were not asked for
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request_id, self.sample_index = request.request_id, request.sample_index
        self.finish_reason = request.finish_reason
        self.seed, self.num_cached_tokens = request.seed, request.num_cached_tokens
        self._request, self._tokenizer = request, tokenizer
        self._end = len(request.token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(self._request.prompt_token_ids)

    @property
    def token_ids(self) -> list[int]:
        return self._request.token_ids[self._request.num_prompt_tokens : self._end]

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        if self._request.params.logprobs is None:
            return None
        return self._request.logprobs[: self._end - self._request.num_prompt_tokens]

    @property
    def text(self) -> str:
        return self._read().text("answer", self._upto)

    @property
    def reasoning(self) -> str:
        return self._read().text("reasoning", self._upto)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self._read().tool_calls(self._upto)

    @property
    def message(self) -> str | None:
        if self.finish_reason is None:
            return None
        if self._request.message is not None:
            return self._request.message
        parser = self._read()
        count, first = parser.broken_bytes, parser.first_broken
        if not count:
            return None
        if count == 1:
            return f"1 byte is not UTF-8, in generated token {first}: it is shown as U+FFFD"
        return (
            f"{count} bytes are not UTF-8, the first in generated token {first}: each run of them "
            "is shown as U+FFFD"
        )

    def _read(self) -> OutputParser:
        return self._request.read(self._tokenizer)

    @property
    def _upto(self) -> int | None:
        """Tokens that had been generated; None for all, and what came out at the end."""
        if self.finish_reason is not None:
            return None
        return self._end - self._request.num_prompt_tokens

    def __repr__(self) -> str:
        state = self.finish_reason or "running"
        return f"RequestOutput({self.request_id}.{self.sample_index}, {state}, {self.text!r})"
