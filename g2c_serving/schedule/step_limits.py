"""What is left of a step for chunks of prompts, in tokens and, under a time budget, in ms.

Brief, section 1: chunked prefill, with chunks that a cost model cuts to the step's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.schedule.cost_model import CostModel


@dataclass
class StepLimits:
    """tokens and ms that are left (ms None: no time budget, and no cost model then), and whether
    the step has a chunk yet."""

    tokens: int
    ms: float | None = None
    cost_model: CostModel | None = None
    any_chunk: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether the time is used up, so that no further chunk can be had."""
        return self.any_chunk and self.ms is not None and self.ms <= 0

    def take(self, wanted: int, cached: int) -> int:
        """The largest chunk that fits, of at most `wanted` tokens after `cached` ones; 0 if none
        does. A time budget that leaves nothing still lets one token through, so that prompts
        advance."""
        num_tokens = min(wanted, self.tokens)
        if self.ms is not None and self.cost_model is not None:
            fits = self.cost_model.largest_chunk(cached, self.ms)
            if not self.any_chunk:
                fits = max(fits, 1)
            num_tokens = min(num_tokens, fits)
            self.ms -= self.cost_model.cost(num_tokens, cached)
        if num_tokens <= 0:
            return 0
        self.tokens -= num_tokens
        self.any_chunk = True
        return num_tokens
