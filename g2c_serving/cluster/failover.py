"""An engine is asked to stop, or dies: its requests go on elsewhere, and no token is lost.

Asked to stop, it takes no new requests and has a grace period in which those that are nearly done
may end. Then it forwards the others with their caches (`fleet.Fleet.move`), nothing is computed
again, and it leaves. Where nobody could ever run one of them, the engine stays until it has ended.

Dead, from one moment to the next, it forwards nothing: its caches are gone. But the fleet knows the
tokens that each user was told, and the seed; another engine computes those again and goes on. A
request that no engine which is left could run ends with an error.

Brief, "Fault tolerance and autoscaling", Reported: "a decode engine being shut down gets a
one-minute grace period, then forwards its unfinished requests and their caches to other engines".
What happens after a crash is not disclosed; here it is what the seeds allow. Left out: engines that
are found dead by their silence; a step that fails in an engine which lives on (its requests end
with that error); and autoscaling, which is `attach` and `stop` at the right time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from g2c_serving.checks import as_number
from g2c_serving.cluster.fleet import Fleet
from g2c_serving.cluster.likeness import pool_tokens
from g2c_serving.engine import Engine
from g2c_serving.output import RequestOutput

logger = logging.getLogger(__name__)

GRACE_S = 60.0  # Reported


class Failover(Fleet):
    """A fleet whose engines may stop and die. `now` tells the time in seconds."""

    def __init__(
        self, engines: Mapping[str, Engine], now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(engines)
        self.now = now
        self.stopping: dict[str, float] = {}  # by name: when the grace period ends
        self.dead: dict[str, str] = {}  # by name: what it died of
        self._staying: set[int] = set()  # requests that nobody else can run

    def stop(self, name: str, grace_s: float = GRACE_S) -> None:
        """Ask an engine to stop. Asked twice, it stops at the earlier time. KeyError for no such
        engine, ValueError for a negative time."""
        grace_s = as_number("grace_s", grace_s)
        if grace_s < 0:
            raise ValueError(f"grace_s={grace_s} must be 0 seconds or more")
        if name not in self.engines:
            raise KeyError(f"name {name!r} is no engine here: {', '.join(self.engines) or 'none'}")
        end = self.now() + grace_s
        self.stopping[name] = min(end, self.stopping.get(name, end))
        self.note("stops", None, name)

    def step(self) -> list[RequestOutput]:
        """Engines whose grace is over forward what they have; then each takes a step. An engine
        that raises is taken for dead. RuntimeError if requests wait, no engine is left, and there
        is nothing to tell."""
        for name in [name for name, end in self.stopping.items() if self.now() >= end]:
            self._guarded(name, self._forward)
        for name in list(self.engines):
            self._guarded(name, self._step_of)
        for name in list(self.stopping):
            if not self.on(name):
                self._leave(name, "leaves")
        self._place_the_homeless()
        return self._tell()

    def _guarded(self, name: str, do: Callable[[str], None]) -> None:
        if name not in self.engines:
            return
        try:
            do(name)
        except Exception as err:
            self._bury(name, err)

    # asked to stop

    def _forward(self, name: str) -> None:
        """Hand over all that an engine has. What nobody can run stays."""
        self.settle(name)
        for request_id in self.on(name):
            moved = any(self.move(request_id, to) for to in self._candidates())
            if not moved and request_id not in self._staying:
                self._staying.add(request_id)
                self.note("stays", request_id, name, self.tickets[request_id].num_tokens)

    def _ask(self, name: str, question: Callable[[Engine], int]) -> int | None:
        """A target that dies of it has not taken the request."""
        try:
            return super()._ask(name, question) if name in self.engines else None
        except Exception as err:
            self._bury(name, err)
            return None

    def _candidates(self) -> list[str]:
        return [name for name in super()._candidates() if name not in self.stopping]

    # dead

    def _bury(self, name: str, err: Exception) -> None:
        logger.info("engine %s is dead", name, exc_info=err)
        self.dead[name] = f"{type(err).__name__}: {err}"
        for request_id in self.on(name):
            ticket = self.tickets[request_id]
            del self._ids[name, ticket.local_id]
            ticket.engine = None
            self.note("waits", request_id, None, ticket.num_tokens)
        self._leave(name, "dies")

    def _leave(self, name: str, how: str) -> None:
        self.stopping.pop(name, None)
        del self.engines[name]
        self.note(how, None, name)

    def _place_the_homeless(self) -> None:
        """Requests without an engine go on from their tickets, where there is one for them."""
        homeless = [i for i, ticket in self.tickets.items() if ticket.engine is None]
        if homeless and not self.engines and not self._untold:
            raise RuntimeError(
                f"{len(homeless)} requests wait and no engine is left: attach one; none of their "
                "tokens is lost"
            )
        for request_id in homeless:
            for name in self._candidates():
                local_id = self._admit(name, self.tickets[request_id].now())
                if local_id is not None:
                    self._settle_in(request_id, name, local_id, "restarts")
                    break
            else:
                if self._candidates():  # they live, and all of them refuse
                    self._fail(request_id)

    def _fail(self, request_id: int) -> None:
        """End a request that nobody can run."""
        ticket = self.tickets.pop(request_id)
        pools = {name: pool_tokens(self.engines[name]) for name in self._candidates()}
        held = ", ".join(f"{name} holds {tokens}" for name, tokens in pools.items())
        message = (
            f"the request's engine died, and it may need {ticket.handover.room} tokens: {held}. "
            "Attach an engine with more blocks (EngineConfig.num_blocks), and add it again"
        )
        tokenizer = self.engines[next(iter(pools))].lm.tokenizer
        for request in ticket.now().requests():
            request.request_id = request_id
            request.finish("error", message)
            self._untold.append(RequestOutput(request, tokenizer))
        self.note("fails", request_id, None, ticket.num_tokens)
