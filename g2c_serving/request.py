"""What a user asks for, and what becomes of it.

`SamplingParams` says how to sample and when to stop, `Request` is one sequence on its way through
the engine. What a step reports of it: output.py. The names are vLLM's. Left out: penalties.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from g2c_serving.checks import as_int, as_number, check_bool
from g2c_serving.process.stop_strings import as_stop
from g2c_serving.process.streaming import OutputParser
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample.grammar import Grammar, GrammarState
from g2c_serving.sample.logprobs import TokenLogprobs

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"
EXPECTED = "expected"  # a further sample of a prompt that is not computed yet
COMPILING = "compiling"  # its grammar is not compiled yet
MAX_SAMPLES = 16_384  # of one prompt
MAX_LOGPROBS = 1000  # for each token: memory that its output holds
MAX_STOP_IDS = 1000

_reading = threading.Lock()  # an output may be read in one thread while another goes on


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. ValueError names the field, the value and the range.

    max_tokens      most tokens to generate, at least 1
    temperature     0 is greedy (the exact argmax); any finite number from 0
    top_k           keep the k most likely tokens; 0 is off
    top_p           keep the most likely tokens up to this sum, in (0, 1]; 1 is off
    seed            unsigned 64-bit; None draws a fresh one, which the output reports
    n               samples of the prompt, each with a seed of its own, at most 16,384
    stop            strings that end the answer, inside a grammar too; none of it is shown
    stop_token_ids  ids that end the text, beside the model's end of text
    ignore_eos      go on after the model's end of text
    logprobs        None is off; k reports of each generated token its own log-probability and the
                    k best, at most 1,000, from the model's raw logits, before temperature and masks
    grammar         a `Grammar` that what is generated keeps to
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "max_tokens": as_int("max_tokens", self.max_tokens, 1),
            "temperature": as_number("temperature", self.temperature),
            "top_k": as_int("top_k", self.top_k, 0),
            "top_p": as_number("top_p", self.top_p),
            "n": as_int("n", self.n, 1, MAX_SAMPLES),
            "stop": as_stop(self.stop),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
        }
        if self.seed is not None:
            checked["seed"] = as_int("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            checked["logprobs"] = as_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if checked["temperature"] < 0:
            raise ValueError(f"temperature={self.temperature} must be 0 or more")
        if not 0 < checked["top_p"] <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]; 1 turns it off")
        check_bool("ignore_eos", self.ignore_eos)
        if not isinstance(self.grammar, Grammar | None):
            raise ValueError(
                f"grammar={self.grammar!r} must be a Grammar: Grammar.json_schema(...), "
                ".regex(...) or .ebnf(...)"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # it is frozen for everybody else


def _token_ids(name: str, values: Iterable[int]) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ValueError(f"{name}={values!r:.500} must be a sequence of token ids")
    ids = tuple(islice(values, MAX_STOP_IDS + 1))
    if len(ids) > MAX_STOP_IDS:
        raise ValueError(f"{name} has more than {MAX_STOP_IDS:,} ids")
    return tuple(as_int(name, value, 0) for value in ids)


@dataclass(eq=False)
class Request:
    """One sequence: its tokens so far, and how many of them are in the cache.

        token_ids            [ prompt ........ | generated ..... ]
        num_computed_tokens  [ in the cache ........ ]^ what the next step computes

    A preempted request keeps its tokens and starts again with none computed. While a step of it is
    on its way (`async_engine.py`), what that will compute counts as computed already, and what it
    may add as `num_pending` tokens that are not in `token_ids` yet; with drafts both are the most
    that it can be. Between the steps of the plain engine both are 0.
    """

    request_id: int
    sequence_id: int  # unique per sample; block tables and arrival order go by it
    sample_index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one a generated token, if asked
    num_computed_tokens: int = 0
    num_in_flight: int = 0  # so many of those are on their way, at most
    num_pending: int = 0  # tokens that come of it, at most
    num_ready: int = 0  # tokens that are in all caches, nothing on its way: what others may share
    drafter_lag: int = 0  # so many computed ones are not in the drafter's cache yet
    most_tokens: int = sys.maxsize  # with so many it has reached max_tokens, or the context limit
    num_preemptions: int = 0
    num_forks: int = 0
    num_given: int = 0  # tokens that a fork with a seed of its own began with
    state: str = WAITING
    finish_reason: str | None = None  # stop, length, abort or error
    message: str | None = None
    stop_ids: frozenset[int] = frozenset()
    siblings: list[Request] = field(default_factory=list)  # fork off once the prompt is computed
    cache_salt: str = ""  # requests share cached blocks only with those of an equal salt
    traffic: str = "chat"  # or agent: decides how long the disk keeps its blocks
    grammar: GrammarState | None = None  # once it is compiled, if one was asked for
    parser: OutputParser | None = None  # of what it generated, as far as somebody asked
    block_hashes: list[bytes] = field(default_factory=list)  # of its first full blocks
    num_cached_tokens: int = 0  # of the prompt, found in the cache at the first admission
    was_admitted: bool = False
    was_computed: bool = False  # a step of it is over: what it found in the cache is in its blocks
    window_start: int = 0  # first token whose window-layer keys are in the cache
    confidences: np.ndarray | None = None  # of its last drafts (n,), as the budget read them
    replay_until: int = 0  # tokens before it are computed for their window-layer keys alone

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_missing(self) -> int:
        """Tokens that it may still generate."""
        return self.params.max_tokens - self.num_generated

    @property
    def num_tokens(self) -> int:
        """Tokens that it has, and those that may come of a step on its way."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_settled(self) -> int:
        """Computed tokens of which nothing is on its way."""
        return self.num_computed_tokens - self.num_in_flight

    @property
    def num_uncomputed(self) -> int:
        """Tokens that are not in the cache; 1 for a request that decodes."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether all that is left to compute is the token that it drew last."""
        return self.num_uncomputed == 1 and self.num_tokens > self.num_prompt_tokens

    @property
    def is_ending(self) -> bool:
        """Whether the step on its way ends it: that brings one token at least."""
        return self.num_pending > 0 and len(self.token_ids) + 1 >= self.most_tokens

    @property
    def has_drawn(self) -> bool:
        """Whether its last token is one that it drew itself. The first one after what it was given
        is an ordinary draw in any case; speculation begins after it, so that a fork's tokens and
        seed replay it as a prompt."""
        return self.num_tokens > max(self.num_prompt_tokens, self.num_given)

    @property
    def is_exact(self) -> bool:
        """Whether its keys and values are those of a run without a cache (prefix_tiers.py)."""
        return self.replay_until == 0

    @property
    def family(self) -> list[Request]:
        """The request and the samples that wait for its prompt."""
        return [self, *self.siblings]

    def fork(self, request_id: int, sequence_id: int, seed: int) -> Request:
        """Another request with the same tokens so far, and no blocks yet."""
        self.num_forks += 1
        child = Request(request_id, sequence_id, 0, self.prompt_token_ids, self.params, seed)
        child.token_ids, child.logprobs = list(self.token_ids), list(self.logprobs)
        child.stop_ids, child.most_tokens = self.stop_ids, self.most_tokens
        child.cache_salt, child.traffic = self.cache_salt, self.traffic
        child.num_given = self.num_given if seed == self.seed else len(self.token_ids)
        child.was_admitted = True  # what it shares was not found in the cache
        child.grammar = self.grammar and self.grammar.fork()
        return child

    def snapshot(self) -> Request:
        """The request as it stands, for a step that is computed while it moves on."""
        still = copy.copy(self)
        still.token_ids = list(self.token_ids)
        still.siblings = [] if self.num_pending else list(self.siblings)  # theirs are drawn by now
        return still

    @property
    def is_replaying(self) -> bool:
        """Whether it is computing tokens again for their window state."""
        return self.num_settled < self.replay_until

    def read(self, tokenizer: Tokenizer) -> OutputParser:
        """What it generated, as a user may see it: read from where it was read last."""
        with _reading:
            has_ended = self.state == FINISHED  # looked at before the tokens: then all are there
            if self.parser is None:
                self.parser = OutputParser.after(self.prompt_token_ids, tokenizer, self.params.stop)
            for token_id in self.token_ids[self.num_prompt_tokens + self.parser.num_fed :]:
                self.parser.feed(token_id)
            if has_ended:
                self.parser.finish()
            return self.parser

    def lose_blocks(self) -> None:
        """Its blocks are gone: all that it knows is its tokens."""
        self.num_computed_tokens = self.num_ready = self.drafter_lag = 0
        self.window_start = self.replay_until = 0
        self.call_back()

    def call_back(self) -> None:
        """Nothing of it is on its way: what comes of the step in flight is thrown away."""
        self.num_in_flight = self.num_pending = 0

    def finish(self, reason: str, message: str | None = None) -> None:
        self.state, self.finish_reason, self.message = FINISHED, reason, message
        self.grammar = None  # outputs live on, and need no automaton
