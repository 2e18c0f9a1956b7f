"""What the guard around the launches costs a step: engines without it and with it, in turns.

Brief, section 6. Three engines serve the same requests, a step each in turn: two without a guard,
so that one sees what differs by chance alone, and one with it. Measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.checkpoints import LanguageModel
from g2c_serving.lab.contestants import made_up_prompts
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

WAYS = {"off": False, "off, once more": False, "on": True}
BATCH, PROMPT, WARM, STEPS = 64, 16, 10, 60


@dataclass(frozen=True)
class GuardPrice:
    """Of steps in which `batch` requests decode: median ms, and the median over all turns of the
    step's time against the first engine's in the same turn."""

    name: str
    batch: int
    step_ms: float
    against_first: float


def measure(lm: LanguageModel, batch: int = BATCH, steps: int = STEPS) -> list[GuardPrice]:
    engines = {name: _engine(lm, on, batch, steps) for name, on in WAYS.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(WARM + steps):
        for name in list(engines)[:: 1 if turn % 2 else -1]:
            engines[name].step()
            times[name].append(engines[name].history[-1].total_ms)
    first, *_ = (measured[WARM:] for measured in times.values())
    return [
        GuardPrice(
            name,
            batch,
            median(measured[WARM:]),
            median(a / b for a, b in zip(measured[WARM:], first, strict=True)),
        )
        for name, measured in times.items()
    ]


def _engine(lm: LanguageModel, on: bool, batch: int, steps: int) -> Engine:
    tokens = WARM + steps + 2
    config = EngineConfig(
        num_blocks=batch * -(-(PROMPT + tokens + 1) // EngineConfig.block_size),
        max_num_batched_tokens=PROMPT * batch,
        max_num_seqs=batch,
        forbid_sync=on,
    )
    engine = Engine(lm, config)
    for seed, prompt in enumerate(made_up_prompts(lm, batch, PROMPT)):
        engine.add(prompt, SamplingParams(tokens, seed=seed, ignore_eos=True))
    engine.step()
    return engine


def table(prices: Sequence[GuardPrice]) -> Table:
    head = "guard", "requests", "step", "against off, turn by turn"
    rows = [
        (p.name, str(p.batch), f"{p.step_ms:.2f} ms", f"{p.against_first - 1:+.1%}") for p in prices
    ]
    rows[0] = (*rows[0][:3], "")
    return Table(head, rows)
