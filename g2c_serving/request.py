"""What a user asks for, and what becomes of it.

`SamplingParams` says how to sample and when to stop, `Request` is one sequence on its way through
the engine, `RequestOutput` is what a step reports of it. The names are vLLM's.
Left out: stop strings, log-probabilities, grammars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from g2c_serving.process.tokenizer import Tokenizer

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. ValueError names the field, the value and the range.

    max_tokens      most tokens to generate, at least 1
    temperature     0 is greedy (the exact argmax), at most infinity excluded
    top_k           keep the k most likely tokens; 0 is off
    top_p           keep the most likely tokens up to this sum, in (0, 1]; 1 is off
    seed            unsigned 64-bit; None draws a fresh one, which the output reports
    n               samples of the prompt, each with a seed of its own
    stop_token_ids  ids that end the text, beside the model's end of text
    ignore_eos      go on after the model's end of text
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 1)
        require_int("top_k", self.top_k, 0)
        require_int("n", self.n, 1)
        if self.seed is not None:
            require_int("seed", self.seed, 0, 2**64 - 1)
        require_number("temperature", self.temperature)
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} must be 0 or more")
        require_number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]; 1 turns it off")
        if isinstance(self.stop_token_ids, str):
            raise ValueError(f"stop_token_ids={self.stop_token_ids!r} must be a sequence of ids")
        for token_id in self.stop_token_ids:
            require_int("stop_token_ids", token_id, 0)


def require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """ValueError unless `value` is an int (no bool) from `low` to `high`."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value:
        if high is None or value <= high:
            return
    limits = f"{low} or more" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name}={value!r} must be an integer, {limits}")


def require_number(name: str, value: object) -> None:
    """ValueError unless `value` is a finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return
    raise ValueError(f"{name}={value!r} must be a finite number")


@dataclass(eq=False)
class Request:
    """One sequence: its tokens so far, and how many of them are in the cache.

        token_ids            [ prompt ........ | generated ..... ]
        num_computed_tokens  [ in the cache ........ ]^ what the next step computes

    A preempted request keeps its tokens and starts again with none computed.
    """

    request_id: int
    sequence_id: int  # unique per sample; block tables and arrival order go by it
    sample_index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    state: str = WAITING
    finish_reason: str | None = None  # stop, length, abort or error
    message: str | None = None
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens that are known but not in the cache; 1 for a request that decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    def finish(self, reason: str, message: str | None = None) -> None:
        self.state, self.finish_reason, self.message = FINISHED, reason, message


class RequestOutput:
    """A request as it stood when a step ended; later steps do not change it.

    finish_reason   None while it runs; then stop, length (max_tokens or the context limit),
                    abort, or error (`message` says what and which option helps)
    token_ids       the generated ids, an end-of-text id included
    text            what a user may see: reserved tokens left out, a half character held back
    seed            the seed in effect: with n=1 it replays this very output
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request_id, self.sample_index = request.request_id, request.sample_index
        self.prompt_token_ids = request.prompt_token_ids
        self.finish_reason, self.message = request.finish_reason, request.message
        self.seed = request.seed
        self._request, self._tokenizer = request, tokenizer
        self._end = len(request.token_ids)

    @property
    def token_ids(self) -> list[int]:
        return self._request.token_ids[len(self.prompt_token_ids) : self._end]

    @property
    def text(self) -> str:
        return self._tokenizer.visible_text(self.token_ids, final=self.finish_reason is not None)

    def __repr__(self) -> str:
        state = self.finish_reason or "running"
        return f"RequestOutput({self.request_id}.{self.sample_index}, {state}, {self.text!r})"
