"""A trace of requests, replayed against a server over the network: what its clients saw.

Every call is sent at its time, whatever the server does: a slow server gets its queue. A call that
follows another waits for that answer, thinks, and sends the whole conversation so far as text. Each
runs in a thread of its own, so one that fails or hangs holds up none but those that follow it.

Times are the client's, so the network and the client's own Python are in them: against a server on
another continent look at the gaps, not at the first token. Measured where you run it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.day import Visit
from g2c_serving.lab.day_result import Target
from g2c_serving.lab.openai_client import Reply, Server
from g2c_serving.lab.table import Table

NOT_SENT = "not sent: the one that it follows failed"


@dataclass(frozen=True)
class Call:
    """One request of a trace.

    arrival  seconds: from the start, or from the end of the answer that it follows
    prompt   its text, or what it adds to that conversation
    follows  the place in the trace of the call that it follows, which stands before it
    """

    arrival: float
    prompt: str
    max_tokens: int
    follows: int | None = None


@dataclass(frozen=True)
class Sent:
    """A call as it went: when it was sent, in seconds from the start, and what came of it."""

    call: Call
    at: float
    prompt: str
    reply: Reply

    @property
    def ok(self) -> bool:
        return self.reply.error is None

    @property
    def first_token(self) -> float:
        """Seconds to the first piece; without one, to the end."""
        return self.reply.times[0] if self.reply.times else self.reply.ended

    @property
    def per_token(self) -> float:
        """Seconds for each further token, on average."""
        times = self.reply.times
        return (times[-1] - times[0]) / max(self.reply.tokens - 1, 1) if times else 0.0


@dataclass(frozen=True)
class Replayed:
    """A trace as it went, in the trace's order; seconds. A number that nobody gives is nan."""

    sent: list[Sent]

    @property
    def answered(self) -> list[Sent]:
        return [one for one in self.sent if one.ok]

    @property
    def failures(self) -> Counter[str]:
        return Counter(str(one.reply.error) for one in self.sent if not one.ok)

    @property
    def tokens(self) -> int:
        return sum(one.reply.tokens for one in self.answered)

    @property
    def duration(self) -> float:
        """From the first call to the end of the last answer."""
        if not self.answered:
            return float("nan")
        first = min(one.at for one in self.sent)
        return max(one.at + one.reply.ended for one in self.answered) - first

    @property
    def per_s(self) -> float:
        """Tokens of answers a second."""
        return self.tokens / self.duration

    def goodput(self, target: Target) -> float:
        """The same, of those alone who got what they should (`day_result.Target`)."""
        return sum(s.reply.tokens for s in self.answered if target.is_met(s)) / self.duration

    def share_met(self, target: Target) -> float:
        """Of all calls: one that failed did not get what it should."""
        return sum(target.is_met(one) for one in self.answered) / len(self.sent)

    def first_token(self, percent: float) -> float:
        return _percentile([one.first_token for one in self.answered], percent)

    def gap(self, percent: float) -> float:
        """Time between two pieces of one answer."""
        gaps = [g for one in self.answered for g in np.diff(one.reply.times).tolist()]
        return _percentile(gaps, percent)


def calls_of_day(lm: LanguageModel, visits: Sequence[Visit], hour: float) -> list[Call]:
    """A day (`day.py`) as calls; an hour takes `hour` seconds, and the first comes at once.

    What the interface cannot say is left out: second answers, grammars, seeds. Samples become calls
    of their own. Reserved tokens are spelled, so the server needs a tokenizer that reads them.
    """
    first = min(visit.time for visit in visits if visit.follows is None)
    calls, places = list[Call](), list[int]()
    for visit in visits:
        places.append(len(calls))
        text = lm.tokenizer.decode(visit.asks)
        follows = None if visit.follows is None else places[visit.follows]
        hours = visit.time - (first if follows is None else 0)
        calls += [Call(hour * hours, text, visit.answer, follows)] * visit.n
    return calls


def replay(server: Server, calls: Sequence[Call]) -> Replayed:
    """Send every call at its time and wait for all. ValueError for a call that follows none."""
    followers: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        if call.follows is not None:
            if not 0 <= call.follows < place:
                raise ValueError(f"call {place} follows {call.follows}: name one that is before it")
            followers.setdefault(call.follows, []).append(place)
    start, found = time.perf_counter(), dict[int, Sent]()

    def serve(place: int, after: float, history: str) -> None:
        call = calls[place]
        time.sleep(max(0.0, start + after + call.arrival - time.perf_counter()))
        at, prompt = time.perf_counter() - start, history + call.prompt
        found[place] = one = Sent(call, at, prompt, server.complete(prompt, call.max_tokens))
        if not one.ok:
            return _give_up(place, one, calls, followers, found)
        _all(serve, [(k, at + one.reply.ended, prompt + one.reply.text)
                     for k in followers.get(place, ())])  # fmt: skip
        return None

    _all(serve, [(k, 0.0, "") for k, call in enumerate(calls) if call.follows is None])
    return Replayed([found[place] for place in range(len(calls))])


def table(runs: Sequence[tuple[str, Replayed]], target: Target) -> Table:
    """A column for each server. Times in ms."""
    first, later = 1e3 * target.first_token, 1e3 * target.per_token
    rows: list[tuple[str, ...]] = [
        ("requests, failed", *(f"{len(r.sent)}, {len(r.sent) - len(r.answered)}" for _, r in runs)),
        ("tokens of answers", *(f"{r.tokens:,}" for _, r in runs)),
        ("answers as in the first", *(f"{_share_equal(runs[0][1], r):.0%}" for _, r in runs)),
    ]
    for percent in (50, 95):
        rows.append((f"time to first token, {percent} %",
                     *(f"{1e3 * r.first_token(percent):,.0f} ms" for _, r in runs)))  # fmt: skip
    for percent in (50, 95):
        rows.append((f"time between pieces, {percent} %",
                     *(f"{1e3 * r.gap(percent):,.1f} ms" for _, r in runs)))  # fmt: skip
    rows += [
        ("tokens a second", *(f"{r.per_s:,.0f}" for _, r in runs)),
        ("of those in time (goodput)", *(f"{r.goodput(target):,.0f}" for _, r in runs)),
        (
            f"in time: {first:g} ms, then {later:g} a token",
            *(f"{r.share_met(target):.0%}" for _, r in runs),
        ),
    ]
    return Table(("Measured here", *(name for name, _ in runs)), rows)


def _give_up(
    place: int,
    one: Sent,
    calls: Sequence[Call],
    followers: dict[int, list[int]],
    found: dict[int, Sent],
) -> None:
    """Note for all that would follow that they were not sent."""
    for k in followers.get(place, ()):
        found[k] = replace(one, call=calls[k], reply=Reply(error=NOT_SENT))
        _give_up(k, one, calls, followers, found)


def _all(serve: Callable[[int, float, str], None], arguments: list[tuple[int, float, str]]) -> None:
    threads = [threading.Thread(target=serve, args=one, daemon=True) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _share_equal(one: Replayed, other: Replayed) -> float:
    """The share of calls with the same text from both."""
    pairs = zip(one.sent, other.sent, strict=True)
    same = [a.ok and b.ok and a.reply.text == b.reply.text for a, b in pairs]
    return sum(same) / len(same)


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")
