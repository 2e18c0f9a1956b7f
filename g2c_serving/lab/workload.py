"""Workloads: who arrives when, with how many tokens; and what an engine made of it.

`run` drives a real engine through a workload and keeps, for every request, when it arrived, when it
was first computed and when each of its tokens came. The clock counts engine steps, which is exact
and the same on every machine, or the engine's measured ms. With `static=True` nobody joins until
the whole batch has left: static batching, as servers did it before continuous batching.

Times on the ms clock are Measured here; arrivals and lengths are made up, and seeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from g2c_serving.engine import Engine
from g2c_serving.history import StepRecord
from g2c_serving.launches import Step
from g2c_serving.request import SamplingParams
from g2c_serving.sampling import Sampled
from g2c_serving.schedule.scheduled import Scheduled

ASCII = range(32, 127)  # the ids that made-up prompts are drawn from


@dataclass(frozen=True)
class Arrival:
    """One request: when it arrives (in the clock's unit), its prompt's ids, tokens to answer."""

    time: float
    prompt: tuple[int, ...]
    answer: int


@dataclass
class Life:
    """One request in a run, in the clock's unit.

    started   when the first step that computed any of it began
    tokens    when each of its answer's tokens came, at the end of a step
    """

    arrived: float
    started: float = float("nan")
    tokens: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def finished(self) -> float:
        return self.tokens[-1]

    @property
    def first_token(self) -> float:
        """Time to first token, from the arrival."""
        return self.tokens[0] - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Times between its tokens, one fewer than tokens."""
        return list(np.diff(self.tokens))


@dataclass
class Run:
    """What an engine made of a workload: a life a request, a record a step, when each step was.

    `lives` stand in the workload's order. Step k took from spans[k][0] to spans[k][1] and did
    `steps[k]`, whose request ids are translated: they count the workload's requests from 0.
    """

    lives: list[Life] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    order: dict[int, int] = field(default_factory=dict)  # engine's request id -> place in `lives`

    @property
    def num_tokens(self) -> int:
        return sum(len(life.tokens) for life in self.lives)

    @property
    def duration(self) -> float:
        """From the first arrival to the last token."""
        return max(v.finished for v in self.lives) - min(v.arrived for v in self.lives)

    @property
    def throughput(self) -> float:
        """Answer tokens per unit of the clock."""
        return self.num_tokens / self.duration

    @property
    def first_token(self) -> float:
        """Mean time to first token."""
        return float(np.mean([life.first_token for life in self.lives]))

    @property
    def gap(self) -> float:
        """Mean time between two tokens of one request."""
        return float(np.mean([gap for life in self.lives for gap in life.gaps]))


def arrivals(
    requests: int,
    gap: float = 0.0,
    prompt: tuple[int, int] = (8, 24),
    answer: tuple[int, int] = (4, 48),
    seed: int = 0,
) -> list[Arrival]:
    """`requests` arrivals, `gap` apart on average (0: all at once), the first one at 0.

    Lengths are uniform between the two ends, both included. A change of `gap` moves the arrivals
    and leaves the lengths as they were.
    """
    draw = np.random.default_rng(seed)
    waits, prompts, answers = draw.random((3, requests))
    times = np.concatenate(([0.0], np.cumsum(-gap * np.log1p(-waits))[:-1]))
    made = []
    for time, p, a in zip(times, prompts, answers, strict=True):
        length = prompt[0] + int(p * (prompt[1] - prompt[0] + 1))
        ids = tuple(draw.integers(ASCII.start, ASCII.stop, length).tolist())
        made.append(Arrival(float(time), ids, answer[0] + int(a * (answer[1] - answer[0] + 1))))
    return made


def run(
    engine: Engine, workload: Sequence[Arrival], *, clock: str = "steps", static: bool = False
) -> Run:
    """Drive `engine` until all of `workload` is answered, greedily and to its full length.

    clock   "steps": every step takes 1; "ms": what it took here. Idle time passes without a wait.
    static  admit only into an empty engine: at most max_num_seqs requests, then none till all left
    """
    if clock not in ("steps", "ms"):
        raise ValueError(f"clock={clock!r} must be 'steps' or 'ms'")
    queue, now = deque(sorted(enumerate(workload), key=lambda item: item[1].time)), 0.0
    result = Run([Life(arrival.time) for arrival in workload])
    while queue or engine.has_unfinished:
        if not engine.has_unfinished and queue:
            now = max(now, queue[0][1].time)
        if not (static and engine.has_unfinished):
            _admit(engine, queue, now, result, engine.config.max_num_seqs if static else None)
        start, outputs = now, engine.step()
        now += 1 if clock == "steps" else engine.history[-1].total_ms
        result.spans.append((start, now))
        result.steps.append(engine.history[-1])
        _note(result, outputs)
    return result


def _admit(engine: Engine, queue: deque, now: float, result: Run, limit: int | None) -> None:
    """Hand the engine what has arrived, at most `limit` requests."""
    added = 0
    while queue and queue[0][1].time <= now and added != limit:
        place, arrival = queue.popleft()
        params = SamplingParams(max_tokens=arrival.answer, temperature=0, ignore_eos=True)
        result.order[engine.add(arrival.prompt, params)] = place
        added += 1


def _note(result: Run, outputs: Sequence) -> None:
    """Keep what the last step did for each request."""
    (start, end), record = result.spans[-1], result.steps[-1]
    for row in record.rows:
        life = result.lives[result.order[row.request_id]]
        life.started = start if np.isnan(life.started) else life.started
    for output in outputs:
        life = result.lives[result.order[output.request_id]]
        if output.finish_reason == "error":
            raise RuntimeError(f"request {output.request_id} ended with: {output.message}")
        if len(output.token_ids) > len(life.tokens):
            life.tokens.append(end)
            life.ids = output.token_ids


def in_ms(found: Run) -> Run:
    """A run on the clock of steps, with every time in the ms that its steps took here."""
    ends = np.cumsum([record.total_ms for record in found.steps]).tolist()
    steps = [0.0, *(end for _, end in found.spans)]

    def ms(times: Sequence[float]) -> list[float]:
        return np.interp(times, steps, [0.0, *ends]).tolist()

    lives = []
    for life in found.lives:
        arrived, started = ms([life.arrived, life.started])
        lives.append(Life(arrived, started, ms(life.tokens), life.ids))
    spans = [(start, end) for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]
    return Run(lives, found.steps, spans, found.order)


class DryEngine(Engine):
    """The engine without its two middle phases: it schedules and processes, and computes nothing.

    Where lengths are fixed, who runs when does not depend on what is written, so the steps are the
    real engine's, in a fraction of the time. Every token is 0. Simulated: the scheduler is real.
    """

    def _schedule(self) -> list[Scheduled]:
        return self.scheduler.schedule()

    def _batch(self, step: Step) -> None:
        return None

    def _sample(self, step: Step, logits: object) -> Sampled:
        return {s.request.sequence_id: [(0, None)] for s in step.scheduled if s.samples}
