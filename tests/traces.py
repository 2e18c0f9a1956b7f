"""Random traces: requests that come, fork, are aborted and preempted, and what two engines make of
the same trace.

    PYTHONPATH=. python tests/traces.py 17                  play trace 17 with Engine, print it
    PYTHONPATH=. python tests/traces.py 17 --asynchronous   compare Engine and AsyncEngine
    PYTHONPATH=. python tests/traces.py 17 --asynchronous --shrink    the fewest that differ

In invariant mode what a request gets is its own affair: speculation off or fixed, its token ids,
log-probabilities, text, calls, end and seed are those that any engine gives it, whenever its steps
come. So a trace never says "at step 12" where that would show. An abort or a fork comes

    at k > 0     after the first step that shows at least k tokens of the request's first sample
                 (of a fork: k beyond those that it began with). Speculation may jump over k, and
                 jumps alike in all engines.
    at -s <= 0   s steps after it came, whatever it has by then, unless it has ended.

and two engines are compared by these rules:

1. Who was never aborted is equal in everything.
2. An abort at k > 0 ends the first sample with equal tokens in both engines, at least k of them, or
   its natural end came first, in both. So it is equal in everything, too.
3. Who may have been aborted at different points (at -s; the further samples of an aborted request)
   may end naturally in one engine and not in the other. What both have of tokens and
   log-probabilities is equal; if both ended naturally, rule 1 holds.
4. A fork at -s has its parent's seed: whenever it came, it is the parent's twin. It may be missing
   in one engine if its parent had ended. (Forks beside it have seeds of their own: one that the
   engine chooses would tell which came first.)
5. With budgeted speculation the jumps depend on the company, so every abort falls under rule 3. All
   such requests are greedy: their tokens are the target's own. None of them meets a fault: what is
   not a number in a draft's place reaches the rows before it, so jumps decide when it is met.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from grammars import CALL, END, EOS, VOCAB, calm, regex
from small_models import random_lm

import g2c_serving as g
from g2c_serving import parts
from g2c_serving.forward.draft_model import DraftModel

CONTEXT, FAULT_AT = 48, 31
HEART = "\N{HEAVY BLACK HEART}"
THINK, UNTHINK = 264, 265
LIKELY = [*b"abcdefgh .", *HEART.encode(), EOS, CALL, END, THINK, UNTHINK]
MOST_STEPS = 4000
COSTS = g.CostModel(1.0, 0.2, 0.01, 0.3, 0.01, 0.01)  # what a trace's time budget goes by

# ---- models ----


def chatty(lm: g.LanguageModel, seed: int = 0, noise: float = 0.0) -> g.LanguageModel:
    """The model with a liking for a few letters, a heart in three bytes and the reserved ids, so
    that stop strings, channels, triggers and ends come about. noise: for a drafter that is near."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: w + noise * w.std(correction=0) * torch.randn(w.shape, generator=generator)
        for name, w in calm(lm, 0.4).weights.items()
    }
    weights["head_bias"] = torch.zeros(VOCAB)
    weights["head_bias"][LIKELY] = 4.0
    weights["head_bias"][[EOS, CALL, THINK]] = 3.0
    return g.LanguageModel("chatty", lm.config, weights, lm.tokenizer, EOS)


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "dim": 16, "hidden": 16, "context": CONTEXT, "layers": 1,
}  # fmt: skip


@functools.cache
def model(name: str) -> g.LanguageModel:
    """plain, window, faulty (no numbers from position FAULT_AT on), near and other (drafters)."""
    if name == "window":
        return chatty(random_lm(seed=5, window=6, window_layers=(0,), **{**SMALL, "layers": 2}))
    if name == "other":
        return chatty(random_lm(seed=6, **SMALL))
    lm = chatty(random_lm(seed=4, **SMALL), 1, 0.1 if name == "near" else 0.0)
    if name == "faulty":
        lm.weights["pos_embed.weight"][FAULT_AT] = torch.nan
    return lm


GRAMMARS = {
    "words": lambda: regex(["ab", "abc", "c", "cab", "d" * 20, "de" * 9]),
    "triggered": lambda: regex(["ab", "aab", "bee" * 5], [ord("a")]),
    "list": lambda: g.Grammar.json_schema({"type": "array", "items": {"type": "boolean"}}),
    "call": lambda: g.Grammar.json_schema(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, (CALL,)
    ),
    "nest": lambda: g.Grammar.ebnf('root ::= "c" | "a" root "b"'),
}

# ---- what a trace is ----


@dataclass(frozen=True)
class Fork:
    """Of a request, see the rules above. seed None: the engine chooses. abort: at so many tokens
    beyond those that it begins with."""

    at: int
    seed: int | None = None
    abort: int | None = None


@dataclass(frozen=True)
class Ask:
    """A request: `params` are those of SamplingParams, the grammar by name."""

    name: str
    step: int
    prompt: tuple[int, ...]
    params: dict[str, Any]
    salt: str = ""
    abort: int | None = None
    forks: tuple[Fork, ...] = ()

    def sampling(self) -> g.SamplingParams:
        how = dict(self.params)
        if "grammar" in how:
            how["grammar"] = GRAMMARS[how["grammar"]]()
        return g.SamplingParams(**how)

    def __str__(self) -> str:
        how = ", ".join(f"{k}={v!r}" for k, v in self.params.items())
        what = [f"  {self.name} @{self.step} prompt={list(self.prompt)} {how}"]
        what += [f"salt={self.salt!r}"] if self.salt else []
        what += [f"abort {self.abort}"] if self.abort is not None else []
        what += [str(fork) for fork in self.forks]
        return " | ".join(what)


@dataclass(frozen=True)
class Trace:
    """Some requests and the engine that they meet. mode: off, fixed or budgeted."""

    seed: int
    model: str
    mode: str
    num_drafts: int
    drafter: str
    sizes: dict[str, Any]  # of EngineConfig
    asks: tuple[Ask, ...]

    def __str__(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        speculation = "" if self.mode == "off" else f" {self.num_drafts} drafts of {self.drafter},"
        head = f"trace {self.seed}: {self.model}, {self.mode},{speculation} {sizes}"
        return "\n".join([head, *map(str, self.asks)])

    def config(self, folder: str = "", **changed: Any) -> g.EngineConfig:
        """What `changed` names is not the trace's. folder: for blocks on disk, if it has any."""
        how: dict[str, Any] = {"batch_invariant": True, **self.sizes, **changed}
        how["forbid_sync"] = self.seed % 4 == 0  # it takes its time, and other tests have it
        if how["enable_prefix_caching"] and how.get("cache_bytes"):
            how["cache_dir"] = folder
        if "step_time_budget_ms" in how:
            how["cost_model"] = COSTS
        if self.mode != "off":
            times = {"step_time": lambda rows: 10.0 + rows} if self.mode == "budgeted" else {}
            drafter = model(self.drafter)
            how["speculation"] = g.Speculation(self.mode, self.num_drafts, drafter, **times)
        return g.EngineConfig(**how)

    def ask(self, name: str) -> Ask:
        return next(ask for ask in self.asks if ask.name == name.split(".")[0])


# ---- how one is made ----


def make(seed: int, mode: str | None = None) -> Trace:
    """Trace number `seed`; `mode` for one of speculation's alone."""
    dice = random.Random(seed)
    chosen = dice.choice(["off", "off", "off", "fixed", "fixed", "budgeted"])
    mode = mode or chosen
    num_drafts = dice.choice([1, 2, 4])
    block_size = dice.choice([2, 3, 4, 8])
    room = dice.choice([dice.randint(20, 47), *(dice.randint(48, 70) for _ in range(3)), 250])
    least = 1 if mode == "off" else 1 + num_drafts
    sizes = {
        "num_blocks": -(-room // block_size),
        "block_size": block_size,
        "max_num_batched_tokens": max(least, dice.choice([3, 5, 8, 17, 64, 64])),
        "max_num_seqs": dice.choice([1, 2, 4, 8, 16]),
        "enable_prefix_caching": dice.random() < 0.6,
    }
    if sizes["enable_prefix_caching"] and dice.random() < 0.3:
        sizes["cache_bytes"] = 1 << 20  # and a folder of its own, while it is played
    kinds = ["plain", "plain", "plain", "window", "window"]
    which = dice.choice(kinds if mode == "budgeted" else [*kinds, "faulty"])
    drafter = dice.choice(["near", "near", "other"])
    longest = min(CONTEXT - 1, sizes["num_blocks"] * block_size)
    beginnings = [[dice.choice(LIKELY) for _ in range(CONTEXT)] for _ in range(2)]
    asks = tuple(
        _ask(str(i), dice, beginnings, longest, mode) for i in range(dice.choice([2, 3, 4, 5]))
    )
    if dice.random() < 0.15:
        sizes["step_time_budget_ms"] = dice.choice([2.0, 6.0])  # of COSTS
    return Trace(seed, which, mode, num_drafts, drafter, sizes, asks)


def _ask(name: str, dice: random.Random, beginnings: list, longest: int, mode: str) -> Ask:
    shared = dice.choice(beginnings)[: dice.choice([0, 8, 16, 16])]
    own = [dice.randrange(VOCAB) for _ in range(dice.choice([1, 1, 2, 3, 6, 12, 30]))]
    prompt = tuple((shared + own)[-longest:])
    params = _params(dice, mode)
    abort = dice.choice([None, None, None, -dice.randrange(12), dice.randint(1, 12)])
    forks = _forks(dice, params["seed"]) if params["n"] == 1 else []
    salt = dice.choice(["", "", "", "a"])
    return Ask(name, dice.choice([0, 0, 0, dice.randrange(20)]), prompt, params, salt, abort,
               tuple(forks))  # fmt: skip


def _forks(dice: random.Random, seed: int) -> list[Fork]:
    """Up to two; the seed that the engine chooses tells how many came before it."""
    forks = []
    for _ in range(dice.choice([0, 0, 1, 2])):
        beyond = dice.choice([None, None, dice.randint(1, 6)])
        timed = Fork(-dice.randrange(10), seed, beyond)
        counted = Fork(dice.randint(1, 9), dice.choice([None, None, dice.randrange(99)]), beyond)
        forks.append(dice.choice([timed, counted]))
    if any(fork.at <= 0 for fork in forks):
        forks = [replace(fork, seed=5) if fork.seed is None else fork for fork in forks]
    return forks


def _params(dice: random.Random, mode: str) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_tokens": dice.choice([*(dice.randint(1, 20) for _ in range(6)), 99]),
        "temperature": dice.choice([0, 0.7, 1.0, 1.0, 1.6]) if mode != "budgeted" else 0,
        "seed": dice.choice([dice.randrange(4), dice.randrange(2**64)]),
        "n": dice.choice([1, 1, 1, 1, 2, 3]),
    }  # fmt: skip
    some: dict[str, list] = {
        "top_k": [0, 0, 3, 20],
        "top_p": [1.0, 1.0, 0.9, 0.5],
        "stop": [(), (), ("c",), ("ab", "eh"), (HEART, ". "), ("a", "bcd")],
        "stop_token_ids": [(), (), (), (), (ord("d"), UNTHINK)],
        "ignore_eos": [False, True],
        "logprobs": [None, None, None, 0, 3, 2 * VOCAB],
        "grammar": [None] * 8 + list(GRAMMARS),
    }
    drawn = {name: dice.choice(values) for name, values in some.items()}
    return params | {name: value for name, value in drawn.items() if value not in (None, 0, 1.0, ())
                     or (name == "logprobs" and value == 0)}  # fmt: skip


# ---- how one is played ----

Key = tuple[str, int]  # the request's name (a fork: "3.0"), the sample


@dataclass
class Final:
    """All that an engine says of one sample that has ended, but for what its cache had."""

    prompt: list[int]
    token_ids: list[int]
    finish_reason: str
    message: str | None
    text: str
    reasoning: str
    calls: list
    seed: int
    logprobs: list | None

    @classmethod
    def of(cls, o: g.RequestOutput) -> Final:
        assert o.finish_reason is not None
        return cls(o.prompt_token_ids, o.token_ids, o.finish_reason, o.message, o.text, o.reasoning,
                   o.tool_calls, o.seed, o.logprobs)  # fmt: skip

    @property
    def was_aborted(self) -> bool:
        return self.finish_reason == "abort"


@dataclass
class Life:
    """A request under way: when it came, what it began with, and what is still to befall it."""

    name: str
    request_id: int
    since: int
    samples: int
    given: int = 0
    abort: int | None = None
    forks: list[tuple[str, Fork]] = field(default_factory=list)


@dataclass
class Played:
    """What came of a trace: final outputs, and of each sample the lengths that it showed."""

    engine: Any
    final: dict[Key, Final] = field(default_factory=dict)
    shown: dict[Key, list[int]] = field(default_factory=dict)


class Player:
    """Plays one trace with one engine, and proves after each step what must be true of any."""

    def __init__(self, trace: Trace, engine: Any, watch: Callable[[Any], None] | None) -> None:
        self.trace, self.engine, self.watch = trace, engine, watch
        self.played = Played(engine)
        self.lives: dict[int, Life] = {}  # unfinished, by request id
        self.texts: dict[Key, tuple[list[int], str]] = {}  # as shown last
        self.step = 0

    def play(self) -> Played:
        due = sorted(self.trace.asks, key=lambda ask: ask.step)
        while due or self.engine.has_unfinished:
            assert self.step < MOST_STEPS, "no end"
            while due and due[0].step <= self.step:
                self.add(due.pop(0))
            outputs = self.engine.step()
            self.step += 1
            for output in outputs:
                self.note(output)
            for life in list(self.lives.values()):
                self.act(life)
            self.engine.block_manager.check()
            if self.watch is not None:
                self.watch(self.engine)
        assert not self.lives, f"no end of {[life.name for life in self.lives.values()]}"
        assert self.engine.step() == []
        check_idle(self.engine)
        return self.played

    def add(self, ask: Ask) -> None:
        request_id = self.engine.add(list(ask.prompt), ask.sampling(), cache_salt=ask.salt)
        forks = [(f"{ask.name}.{i}", fork) for i, fork in enumerate(ask.forks)]
        n = ask.params["n"]
        life = Life(ask.name, request_id, self.step, n, 0, ask.abort, forks)
        self.lives[request_id] = life
        self.act(life)

    def note(self, output: g.RequestOutput) -> None:
        """An output: it goes on from the one before it, and may be what an act waits for."""
        life = self.lives[output.request_id]
        key = life.name, output.sample_index
        assert key not in self.played.final, f"{key} goes on after its end"
        before, text = self.texts.get(key, ([], ""))
        assert output.token_ids[: len(before)] == before, f"{key}: tokens were taken back"
        assert output.text.startswith(text), f"{key}: text was taken back"
        self.texts[key] = output.token_ids, output.text
        if len(output.token_ids) > max(len(before), life.given):
            self.played.shown.setdefault(key, []).append(len(output.token_ids))
        if output.finish_reason is not None:
            self.played.final[key] = Final.of(output)
            ended = [i for i in range(life.samples) if (life.name, i) in self.played.final]
            if len(ended) == life.samples:
                del self.lives[output.request_id]

    def act(self, life: Life) -> None:
        """Forks, then the abort, of those that are due."""
        for name, fork in list(life.forks):
            if life.request_id in self.lives and self.is_due(life, fork.at):
                life.forks.remove((name, fork))
                child = self.engine.fork(life.request_id, seed=fork.seed)
                given = len(self.texts.get((life.name, 0), ([], ""))[0])
                self.lives[child] = Life(name, child, self.step, 1, given, fork.abort)
        if life.abort is not None and life.request_id in self.lives:
            if self.is_due(life, life.abort):
                for output in self.engine.abort(life.request_id):
                    self.note(output)
                assert life.request_id not in self.lives, "some samples live on after an abort"

    def is_due(self, life: Life, at: int) -> bool:
        if at <= 0:
            return self.step - life.since >= -at
        return len(self.texts.get((life.name, 0), ([], ""))[0]) >= life.given + at


def check_idle(engine: Any) -> None:
    """Nothing is left, and every block is free."""
    engine.block_manager.check()
    assert not engine.has_unfinished and not engine._requests and not engine._unreported
    scheduler, manager = engine.scheduler, engine.block_manager
    assert not (scheduler.waiting or scheduler.running or scheduler._parked)
    assert not (scheduler.failed or scheduler.preempted or len(engine.waiting_room))
    assert not manager.tables and manager.num_free == manager.num_blocks


_trials: dict[int, dict] = {}


def draft_model(config: Any, weights: Any, *how: Any) -> DraftModel:
    """With the trial of the invariant mode that an earlier one made: it takes longer than a trace.
    The weights are those of `model`, which live on."""
    made = DraftModel(config, weights, *how)
    made.trials = _trials.setdefault(id(weights), {})
    return made


def new_engine(kind: Callable[..., Any], lm: g.LanguageModel, config: g.EngineConfig) -> Any:
    with patch.object(parts, "DraftModel", draft_model):
        return kind(lm, config)


def play(
    trace: Trace,
    kind: Callable[..., Any] = g.Engine,
    watch: Callable[[Any], None] | None = None,
    **changed: Any,
) -> Played:
    """Play `trace` with an engine of `kind`. watch: called with it after each step; changed: what
    of the engine's sizes is not the trace's."""
    with TemporaryDirectory() as folder:
        engine = new_engine(kind, model(trace.model), trace.config(folder, **changed))
        try:
            return Player(trace, engine, watch).play()
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\nin {trace}") from error
        finally:
            getattr(engine, "close", lambda: None)()


# ---- how two are compared ----


def differences(trace: Trace, one: Played, other: Played) -> Iterator[str]:
    """What is not as the rules say."""
    for key in sorted(one.final.keys() | other.final.keys()):
        a, b = one.final.get(key), other.final.get(key)
        if a is None or b is None:
            if not _may_be_missing(trace, key):
                yield f"{key} is missing in one of them"
        elif not (a.was_aborted or b.was_aborted) or not _aborts_anywhere(trace, key):
            yield from _unequal(key, a, b)
            shown = one.shown.get(key), other.shown.get(key)
            if trace.mode != "budgeted" and "." not in key[0] and shown[0] != shown[1]:
                yield f"{key} was shown with {shown[0]} and with {shown[1]} tokens"
        else:
            yield from _unequal_beginnings(key, a, b)
    for played in (one, other):
        yield from _short_aborts(trace, played)
        yield from _unlike_twins(trace, played)


def _unequal(key: Key, a: Final, b: Final) -> Iterator[str]:
    for name in Final.__dataclass_fields__:
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            yield f"{key} {name}: {ours!r}\n      and {theirs!r}"


def _unequal_beginnings(key: Key, a: Final, b: Final) -> Iterator[str]:
    """Whoever was aborted has the beginning of what the other one has."""
    short, long = sorted((a, b), key=lambda final: (len(final.token_ids), not final.was_aborted))
    if not short.was_aborted:
        yield f"{key} was aborted with more than all of its tokens: {a.token_ids} {b.token_ids}"
    count = len(short.token_ids)
    if (short.prompt, short.seed) != (long.prompt, long.seed):
        yield f"{key} has another prompt or seed"
    if short.token_ids != long.token_ids[:count]:
        yield f"{key} begins with {short.token_ids}\n      and with {long.token_ids[:count]}"
    if (short.logprobs is None) != (long.logprobs is None) or (
        short.logprobs is not None and short.logprobs != long.logprobs[:count]
    ):
        yield f"{key} begins with other log-probabilities"


def _fork(trace: Trace, name: str) -> Fork | None:
    """What made the request of that name; None for one that was added."""
    _, _, index = name.partition(".")
    return trace.ask(name).forks[int(index)] if index else None


def _aborts_anywhere(trace: Trace, key: Key) -> bool:
    """Whether it may be aborted at different points (rules 3 and 5)."""
    fork = _fork(trace, key[0])
    if fork is not None:
        return fork.abort is not None and (fork.at <= 0 or trace.mode == "budgeted")
    abort = trace.ask(key[0]).abort
    return abort is not None and (abort <= 0 or key[1] > 0 or trace.mode == "budgeted")


def _may_be_missing(trace: Trace, key: Key) -> bool:
    """Whether a fork may not come about, since its parent has ended or was aborted (rule 4)."""
    fork, abort = _fork(trace, key[0]), trace.ask(key[0]).abort
    if fork is None:
        return False
    return fork.at <= 0 or trace.mode == "budgeted" or (abort is not None and abort <= 0)


def _short_aborts(trace: Trace, played: Played) -> Iterator[str]:
    """Who is aborted at k > 0 has k tokens (rule 2)."""
    for ask in trace.asks:
        final = played.final.get((ask.name, 0))
        if final and final.was_aborted and ask.abort and len(final.token_ids) < ask.abort:
            yield f"{ask.name} was aborted before it had {ask.abort} tokens: {final.token_ids}"


def _unlike_twins(trace: Trace, played: Played) -> Iterator[str]:
    """A fork with its parent's seed is its parent (rule 4)."""
    for (name, sample), final in played.final.items():
        fork = _fork(trace, name)
        if fork is None or fork.seed != trace.ask(name).params["seed"]:
            continue
        parent = played.final.get((trace.ask(name).name, sample))
        if parent and not (final.was_aborted or parent.was_aborted):
            yield from _unequal((name, sample), parent, final)


def assert_equal(trace: Trace, one: Played, other: Played) -> None:
    found = list(differences(trace, one, other))
    assert not found, "\n".join([*found, str(trace)])


# ---- the log of an overlapped engine ----


def check_order(events: Any) -> float:
    """Prove the order that the log of every AsyncEngine keeps; the share of steps that were
    launched before the one before them was processed."""
    lanes: dict[str, list] = {"CPU": [], "device": []}
    spans: dict[tuple[str, int], Any] = {}  # a phase of a step; the last, where it was begun anew
    for event in events:
        assert event.start_ms <= event.end_ms
        if (event.lane, event.phase) != ("device", "wait"):  # within the draft, or the sampling
            lanes[event.lane].append(event)
        spans[f"{event.lane} {event.phase}", event.step] = event
    for lane in lanes.values():
        ordered = sorted(lane, key=lambda event: event.start_ms)
        for one, other in zip(ordered, ordered[1:], strict=False):
            assert one.end_ms <= other.start_ms, f"{one} runs into {other}"
    steps = sorted(step for phase, step in spans if phase == "CPU launch")
    chain = ["CPU schedule", "CPU launch", "device draft", "device forward", "device sample"]
    for step in steps:
        mine = [spans[phase, step] for phase in chain if (phase, step) in spans]
        mine += [spans["CPU process", step]] if ("CPU process", step) in spans else []
        for one, other in zip(mine, mine[1:], strict=False):
            launched = one.phase == "launch"  # the device may begin while it is still noted
            assert (one.start_ms if launched else one.end_ms) <= other.start_ms, f"{one} {other}"
    pairs = list(zip(steps, steps[1:], strict=False))  # a step with nothing to run is not launched
    return sum(_follows(spans, n, after) for n, after in pairs) / max(1, len(pairs))


def _follows(spans: dict[tuple[str, int], Any], n: int, after: int) -> bool:
    """Whether two steps in a row stand as they must; True if they overlapped."""
    sampled, waited = spans.get(("device sample", n)), spans.get(("device wait", after))
    first = spans.get(("device draft", after)) or spans.get(("device forward", after))
    if sampled is not None and first is not None:
        assert sampled.end_ms <= first.start_ms, f"{first} did not wait for {sampled}"
    processed = spans["CPU process", n]
    if waited is not None:
        assert waited.end_ms >= processed.end_ms, f"{waited} did not wait for {processed}"
    launched, scheduled = spans["CPU launch", after], spans["CPU schedule", after]
    if launched.end_ms <= processed.start_ms:
        return True
    assert scheduled.start_ms >= processed.end_ms, f"{launched} came within {processed}"
    return False


# ---- by hand ----


def shrunk(trace: Trace, differs: Callable[[Trace], bool]) -> Trace:
    """A smaller trace that differs still: without some requests, forks and aborts."""
    again = True
    while again:
        again = False
        for smaller in _smaller(trace):
            if differs(smaller):
                trace, again = smaller, True
                break
    return trace


def _smaller(trace: Trace) -> Iterator[Trace]:
    for i, ask in enumerate(trace.asks):
        before, after = trace.asks[:i], trace.asks[i + 1 :]
        if before or after:
            yield replace(trace, asks=before + after)
        for one in _simpler(ask):
            yield replace(trace, asks=(*before, one, *after))


def _simpler(ask: Ask) -> Iterator[Ask]:
    for i in range(len(ask.forks)):
        yield replace(ask, forks=ask.forks[:i] + ask.forks[i + 1 :])
    if ask.abort is not None:
        yield replace(ask, abort=None)
    if ask.step:
        yield replace(ask, step=0)
    if ask.params["n"] > 1:
        yield replace(ask, params={**ask.params, "n": ask.params["n"] - 1})
    for name in ask.params.keys() - {"n", "seed", "max_tokens", "temperature"}:
        yield replace(ask, params={k: v for k, v in ask.params.items() if k != name})
    if ask.params["max_tokens"] > 1:
        yield replace(ask, params={**ask.params, "max_tokens": ask.params["max_tokens"] - 1})
    if len(ask.prompt) > 1:
        yield replace(ask, prompt=ask.prompt[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Play a random trace by hand.")
    parser.add_argument("seed", type=int, nargs="+")
    parser.add_argument("--mode", choices=["off", "fixed", "budgeted"])
    parser.add_argument("--asynchronous", action="store_true", help="and with AsyncEngine")
    parser.add_argument("--shrink", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)

    def problem(trace: Trace) -> str | None:
        try:
            one = play(trace)
            assert_equal(trace, one, play(trace, g.AsyncEngine) if args.asynchronous else one)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    for trace in (make(seed, args.mode) for seed in args.seed):
        found = problem(trace)
        if found and args.shrink:
            trace = shrunk(trace, lambda smaller: problem(smaller) is not None)
            found = problem(trace)
        if found is None:
            print(trace)
            for key, final in sorted(play(trace).final.items()):
                print("  ", key, final.finish_reason, final.message, final.token_ids)
        else:
            print(found)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
