"""The verification budget of an engine: how many drafts are checked in a step, and whose.

The total is settled before any draft of the step is drawn, by the Brief's planner on the
confidences of earlier steps (`sample/verify_budget.plan`); then it is handed out in the order of
this step's survival products (`split`). A total chosen from this step's own confidences would
depend on the drafts that it decides to check, and what comes out would no longer be the target's
distribution: `lab/exact_budget.py` counts it out.

A step's time is profiled when the engine is made, and corrected by running medians: the target's
pass by its rows, drafting and the rest by the requests. Drafting costs time too, so the best budget
may be none; then a few requests draft all the same now and then, ever more rarely, to see whether
that still holds. Left out: the rows of prompts in the same step, and of requests that cannot draft.
Mirrors `csrc/engine/mtp_varlen.hpp` and `schedule_mtp_varlen.py` of DeepInfer (Brief, section 4),
whose planner is described by its four steps only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.drafting import Drafter
from g2c_serving.forward.model import Transformer
from g2c_serving.history import StepRecord
from g2c_serving.request import Request
from g2c_serving.sample.confidence_table import ConfidenceTable
from g2c_serving.sample.verify_budget import StepTime, plan
from g2c_serving.schedule.step_curve import StepCurve, profile

WORTH_IT = 1.03  # drafting must promise so much more than none: forecasts are not better than that
RAREST_PROBE = 64  # steps without a draft, at most, while drafting does not pay
PROBED = 4  # requests that draft in a probe
UNSEEN = 0.75  # the confidence in a draft before any was seen
MEMORY = 0.05  # least weight of a step in the usual confidences


class StepTimes:
    """Where a step's time goes, in ms: the target's pass by rows, all else by requests."""

    def __init__(self, target: Transformer, drafter: Drafter, config: EngineConfig) -> None:
        passes = 1 + drafter.num_drafts
        max_rows = min(config.max_num_batched_tokens, config.max_num_seqs * passes)
        sizes = config.block_size, max_rows
        self.target = profile(target, *sizes, num_blocks=config.num_blocks)
        one = profile(drafter.model, *sizes, num_blocks=config.num_blocks).up_to(max_rows)
        self.drafting = StepCurve(range(1, max_rows + 1), (passes * one[1:]).tolist())
        guess = [1, max_rows], [0.5, 0.5 + 0.02 * max_rows]  # until the first step is measured
        self.rest = {drafted: StepCurve(*guess) for drafted in (False, True)}

    def record(self, record: StepRecord) -> None:
        """Learn from a step. A row of a prompt counts like any other."""
        if not record.rows:
            return
        requests, drafted = len(record.rows), bool(record.drafts)
        self.target.record(record.num_tokens, record.forward_ms - record.draft_ms)
        self.rest[drafted].record(requests, record.total_ms - record.forward_ms)
        if drafted:
            self.drafting.record(len(record.drafts), record.draft_ms)

    def step_ms(self, requests: int, max_rows: int, drafted: bool) -> np.ndarray:
        """ms of a step by its rows, (max_rows + 1,)."""
        extra = self.rest[drafted](requests) + drafted * self.drafting(requests)
        return self.target.up_to(max_rows) + extra


def given_curve(step_time: StepTime | None, max_rows: int) -> np.ndarray | None:
    """ms of a step by its rows, (max_rows + 1,), as `Speculation.step_time` says; None for None.

    It is read once and for all: a step would be no place for an error. ValueError for entries that
    are missing or no times."""
    if step_time is None:
        return None
    one = np.ones((1, max_rows - 1))
    try:
        return np.append(np.nan, plan(one, step_time, max_rows).step_ms)  # no step has 0 rows
    except ValueError as err:
        raise ValueError(
            f"Speculation.step_time does not give the ms of 1 to {max_rows} rows, the most that a "
            f"step may have here (max_num_batched_tokens): {err}"
        ) from err


class VerifyBudget:
    """Chooses totals and splits them. `speculation.step_time` takes the place of what is measured
    here; then drafting is free, and the choice does not depend on the machine."""

    def __init__(
        self,
        speculation: Speculation,
        target: Transformer,
        drafter: Drafter,
        config: EngineConfig,
    ) -> None:
        self.step_time = given_curve(speculation.step_time, config.max_num_batched_tokens)
        measures = speculation.mode == "budgeted" and self.step_time is None
        self.times = StepTimes(target, drafter, config) if measures else None
        self._wait = self._waited = 0  # steps between probes, and since the last
        self._load = 0  # requests at the last probe
        self._seen = 0
        self.usual = np.full(speculation.num_drafts, UNSEEN)  # of requests that are new
        needs_table = speculation.recalibrate or not drafter.model.has_confidence
        self.table = ConfidenceTable() if needs_table else None

    # before the drafts are drawn

    def total(self, requests: Sequence[Request], room: int) -> tuple[int, Sequence[Request]]:
        """How many drafts of `requests` (R) to check, at most `room`, and who is to draft. Where
        drafting is free all draft, even if none is checked: their confidences are news."""
        most = len(requests) + room
        if self.times is None:
            assert self.step_time is not None
            return plan(self._known(requests), self.step_time, most).rows - len(requests), requests
        if self._waited < self._wait and 0.8 < len(requests) / self._load < 1.25:
            self._waited += 1
            return 0, []
        known, step_ms = self._known(requests), self.times.step_ms
        drafting = plan(known, step_ms(len(requests), most, True), most)
        without = step_ms(len(requests), len(requests), False)[-1]
        if drafting.tokens_per_ms > WORTH_IT * len(requests) / without:
            self._wait = self._waited = 0
            return drafting.rows - len(requests), requests
        return self._probe(requests, room)

    def _known(self, requests: Sequence[Request]) -> np.ndarray:
        """The confidences of each request's last drafts, (R, n)."""
        known = [r.confidences if r.confidences is not None else self.usual for r in requests]
        return np.stack(known)

    def _probe(self, requests: Sequence[Request], room: int) -> tuple[int, Sequence[Request]]:
        """Drafting does not pay: a few draft, those whom the drafter follows best, to see whether
        that still holds, then nobody for a while."""
        self._wait, self._waited = min(2 * self._wait + 1, RAREST_PROBE), 0
        self._load = len(requests)
        few = sorted(requests, key=lambda request: request.drafter_lag)[:PROBED]
        return min(room, len(few) * len(self.usual)), few

    # when they are drawn

    def confidences(self, scores: np.ndarray) -> np.ndarray:
        """How likely drafts of such scores are accepted, (S, n)."""
        return scores if self.table is None else self.table.read(scores)

    def reader(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same as things stand now, for a step that is computed while the table learns."""
        return np.array if self.table is None else copy.deepcopy(self.table).read

    # when the step is over

    def learn(self, scores: np.ndarray, verified: np.ndarray, accepted: np.ndarray) -> None:
        """What came of a step's drafts: scores (S, n), verified and accepted (S,). A draft is
        judged if all before it stand."""
        confidences = self.confidences(scores)
        self._seen += 1
        self.usual += max(1 / self._seen, MEMORY) * (confidences.mean(0) - self.usual)
        if self.table is not None:
            index = np.arange(scores.shape[1])
            judged = index < np.minimum(accepted + 1, verified)[:, None]
            self.table.learn(scores[judged], (index < accepted[:, None])[judged])

    def record(self, record: StepRecord) -> None:
        if self.times is not None:
            self.times.record(record)
