"""Whatever raises, wherever and whenever: who is at fault ends with `error`, in a batched step its
rows; the others get what they would get alone, all blocks come back, and the engine works on.

One table of faults, over both engines and the three modes of speculation. Each fault comes at a
call of its part, so that it meets chunks of prompts, first tokens, decoding, drafts, preempted
requests and forks. The model and its tokens are those of fakes.py; alone.py says what is right.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from alone import Wish, new_lm, story
from asked import Asked
from engine_books import Books
from fakes import new_engine
from traces import check_idle

import g2c_serving as g
from g2c_serving import launches, speculating
from g2c_serving.process.streaming import OutputParser
from g2c_serving.sample.grammar import GrammarState
from g2c_serving.sampling import Draws
from g2c_serving.schedule.disk_store import DiskStore

KINDS, MODES = [g.Engine, g.AsyncEngine], ["off", "fixed", "budgeted"]
STEP, ONE, NOBODY = "the rows of a step", "one request", "nobody"
WHY = "made to fail"


class Died(BaseException):
    """Not an `Exception`: a job that raises it ends its thread."""


@dataclass(frozen=True)
class Fault:
    """part: the engine -> whose attribute raises, and its name. ends: who ends with an error; ONE
    is the request of `WISHES` that is named in `whose`."""

    part: Callable[[Any], tuple[Any, str]]
    ends: str
    whose: str = ""
    error: type[BaseException] = RuntimeError
    modes: tuple[str, ...] = tuple(MODES)
    kinds: tuple[type, ...] = tuple(KINDS)


DRAFTS = ("fixed", "budgeted")
FAULTS = {
    "layout": Fault(lambda e: (e, "_batch"), STEP),
    "forward": Fault(lambda e: (e.model, "forward"), STEP),
    "drafter": Fault(lambda e: (e.speculator.drafter.model, "forward"), STEP, modes=DRAFTS),
    "verdict": Fault(lambda e: (e.speculator, "verify"), STEP, modes=DRAFTS),
    "sampler": Fault(lambda e: (launches, "next_tokens"), STEP),
    "tokens read": Fault(lambda e: (Draws, "read"), STEP),
    "mask": Fault(lambda e: (GrammarState, "fill"), STEP),
    "matcher": Fault(lambda e: (GrammarState, "advance"), ONE, "words", modes=("off",)),
    "compiler": Fault(lambda e: (e.compiler, "_automaton"), ONE, "words", error=MemoryError),
    "its state": Fault(lambda e: (e.compiler, "state_of"), ONE, "words", error=MemoryError),
    "decoder": Fault(lambda e: (OutputParser, "feed"), ONE, "stops"),
    "disk is read": Fault(lambda e: (DiskStore, "read"), NOBODY, error=OSError),
    "no memory to read": Fault(lambda e: (DiskStore, "read"), NOBODY, error=MemoryError),
    "disk is written": Fault(lambda e: (DiskStore, "write"), NOBODY, error=OSError),
    "no memory to write": Fault(lambda e: (e.pages, "export_blocks"), NOBODY, error=MemoryError),
    "planner": Fault(lambda e: (speculating, "split"), STEP, modes=("budgeted",)),
    "the thread": Fault(lambda e: (e.model, "forward"), STEP, error=Died, kinds=(g.AsyncEngine,)),
    "the thread, drafting": Fault(
        lambda e: (e.speculator.drafter.model, "forward"), STEP, "", Died, DRAFTS, (g.AsyncEngine,)
    ),
}  # fmt: skip
WISHES = {
    "plain": Wish(tuple(b"abcabdacbdea"), 12),
    "words": Wish(tuple(b"abcabdb"), 12, language="words"),
    "stops": Wish(tuple(b"abcabdac"), 12, stop=("zz",)),
    "samples": Wish(tuple(b"cab"), 9),
    "forked": Wish(tuple(b"abcabdacc"), 11),
}
CASES = [
    pytest.param(name, kind, mode, id=f"{name}-{kind.__name__}-{mode}")
    for name, fault in FAULTS.items()
    for kind in fault.kinds
    for mode in fault.modes
]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def make(kind: type, mode: str, folder: Any) -> g.Engine:
    """In a pool of little more than one text, with chunks of a few tokens, over a disk."""
    speculation = None
    if mode != "off":
        times = {"step_time": lambda rows: 10.0 + rows} if mode == "budgeted" else {}
        speculation = g.Speculation(mode, 2, new_lm(), **times)
    config = g.EngineConfig(
        num_blocks=14, block_size=3, max_num_batched_tokens=7, max_num_seqs=3,
        enable_prefix_caching=True, cache_dir=folder, cache_bytes=1 << 20,
        speculation=speculation, forbid_sync=False,
    )  # fmt: skip
    return new_engine(kind, new_lm(), config)


def serve(
    e: g.Engine, seed: int, books: Books, faults: list[str], first: int = len(WISHES)
) -> list[g.RequestOutput]:
    """The `first` of WISHES, whose request ids count up in their order, and a fork of the last:
    each is judged; those that ended with an error."""
    asked = Asked(e.lm, e.config.speculation.mode if e.config.speculation else "off", (0, 2), 42)
    asked.faults, ended, parent = faults, list[g.RequestOutput](), -1
    for name, wish in list(WISHES.items())[:first]:
        n = 2 if name == "samples" else 1
        parent = e.add(list(wish.prompt), wish.params(seed, n))
        asked.add(parent, wish, seed, n)
    for step in itertools.count():
        assert step < 400, "no end"
        outputs = e.step()
        check_rows(e, [o for o in outputs if o.finish_reason == "error"])
        ended += [output for output in outputs if output.finish_reason]
        for output in outputs:
            books.learn(e, output._request)
        books.check(e)
        if step == 5 and not any(output.request_id == parent for output in ended):
            given = e.unfinished(parent)[0].token_ids[len(wish.prompt) :]
            asked.add(e.fork(parent), wish, None, 1, given)
        if not e.has_unfinished:
            break
    for output in ended:  # only now: to look at a text may be what raises
        asked.note(output)
    assert not asked.open
    check_idle(e)
    return [output for output in ended if output.finish_reason == "error"]


def check_rows(e: Any, errors: list[g.RequestOutput]) -> None:
    """Who ends with an error in a step had a row in it, or waits for one who had. In the plain
    engine a step that fails ends all of its rows."""
    last = [row for record in list(e.history)[-2:] for row in record.rows]  # two, if a thread died
    assert {o.request_id for o in errors} <= {row.request_id for row in last} or all(
        "grammar: " in o.message for o in errors
    )
    if errors and "in the step" in errors[0].message and type(e) is g.Engine:
        rows = {(row.request_id, row.sample_index) for row in e.history[-1].rows}
        assert rows <= {(o.request_id, o.sample_index) for o in errors}


def raise_at(call: int, fault: Fault, e: Any, patch: pytest.MonkeyPatch) -> list[int]:
    """The part raises at that call, counted from 0; the calls."""
    owner, name = fault.part(e)
    real, calls = getattr(owner, name), list[int]()

    def raises(*args: Any, **how: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == call + 1:
            raise fault.error(WHY)
        return real(*args, **how)

    patch.setattr(owner, name, raises)
    return calls


@pytest.mark.parametrize("name, kind, mode", CASES)
def test_a_fault_ends_whom_it_concerns(name, kind, mode, tmp_path, monkeypatch):
    fault, books, met = FAULTS[name], Books(), 0
    if fault.ends == NOBODY:
        books.open()
        serve(make(g.Engine, mode, tmp_path), 0, books, [])  # leaves blocks on disk
    for call in (0, 5):
        e = make(kind, mode, tmp_path)
        books.open()
        with monkeypatch.context() as patch:
            calls = raise_at(call, fault, e, patch)
            errors = serve(e, 0, books, [WHY])
        was_met = len(calls) > call
        met += was_met
        assert bool(errors) == (was_met and fault.ends != NOBODY)
        if fault.ends == ONE:
            assert {o.request_id for o in errors} <= {list(WISHES).index(fault.whose)}
        assert not serve(e, 1, books, [], first=2)
        if kind is g.AsyncEngine:
            assert e.close() == []
    assert met, "it was never called"


@pytest.mark.parametrize("error", [RuntimeError, OSError, MemoryError])
@pytest.mark.parametrize("part, ended", [("copy", {1}), ("import_blocks", {0}), ("clear", {0, 1})])
def test_pages_that_can_never_be_written_end_their_owner(part, ended, error, tmp_path, monkeypatch):
    """In the plain engine. 0 finds the beginning of its prompt on disk, 2 is forked off 1, which
    then goes on in a copy of its last block; with `clear` nobody gets a block, so nobody forks."""
    found, plain = WISHES["plain"], Wish(tuple(b"cabdacab"), 11)
    first = make(g.Engine, "off", tmp_path)
    first.add(list(found.prompt), found.params(0))
    while first.has_unfinished:
        first.step()
    e, final = make(g.Engine, "off", tmp_path), dict[int, g.RequestOutput]()

    def fails(blocks: Any, *_: Any) -> None:
        if blocks:
            raise error(WHY)

    with monkeypatch.context() as patch:
        patch.setattr(e.pages, part, fails)
        ids = [e.add(list(wish.prompt), wish.params(0)) for wish in (found, plain)]
        for step in itertools.count():
            assert step < 100, "no end"
            final |= {o.request_id: o for o in e.step() if o.finish_reason}
            e.block_manager.check()
            if step == 4 and part != "clear":
                ids.append(e.fork(ids[1]))
            if not e.has_unfinished:
                break
    errors = {i for i, output in final.items() if output.finish_reason == "error"}
    assert errors == ended and set(final) == set(ids)
    for i in errors:
        assert WHY in final[i].message and error.__name__ in final[i].message
    for i in set(ids) - errors:  # the fork of a greedy request writes as that would
        assert final[i].token_ids == story(e.lm, (found, plain, plain)[i], 0)[0]
    check_idle(e)
    again = e.add(list(found.prompt), found.params(0))
    outputs = {}
    while e.has_unfinished:
        outputs |= {o.request_id: o for o in e.step() if o.finish_reason}
    assert outputs[again].token_ids == story(e.lm, found, 0)[0]


def test_whoever_ends_with_a_failed_step_has_no_row_in_the_next_one():
    """That was launched before the failure was known. A chunk of a prompt whose first chunk was
    never computed would read what nobody wrote, in one pass with others."""
    config = g.EngineConfig(
        num_blocks=14, block_size=3, max_num_batched_tokens=8, forbid_sync=False
    )  # fmt: skip
    with new_engine(g.AsyncEngine, new_lm(), config) as e:
        passes = []

        def on_forward(batch) -> None:
            passes.append(batch.positions.tolist())
            if len(passes) == 1:
                raise RuntimeError(WHY)

        e.model.on_forward = on_forward
        wish = Wish(tuple(b"cab"), 5)
        failed = e.add([97] * 12, g.SamplingParams(5))
        other = e.add(list(wish.prompt), wish.params(0))
        final = {}
        while e.has_unfinished:
            final |= {o.request_id: o for o in e.step() if o.finish_reason}
        assert final[failed].finish_reason == "error"
        assert final[other].token_ids == story(e.lm, wish, 0)[0]
        assert passes[:2] == [[*range(8)], [0, 1, 2]]
