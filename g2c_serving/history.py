"""What an engine remembers of its steps: the totals, and a record of each step.

Notebooks draw timelines from the records, and the cost model is fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from g2c_serving.schedule.cost_model import StepShape
from g2c_serving.schedule.scheduled import Scheduled

HISTORY_STEPS = 4096  # the newest step records that an engine keeps
CPU, DEVICE = "CPU", "device"


class Event(NamedTuple):
    """A phase of a step, from `start_ms` to `end_ms`, counted from the engine's making.

    lane    CPU or device
    phase   CPU: schedule, process; device: draft, forward (layout of the batch included), sample;
            where steps overlap also launch and wait, see `async_engine.py`
    step    steps are counted from 0
    """

    lane: str
    phase: str
    step: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: `kind` is prefill, decode or verify (its last token, and the
    drafts that are checked)."""

    request_id: int
    sample_index: int
    kind: str
    num_tokens: int
    num_computed: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of one request's drafts in a step.

    position      of the first draft, counted from the start of the prompt
    confidences   how likely each was to be accepted, given those before it, by what was known
                  before it was drawn
    verified      the first so many were checked by the target
    accepted      the first so many stand
    token         follows those: resampled if accepted < verified, else an ordinary draw; negative
                  for a fault
    kept          tokens that the request got: all accepted and the one after them, unless it ended
                  sooner
    """

    request_id: int
    sample_index: int
    position: int
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    verified: int
    accepted: int
    token: int
    kept: int


@dataclass(slots=True)
class StepRecord:
    """What one step did.

    start_ms, *_ms       when it began, counted from the engine's making, and its four phases
    draft_ms             the drafter's part of forward_ms, what it only follows included
    rows                 what was computed, request by request
    drafts               what became of the drafts, request by request
    finished, preempted  request ids, one entry for each sample
    num_*                queues and free blocks when the step had ended
    is_overlapped        the CPU's phases went on beside those of other steps on the device
    """

    start_ms: float
    schedule_ms: float = 0.0
    forward_ms: float = 0.0
    draft_ms: float = 0.0
    sample_ms: float = 0.0
    process_ms: float = 0.0
    rows: list[Row] = field(default_factory=list)
    drafts: list[Drafted] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    num_compiling: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0
    is_overlapped: bool = False

    def note(self, event: Event) -> None:
        """A phase has ended."""
        took, phase = event.end_ms - event.start_ms, event.phase
        if phase in ("schedule", "forward", "sample", "process"):
            setattr(self, f"{phase}_ms", getattr(self, f"{phase}_ms") + took)
        elif phase == "draft":
            self.draft_ms, self.forward_ms = took, took

    @property
    def total_ms(self) -> float:
        """ms of the phases that no other step's hide."""
        device = self.forward_ms + self.sample_ms
        return device if self.is_overlapped else self.schedule_ms + device + self.process_ms

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Rows of requests that decode, those for drafts included."""
        return sum(row.num_tokens for row in self.rows if row.kind != "prefill")

    @property
    def shape(self) -> StepShape:
        """The step as the cost model sees it."""
        decode = [row for row in self.rows if row.kind == "decode"]
        chunks = tuple((r.num_tokens, r.num_computed) for r in self.rows if r.kind != "decode")
        return StepShape(chunks, len(decode), sum(row.num_computed + 1 for row in decode))


@dataclass
class EngineStats:
    """Totals since the engine was made. Tokens computed again after a preemption count again;
    cached_tokens are prompt tokens that were found in the cache when they were first needed.

    With speculation, counted once for each request in each step in which it had drafts: `passes`,
    the drafts that were drawn, those that were verified, those that were accepted, and the tokens
    that were `kept`. "Acceptance" is said of several things:

    acceptance_rate       accepted / verified: the Brief's 66 and 90 %
    accepted_per_drafted  accepted / drafted: the parent course's
    accepted_length       accepted drafts in a pass: the Brief's 3.30 and 3.21
    tokens_per_pass       kept / passes: one more, but where a request ended before its last draft
    """

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    passes: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    kept: int = 0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / max(self.verified, 1)

    @property
    def accepted_per_drafted(self) -> float:
        return self.accepted / max(self.drafted, 1)

    @property
    def accepted_length(self) -> float:
        return self.accepted / max(self.passes, 1)

    @property
    def tokens_per_pass(self) -> float:
        return self.kept / max(self.passes, 1)

    def count(self, record: StepRecord, peak_blocks: int) -> None:
        self.steps += 1
        self.decode_tokens += record.num_decode_rows
        self.prefill_tokens += record.num_tokens - record.num_decode_rows
        self.preemptions += len(record.preempted)
        self.peak_blocks = peak_blocks
        self.passes += len(record.drafts)
        self.drafted += sum(len(d.tokens) for d in record.drafts)
        self.verified += sum(d.verified for d in record.drafts)
        self.accepted += sum(d.accepted for d in record.drafts)
        self.kept += sum(d.kept for d in record.drafts)


def rows_of(scheduled: list[Scheduled]) -> list[Row]:
    return [
        Row(
            s.request.request_id,
            s.request.sample_index,
            "verify" if s.num_verified else "decode" if s.is_decode else "prefill",
            s.num_tokens + s.num_verified,
            s.num_computed,
        )
        for s in scheduled
    ]
