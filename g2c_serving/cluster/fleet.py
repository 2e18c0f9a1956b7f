"""Several engines behind one face: who serves which request, and what the user was told of it.

A user sees one request id and one stream of outputs, whichever engines the request has been on. For
each request the fleet keeps a ticket: what it was when it came, and the last output of each sample.
Whoever holds the ticket can let any engine go on with the request (`handover.Handover.after`): what
was told stays, and what was computed but never told is drawn again, the same.

`failover.py` and `two_pools.py` move requests by it. Left out: threads and machines. All engines
are in this process, and `step` lets each of them take a step in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from g2c_serving.cluster.handover import Handover, admit, export
from g2c_serving.engine import Engine
from g2c_serving.intake import AnyPrompt
from g2c_serving.request import RequestOutput, SamplingParams


class Note(NamedTuple):
    """What happened to a request, or to an engine (request_id None): begins, moves, stays, waits,
    restarts; stops, leaves, dies. `step` counts the fleet's steps."""

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
    """Engines by name, all of one model. ValueError without any."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        if not engines:
            raise ValueError("engines={} is empty: give a fleet at least one engine")
        self.engines = dict(engines)
        self.tickets: dict[int, Ticket] = {}  # of unfinished requests, by the fleet's request id
        self.log: list[Note] = []
        self.steps = 0
        self._ids: dict[tuple[str, int], int] = {}  # engine and request id there -> the fleet's
        self._next_id = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.tickets)

    def add(
        self, prompt: AnyPrompt, params: SamplingParams | None = None, cache_salt: str = "",
        traffic: str = "chat",
    ) -> int:  # fmt: skip
        """Queue a prompt with the engine that has fewest requests; a request id of the fleet.
        RuntimeError if no engine takes requests; else as `Engine.add`."""
        names = self._candidates()
        if not names:
            raise RuntimeError("no engine takes requests: attach one")
        engine = self.engines[names[0]]
        local_id = engine.add(prompt, params, cache_salt, traffic)
        request_id = self._next_id
        self._next_id += 1
        ticket = Ticket(None, local_id, export(engine, local_id, pages=False))
        self.tickets[request_id] = ticket
        self._settle_in(request_id, names[0], local_id, "begins")
        return request_id

    def attach(self, name: str, engine: Engine) -> None:
        """One more engine. ValueError for a name that is taken."""
        if name in self.engines:
            raise ValueError(f"name={name!r} is taken: the fleet has {', '.join(self.engines)}")
        self.engines[name] = engine

    def where(self, request_id: int) -> str | None:
        """The engine that has an unfinished request; None while it waits for one. KeyError for one
        that has ended."""
        return self.tickets[request_id].engine

    def on(self, name: str) -> list[int]:
        """The unfinished requests of an engine."""
        return [i for i, ticket in self.tickets.items() if ticket.engine == name]

    def step(self) -> list[RequestOutput]:
        """A step of each engine that has work; the outputs, under the fleet's request ids."""
        outputs = []
        for name in list(self.engines):
            if name in self.engines and self.engines[name].has_unfinished:
                outputs += self._told(name, self.engines[name].step())
        self.steps += 1
        return outputs

    # for those that move requests

    def move(self, request_id: int, to: str) -> bool:
        """Hand a request over with its cache. False, and it stays, if `to` could never run it. The
        source lets go of it only once it is at the target. Call `settle` first."""
        ticket = self.tickets[request_id]
        assert ticket.engine is not None
        source, local_id = self.engines[ticket.engine], ticket.local_id
        handover = export(source, local_id)
        moved = self._admit(to, handover)
        if moved is not None:
            self._settle_in(request_id, to, moved, "moves", handover.num_bytes)
            source.let_go(local_id)
        return moved is not None

    def settle(self, name: str) -> list[RequestOutput]:
        """Let the requests of an engine stand still; the outputs that came of it."""
        return self._told(name, self.engines[name].settle())

    def _admit(self, name: str, handover: Handover) -> int | None:
        """The request id at an engine that takes the request; None if it could never run there."""
        try:
            return admit(self.engines[name], handover)
        except ValueError:
            return None

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

    def _told(self, name: str, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """The outputs of an engine as the user gets them."""
        found = []
        for out in outputs:
            request_id = self._ids.get((name, out.request_id))
            if request_id is None:
                continue  # added to the engine behind the fleet's back
            ticket = self.tickets[request_id]
            out.request_id = request_id
            ticket.outputs[out.sample_index] = out
            found.append(out)
            if ticket.is_over:
                del self.tickets[request_id], self._ids[name, ticket.local_id]
        return found

    def note(
        self, what: str, request_id: int | None, engine: str | None, num_tokens: int = 0,
        num_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.log.append(Note(self.steps, what, request_id, engine, num_tokens, num_bytes))
