"""`bench --peer`: the engine beside others on the same weights and prompts, in one run.

Every peer loads the model's own folder of Hugging Face, or one that it is exported to as a GPT-2
(`theirs.py`), and all write the same greedy tokens, or the share that they do is printed: with
random prompts two best tokens may lie within rounding of each other. transformers takes part
always. Cost is tokens per CPU-second of one thread, as in `bench.py`; a peer counts its own
(`peer_process.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import contestants, machine, step_floor, theirs
from g2c_serving.lab.bench_report import Line, as_json, fitting, grid, progress, ratio, ratio_rows
from g2c_serving.lab.contestants import CONTINUOUS, OURS, Contestant, made_up_prompts, race
from g2c_serving.lab.peer_process import SECONDS, PeerError, PeerProcess

BARS = {"vllm": 1.0, CONTINUOUS: 4.0}  # what ours is held to; the others are shown


@dataclass(frozen=True)
class PeerSizes:
    """How much one run does."""

    requests: int = 64
    prompt: int = 64
    new: int = 64
    repetitions: int = 3
    growth: tuple[int, ...] = (1, 8, 64, 128)
    growth_new: int = 32

    def fitted(self, context: int) -> PeerSizes:
        """The same, with texts that fit into a context of so many tokens."""
        prompt, new = fitting(self.prompt, self.new, context)
        growth_new = min(self.growth_new, context - prompt)
        return replace(self, prompt=prompt, new=new, growth_new=growth_new)


@dataclass
class PeerReport:
    machine: str
    model: str
    dtype: str
    sizes: PeerSizes
    lines: list[Line] = field(default_factory=list)
    by_requests: list[dict[str, float]] = field(default_factory=list)
    by_floor: list[dict[str, float]] = field(default_factory=list)

    def as_json(self) -> str:
        return as_json(self)


def measure(
    lm: LanguageModel,
    kinds: Sequence[str],
    sizes: PeerSizes,
    pythons: Mapping[str, str] | None = None,
    dtype: str = "float32",
    mode: str = "eager",
    seconds: float = SECONDS,
) -> PeerReport:
    """Race ours against the peers and transformers. A peer that cannot run, or not to the end, is a
    line that says why.

    pythons  the interpreter of each kind of peer; this one where it has none
    seconds  until a peer's start or round that has not ended is given up

    ValueError for a model that has no folder of its own and that GPT-2 cannot hold.
    """
    sizes = sizes.fitted(lm.config.max_seq_len)
    report = PeerReport(machine.line(), lm.name, dtype, sizes)
    with ExitStack() as stack:
        stack.enter_context(machine.num_threads(1))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = theirs.folder_for_others(lm, scratch)
        others = []
        for kind in kinds:
            progress(f"{kind} starts")
            python = (pythons or {}).get(kind)
            try:
                peer = PeerProcess(
                    kind, folder, python=python, dtype=dtype, mode=mode, seconds=seconds
                )
                stack.callback(peer.close)
                others.append((kind, peer.contestant()))
            except PeerError as err:
                others.append((kind, contestants.absent(kind, str(err))))
        others += [(one.name, one) for one in contestants.transformers_pair(lm, dtype)]
        mine = contestants.ours(lm, dtype=dtype)
        _fill(report, lm, mine, others)
        progress("floors of the decode step")
        for count in sizes.growth:
            report.by_floor.append(step_floor.measure(lm, count, sizes.prompt, dtype).as_row())
    return report


def table(report: PeerReport) -> str:
    """The report as text."""
    s = report.sizes
    return "\n".join(
        [
            f"{report.model}, the same weights for all: {s.requests} requests of {s.prompt} + "
            f"{s.new} tokens, greedy, {report.dtype}, one thread each.",
            f"A step has at most {contestants.TOKENS_A_STEP:,} tokens in each. Rates are (prompt + "
            f"new) tokens per CPU-second; the best of {s.repetitions} rounds in turn.",
            f"Measured here: {report.machine}",
            "",
            str(ratio_rows(report.lines)),
            "",
            f"Tokens per CPU-second as requests grow, {s.growth_new} new tokens each:",
            str(grid(report.by_requests)),
            "",
            "A decode step of ours and its floor, in CPU ms; then the step by operator:",
            str(grid(report.by_floor)),
        ]
    )


def _fill(
    report: PeerReport, lm: LanguageModel, mine: Contestant, others: list[tuple[str, Contestant]]
) -> None:
    """Race all that are there, at one size for the ratios and at several for how it grows."""
    sizes, present = report.sizes, [mine, *(one for _, one in others if not one.absent)]
    progress(f"{sizes.requests} requests, {sizes.repetitions} rounds")
    prompts = made_up_prompts(lm, sizes.requests, sizes.prompt)
    results = race([(one, prompts) for one in present], sizes.new, sizes.repetitions)
    for kind, one in others:
        name, bar = f"{report.model}: ours / {one.name}", BARS.get(kind)
        if one.absent:
            report.lines.append(Line(name, bar, None, one.absent))
        else:
            report.lines.append(ratio(name, bar, results[OURS], results[one.name]))
    for count in sizes.growth:
        progress(f"{count} requests")
        prompts = made_up_prompts(lm, count, sizes.prompt)
        entries = [(one, prompts) for one in present if not one.absent]
        results = race(entries, sizes.growth_new, repetitions=2)
        rates = {name: result.rate for name, result in results.items()}
        report.by_requests.append({"requests": count} | rates)
    for place, (_, one) in enumerate(others):
        line = report.lines[place]
        if one.absent and line.measured is not None:
            report.lines[place] = replace(line, note=f"{line.note}; later: {one.absent}")
