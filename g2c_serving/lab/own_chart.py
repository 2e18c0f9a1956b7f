"""Your own engine as a chart would show it: tokens counted, and steps times an assumed tau.

Brief, "Reading the numbers". One run with fixed verification gives both: the steps are timed while
every request decodes, and the tokens that they write are counted. Where the assumed acceptance is
the run's own share of accepted drafts, the two charts are one; whoever assumes more prints tokens
that nobody got, whoever assumes less hides some. Timed three times: the median, and how far apart.
Measured here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.acceptance import as_a_share
from g2c_serving.lab.acceptance_trace import Trace, trace
from g2c_serving.lab.charts import CHART_ACCEPTANCE, CHART_DRAFTS
from g2c_serving.lab.held_out import PROMPT, held_out_prompts
from g2c_serving.lab.speed_chart import FIXED, MEASURED, Point
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

LOADS = (1, 4, 16)  # requests at once
TIMES, STEPS, WARM = 3, 16, 4  # timings at each load, steps of one, and before them
COUNTED, ASSUMED = "tokens, counted", "steps, times tau"


@dataclass(frozen=True)
class Timed:
    """So many steps of `requests` requests that all decode, timed in equal parts: the seconds of
    each, the tokens of all, and what became of the drafts."""

    requests: int
    steps: int
    seconds: tuple[float, ...]
    tokens: int
    trace: Trace

    @property
    def rates(self) -> list[float]:
        """Steps a second, of each timing; the slowest first."""
        return sorted(self.steps / len(self.seconds) / one for one in self.seconds)

    @property
    def steps_per_s(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    @property
    def user_tokens_per_s(self) -> float:
        return self.tokens / self.requests / self.steps * self.steps_per_s


def measure(
    lm: LanguageModel,
    drafter: LanguageModel,
    loads: Sequence[int] = LOADS,
    num_drafts: int = CHART_DRAFTS,
    temperature: float = 1.0,
) -> list[Timed]:
    """A run at each load, with fixed verification of `num_drafts` drafts."""
    return [_timed(lm, drafter, load, num_drafts, temperature) for load in loads]


def _timed(
    lm: LanguageModel, drafter: LanguageModel, load: int, num_drafts: int, temperature: float
) -> Timed:
    most = (WARM + TIMES * STEPS + 1) * (1 + num_drafts)  # so that nobody ends while it is timed
    config = EngineConfig(
        num_blocks=load * (2 + (PROMPT + most) // 16),
        max_num_batched_tokens=load * max(PROMPT, 1 + num_drafts),
        max_num_seqs=load,
        speculation=Speculation("fixed", num_drafts, drafter),
    )
    engine = Engine(lm, config)
    for seed, prompt in enumerate(held_out_prompts(lm, load)):
        params = SamplingParams(most, temperature=temperature, seed=seed, ignore_eos=True)
        engine.add(prompt, params)
    for _ in range(1 + WARM):  # the prompts are one step
        engine.step()
    first = len(engine.history)
    seconds = tuple(_seconds(engine) for _ in range(TIMES))
    timed = list(engine.history)[first:]
    tokens = sum(one.kept for record in timed for one in record.drafts)
    return Timed(load, TIMES * STEPS, seconds, tokens, trace(timed))


def _seconds(engine: Engine) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    return time.perf_counter() - start


def points(timed: Sequence[Timed], acceptance: float = CHART_ACCEPTANCE) -> list[Point]:
    """Two charts of the same runs, for `chart_panel.panel`: what was counted, and what whoever
    assumes this acceptance would print. ValueError for an acceptance outside 0 to 1."""
    found = []
    for one in timed:
        counted = Point(COUNTED, one.requests, one.user_tokens_per_s, verification=FIXED)
        drafts = one.trace.drafts
        printed = one.steps_per_s * as_a_share(acceptance, drafts)
        assumed = Point(ASSUMED, one.requests, printed, drafts, acceptance, FIXED, MEASURED)
        found += [counted, assumed]
    return found


def share(timed: Sequence[Timed]) -> float:
    """Of all drafts of these runs, the share that stands: the acceptance at which both charts are
    one, on the average of the loads."""
    stood = sum(sum(one.trace.stood[1:]) for one in timed)
    drafted = sum(one.trace.drafts * one.trace.stood[0] for one in timed)
    return stood / drafted


def table(timed: Sequence[Timed]) -> Table:
    """How far apart the timings are, beside the share, which no clock moves."""
    rows = [
        (
            f"{one.requests:,}",
            f"{one.steps_per_s:.1f}",
            f"{one.rates[0]:.1f} to {one.rates[-1]:.1f}",
            f"{one.trace.share:.1%}",
        )
        for one in timed
    ]
    return Table(("requests", "steps/s, median", f"of {TIMES} timings", "drafts that stand"), rows)
