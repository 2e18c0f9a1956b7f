"""One request's part of a step, as the scheduler hands it to the other phases.

In vLLM this is a row of `SchedulerOutput`. It is frozen: what a later phase finds out goes into a
copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.request import FINISHED, Request


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step.

    num_tokens, num_computed    new tokens, on those that are computed before the step
    num_drafts, num_verified    drafts that are made for it, and how many of them the target checks
    num_mirrored, drafter_lag   known tokens that the drafter computes, and how many it lacks then
    samples    whether these are its last known tokens, so that the next one is drawn after them
    turn       its preemptions so far: if there are more by the end, the step's result is void
    """

    request: Request
    num_tokens: int
    num_computed: int
    num_drafts: int = 0
    num_verified: int = 0
    num_mirrored: int = 0
    drafter_lag: int = 0
    samples: bool = False
    turn: int = 0

    @classmethod
    def of(cls, request: Request, num_tokens: int, num_drafts: int = 0) -> Scheduled:
        """The next `num_tokens` of a request."""
        end = request.num_computed_tokens + num_tokens
        return cls(
            request,
            num_tokens,
            request.num_computed_tokens,
            num_drafts,
            samples=end == request.num_tokens,
            turn=request.num_preemptions,
        )

    @property
    def is_decode(self) -> bool:
        in_prompt = self.num_computed < self.request.num_prompt_tokens
        return self.num_tokens == 1 and self.samples and not in_prompt

    @property
    def is_void(self) -> bool:
        """Whether what comes of it is thrown away: the request has ended or was preempted since."""
        return self.request.state == FINISHED or self.request.num_preemptions != self.turn

    @property
    def num_ready(self) -> int:
        """The request's tokens that are in all caches after the step, but for drafts that stand."""
        return self.num_computed + self.num_tokens - self.drafter_lag
