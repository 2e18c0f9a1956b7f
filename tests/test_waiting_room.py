"""Where a request waits for its grammar: others go on, it holds nothing, each has its turn.

Nothing here is timed: the compiler stands still until the test opens its gate.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from grammars import EOS, LM, MODES, checked_step, engine, regex, run, unchecked
from small_models import random_ids

import g2c_serving as g
from g2c_serving.sample import compiler_thread, grammar_compiler
from g2c_serving.sample.grammar_compiler import GrammarCompiler

ROOT = Path(__file__).resolve().parents[1]
PROMPT = [5, 6, 7]
WAIT = 20  # seconds that a broken test may hang


class Gate:
    """Compilations (of `only` this source, if there is one) wait here until it is opened;
    `compiled` are the sources, in order."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self.compiled: list[str] = []
        self.only: str | None = None

    def guard(self, real):
        def automaton(compiler, grammar):
            if sys.platform == "linux":
                self.priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            self.reached.set()
            assert self.only not in (None, grammar.source) or self._open.wait(WAIT)
            self.compiled.append(grammar.source)
            return real(compiler, grammar)

        return automaton

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    guarded = gate.guard(GrammarCompiler._automaton)
    monkeypatch.setattr(GrammarCompiler, "_automaton", guarded)
    yield gate
    gate.open()  # or the thread would wait on


def held_to(word: str, **how) -> g.SamplingParams:
    return g.SamplingParams(**{"grammar": regex([word]), "seed": 1, "max_tokens": 20, **how})


FREE = g.SamplingParams(max_tokens=12, seed=2)


def word_of(output: g.RequestOutput) -> str:
    assert output.finish_reason == "stop", output.message
    assert output.token_ids[-1] == EOS
    return bytes(output.token_ids[:-1]).decode()


def open_and_wait(gate: Gate, e: g.Engine) -> None:
    gate.open()
    for _, future in e.waiting_room._waiting.values():
        future.exception(WAIT)


@pytest.mark.parametrize("mode", MODES)
def test_others_step_on_while_a_grammar_compiles(mode, gate):
    """It holds no block, no seat and no row; then it runs as if nothing had been."""
    alone = engine(mode).generate([PROMPT], FREE)[0].token_ids
    e = engine(mode, max_num_seqs=1)
    slow = e.add(PROMPT, held_to("abc"))
    other = e.add(PROMPT, FREE)
    outputs = [o for _ in range(4) for o in checked_step(e)]
    assert {o.request_id for o in outputs} == {other} and len(outputs) == 4
    assert [r.num_compiling for r in e.history] == [1] * 4 and e.stats.prefill_tokens == len(PROMPT)
    assert all(row.request_id == other for r in e.history for row in r.rows)
    assert gate.reached.wait(WAIT) and not gate.compiled
    open_and_wait(gate, e)
    final = run(e)
    assert final[other, 0].token_ids == alone
    assert word_of(final[slow, 0]) == "abc" and e.history[-1].num_compiling == 0


def test_it_takes_the_place_of_its_arrival(gate):
    """Before the ones who came after it, and behind those who came before: not the last in the
    queue, nor the first."""
    e = engine(max_num_seqs=1)
    order = [FREE, FREE, held_to("ab"), FREE, held_to("cd")]
    ids = [e.add(random_ids(LM, 4, i), one) for i, one in enumerate(order)]
    checked_step(e)
    open_and_wait(gate, e)
    ended = []
    while e.has_unfinished:
        ended += [o.request_id for o in checked_step(e) if o.finish_reason]
    assert ended == ids


def test_several_who_wait_for_one_grammar_have_it_compiled_once(gate):
    """Also with another trigger and another end, since these are no part of the automaton."""
    e = engine()
    ids = [e.add(PROMPT, held_to("abc", seed=i)) for i in range(3)]
    ids.append(e.add(PROMPT, held_to("x", grammar=regex(["abc"], (), 262), ignore_eos=True)))
    triggered = e.add(PROMPT, held_to("x", grammar=regex(["abc"], [97])))
    assert len(e.waiting_room) == 5
    open_and_wait(gate, e)
    final = run(e)
    assert all(bytes(final[i, 0].token_ids[:-1]) == b"abc" for i in ids)
    assert final[triggered, 0].finish_reason in ("stop", "length")
    assert gate.compiled == ["abc"] and len(e.compiler.log) == 1
    again = e.add(PROMPT, held_to("abc"))
    assert word_of(run(e)[again, 0]) == "abc" and gate.compiled == ["abc"]


def test_a_grammar_that_cannot_be_compiled_ends_its_samples_alone(gate):
    e = engine()
    bad = e.add(PROMPT, held_to("x", grammar=NOTHING, n=3))
    good = e.add(PROMPT, held_to("abc", n=2))
    free = e.add(PROMPT, FREE)
    checked_step(e)
    open_and_wait(gate, e)
    final = run(e)
    for i in range(3):
        assert final[bad, i].finish_reason == "error" and final[bad, i].token_ids == []
        assert "grammar" in final[bad, i].message and "json_schema" in final[bad, i].message
        assert "minimum" in final[bad, i].message
        assert "/project" not in final[bad, i].message  # no path of the library's own source
    assert [word_of(final[good, i]) for i in range(2)] == ["abc", "abc"]
    assert final[free, 0].finish_reason == "length"


# built past the checks of `Grammar.json_schema`, for what they do not see
NOTHING = unchecked("json_schema", '{"type": "integer", "minimum": 5, "maximum": 4}')


def test_generate_with_a_bad_grammar_among_good_ones():
    asked = [held_to("ab"), held_to("x", grammar=NOTHING), FREE, held_to("cd")]
    outputs = engine().generate([PROMPT] * 4, asked)
    assert [o.finish_reason for o in outputs] == ["stop", "error", "length", "stop"]
    assert word_of(outputs[0]) == "ab" and word_of(outputs[3]) == "cd"


def test_an_engine_with_nothing_else_to_do_waits(gate):
    """One step, not thousands that look again and again."""
    e = engine()
    request_id = e.add(PROMPT, held_to("abc"))
    timer = threading.Timer(0.2, gate.open)
    timer.start()
    (output,) = e.step()
    assert output.request_id == request_id and e.stats.steps == 1 and len(output.token_ids) == 1
    assert e.history[-1].total_ms < 150  # what it waited for the compiler is no part of a step
    assert word_of(run(e)[request_id, 0]) == "abc"
    timer.join()


def test_it_waits_for_the_first_that_is_done_not_for_all(gate):
    e = engine()
    gate.only = "xyz"
    quick, slow = e.add(PROMPT, held_to("ab")), e.add(PROMPT, held_to("xyz"))
    ended = [o for _ in range(3) for o in checked_step(e) if o.finish_reason]
    assert [o.request_id for o in ended] == [quick] and len(e.waiting_room) == 1
    gate.open()
    assert word_of(run(e)[slow, 0]) == "xyz"


@pytest.mark.skipif(sys.platform == "win32", reason="signals to a thread are not to be had there")
@pytest.mark.parametrize("face", ["step", "generate"])
def test_the_stop_button_ends_the_waiting(face, gate):
    """After an interrupted step all goes on; after an interrupted generate nothing is left."""
    e = engine()
    press = threading.main_thread().ident, signal.SIGINT
    timer = threading.Timer(0.2, signal.pthread_kill, press)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        if face == "step":
            request_id = e.add(PROMPT, held_to("abc"))
            e.step()
        else:
            e.generate([PROMPT], held_to("abc"))
    timer.join()
    assert not gate.compiled
    if face == "step":
        open_and_wait(gate, e)
        assert word_of(run(e)[request_id, 0]) == "abc"
    else:
        assert not e.has_unfinished and len(e.waiting_room) == 0
        gate.open()
        assert word_of(e.generate([PROMPT], held_to("abc"))[0]) == "abc"


def test_an_abort_while_it_compiles(gate):
    """All samples end; the compilation goes on, for others who ask."""
    e = engine()
    request_id = e.add(PROMPT, held_to("abc", n=3))
    other = e.add(PROMPT, held_to("abc"))
    assert [o.finish_reason for o in e.abort(request_id)] == ["abort"] * 3
    assert len(e.waiting_room) == 1 and request_id not in e._requests
    open_and_wait(gate, e)
    final = run(e)
    assert list(final) == [(other, 0)] and word_of(final[other, 0]) == "abc"
    assert gate.compiled == ["abc"]


def test_an_abort_of_all_that_wait_leaves_an_idle_engine(gate):
    e = engine()
    e.abort(e.add(PROMPT, held_to("abc")))
    assert not e.has_unfinished and e.step() == []  # does not wait for a compiler without a client
    assert e.block_manager.num_free == e.config.num_blocks


def test_a_fork_while_it_compiles(gate):
    """The child waits as its parent does, and is ended by itself."""
    e = engine()
    parent = e.add(PROMPT, held_to("ab", grammar=regex(["ab", "cd", "ef", "gh"]), temperature=9.0))
    children = [e.fork(parent) for _ in range(7)]
    e.abort(children.pop())
    assert len(e.waiting_room) == 7
    open_and_wait(gate, e)
    final = run(e)
    words = {word_of(final[i, 0]) for i in (parent, *children)}
    assert words <= {"ab", "cd", "ef", "gh"} and len(words) > 1
    assert gate.compiled.count("ab|cd|ef|gh") == 1  # beside what the test before asked for, late


def test_samples_wait_for_one_compilation_and_share_the_prompt(gate):
    e = engine()
    request_id = e.add(PROMPT, held_to("ab", n=4))
    open_and_wait(gate, e)
    final = run(e)
    assert [word_of(final[request_id, i]) for i in range(4)] == ["ab"] * 4
    assert e.stats.prefill_tokens == len(PROMPT)


# ---- the compiler ----


def test_what_is_compiled_is_kept_as_far_as_there_is_room(gate, monkeypatch):
    """Those used last stay; what is forgotten is compiled again, and serves those who hold it."""
    monkeypatch.setattr(grammar_compiler, "KEPT", 2)
    gate.open()
    compiler = GrammarCompiler(LM.tokenizer, LM.vocab_size, [LM.eos_id])
    first = compiler.submit(regex(["a"]))
    for word in ("b", "a", "c", "a", "b"):
        assert compiler.submit(regex([word])).result(WAIT) is not None
    assert gate.compiled == ["a", "b", "c", "b"]
    assert compiler.submit(regex(["a"])) is first and len(compiler._compiled) == 2
    assert [one.grammar.source for one in compiler.log] == ["c", "b"]  # the newest of the log


def test_many_at_once_all_come_through_though_few_are_kept(gate, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "KEPT", 2)
    e = engine()
    ids = [e.add(PROMPT, held_to(letter * 3)) for letter in "abcdef"]
    open_and_wait(gate, e)
    final = run(e)
    assert [word_of(final[i, 0])[0] for i in ids] == list("abcdef")
    assert len(e.compiler._compiled) == 2


def test_a_failure_that_would_come_again_is_kept(gate, monkeypatch):
    """Or whoever sends a bad grammar again and again keeps the thread busy. Not one by accident."""
    gate.open()
    compiler = GrammarCompiler(LM.tokenizer, LM.vocab_size, [LM.eos_id])
    for _ in range(2):
        with pytest.raises(ValueError, match="json_schema cannot be compiled"):
            compiler.submit(NOTHING).result(WAIT)
    assert len(gate.compiled) == 1 and compiler.log == []
    with monkeypatch.context() as patch:
        patch.setattr(grammar_compiler, "check_pace", raising(MemoryError("no memory")))
        with pytest.raises(MemoryError):
            compiler.submit(regex(["a"])).result(WAIT)
    assert compiler.submit(regex(["a"])).result(WAIT) is not None


def raising(error):
    def call(*args, **how):
        raise error

    return call


def test_the_compiled_are_kept_within_their_bytes(monkeypatch):
    monkeypatch.setattr(grammar_compiler, "KEPT_BYTES", 1)
    compiler = GrammarCompiler(LM.tokenizer, LM.vocab_size, [LM.eos_id])
    for letter in "abc":
        compiler.submit(regex([letter])).result(WAIT)
    assert len(compiler._compiled) <= 2


def test_who_takes_too_long_is_left_behind(gate, monkeypatch):
    """The one at fault ends with an error, also if there is nothing else to do; the others behind
    it are compiled by a fresh thread."""
    gate.only = regex(["slow"]).source
    e = engine()
    run_one(e, held_to("first"))  # makes the library, which takes longer
    monkeypatch.setattr(grammar_compiler, "MAX_SECONDS", 0.05)
    slow, quick = e.add(PROMPT, held_to("slow")), e.add(PROMPT, held_to("quick"))
    final = run(e)
    assert final[slow, 0].finish_reason == "error"
    assert "longer than 0.05 s" in final[slow, 0].message
    assert word_of(final[quick, 0]) == "quick"
    again = run_one(e, held_to("slow"))
    assert again.finish_reason == "error"  # at once: it is known
    gate.open()
    assert word_of(run_one(e, held_to("more"))) == "more"


class Clock:
    """The time of day, as the test says; the threads' own times stay as they are."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str):
        return getattr(time, name)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="the clock counts alone")
def test_who_waits_for_a_processor_is_not_left_behind(monkeypatch):
    """A job that has hardly run, whatever the time: only when that is out of all proportion."""
    clock, thread, gate = Clock(), compiler_thread.CompilerThread(), threading.Event()
    monkeypatch.setattr(compiler_thread, "time", clock)
    began = threading.Event()
    future = thread.submit(lambda: began.set() or gate.wait(WAIT))
    assert began.wait(WAIT)
    for clock.now in (0.0, 2.0, 9.0):
        thread.leave_after(1.0)
        assert not future.done()
    clock.now = 11.0
    thread.leave_after(1.0)
    assert isinstance(future.exception(0), TimeoutError)
    gate.set()


def test_who_works_for_too_long_is_left_behind(monkeypatch):
    """By what it has used of a processor; the rest of the time does not matter here."""
    monkeypatch.setattr(compiler_thread, "PATIENCE", 1e9)
    stop, thread = threading.Event(), compiler_thread.CompilerThread()
    future = thread.submit(lambda: all(not stop.is_set() for _ in itertools.repeat(None)))
    began = time.monotonic()
    while not future.done() and time.monotonic() < began + WAIT:
        thread.leave_after(0.02)
        time.sleep(0.005)
    assert isinstance(future.exception(0), TimeoutError)
    stop.set()
    assert thread.submit(lambda: "the next").result(WAIT) == "the next"


def run_one(e: g.Engine, params: g.SamplingParams) -> g.RequestOutput:
    request_id = e.add(PROMPT, params)
    return run(e)[request_id, 0]


def test_a_failure_on_the_way_in_ends_the_request(gate, monkeypatch):
    """Not only what the compiler says: whatever happens, the request is not lost."""
    gate.open()
    e = engine()
    with monkeypatch.context() as patch:
        patch.setattr(e.compiler, "state_of", raising(MemoryError("no memory left")))
        request_id = e.add(PROMPT, held_to("abc", n=2))
        final = run(e)
    assert [final[request_id, i].finish_reason for i in range(2)] == ["error"] * 2
    assert "no memory left" in final[request_id, 0].message
    assert word_of(run_one(e, held_to("abc"))) == "abc"


def test_the_thread_goes_with_its_compiler():
    before = threading.active_count()
    compiler = GrammarCompiler(LM.tokenizer, LM.vocab_size, [LM.eos_id])
    compiler.submit(regex(["a"])).result(WAIT)
    assert threading.active_count() == before + 1
    del compiler
    gc.collect()
    for _ in range(200):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_the_interpreter_exits_while_something_is_compiled():
    code = (
        "import time, g2c_serving as g\n"
        "from g2c_serving.sample.grammar_compiler import GrammarCompiler\n"
        "GrammarCompiler._automaton = lambda self, grammar: time.sleep(60)\n"
        "e = g.Engine(g.load('tiny'))\n"
        "e.add('hi', g.SamplingParams(grammar=g.Grammar.regex('a')))\n"
        "time.sleep(0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=40, cwd=ROOT)
    assert done.returncode == 0


def test_kinds_with_the_same_text_are_different_grammars(gate):
    gate.open()
    e = engine()
    one, other = g.Grammar.regex('root ::= "a"'), g.Grammar.ebnf('root ::= "a"')
    outputs = e.generate([PROMPT] * 2, [held_to("x", grammar=one), held_to("x", grammar=other)])
    assert [word_of(o) for o in outputs] == ['root ::= "a"', "a"]


def test_the_log_tells_when(gate):
    e = engine()
    for letter in "ab":
        e.add(PROMPT, held_to(letter))
    open_and_wait(gate, e)
    run(e)
    one, other = e.compiler.log
    assert one.asked_ms <= one.began_ms <= one.done_ms <= other.began_ms <= other.done_ms
    assert other.asked_ms < one.done_ms  # it stood in line
    assert e.history[0].start_ms >= 0 and other.done_ms <= e.history[-1].start_ms


def test_the_thread_steps_back_with_the_lock_held_work_behind_it(monkeypatch):
    """A thread of low priority that holds the interpreter lock, as the making of the library does,
    stops the engine for as long as the system lets it wait."""
    order = []
    real = grammar_compiler.library
    monkeypatch.setattr(
        grammar_compiler, "library", lambda *a: (order.append("library"), real(*a))[1]
    )
    monkeypatch.setattr(grammar_compiler, "step_back", lambda: order.append("steps back"))
    compiler = GrammarCompiler(LM.tokenizer, LM.vocab_size, [LM.eos_id])
    for grammar in (regex(["a"]), g.Grammar.json_schema({"type": "null"}), regex(["b"])):
        assert compiler.submit(grammar).result(WAIT) is not None
    assert order == ["library", "library", *3 * ["steps back"]]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_compilers_thread_steps_back(gate):
    """Behind the one that steps, if that is not at the very end itself."""
    gate.open()
    engine().generate([PROMPT], held_to("abc"))
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert gate.priority == min(usual + grammar_compiler.NICENESS, 19) or gate.priority > usual
