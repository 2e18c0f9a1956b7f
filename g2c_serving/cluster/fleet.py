"""Several engines behind one face: who serves which request, and what the user was told of it.

A user sees one request id and one stream of outputs, whichever engines the request has been on. For
each request the fleet keeps a ticket: what it was when it came, and the last output of each sample.
Whoever holds the ticket can let any engine go on with the request (`parcel.Handover.after`): what
was told stays, and what was computed but never told is drawn again, the same.

`failover.py` and `two_pools.py` move requests by it. What an engine has said is noted before
anything else is done, so an error on the way delays an output and loses none. Left out: abort and
fork of a fleet's requests, threads and machines. All engines are in this process, and `step` lets
each of them take a step in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from g2c_serving.cluster.handover import admit, check, export
from g2c_serving.cluster.likeness import draws, num_drafts, pool_tokens
from g2c_serving.cluster.parcel import Handover, parcel
from g2c_serving.engine import Engine
from g2c_serving.intake import AnyPrompt, encode_prompt
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams


class Note(NamedTuple):
    """What happened to a request, or to an engine (request_id None): begins, moves, stays, waits,
    restarts, fails; stops, leaves, dies. `step` counts the fleet's steps."""

    step: int
    what: str
    request_id: int | None
    engine: str | None
    num_tokens: int = 0  # that it had generated
    num_bytes: int = 0  # of its pages, if it took them along


@dataclass
class Ticket:
    """A request that is unfinished. `engine` None: no engine has it, and it waits for one."""

    engine: str | None
    local_id: int
    handover: Handover
    outputs: dict[int, RequestOutput] = field(default_factory=dict)

    def now(self) -> Handover:
        """The request as the user knows it, without pages."""
        return self.handover.after(self.outputs)

    @property
    def num_tokens(self) -> int:
        """Tokens that the user was told of, of all samples."""
        return sum(len(out.token_ids) for out in self.outputs.values())

    @property
    def is_over(self) -> bool:
        return len(self.outputs) == len(self.handover.samples) and all(
            out.finish_reason is not None for out in self.outputs.values()
        )


class Fleet:
    """Engines by name, all of one model, and alike in all that decides a draw
    (`likeness.draws`): else an answer would hang on where it is written. ValueError if they are
    not, without any, or for one engine under two names; TypeError for what is no engine.

    An AsyncEngine stays its owner's to close, also after it has left.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        if not engines:
            raise ValueError("engines={} is empty: give a fleet at least one engine")
        self.engines: dict[str, Engine] = {}
        self._kind: tuple[str, str] | None = None  # model and draws of all
        self.tickets: dict[int, Ticket] = {}  # of unfinished requests, by the fleet's request id
        self.log: list[Note] = []
        self.steps = 0
        self._ids: dict[tuple[str, int], int] = {}  # engine and request id there -> the fleet's
        self._untold: list[RequestOutput] = []  # for the next return of `step`
        self._next_id = 0
        for name, engine in engines.items():
            self.attach(name, engine)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.tickets or self._untold)

    def add(
        self, prompt: AnyPrompt, params: SamplingParams | None = None, cache_salt: str = "",
        traffic: str = "chat",
    ) -> int:  # fmt: skip
        """Queue a prompt with the engine that has fewest requests, of those whose pool holds it to
        its longest end; a request id of the fleet. RuntimeError if no engine takes requests; else
        as `Engine.add`."""
        names = self._candidates()
        if not names:
            raise RuntimeError("no engine takes requests: attach one")
        params = SamplingParams() if params is None else params
        lm = self.engines[names[0]].lm
        prompt = encode_prompt(lm.tokenizer, prompt, lm.config.max_seq_len)
        name = self._with_room(names, len(prompt), getattr(params, "max_tokens", 0))
        engine = self.engines[name]
        local_id = engine.add(prompt, params, cache_salt, traffic)
        request_id = self._next_id
        self._next_id += 1
        self.tickets[request_id] = Ticket(None, local_id, parcel(engine, local_id))
        self._settle_in(request_id, name, local_id, "begins")
        return request_id

    def attach(self, name: str, engine: Engine) -> None:
        """One more engine. ValueError for a name that is taken, else as for the fleet's first."""
        if not isinstance(engine, Engine):
            raise TypeError(f"engine {name!r} is {engine!r}: pass an Engine")
        if name in self.engines:
            raise ValueError(f"name={name!r} is taken: the fleet has {', '.join(self.engines)}")
        for other, one in self.engines.items():
            if one is engine:
                raise ValueError(f"engine {name!r} is {other!r} already: make one for each name")
        kind = engine.lm.fingerprint, draws(engine)
        self._kind = kind if self._kind is None else self._kind
        if kind[0] != self._kind[0]:
            raise ValueError(
                f"engine {name!r} serves {engine.lm.name!r}, other weights than the fleet: "
                "choose one model"
            )
        if kind[1] != self._kind[1]:
            raise ValueError(
                f"engine {name!r} draws with {kind[1]}, the fleet with {self._kind[1]}: answers "
                "would hang on the engine. Give all the same speculation, dtype, kv_cache_dtype "
                "and batch_invariant"
            )
        self.engines[name] = engine

    def on(self, name: str) -> list[int]:
        """The unfinished requests of an engine."""
        return [i for i, ticket in self.tickets.items() if ticket.engine == name]

    def step(self) -> list[RequestOutput]:
        """A step of each engine that has work; the outputs, under the fleet's request ids. If it
        raises, what was said before comes with the next call."""
        for name in list(self.engines):
            self._step_of(name)
        return self._tell()

    def _tell(self) -> list[RequestOutput]:
        """End the fleet's step: all that is to be told."""
        self.steps += 1
        outputs, self._untold = self._untold, []
        return outputs

    def _step_of(self, name: str) -> None:
        if self.engines[name].has_unfinished:
            self._take_in(name, self.engines[name].step())

    # for those that move requests

    def move(self, request_id: int, to: str) -> bool:
        """Hand a request over with its cache. False, and it stays, if `to` could never run it. The
        source lets go of it only once it is at the target. Call `settle` first."""
        ticket = self.tickets[request_id]
        assert ticket.engine is not None
        source, local_id = self.engines[ticket.engine], ticket.local_id
        bare = export(source, local_id, pages=False)
        if not self._ask(to, lambda target: check(target, bare)):
            return False
        handover = export(source, local_id)
        moved = self._admit(to, handover)
        if moved is not None:
            self._settle_in(request_id, to, moved, "moves", handover.num_bytes)
            source.let_go(local_id)
        return moved is not None

    def settle(self, name: str) -> None:
        """Let the requests of an engine stand still. What comes of it is told by `step`."""
        self._take_in(name, self.engines[name].settle())

    def _admit(self, name: str, handover: Handover) -> int | None:
        """The request id at an engine that takes the request; None if it could never run there."""
        return self._ask(name, lambda target: admit(target, handover))

    def _ask(self, name: str, question: Callable[[Engine], int]) -> int | None:
        """The answer of an engine; None for its ValueError."""
        try:
            return question(self.engines[name])
        except ValueError:
            return None

    def _with_room(self, names: list[str], prompt_tokens: int, max_tokens: int) -> str:
        """The first whose pool holds a request to its longest end; else the one of most blocks."""
        for name in names:
            engine = self.engines[name]
            most = min(prompt_tokens + max_tokens, engine.lm.config.max_seq_len)
            if most + num_drafts(engine) <= pool_tokens(engine):
                return name
        return max(names, key=lambda name: pool_tokens(self.engines[name]))

    def _candidates(self) -> list[str]:
        """The engines that take requests, the one with fewest first."""
        return sorted(self.engines, key=lambda name: len(self.on(name)))

    def _settle_in(
        self, request_id: int, name: str, local_id: int, what: str, num_bytes: int = 0
    ) -> None:
        ticket = self.tickets[request_id]
        if ticket.engine is not None:
            del self._ids[ticket.engine, ticket.local_id]
        ticket.engine, ticket.local_id = name, local_id
        self._ids[name, local_id] = request_id
        self.note(what, request_id, name, ticket.num_tokens, num_bytes)

    def _take_in(self, name: str, outputs: list[RequestOutput]) -> None:
        """Note the outputs of an engine, to be told as the user gets them."""
        for out in outputs:
            request_id = self._ids.get((name, out.request_id))
            if request_id is None:
                continue  # added to the engine behind the fleet's back
            ticket = self.tickets[request_id]
            out.request_id = request_id
            ticket.outputs[out.sample_index] = out
            self._untold.append(out)
            if ticket.is_over:
                del self.tickets[request_id], self._ids[name, ticket.local_id]

    def note(
        self, what: str, request_id: int | None, engine: str | None, num_tokens: int = 0,
        num_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.log.append(Note(self.steps, what, request_id, engine, num_tokens, num_bytes))
