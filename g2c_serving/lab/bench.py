"""`python -m g2c_serving bench`: speed as ratios, all from one run on one machine.

Same weights, float32, greedy, one thread, CPU-seconds. The absolute numbers are this machine's;
the ratios are what the engine is held to, and a row that falls short says so. Brief, "The change of
perspective" and section 1.
"""

from __future__ import annotations

import os
import sys
import time

from g2c_serving.forward.inflate import inflate
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import contestants, machine, step_floor, step_times
from g2c_serving.lab.bench_report import Line, Report, Sizes, progress, ratio
from g2c_serving.lab.contestants import (
    ONE_BY_ONE,
    ONE_USER,
    OURS,
    Contestant,
    Result,
    made_up_prompts,
    race,
)
from g2c_serving.lab.dense import refusal

QUICK = Sizes(4, 8, 8, 1, 1, 2, 1, 30, (1, 4), 4, (8, 32), 2, (1, 4))


def measure(lm: LanguageModel, sizes: Sizes) -> Report:
    """Run everything, in about three minutes at full size on an idle machine for a model as small
    as tiny. Who cannot compute a model of its shape is a line that says why."""
    packages = ("torch", "numpy", "transformers")
    versions = {"python": sys.version.split()[0]} | {p: machine.version(p) for p in packages}
    sizes = sizes.fitted(lm.config.max_seq_len)
    report = Report(f"{machine.line()}{_load()}", versions, lm.name, sizes)
    start = time.perf_counter()
    with machine.num_threads(1):
        big = inflate(lm, sizes.megabytes) if megabytes(lm) < sizes.megabytes else None
        others = contestants.transformers_pair(lm)
        report.lines += race_lines(lm, others, sizes)
        report.lines += inflated_lines(big, sizes) if big else [_large_enough(lm, sizes)]
        report.lines += step_lines(lm, sizes)
        everybody = [contestants.ours(lm), contestants.one_user(lm), *others]
        few = sizes.context_requests
        report.by_requests = [growth(lm, everybody, n, sizes.prompt, sizes) for n in sizes.growth]
        report.by_context = [growth(lm, everybody, few, n, sizes) for n in sizes.contexts]
        short = min(8, sizes.prompt)
        report.by_requests_inflated = [step_growth(big, n, short) for n in sizes.growth if big]
        progress("floors of the decode step")
        floors = [step_floor.measure(lm, n, sizes.prompt) for n in sizes.floors]
        report.lines += [step_floor.line(lm.name, floor) for floor in floors]
        report.by_floor = [floor.as_row() for floor in floors]
    report.seconds = time.perf_counter() - start
    return report


def race_lines(lm: LanguageModel, others: list[Contestant], sizes: Sizes) -> list[Line]:
    """All contestants on the model as it is."""
    progress(f"{lm.name}, {sizes.repetitions} rounds")
    loop = contestants.one_user(lm)
    results = _race(lm, others, loop, sizes.loop_requests, sizes, sizes.repetitions)
    lines = _against_loop(lm.name, results, loop, 4)
    for other, bar in zip(others, (3, 1.5), strict=True):
        name = f"{lm.name}: ours / {other.name}"
        if other.absent:
            lines.append(Line(name, bar, None, other.absent))
        else:
            lines.append(ratio(name, bar, results[OURS], results[other.name]))
    return lines


def inflated_lines(big: LanguageModel, sizes: Sizes) -> list[Line]:
    """Ours and the loop on the model blown up beyond the processor's cache."""
    progress(f"{big.name}, {sizes.repetitions_big} rounds")
    loop = contestants.one_user(big)
    results = _race(big, [], loop, sizes.loop_requests_big, sizes, sizes.repetitions_big)
    return _against_loop(big.name, results, loop, 8)


def megabytes(lm: LanguageModel) -> float:
    """Of its weights in float32, 10^6 bytes each."""
    return 4 * lm.num_parameters / 1e6


def _large_enough(lm: LanguageModel, sizes: Sizes) -> Line:
    name = f"{lm.name} inflated to {sizes.megabytes:g} MB: ours / {ONE_USER}"
    return Line(name, 8, None, f"its weights take {megabytes(lm):,.0f} MB as they are")


def step_lines(lm: LanguageModel, sizes: Sizes) -> list[Line]:
    """A decode step of all requests against the dense forward; Python's part of it."""
    progress("decode steps")
    ms = step_times.compare(lm, sizes.requests, sizes.prompt, sizes.new, sizes.repetitions)
    lines = []
    for kind, bar in (("dense", 1.25), ("dense_packed", None)):
        name = f"{lm.name}: step of {sizes.requests} requests / {kind.replace('_', ' ')} forward"
        if kind not in ms:
            lines.append(Line(name, bar, None, refusal(lm) or "", at_most=True))
            continue
        note = f"{ms['ours']:.2f} / {ms[kind]:.2f} ms, mean context {ms['context']:.0f}"
        lines.append(Line(name, bar, ms["ours"] / ms[kind], note, at_most=True))
    name = f"{lm.name}: Python outside forward and sampler / step"
    note = f"{ms['python']:.2f} / {ms['ours']:.2f} ms"
    return [*lines, Line(name, 0.15, ms["python"] / ms["ours"], note, at_most=True)]


def growth(
    lm: LanguageModel, everybody: list[Contestant], requests: int, prompt_len: int, sizes: Sizes
) -> dict[str, float]:
    """Rates (tokens per CPU-second) and step times (ms) at one number of requests and one prompt
    length; the one-user loop serves one of the requests."""
    progress(f"{requests} requests of {prompt_len} + {sizes.growth_new} tokens")
    prompts = made_up_prompts(lm, requests, prompt_len)
    entries = [
        (one, prompts[:1] if one.name == ONE_USER else prompts)
        for one in everybody
        if not one.absent
    ]
    rounds = 2 if requests < 8 else 1
    results = race(entries, sizes.growth_new, rounds)
    ms = _decode_steps(lm, requests, prompt_len, sizes.growth_new, rounds)
    row: dict[str, float] = {"requests": requests, "prompt": prompt_len}
    row |= {name: result.rate for name, result in results.items()}
    return row | _beside(ms) | {"Python": ms["python"] / ms["ours"]}


def _beside(ms: dict[str, float]) -> dict[str, float]:
    """A step of ours, and the dense model's where it has the shape."""
    row = {"step ms": ms["ours"]} | {
        f"{kind.replace('_', ' ')} ms": ms[kind] for kind in ("dense", "dense_packed") if kind in ms
    }
    return row | ({"step / dense": ms["ours"] / ms["dense"]} if "dense" in ms else {})


def step_growth(lm: LanguageModel, requests: int, prompt_len: int) -> dict[str, float]:
    """Decode steps alone, at one number of requests."""
    progress(f"{lm.name}: steps of {requests} requests")
    ms = _decode_steps(lm, requests, prompt_len, steps=8, rounds=2)
    row: dict[str, float] = {"requests": requests}
    return row | _beside(ms) | {"tokens per CPU-second": 1e3 * requests / ms["ours"]}


def _decode_steps(
    lm: LanguageModel, requests: int, prompt_len: int, steps: int, rounds: int
) -> dict[str, float]:
    new_tokens = steps + step_times.lead_in(requests, prompt_len)
    return step_times.compare(lm, requests, prompt_len, new_tokens, rounds, most=steps)


def _race(
    lm: LanguageModel,
    others: list[Contestant],
    loop: Contestant,
    loop_requests: int,
    sizes: Sizes,
    rounds: int,
) -> dict[str, Result]:
    """Ours, ours one by one and the loop (these two on `loop_requests` of the prompts), others."""
    prompts = made_up_prompts(lm, sizes.requests, sizes.prompt)
    entries = [(one, prompts) for one in (contestants.ours(lm), *others)]
    singles = (contestants.ours(lm, max_num_seqs=1), loop)
    entries += [(one, prompts[:loop_requests]) for one in singles]
    return race(entries, sizes.new, rounds)


def _against_loop(
    model: str, results: dict[str, Result], loop: Contestant, bar: float
) -> list[Line]:
    lines = []
    for mine, mine_bar in ((OURS, bar), (ONE_BY_ONE, None)):
        name = f"{model}: {mine} / {ONE_USER}"
        if loop.absent:
            lines.append(Line(name, mine_bar, None, loop.absent))
        else:
            lines.append(ratio(name, mine_bar, results[mine], results[ONE_USER]))
    return lines


def _load() -> str:
    """How busy the machine is, where the system tells."""
    return f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
