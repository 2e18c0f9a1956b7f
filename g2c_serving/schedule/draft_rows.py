"""Which requests speculate in a step, and with how many rows.

Fixed: each request that decodes has rows and blocks for all of its drafts, or it waits for them. It
depends on nobody else then, so neither does the path that its tokens take. Budgeted: a planner says
how many rows the drafts of all may have together, before any is drawn, and a request without free
blocks has none. Whether a request is near its end is its own affair in both: where the context or
the whole pool cannot hold all drafts, it goes on without any.

Mirrors the part of the variable length in DeepInfer's `csrc/engine/mtp_varlen.hpp` that the
scheduler sees (Brief, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from g2c_serving.request import Request
from g2c_serving.schedule.block_manager import BlockManager

# Requests and the most rows that their drafts may have -> rows for them, and who is to draft.
Planner = Callable[[Sequence[Request], int], tuple[int, Sequence[Request]]]


class DraftRows:
    """No speculation at all; what the scheduler asks otherwise.

    num_rows    rows of this step that the drafts of all take together
    rows_each   rows that a running request must be able to have in every step
    """

    num_rows = 0
    rows_each = 1

    def due(self, request: Request) -> int:
        """Tokens beyond its own for which the request must have blocks, or wait."""
        return 0

    def is_open(self, request: Request) -> bool:
        """Whether it hangs on a step on its way if the request drafts in the next one."""
        return False

    def held_back(self, request: Request) -> int:
        """Tokens at its end that a chunk of the request leaves to the next step."""
        return 0

    def share_out(self, requests: Sequence[Request], room: int, spared: int) -> list[int]:
        """How many drafts to make for each of the requests that decode; sets `num_rows`. In `room`
        rows; blocks beyond `due` come out of the free ones, all but `spared`."""
        return [0] * len(requests)


class FixedDrafts(DraftRows):
    """All or nothing, and up to the last token, so that with fewer max_tokens the text is the
    beginning of the same one. `longest`: most tokens that a request and its drafts may have."""

    def __init__(self, num_drafts: int, longest: int) -> None:
        self.num_drafts, self.longest = num_drafts, longest
        self.rows_each = 1 + num_drafts

    def fits(self, request: Request) -> bool:
        return request.num_tokens + self.num_drafts <= self.longest

    def is_open(self, request: Request) -> bool:
        least = len(request.token_ids) + 1 + self.num_drafts <= self.longest
        return request.num_pending > 0 and least and not self.fits(request)

    def due(self, request: Request) -> int:
        drafts = request.is_decoding and request.has_drawn and self.fits(request)
        return self.num_drafts if drafts else 0

    def held_back(self, request: Request) -> int:
        """What was generated is computed again without sampling: its next token is to come of a
        draft, as it would have without the preemption."""
        return int(request.has_drawn)

    def share_out(self, requests: Sequence[Request], room: int, spared: int) -> list[int]:
        drafts = [self.due(request) for request in requests]
        self.num_rows = sum(drafts)
        return drafts


class BudgetedDrafts(FixedDrafts):
    """As many rows as `planner` says. Those of its choice draft that have free blocks; which of the
    drafts are checked is settled once they are drawn."""

    def __init__(
        self, num_drafts: int, longest: int, block_manager: BlockManager, planner: Planner
    ) -> None:
        super().__init__(num_drafts, longest)
        self.block_manager, self.planner = block_manager, planner
        self.rows_each = 1

    def due(self, request: Request) -> int:
        return 0

    def is_open(self, request: Request) -> bool:
        return False

    def share_out(self, requests: Sequence[Request], room: int, spared: int) -> list[int]:
        able = [r for r in requests if self.fits(r) and r.num_missing - (r.num_pending > 0) > 1]
        self.num_rows, chosen = self.planner(able, room) if able and room > 0 else (0, [])
        fit = {request.sequence_id for request in chosen if self._has_blocks(request, spared)}
        drafts = [self.num_drafts if r.sequence_id in fit else 0 for r in requests]
        self.num_rows = min(self.num_rows, sum(drafts))
        return drafts

    def _has_blocks(self, request: Request, spared: int) -> bool:
        num_tokens = request.num_tokens + self.num_drafts
        needs = request.sequence_id, num_tokens, request.num_computed_tokens
        if self.block_manager.num_missing(*needs) + spared > self.block_manager.num_free:
            return False
        self.block_manager.allocate(*needs)
        return True
