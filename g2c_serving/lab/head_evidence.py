"""What the drafter's head said and what came true, on texts that no training has seen.

Brief, section 4: the planner takes a confidence for a probability. `tiny-drafter`'s head was
trained at temperature 1 without filters; at another temperature other drafts are accepted, and
nobody has told the head.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.calibration import reliability
from g2c_serving.lab.held_out import held_out_prompts
from g2c_serving.lab.reliability import AS_IT_IS, TEMPERATURE, Evidence, collect, mend
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

REQUESTS, TOKENS, BINS = 96, 64, 10


def evidence(
    lm: LanguageModel, drafter: LanguageModel, temperature: float = 1.0, requests: int = REQUESTS
) -> Evidence:
    """Every draft of a run at `temperature`, all of them verified, in an order of no meaning (so
    that its halves are alike). It is the same every time, so it is run once for each."""
    return _evidence(lm, drafter, temperature, requests)


@lru_cache(maxsize=4)
def _evidence(
    lm: LanguageModel, drafter: LanguageModel, temperature: float, requests: int
) -> Evidence:
    speculation = Speculation("fixed", drafter=drafter)
    engine = Engine(lm, EngineConfig(max_num_batched_tokens=512, speculation=speculation))
    params = [
        SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=seed, ignore_eos=True)
        for seed in range(requests)
    ]
    engine.generate(held_out_prompts(lm, requests), params)
    drafts = [one for record in engine.history for one in record.drafts]
    order = np.random.default_rng(0).permutation(len(drafts))
    return collect(drafts[i] for i in order)


def errors(by_temperature: dict[float, Evidence]) -> Table:
    """What the head says and what comes true, with the expected calibration error, on the second
    half of each run; mended by a line through the log odds that the first half gives."""
    rows = []
    for temperature, found in by_temperature.items():
        for judged in ("single confidences", "survival products"):
            cells = [f"temperature {temperature:g}, {judged}"]
            for remedy in (AS_IT_IS, TEMPERATURE):
                scores, fates = found.half(1).through(mend(found.half(0), remedy)).pairs(judged)
                if remedy == AS_IT_IS:
                    cells += [f"{np.mean(scores):.1%}", f"{np.mean(fates):.1%}"]
                cells.append(f"{reliability(scores, fates, BINS, True).error:.1%}")
            rows.append(tuple(cells))
    head = ("drafts of a run at", "said", "came true", "calibration error", "mended")
    return Table(head, rows)
