"""What the prefill panels share: the machines' made-up speed.

Simulated. A machine computes 50,000 tokens a second of a short prompt; attention doubles a token's
cost at 100,000 tokens before it. Both are ours: the Brief gives no absolute prefill times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from g2c_serving.cluster.prefill_pool import BLOCK, SLACK, WINDOW, Prompt
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.schedule.hit_rule import hit

COST = CostModel(base=0, per_row=0, per_context=0, per_token=0.02, per_pair=2e-7, per_square=1e-7)


def alone_ms(prompts: Sequence[Prompt]) -> np.ndarray:
    """ms that each prompt (N,) takes, with all earlier turns of its session found."""
    before: dict[int, int] = {}
    work = []
    for prompt in prompts:
        cached = before.get(prompt.session, 0)
        found = hit(prompt.length, BLOCK, WINDOW, SLACK, cached=cached)
        work.append(COST.cost(found.new, found.reused))
        before[prompt.session] = prompt.length
    return np.array(work)
