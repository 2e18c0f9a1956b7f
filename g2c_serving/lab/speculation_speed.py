"""Tokens per second without speculation, with fixed and with budgeted verification, over load.

Brief, section 4: at low load extra rows are nearly free, at high load each competes with another
user's. Three engines serve the same traffic in one process, a slice of time each in turn, so that a
busy machine slows all three. The load is closed: as soon as a request ends, another begins. Prompts
are beginnings of documents that our generator writes from a seed that no training has used; 64
tokens each, temperature 1. Measured here: it says nothing of DeepInfer's 5.4 %.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import EngineStats
from g2c_serving.lab.held_out import PROMPT, held_out_prompts
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

OFF, FIXED, BUDGETED = "off", "fixed", "budgeted"
MODES = (OFF, FIXED, BUDGETED)
LOADS = (1, 4, 16, 64)
NEW_TOKENS = 64
SLICE, WARM_STEPS = 0.25, 6  # seconds at a time; steps before the first
LEVEL = 0.05  # speeds that differ by no more are called level; by the noise of the run, if larger
IDLE = 0.1  # drafts a request: a budget that checks fewer writes as "off" does


@dataclass(frozen=True)
class Speed:
    """What one engine wrote of `target` at a load of so many requests."""

    target: str
    load: int
    mode: str
    tokens_per_s: float
    acceptance_rate: float
    verified: float  # drafts that are checked, a request and step, those without drafts included


def measure(
    targets: Sequence[LanguageModel],
    drafter: LanguageModel,
    loads: Sequence[int] = LOADS,
    seconds: float = 1.0,
    num_drafts: int = 5,
) -> list[Speed]:
    """`seconds` for each of the three engines, at each load, of each target: once, where a model
    that is large already stands for its inflated self."""
    found = []
    for lm in dict.fromkeys(targets):
        for load in loads:
            lanes = [_Lane(lm, drafter, mode, load, num_drafts) for mode in MODES]
            for lane in lanes:
                lane.warm()
            for _ in range(max(1, round(seconds / SLICE))):
                for lane in lanes:
                    lane.run(SLICE)
            found += [lane.speed for lane in lanes]
    return found


class _Lane:
    """One engine under a closed load."""

    def __init__(
        self, lm: LanguageModel, drafter: LanguageModel, mode: str, load: int, num_drafts: int
    ) -> None:
        speculation = None if mode == OFF else Speculation(mode, num_drafts, drafter)
        rows = load * (1 + num_drafts) + 4 * PROMPT
        config = EngineConfig(
            num_blocks=load * 8, max_num_batched_tokens=rows, max_num_seqs=load,
            speculation=speculation,
        )  # fmt: skip
        self.engine, self.mode, self.load = Engine(lm, config), mode, load
        self.prompts = _again_and_again(held_out_prompts(lm, 256))
        self.tokens, self.seconds, self.count, self.rounds = 0, 0.0, 0, 0
        for i in range(load):
            self._add(1 + NEW_TOKENS * (i + 1) // load)  # they do not end all at once

    def _add(self, max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, seed=self.count, ignore_eos=True)
        self.engine.add(next(self.prompts), params)
        self.count += 1

    def step(self) -> int:
        """One step; the tokens that it wrote."""
        before = sum(request.num_generated for request in self._requests())
        ended = 0
        for output in self.engine.step():
            if output.finish_reason is not None:
                ended += len(output.token_ids)
                self._add(NEW_TOKENS)
        self.rounds += sum(row.kind != "prefill" for row in self.engine.history[-1].rows)
        return sum(request.num_generated for request in self._requests()) + ended - before

    def _requests(self) -> Iterator[Any]:
        return (r for samples in self.engine._requests.values() for r in samples)

    def warm(self) -> None:
        for _ in range(WARM_STEPS):
            self.step()
        self.engine.stats, self.rounds = EngineStats(), 0

    def run(self, seconds: float) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.tokens += self.step()
        self.seconds += time.perf_counter() - start

    @property
    def speed(self) -> Speed:
        stats = self.engine.stats
        return Speed(
            self.engine.lm.name, self.load, self.mode, self.tokens / self.seconds,
            stats.acceptance_rate, stats.verified / max(self.rounds, 1),
        )  # fmt: skip


def _again_and_again(prompts: list[list[int]]) -> Iterator[list[int]]:
    while True:
        yield from prompts


def table(speeds: Sequence[Speed]) -> Table:
    """A line for each target, load and mode, with the ratio to the same without speculation."""
    rows = []
    for s in speeds:
        ratio = s.tokens_per_s / _of(speeds, s.target, s.load, OFF).tokens_per_s
        accepted = "" if s.mode == OFF else f"{s.acceptance_rate:.0%}"
        verified = "" if s.mode == OFF else f"{s.verified:.2f}"
        rows.append((s.target, s.mode, str(s.load), f"{ratio:.2f}", verified, accepted))
    heads = ("target", "verification", "requests", "tokens per s, against off",
             "drafts verified a request", "of them accepted")  # fmt: skip
    return Table(heads, rows, words=2)


def findings(speeds: Sequence[Speed]) -> str:
    """What this run shows, in a sentence for each target and one on fixed against budgeted."""
    return "\n".join(
        [_pays(speeds, target) for target in dict.fromkeys(s.target for s in speeds)]
        + [_fixed_or_budgeted(speeds)]
    )


def level(speeds: Sequence[Speed]) -> float:
    """By how much two speeds must differ to be told apart. Budgets that check next to nothing do
    the same work as no speculation: what they differ by is the noise of this run."""
    idle = [s for s in speeds if s.mode == BUDGETED and s.verified < IDLE]
    noise = [
        abs(s.tokens_per_s / _of(speeds, s.target, s.load, OFF).tokens_per_s - 1) for s in idle
    ]
    return max([LEVEL, *noise])


def _pays(speeds: Sequence[Speed], target: str) -> str:
    """Whether speculation is worth it, at each load of a target."""
    parts, near = [], level(speeds)
    for load in dict.fromkeys(s.load for s in speeds if s.target == target):
        best = max((_of(speeds, target, load, m) for m in (FIXED, BUDGETED)), key=_tokens_per_s)
        ratio = best.tokens_per_s / _of(speeds, target, load, OFF).tokens_per_s
        verdict = "pays" if ratio > 1 + near else "costs" if ratio < 1 - near else "changes little"
        parts.append(f"at {load} speculation {verdict} ({ratio:.2f} at best)")
    return f"{target}: {', '.join(parts)}."


def _fixed_or_budgeted(speeds: Sequence[Speed]) -> str:
    """How often the budget is ahead of fixed verification, level with it, behind."""
    near, fixed = level(speeds), [s for s in speeds if s.mode == FIXED]
    ratios = [_of(speeds, s.target, s.load, BUDGETED).tokens_per_s / s.tokens_per_s for s in fixed]
    ahead, behind = sum(r > 1 + near for r in ratios), sum(r < 1 - near for r in ratios)
    rates = sorted(s.acceptance_rate for s in fixed)
    return (
        f"Against fixed verification the budget is ahead in {ahead} of {len(ratios)} rows, level "
        f"(within {near:.0%}) in {len(ratios) - ahead - behind}, behind in {behind}. Of fixed "
        f"drafts {rates[0]:.0%} to {rates[-1]:.0%} are accepted."
    )


def _tokens_per_s(speed: Speed) -> float:
    return speed.tokens_per_s


def _of(speeds: Sequence[Speed], target: str, load: int, mode: str) -> Speed:
    return next(s for s in speeds if (s.target, s.load, s.mode) == (target, load, mode))


def panel(speeds: Sequence[Speed]) -> Panel:
    """Tokens per second against those without speculation, over load; choose the target."""
    targets = tuple(dict.fromkeys(s.target for s in speeds))
    loads = tuple(dict.fromkeys(s.load for s in speeds))
    controls = {
        "target": choice("Target", targets, targets[-1]),
        "load": stops("Requests at a time", loads, loads[0]),
    }
    return Panel(
        lambda figure: _draw(figure, speeds, loads),
        lambda art, target, load: _update(art, speeds, loads, target, load),
        controls,
    )


def _draw(figure: Figure, speeds: Sequence[Speed], loads: Sequence[int]) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    art: dict[str, Any] = {"axes": axes}
    for k, mode in enumerate(MODES):
        (art[mode],) = axes.plot([], [], label=mode, **line(k))
    art["load"] = axes.axvline(loads[0], color=BLACK, linewidth=1, linestyle=":")
    axes.set_xlim(loads[0] / 1.2, loads[-1] * 1.2)
    axes.set_xticks(loads, [str(n) for n in loads])
    axes.minorticks_off()
    highest = max(s.tokens_per_s / _of(speeds, s.target, s.load, OFF).tokens_per_s for s in speeds)
    axes.set_ylim(0, 1.15 * highest)
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tokens per s, against off")
    axes.legend(loc="upper right")
    source_note(axes, "Measured here", "one run")
    return art


def _update(
    art: dict[str, Any], speeds: Sequence[Speed], loads: Sequence[int], target: str, load: int
) -> str:
    off = [_of(speeds, target, n, OFF).tokens_per_s for n in loads]
    for mode in MODES:
        ratios = [
            _of(speeds, target, n, mode).tokens_per_s / base
            for n, base in zip(loads, off, strict=True)
        ]
        art[mode].set_data(loads, ratios)
    art["load"].set_xdata([load, load])
    fixed, budgeted = (_of(speeds, target, load, mode) for mode in (FIXED, BUDGETED))
    base = _of(speeds, target, load, OFF).tokens_per_s
    return (
        f"{target}, {load} at a time: fixed verification of {fixed.verified:.1f} drafts a request "
        f"writes {fixed.tokens_per_s / base:.2f} times the tokens per second of none; the budget "
        f"checks {budgeted.verified:.1f} and writes {budgeted.tokens_per_s / base:.2f} times."
    )
