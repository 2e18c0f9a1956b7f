"""Rows under a grammar wait for the CPU: two lanes of like steps, without a grammar and with one.

Brief, sections 5 and 6. Which tokens a grammar admits next hangs on the last one, so the sampling
of step N+1 waits until the CPU has processed step N; the forward pass need not. As a rule that is
done by then. Here processing is made slow (it sleeps), twice as long as a step on the device, so
that the wait shows. Of a few stretches the shortest counts. Measured here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import two_lanes
from g2c_serving.lab.mask_price import ENDLESS
from g2c_serving.lab.plots import Picture, new_figure, picture, source_note, style
from g2c_serving.lab.real_lanes import Lanes, overlapped_lanes
from g2c_serving.lab.two_lanes import TwoLanes
from g2c_serving.launches import Step
from g2c_serving.request import SamplingParams
from g2c_serving.sample.grammar import Grammar

REQUESTS, WARM, STEPS = 8, 8, 8
STRETCHES = 3  # of so many steps; the shortest counts
SHOWN, LONGER = 3.5, 2.0  # steps in the picture; processing against a step on the device
BUSY = 1.3  # a stretch that takes so many times as long as the shortest was disturbed


class Slow(AsyncEngine):
    """Takes its time to process a step: `sleep_ms`."""

    sleep_ms = 0.0

    def _process(self, step: Step) -> None:
        super()._process(step)
        time.sleep(1e-3 * self.sleep_ms)


@dataclass(frozen=True)
class Run:
    """Steps with slow processing: their lanes, how slow, ms from one to the next, and how long the
    device waited for masks, in each of them and in the usual ones before. `longest`: how many times
    as long as these steps those of the longest stretch took."""

    lanes: Lanes
    sleep_ms: float
    step_ms: float
    waits_ms: float
    usual_ms: float
    longest: float = 1.0


def measure(lm: LanguageModel) -> dict[bool, Run]:
    """By whether the requests are under a grammar."""
    free = _run(lm, None, 0.0)
    return {False: free, True: _run(lm, Grammar.json_schema(ENDLESS), free.sleep_ms)}


def _run(lm: LanguageModel, grammar: Grammar | None, least_ms: float) -> Run:
    with Slow(lm) as engine:
        for seed in range(REQUESTS):
            engine.add("List:", SamplingParams(200, seed=seed, ignore_eos=True, grammar=grammar))
        _step(engine, WARM)
        usual = overlapped_lanes([e for e in list(engine.events) if e.step >= 2])
        usual_ms = _waits(engine, 2)
        device_ms = median(float(span.duration) for span in usual.device)
        engine.sleep_ms = max(least_ms, LONGER * device_ms)
        return shortest([_stretch(engine, usual_ms) for _ in range(STRETCHES)])


def _stretch(engine: Slow, usual_ms: float) -> Run:
    first = 1 + _newest(engine)
    _step(engine, STEPS)
    begun = [e.start_ms for e in list(engine.events) if e.step >= first and e.phase == "schedule"]
    begun = begun[2:]  # before that the usual steps are not over
    events = [e for e in list(engine.events) if e.end_ms > begun[0]]
    step_ms = (begun[-1] - begun[0]) / (len(begun) - 1)
    lanes = overlapped_lanes(events, whole=False)
    return Run(lanes, engine.sleep_ms, step_ms, _waits(engine, first), usual_ms)


def shortest(stretches: Sequence[Run]) -> Run:
    """The one that the least has disturbed."""
    best = min(stretches, key=lambda run: run.step_ms)
    return replace(best, longest=max(run.step_ms for run in stretches) / best.step_ms)


def _step(engine: AsyncEngine, count: int) -> None:
    """So many more steps; while a grammar is compiled, none is taken."""
    until = _newest(engine) + count
    while _newest(engine) < until:
        engine.step()


def _newest(engine: AsyncEngine) -> int:
    """Of a copy: the device's thread adds events meanwhile."""
    return max((event.step for event in list(engine.events)), default=-1)


def _waits(engine: AsyncEngine, first: int) -> float:
    """ms that a step from `first` on waited on the device, on median."""
    steps = {e.step for e in list(engine.events) if e.step >= first and e.phase == "sample"}
    found = {
        e.step: e.end_ms - e.start_ms
        for e in list(engine.events)
        if (e.lane, e.phase) == ("device", "wait")
    }
    return median(found.get(step, 0.0) for step in steps)


def draw(lm: LanguageModel) -> Picture:
    found = measure(lm)
    end = min(SHOWN * found[True].step_ms, *(run.lanes.end for run in found.values()))
    figure = new_figure()
    with style():
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, under in ((upper, False), (lower, True)):
            lanes = TwoLanes(axes, 0, end)
            one = found[under].lanes
            lanes.show(one.cpu, one.device, one.gaps(end))
            name = "under a grammar" if under else "without a grammar"
            axes.annotate(name, (0, 1.02), xycoords="axes fraction", va="bottom")
        two_lanes.legend(upper, lanes, loc="lower right", bbox_to_anchor=(1.01, 0.97))
        lower.set_xlabel("ms")
        source_note(lower, "Measured here")
    held = found[True]
    return picture(
        figure,
        f"Each step's processing is made to take {held.sleep_ms:.1f} ms more. Without a grammar a "
        f"step is sampled right after its forward pass; under one the device waits "
        f"{held.waits_ms:.1f} ms between the two, until the step before is processed. Before it "
        f"was slowed down, the device waited {held.usual_ms:.1f} ms for masks."
        f"{busy(max(run.longest for run in found.values()))}",
    )


def busy(longest: float) -> str:
    """A sentence, where other work has disturbed the stretches that are not drawn."""
    if longest < BUSY:
        return ""
    return (
        f" But this machine was busy: some stretch of steps took {longest:.1f} times as long as "
        "the one that is drawn. Measure again when nothing else runs."
    )
