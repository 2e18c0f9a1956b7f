"""Compiling grammars where no step waits for it: in one thread beside the engine.

A compilation takes from less than a millisecond to seconds. XGrammar lets go of the interpreter
lock meanwhile, and on Linux the thread steps back behind all others, so that the engine goes on at
its pace. DeepInfer has machines for it (Brief, section 5: reported). What is compiled is kept, and
asked for twice at the same time it is compiled once. A request waits outside the engine until it is
done, see `waiting_room.py`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample.compiler_thread import CompilerThread
from g2c_serving.sample.grammar import CompiledGrammar, Grammar, GrammarState
from g2c_serving.sample.grammar_trial import check_pace

KEPT, KEPT_BYTES = 128, 2**28  # compiled grammars that are kept, those used last
MAX_SECONDS = 20.0  # of processor time for one grammar: the others wait behind it
NICENESS = 10
END = "<|end|>"
# Bytes that begin no character after those: half a surrogate pair, and what has a shorter spelling
# or lies beyond Unicode. XGrammar lets some of them through.
NEVER_AFTER = {0xED: (0xA0, 0xBF), 0xE0: (0x80, 0x9F), 0xF0: (0x80, 0x8F), 0xF4: (0x90, 0xBF)}
NO_TEXT = re.compile(rb"\xed[\xa0-\xbf]|\xe0[\x80-\x9f]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")
CONTROL = re.compile(rb"[\x00-\x1f]")


@dataclass(frozen=True)
class Compilation:
    """One grammar's way through the compiler, in ms since `GrammarCompiler.origin`."""

    grammar: Grammar
    asked_ms: float
    began_ms: float
    done_ms: float


class GrammarCompiler:
    """Grammars over one vocabulary.

    eos_ids  the ids that end a text, where the grammar names no end and has no trigger
    origin   `time.perf_counter()` at zero of `log`; `log` has the newest compilations
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int], origin: float = 0.0
    ) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.eos_ids = tuple(eos_ids)
        self.origin = origin
        self.log: list[Compilation] = []
        self._thread = CompilerThread()
        self._libraries: dict[bool, Any] = {}  # XGrammar's compilers, made in the thread
        self._compiled: OrderedDict[tuple[str, str], Future] = OrderedDict()

    def submit(self, grammar: Grammar) -> Future:
        """The compiled grammar, some time; its result goes to `state_of`. In the future ValueError
        for a grammar that XGrammar cannot read or that admits nothing, TimeoutError for one that
        takes too long."""
        key = grammar.kind, grammar.source
        found = self._compiled.get(key)
        if found is None or _may_work_now(found):
            found = self._thread.submit(partial(self._compile, grammar, self._now()))
            self._compiled[key] = found
        self._compiled.move_to_end(key)
        while len(self._compiled) > 1 and self._is_over_full():
            self._compiled.popitem(last=False)
        return found

    def give_up(self) -> None:
        """Leave a grammar behind that has been compiling for too long."""
        self._thread.leave_after(MAX_SECONDS)

    def _is_over_full(self) -> bool:
        done = [f for f in self._compiled.values() if f.done() and f.exception() is None]
        num_bytes = sum(future.result().automaton.memory_size_bytes for future in done)
        return len(self._compiled) > KEPT or num_bytes > KEPT_BYTES

    def state_of(self, grammar: Grammar, compiled: CompiledGrammar) -> GrammarState:
        """The state of a request that has not generated anything yet."""
        return GrammarState(compiled, tuple(grammar.trigger_token_ids), self.end_of(grammar))

    def end_of(self, grammar: Grammar) -> tuple[int, ...]:
        """The ids, each of which ends the grammar. ValueError if there is none, or one is not
        reserved."""
        reserved, named = self.tokenizer.reserved, grammar.end_token_id
        if named is None and grammar.trigger_token_ids:
            named = reserved.get(END)
        end = self.eos_ids if named is None else (named,)
        known = {i for i in (*reserved.values(), *self.eos_ids) if i < self.vocab_size}
        if not end or not known.issuperset(end):
            raise ValueError(
                f"grammar: end_token_id={named} is not a reserved id of this vocabulary; pass one "
                f"of {reserved}"
            )
        return end

    def check(self, grammar: Grammar) -> None:
        """ValueError for ids that this vocabulary lacks."""
        self.end_of(grammar)
        for token_id in grammar.trigger_token_ids:
            if token_id >= self.vocab_size:
                raise ValueError(
                    f"grammar: trigger_token_ids has {token_id}, which is outside the vocabulary, "
                    f"0 to {self.vocab_size - 1}"
                )

    @cached_property
    def _follows(self) -> dict[int, np.ndarray]:
        """By token, the bits of those that may follow it, where these are not all."""
        known = range(min(self.vocab_size, self.tokenizer.vocab_size))
        tokens = [self.tokenizer.token_bytes(i) or b"\0" for i in known]  # of some: no bytes at all
        first = np.array([token[0] for token in tokens])
        bits = {}
        for lead, (low, high) in NEVER_AFTER.items():
            may = np.ones(32 * -(-self.vocab_size // 32), dtype=bool)
            may[: len(tokens)] = (first < low) | (first > high)
            bits[lead] = np.packbits(may, bitorder="little").view(np.int32)
        return {i: bits[tokens[i][-1]] for i in known if tokens[i][-1] in bits}

    def _prepare(self) -> None:
        """What is made once and holds the interpreter lock meanwhile. Only then the thread steps
        back: one that is put off with the lock in its hands stops all others."""
        if not self._libraries:
            size = self.tokenizer, self.vocab_size
            self._libraries = {is_json: library(*size, is_json) for is_json in (True, False)}
            _ = self._follows
        step_back()

    def _automaton(self, grammar: Grammar) -> Any:
        is_json = grammar.kind == "json_schema"
        compiler = self._libraries[is_json]
        if is_json:
            how: dict[str, Any] = {"any_whitespace": False, "separators": (", ", ": ")}
            return compiler.compile_json_schema(grammar.source, **how)
        if grammar.kind == "regex":
            return compiler.compile_regex(grammar.source)
        return compiler.compile_grammar(grammar.source)

    def _now(self) -> float:
        return 1e3 * (time.perf_counter() - self.origin)

    def _compile(self, grammar: Grammar, asked_ms: float) -> CompiledGrammar:
        began_ms = self._now()
        self._prepare()
        try:
            compiled = CompiledGrammar(self._automaton(grammar), self._follows)
        except RuntimeError as err:
            raise ValueError(f"{grammar.kind} cannot be compiled: {_reason(err)}") from err
        end = self.end_of(grammar)
        try:
            check_pace(GrammarState(compiled, (), end), self.vocab_size, end)
        except ValueError as err:
            raise ValueError(f"{grammar.kind} {err}") from None
        self.log.append(Compilation(grammar, asked_ms, began_ms, self._now()))
        del self.log[:-KEPT]
        return compiled


def library(tokenizer: Tokenizer, vocab_size: int, is_json: bool) -> Any:
    """XGrammar's compiler over the ids below `vocab_size`. Those without bytes it takes for special
    and never allows: so the reserved ones, those that are no text, and in JSON, which has none,
    control characters, that it lets through in some strings. One thread: more would take the
    engine's."""
    import xgrammar

    reserved = set(tokenizer.reserved.values())
    known = range(min(vocab_size, tokenizer.vocab_size))
    vocabulary = [b"" if i in reserved else tokenizer.token_bytes(i) for i in known]
    vocabulary = [b"" if NO_TEXT.search(token) else token for token in vocabulary]
    if is_json:
        vocabulary = [b"" if CONTROL.search(token) else token for token in vocabulary]
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _may_work_now(found: Future) -> bool:
    """Whether a compilation failed for a reason that need not come again: no memory, say."""
    failed = found.exception() if found.done() else None
    return failed is not None and not isinstance(failed, ValueError | TimeoutError)


def _reason(err: Exception) -> str:
    """What XGrammar says, without the place in its own source."""
    return str(err).strip().split(": ", 1)[-1]


def step_back() -> None:
    """Let other threads go first, where a thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
