"""What the guard around the launches costs a step: engines without it and with it, in turns.

Brief, section 6. Four engines serve the same requests, a step each in turn: two without a guard, so
that one sees what differs by chance alone; one with it as it comes, which looks at one step in
eight; one that looks at every step, as in our tests. Measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from g2c_serving.engine import Engine
from g2c_serving.forbid_sync import forbid_sync
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.contestants import fill, room_for
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

OFF, AGAIN, ON, ALL = "off", "off, once more", "on", "on, looking at every step"
BATCH, PROMPT, WARM = 64, 16, 12  # steps that do not count: a guard looks at its first eight
GROUP, GROUPS = 8, 5  # so many steps are compared as one: one of them is looked at


@dataclass(frozen=True)
class GuardPrice:
    """Of steps in which `batch` requests decode: ms of a step in the median group of steps, one
    of which is looked at, and that against the first engine's."""

    name: str
    batch: int
    step_ms: float
    against_first: float


def measure(lm: LanguageModel, batch: int = BATCH, groups: int = GROUPS) -> list[GuardPrice]:
    steps = GROUP * groups
    engines = {name: _engine(lm, name, batch, steps) for name in (OFF, AGAIN, ON, ALL)}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(WARM + steps):
        for name in list(engines)[:: 1 if turn % 2 else -1]:
            _step(engines[name])
            times[name].append(engines[name].history[-1].total_ms)
    return prices({name: measured[WARM:] for name, measured in times.items()}, batch)


def prices(times: dict[str, list[float]], batch: int) -> list[GuardPrice]:
    """From ms of the same steps in each way, the one to compare with first."""
    step_ms = {
        name: median(mean(ms[k : k + GROUP]) for k in range(0, len(ms), GROUP))
        for name, ms in times.items()
    }
    first = next(iter(step_ms.values()))
    return [GuardPrice(name, batch, ms, ms / first) for name, ms in step_ms.items()]


def _engine(lm: LanguageModel, name: str, batch: int, steps: int) -> Engine:
    tokens = WARM + steps + 2
    engine = Engine(lm, room_for(batch, PROMPT, tokens, forbid_sync=name in (ON, ALL)))
    if name == ALL:
        engine.guards = {phase: forbid_sync(phase) for phase in engine.guards}
    fill(engine, batch, PROMPT, SamplingParams(tokens, ignore_eos=True), steps=0)
    _step(engine)
    return engine


def _step(engine: Engine) -> None:
    """RuntimeError for one that fails: without requests an engine is fast."""
    for output in engine.step():
        if output.finish_reason == "error":
            raise RuntimeError(f"nothing is measured: {output.message}")


def table(found: Sequence[GuardPrice]) -> Table:
    head = "guard", "requests", "a step", "against the first"
    rows = [
        (p.name, str(p.batch), f"{p.step_ms:.2f} ms", f"{p.against_first - 1:+.1%}") for p in found
    ]
    rows[0] = (*rows[0][:3], "")
    return Table(head, rows)
