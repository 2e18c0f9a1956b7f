"""A grammar holds what is generated to a form: a JSON schema, a regular expression, or EBNF.

XGrammar, the library that DeepInfer uses too, turns the grammar into an automaton over the bytes of
the vocabulary. After each token it says which tokens may follow: a bit for each, packed 32 to a
number. The one sampler path takes them as its mask. The automaton knows no reserved id: here they
have no bytes, so none is ever allowed but the grammar's own end, once the text is complete.

    trigger_token_ids   free text until exactly these ids were generated, one after the other; the
                        grammar holds from the next token on. What stands in the prompt triggers
                        nothing, and neither do other ids that spell the same
    end_token_id        a reserved id. It ends the grammar: free text again, until the trigger comes
                        again. Without a trigger the grammar is the whole output, which ends there,
                        or with any of a model's several ends of text where none is named

`sample/grammar_compiler.py` compiles, off the engine's thread. Brief, section 5; DeepInfer applies
the mask in `fused_sample.py`. Left out: structural tags, and jumping forward over forced text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from g2c_serving.checks import as_int
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.sample.ebnf_check import check_ebnf
from g2c_serving.sample.regex_check import check_regex
from g2c_serving.sample.schema_check import check_schema

MAX_TRIGGER = 64  # token ids
MAX_TOKEN_MS = 50.0  # of the processor's time for a token or a mask, which take microseconds


CHECKS: dict[str, Callable[[Any], object]] = {
    "json_schema": check_schema,
    "regex": check_regex,
    "ebnf": check_ebnf,
}


@dataclass(frozen=True)
class Grammar:
    """What to hold a text to, and from where on. Made by one of its three class methods; ValueError
    for a source that is none, is too large, or says what could not be kept.

    end_token_id    None: the chat's `<|end|>` if there is a trigger, else the model's ends of text
    """

    kind: str  # json_schema, regex or ebnf
    source: Any  # a schema may come as a dict; kept as text
    trigger_token_ids: Sequence[int] = ()
    end_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in CHECKS:
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(CHECKS)}")
        checked = CHECKS[self.kind](self.source)
        source = checked if self.kind == "json_schema" else self.source
        trigger, end = self.trigger_token_ids, self.end_token_id
        if isinstance(trigger, str | bytes) or not hasattr(trigger, "__iter__"):
            raise ValueError(f"trigger_token_ids={trigger!r:.500} must be a sequence of token ids")
        ids = tuple(as_int("trigger_token_ids", i, 0) for i in islice(trigger, MAX_TRIGGER + 1))
        if len(ids) > MAX_TRIGGER:
            raise ValueError(f"trigger_token_ids has more than {MAX_TRIGGER} ids")
        end = end if end is None else as_int("end_token_id", end, 0)
        for name, value in (("source", source), ("trigger_token_ids", ids), ("end_token_id", end)):
            object.__setattr__(self, name, value)  # it is frozen for everybody else

    @classmethod
    def json_schema(
        cls, schema: dict[str, Any] | bool | str, trigger_token_ids: Sequence[int] = (),
        end_token_id: int | None = None,
    ) -> Grammar:  # fmt: skip
        """JSON that a schema admits, spaced as `json.dumps` writes it, properties in their order
        and none but those."""
        return cls("json_schema", schema, trigger_token_ids, end_token_id)

    @classmethod
    def regex(
        cls, pattern: str, trigger_token_ids: Sequence[int] = (), end_token_id: int | None = None
    ) -> Grammar:
        """Text that the whole of `pattern` matches, as `re.fullmatch` with `re.DOTALL` and
        `re.ASCII` would say; but `\\s` is any space of Unicode."""
        return cls("regex", pattern, trigger_token_ids, end_token_id)

    @classmethod
    def ebnf(
        cls, rules: str, trigger_token_ids: Sequence[int] = (), end_token_id: int | None = None
    ) -> Grammar:
        """Text that the rule `root` derives, in XGrammar's EBNF."""
        return cls("ebnf", rules, trigger_token_ids, end_token_id)


@dataclass(frozen=True)
class CompiledGrammar:
    """XGrammar's automaton, and what it lacks: it lets through pairs of bytes that begin no
    character, see `grammar_compiler.NEVER_AFTER`. `follows`: for each token that ends in the first
    byte of such a pair the bits (words,) int32 of the tokens that may follow it."""

    automaton: Any
    follows: dict[int, np.ndarray]


class GrammarState:
    """How far one request is in its grammar: free, or inside with XGrammar's matcher at the end of
    what was generated. Each id of `end` ends it. `fork` and `advance` cost a few microseconds."""

    def __init__(
        self, compiled: CompiledGrammar, trigger: tuple[int, ...], end: tuple[int, ...]
    ) -> None:
        self._compiled, self._trigger, self._end = compiled, trigger, end
        self._tail: tuple[int, ...] = ()  # the last generated ids, as many as the trigger has
        self._matcher: Any = None if trigger else self._new_matcher()
        self._follows: np.ndarray | None = None  # bits, where not all may follow
        self.is_broken = False  # it was given a token that the grammar does not admit
        self._slow: list[float] = []  # ms of what took too long

    def _new_matcher(self) -> Any:
        import xgrammar

        return xgrammar.GrammarMatcher(
            self._compiled.automaton, override_stop_tokens=list(self._end)
        )

    @property
    def is_inside(self) -> bool:
        """Whether the next token is masked."""
        return self._matcher is not None

    @property
    def is_over(self) -> bool:
        """Whether the grammar is the whole output, and that is complete."""
        return not self._trigger and self._matcher is None

    def advance(self, token_id: int) -> None:
        """A token was generated."""
        if self._matcher is None:
            self._tail = (*self._tail, token_id)[-len(self._trigger) :] if self._trigger else ()
            if self._trigger and self._tail == self._trigger:
                self._matcher = self._new_matcher()
        elif self._slow or self.is_broken or not self._timed(self._matcher.accept_token, token_id):
            self.is_broken = True
        elif self._matcher.is_terminated():
            self._matcher, self._tail = None, ()
        self._follows = self._compiled.follows.get(token_id)

    def fork(self) -> GrammarState:
        """A state of its own that goes on from here."""
        other = self.ahead()
        other._slow = list(self._slow)
        return other

    def ahead(self) -> GrammarState:
        """A copy to go ahead with drafts. What takes it too long counts for this one as well."""
        other = GrammarState.__new__(GrammarState)
        other.__dict__.update(self.__dict__)
        other._matcher = None if self._matcher is None else self._matcher.fork()
        return other

    def fill(self, bits: np.ndarray, row: int) -> None:
        """Write the tokens that may follow into `bits` (M, words) int32, at `row`. None, once a
        token or a mask took so long that the others of the step would wait for the next one."""
        if self.is_broken or self._slow:
            bits[row] = 0
        elif self._matcher is not None:
            self._timed(self._matcher.fill_next_token_bitmask, bits, row)
            if self._follows is not None:
                bits[row] &= self._follows

    def _timed(self, do: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time()
        result = do(*args)
        if (took := 1e3 * (time.thread_time() - began)) > MAX_TOKEN_MS:
            self._slow.append(took)
        return result

    @property
    def problem(self) -> str | None:
        """Why no token may follow, where that is not the grammar's own doing."""
        if not self._slow:
            return None
        return (
            f"the grammar can be read in too many ways: a token took {self._slow[0]:.0f} ms, "
            f"{MAX_TOKEN_MS:g} is the limit; take repetition inside repetition out"
        )


States = Sequence[GrammarState | None]


def bitmask(states: States, vocab_size: int) -> np.ndarray | None:
    """The tokens that may follow each of M states, (M, words) int32, 32 tokens to a number, the
    lowest bit first. None where nobody is inside a grammar."""
    inside = [row for row, state in enumerate(states) if state is not None and state.is_inside]
    if not inside:
        return None
    bits = np.full((len(states), -(-vocab_size // 32)), -1, dtype=np.int32)
    for row in inside:
        states[row].fill(bits, row)  # type: ignore[union-attr]
    return bits


def as_mask(bits: np.ndarray | None, vocab_size: int) -> torch.Tensor | None:
    """A bitmask as the sampler takes it: (M, V) bool."""
    if bits is None:
        return None
    flat = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(flat[:, :vocab_size].view(np.bool_))


class DraftMasks:
    """The masks of S requests' drafts, each by the state that it extends: by what was generated and
    the drafts before it. The requests' own states stay where they are: copies go ahead, and what
    the target rejects is forgotten with them.

    A draft must be known on the host before the next mask can be worked out.
    """

    def __init__(self, states: States, vocab_size: int) -> None:
        self._ahead = [state and state.ahead() for state in states]
        self._vocab_size = vocab_size
        self._bits: list[np.ndarray | None] = []  # of the first draft, the second, and so on

    def next(self) -> torch.Tensor | None:
        """The mask of the next draft (S, V)."""
        self._bits.append(bitmask(self._ahead, self._vocab_size))
        return as_mask(self._bits[-1], self._vocab_size)

    def advance(self, tokens: torch.Tensor) -> None:
        """The drafts (S,) were drawn."""
        with allow_sync("a draft's mask needs the draft before it"):
            ids = tokens.tolist()
        for state, token in zip(self._ahead, ids, strict=True):
            if state is not None:
                state.advance(token)

    def rows(self, requests: np.ndarray, drafts: np.ndarray) -> torch.Tensor | None:
        """The masks (K, V) of some places: `requests` (K,) out of S, `drafts` (K,) from 0 to n."""
        if all(bits is None for bits in self._bits):
            return None
        shape = len(self._ahead), -(-self._vocab_size // 32)
        free = np.full(shape, -1, dtype=np.int32)
        stacked = np.stack([free if bits is None else bits for bits in self._bits])
        return as_mask(stacked[drafts, requests], self._vocab_size)
