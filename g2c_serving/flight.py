"""A step on its way to the device and back: what it takes along, and how it meets the last one.

It is computed on snapshots, since the requests themselves move on meanwhile. A request that was in
the step before has a token to come, or with drafts several. Without drafts only the token is
missing: where it goes is known, and it is put there from one tensor into the other, so that nobody
has to read it (`fill`). With drafts it is not known how many stand, and on that hangs where the
next rows lie; a GPU engine works it out in device memory, and here the device's thread reads the
verdict (`catch_up`). Brief, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import torch

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.launches import Step
from g2c_serving.on_device import on_device
from g2c_serving.page_calls import Calls
from g2c_serving.sample.grammar import GrammarState
from g2c_serving.sampling import Draws, Sampled
from g2c_serving.schedule.scheduled import Scheduled

States = dict[int, GrammarState | None]  # by sequence id


@dataclass
class Flight:
    """A launched step.

    launched   its rows, with the requests themselves; `step.scheduled` has snapshots of them
    calls      what is to be done to the pages before it
    before     the step before, if that was still on its way at the launch; what is to be filled in
               from it, once the device has come to this one
    grammars   how far the requests are in their grammars once that one is processed: handed over
               by the host then
    draws      what it drew, unread: for the next step; `read` is how the host gets it
    done       when the device is through with it
    """

    step: Step
    launched: list[Scheduled]
    calls: Calls
    before: Flight | None
    to_fill_in: Draws | None = None
    handed_over: SimpleQueue[States] = field(default_factory=SimpleQueue)
    grammars: States | None = None
    draws: Draws | None = None
    read: Callable[[], Sampled] | None = None
    done: Future[None] = field(default_factory=Future)
    lost_pages: bool = False

    @classmethod
    def of(cls, step: Step, calls: Calls, before: Flight | None) -> Flight:
        """`step` with all that it needs from the host, as it is now."""
        flight = cls(step, step.scheduled, calls, before)
        step.scheduled = [replace(s, request=s.request.snapshot()) for s in flight.launched]
        ids = [s.request.sequence_id for s in flight.launched]
        step.tables = {i: list(step.tables[i]) for i in ids}
        step.record.is_overlapped = True
        return flight

    def hand_over_grammars(self) -> None:
        """The step before is processed, so the masks can be worked out."""
        family = [request for s in self.launched for request in s.request.family]
        self.handed_over.put({r.sequence_id: r.grammar and r.grammar.ahead() for r in family})

    def meet(self) -> None:
        """On the device, before the step is computed: leave out the rows of requests that end with
        the step before, since it failed; and with drafts take in what that has brought."""
        before, self.before = self.before, None  # or each would keep all that were before it
        if before is None:
            return
        self.to_fill_in = before.draws
        if before.step.error is not None:  # all that it had end, but for those preempted since
            ended = {(s.request.sequence_id, s.turn) for s in before.launched}
            rows = self.step.scheduled
            self.step.scheduled = [s for s in rows if (s.request.sequence_id, s.turn) not in ended]
        elif before.draws is None:
            self.step.scheduled = catch_up(self.step.scheduled, before.step.sampled)

    def land(self) -> None:
        """Back on the host: the rows stand for the requests themselves again."""
        if self.step.error is not None:
            self.step.scheduled = self.launched
            return
        live = {s.request.sequence_id: s.request for s in self.launched}
        self.step.scheduled = [
            replace(s, request=live[s.request.sequence_id]) for s in self.step.scheduled
        ]


def send(draws: Draws, device: str) -> Callable[[], Sampled]:
    """Let the host have what was drawn: how it reads that. On cuda (untested) a copy is queued, and
    the reader waits for that alone, not for what is launched after it."""
    if device != "cuda":
        return draws.read
    on_host, is_sent = Draws([piece.to_host() for piece in draws.pieces]), torch.cuda.Event()
    is_sent.record()

    def read() -> Sampled:
        is_sent.synchronize()
        return on_host.read()

    return read


def catch_up(scheduled: Sequence[Scheduled], sampled: Sampled) -> list[Scheduled]:
    """The rows where they lie, now that it is known what the step before has brought. Requests that
    it has ended for certain, by a fault or at their most tokens, have no row any more."""
    found = []
    for s in scheduled:
        request = s.request
        if request.num_pending:
            tokens = [token for token, _ in sampled[request.sequence_id]]
            s = replace(s, num_computed=s.num_computed - (request.num_pending - len(tokens)))
            request.token_ids += tokens
            request.num_pending = 0
            if tokens[-1] < 0 or len(request.token_ids) >= request.most_tokens:
                continue
        found.append(s)
    return found


def fill(batch: ForwardBatch, scheduled: Sequence[Scheduled], draws: Draws) -> ForwardBatch:
    """The batch with the tokens of the step before in their places, straight from what it drew.
    One that is no token (a fault) ends its request when it is read; until then any will do."""
    waiting = [i for i, s in enumerate(scheduled) if s.request.num_pending]
    if not waiting:
        return batch
    requests = [request for piece in draws.pieces for request in piece.requests]
    index = {request.sequence_id: i for i, request in enumerate(requests)}
    places = [batch.query_start[i + 1] - 1 for i in waiting]
    sources = [index[scheduled[i].request.sequence_id] for i in waiting]
    at, of = (on_device(a, batch.token_ids.device) for a in (places, sources))
    drawn = torch.cat([piece.tokens[:, 0] for piece in draws.pieces])
    token_ids = batch.token_ids.index_copy(0, at, drawn[of].clamp(min=0))
    return replace(batch, token_ids=token_ids)
