"""What each mechanism is worth: one day of traffic, served with all of them, and without each.

The day is that of `day.py`, every engine is real, and all see the same visitors at the same hours.
Time is the processor's time of the engine's thread, so that other programs matter less; only the
overlap of `AsyncEngine`, which uses two threads, is measured by the wall clock, against the same
engine without it. The machine sets the pace: the hours are so long, and the target is so wide, as
`calibrate` finds it right for this model here. Measured here, all of it. Runs of one setting
differ too: all on is served three times, at the start, in the middle and at the end.

Two of the switches are prices and not gains: batch invariance buys a guarantee, four bits buy room
in memory that this engine does not use (its pages stay as large; what is stored is rounded).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.counter import counted
from g2c_serving.lab.day import CHAT, Visit
from g2c_serving.lab.day_replay import replay
from g2c_serving.lab.day_result import Day, Served, Target
from g2c_serving.schedule.cost_model import CostModel, StepShape

ROUNDS = 3
SEATS = 32  # requests that may run at a time
CONTEXT = 256  # tokens: for a day of this length `sizes` are right
CONTEXTS = 4  # the pool has blocks for so many whole contexts
BLOCK = 16  # tokens
LOAD, PATIENCE = 0.8, 5.0  # see Scale
OFF, FIXED, BUDGETED = "off", "fixed", "budgeted"
ALL_ON, ALL_OFF = "all on", "all off"
AGAIN = (f"{ALL_ON}, again", f"{ALL_ON}, once more")  # in the middle, and at the end
PAID = "only what paid"


@dataclass(frozen=True)
class Switches:
    """Which mechanisms are on. `speculation` is off, fixed or budgeted."""

    continuous: bool = True
    chunked: bool = True
    prefix_cache: bool = True
    paging: bool = True
    speculation: str = BUDGETED
    batch_invariant: bool = True
    four_bits: bool = True
    overlap: bool = False


NOTHING = Switches(False, False, False, False, OFF, False, False)
PLAIN = Switches(chunked=False, speculation=OFF, batch_invariant=False, four_bits=False)
NAMES = {
    "continuous": "continuous batching",
    "chunked": "chunks under a time budget",
    "prefix_cache": "prefix cache",
    "paging": "pages",
    "speculation": "speculation",
    "batch_invariant": "batch invariance",
    "four_bits": "four-bit cache",
    "overlap": "overlap",
}


@dataclass(frozen=True)
class Scale:
    """What fits this model on this machine.

    rush_ms   what a plain engine needs for the whole day, if everybody comes at once
    alone     first token, and each further one, of a visitor who is alone
    served    the visits as the plain engine served them, everybody at once
    """

    rush_ms: float
    alone: Target
    cost_model: CostModel
    budget_ms: float
    served: tuple[Served, ...] = ()

    def hour_ms(self, load: float = LOAD) -> float:
        """So long that the plain engine would be busy `load` of the day."""
        return self.rush_ms / load / 24

    def target(self, patience: float = PATIENCE) -> Target:
        """A first token, and each further one, in `patience` times what a lone visitor gets."""
        return Target(patience * self.alone.first_token, patience * self.alone.per_token)


def sizes(lm: LanguageModel) -> tuple[int, int]:
    """Tokens of a context, as the day reckons with them, and blocks of the pool."""
    context = min(lm.config.max_seq_len, CONTEXT)
    return context, CONTEXTS * context // BLOCK


def config(
    lm: LanguageModel, drafter: LanguageModel | None, on: Switches, scale: Scale | None = None
) -> EngineConfig:
    """The engine with these mechanisms. Without pages each request reserves a whole context, so the
    pool has CONTEXTS seats, and no block that another request could find."""
    context, num_blocks = sizes(lm)
    budget = scale if on.chunked else None
    speculates = drafter is not None and on.speculation != OFF
    return EngineConfig(
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_num_batched_tokens=context // 2 if on.chunked else CONTEXTS * context,
        max_num_seqs=SEATS if on.paging else CONTEXTS,
        enable_prefix_caching=on.prefix_cache and on.paging,
        batch_invariant=on.batch_invariant,
        kv_cache_dtype="nvfp4" if on.four_bits else "auto",
        speculation=Speculation(on.speculation, drafter=drafter) if speculates else None,
        step_time_budget_ms=budget.budget_ms if budget else None,
        cost_model=budget.cost_model if budget else None,
    )


def calibrate(lm: LanguageModel, visits: Sequence[Visit]) -> Scale:
    """Serve the day once, everybody at once, on a plain engine: how fast it is, what a step costs.
    Then the first visitor comes alone. The budget is what a step of eight requests takes with a
    chunk of an eighth of the context."""
    context, _ = sizes(lm)
    made = replace(config(lm, None, PLAIN), max_num_batched_tokens=context // 2)
    engine = Engine(lm, made)
    rush = replay(engine, visits, 0.0)
    model = CostModel.fit(
        [record.shape for record in engine.history], [record.total_ms for record in engine.history]
    )
    (alone,) = replay(Engine(lm, made), visits[:1], 0.0).served
    shape = StepShape(((context // 8, context // 4),), 8, 2 * context)
    lone = Target(alone.first_token, alone.per_token)
    return Scale(rush.busy, lone, model, model.predict(shape), tuple(rush.served))


def serve(
    lm: LanguageModel,
    drafter: LanguageModel | None,
    visits: Sequence[Visit],
    on: Switches,
    scale: Scale,
    clock: str = "cpu",
    load: float = LOAD,
) -> Day:
    """The day with these mechanisms; by the wall clock where the engine overlaps."""
    made, hour, static = config(lm, drafter, on, scale), scale.hour_ms(load), not on.continuous
    if on.overlap:
        with AsyncEngine(lm, made) as engine:
            return replay(engine, visits, hour, clock="wall", static=static)
    return replay(Engine(lm, made), visits, hour, clock=clock, static=static)


def settings(has_drafter: bool) -> Iterator[tuple[str, Switches]]:
    """All on; without each; all off. Speculation only where there is a drafter."""
    all_on = everything(has_drafter)
    yield ALL_ON, all_on
    for name in _switched(has_drafter):
        if name == "paging":
            yield AGAIN[0], all_on
        yield f"without {NAMES[name]}", _without(all_on, name)
    if has_drafter:
        yield "speculation fixed", replace(all_on, speculation=FIXED)
    yield ALL_OFF, NOTHING
    yield AGAIN[1], all_on


def everything(has_drafter: bool) -> Switches:
    return Switches(speculation=BUDGETED if has_drafter else OFF)


def _switched(has_drafter: bool) -> list[str]:
    names = [field.name for field in fields(Switches) if field.name != "overlap"]
    return [name for name in names if has_drafter or name != "speculation"]


def _without(on: Switches, name: str) -> Switches:
    changed: dict[str, Any] = {name: OFF if name == "speculation" else False}
    return replace(on, **changed)


def measure(
    lm: LanguageModel, drafter: LanguageModel | None, visits: Sequence[Visit], scale: Scale
) -> dict[str, Day]:
    """Each setting's day; then one with those mechanisms alone without which fewer tokens a busy
    second came than with all. Says how far it is."""
    asked = list(settings(drafter is not None))
    days = {
        name: serve(lm, drafter, visits, on, scale) for name, on in counted(asked, "days served")
    }
    days[PAID] = serve(lm, drafter, visits, what_paid(days), scale)
    return days


def usual(days: Mapping[str, Day]) -> float:
    """Tokens a busy second with all on: the mean of its runs."""
    return sum(days[name].per_busy_s for name in (ALL_ON, *AGAIN)) / (1 + len(AGAIN))


def spread(days: Mapping[str, Day]) -> float:
    """By how much the runs of all on differ, as a share of the slowest."""
    runs = [days[name].per_busy_s for name in (ALL_ON, *AGAIN)]
    return max(runs) / min(runs) - 1


def what_paid(days: Mapping[str, Day]) -> Switches:
    """The mechanisms without which a busy second brought fewer tokens."""
    on, base = everything("without speculation" in days), usual(days)
    for name in _switched(on.speculation != OFF):
        without = days[f"without {NAMES[name]}"]
        if without.per_busy_s >= base:
            on = _without(on, name)
    return on


def overlap(lm: LanguageModel, visits: Sequence[Visit], scale: Scale) -> list[float]:
    """How many times as many tokens a busy second an overlapped engine writes, by the wall clock:
    in each of ROUNDS, the day's chats without and with it. No drafts, no prices."""
    ratios, chats = [], [visit for visit in visits if visit.kind == CHAT]  # they come first
    for _ in counted(range(ROUNDS), "rounds served"):
        one, other = (
            serve(lm, None, chats, replace(PLAIN, overlap=flag), scale, "wall")
            for flag in (False, True)
        )
        ratios.append(other.per_busy_s / one.per_busy_s)
    return ratios
