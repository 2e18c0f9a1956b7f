"""Where a decode step's time goes: the engine's steps against the dense yardstick's, in CPU time.

The engine serves a real mix: its requests enter step by step, so their contexts differ. The dense
model runs all rows at the mean of those contexts, the same number of keys in all.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from g2c_serving import launches
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.lab.contestants import made_up_prompts
from g2c_serving.lab.dense import DenseModel, PlainLinear, refusal
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams
from g2c_serving.sampling import Sampled

KINDS = {  # a part of an operator's name: what it is for
    "index_select": "gathering pages",
    "index_copy": "writing pages",
    "attention": "attention",
    "linear": "linear layers",
    "addmm": "linear layers",
    "layer_norm": "layer norm",
    "gelu": "gelu",
}


@dataclass(frozen=True)
class Step:
    """A step in which every request decodes: mean context in tokens; CPU ms, in all and outside
    forward and sampler."""

    context: float
    ms: float
    python_ms: float


class TimedEngine(Engine):
    """An engine that counts CPU seconds: of the last step, and of its forward and sampler."""

    def step(self) -> list[RequestOutput]:
        self.inside, start = 0.0, time.process_time()
        outputs = super().step()
        self.spent = time.process_time() - start
        return outputs

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        start = time.process_time()
        logits = super()._forward(batch)
        self.inside += time.process_time() - start
        return logits

    def _sample(self, step: launches.Step, logits: torch.Tensor | None) -> Sampled:
        start = time.process_time()
        sampled = super()._sample(step, logits)
        self.inside += time.process_time() - start
        return sampled


def filled(
    lm: LanguageModel, requests: int, prompt_len: int, new_tokens: int, dtype: str = "float32"
) -> TimedEngine:
    """An engine that has added `requests` made-up prompts."""
    blocks = requests * -(-(prompt_len + new_tokens) // 16)
    engine = TimedEngine(lm, EngineConfig(num_blocks=blocks, max_num_seqs=requests, dtype=dtype))
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    for prompt in made_up_prompts(lm, requests, prompt_len):
        engine.add(prompt, params)
    return engine


def engine_steps(engine: TimedEngine, requests: int, most: int = 64) -> list[Step]:
    """The steps, at most `most`, in which all `requests` decode and none is prefilled."""
    steps: list[Step] = []
    while engine.has_unfinished and len(steps) < most:
        engine.step()
        rows = engine.history[-1].rows
        if len(rows) == requests and all(row.kind == "decode" for row in rows):
            context = sum(row.num_computed + 1 for row in rows) / requests
            outside = engine.spent - engine.inside
            steps.append(Step(context, 1e3 * engine.spent, 1e3 * outside))
    return steps


def dense_steps(
    lm: LanguageModel,
    requests: int,
    contexts: list[float],
    linear: type[PlainLinear] | type[Linear],
) -> list[float]:
    """CPU ms of the dense model's decode steps of `requests` rows at each of `contexts`."""
    model = DenseModel(lm, requests, round(max(contexts)), linear)
    model.keys.normal_()
    model.values.normal_()
    ids = torch.tensor(made_up_prompts(lm, requests, 1))
    times = []
    for context in contexts:
        model.length = round(context) - 1
        start = time.process_time()
        model.step(ids)
        times.append(1e3 * (time.process_time() - start))
    return times


def lead_in(requests: int, prompt_len: int) -> int:
    """New tokens that the first of the requests has when the last of them starts to decode."""
    per_step = EngineConfig().max_num_batched_tokens - requests  # beside the decode rows
    return -(-requests * prompt_len // per_step)


def compare(
    lm: LanguageModel,
    requests: int,
    prompt_len: int,
    new_tokens: int,
    repetitions: int,
    most: int = 64,
) -> dict[str, float]:
    """Mean ms of a decode step, each step the best of interleaved repetitions: `ours`, `python`
    (the part outside forward and sampler), and where the dense model has the shape `dense` and
    `dense_packed`; and the mean `context`."""
    best: dict[str, list[float]] = {}
    yardsticks = {} if refusal(lm) else {"dense": PlainLinear, "dense_packed": Linear}
    for _ in range(repetitions):
        steps = engine_steps(filled(lm, requests, prompt_len, new_tokens), requests, most)
        contexts = [step.context for step in steps]
        found = {
            "ours": [step.ms for step in steps],
            "python": [step.python_ms for step in steps],
            "context": contexts,
        } | {kind: dense_steps(lm, requests, contexts, how) for kind, how in yardsticks.items()}
        for name, times in found.items():
            before = best.get(name, times)
            best[name] = [min(pair) for pair in zip(before, times, strict=True)]
    return {name: sum(times) / len(times) for name, times in best.items()}


def profile(
    lm: LanguageModel, requests: int, prompt_len: int, steps: int, dtype: str = "float32"
) -> dict[str, float]:
    """Shares of a decode step's time by what it is for, as torch's profiler sees it: each
    operator's own time; `Python and the rest` is what lies between operators."""
    engine = filled(lm, requests, prompt_len, steps + 64, dtype)
    engine_steps(engine, requests, most=4)
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # it would tell of its start on the screen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        engine_steps(engine, requests, most=steps)
        spent = time.perf_counter() - start
    parts = dict.fromkeys((*KINDS.values(), "other operators"), 0.0)
    for event in profiler.key_averages():
        kind = next((kind for part, kind in KINDS.items() if part in event.key), "other operators")
        parts[kind] += event.self_cpu_time_total / 1e6 / spent
    parts["Python and the rest"] = max(0.0, 1 - sum(parts.values()))
    return parts
