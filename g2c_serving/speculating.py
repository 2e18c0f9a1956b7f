"""What speculation adds to an engine's step: drafts before the target's pass, a verdict after it.

    schedule    rows and blocks for drafts      schedule/draft_rows.py, with the total of budget.py
    forward     drafts, then the target's pass over all rows      drafting.py
    sample      accept, resample or draw        sample/speculation.py
    process     what stands is kept; the drafter's confidences are remembered

Brief, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from g2c_serving.budget import VerifyBudget
from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.drafting import Drafter
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward.batch import ForwardBatch, build_batch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.paired_cache import PairedCache
from g2c_serving.history import Drafted
from g2c_serving.on_device import on_device
from g2c_serving.request import Request
from g2c_serving.sample.grammar import DraftMasks, GrammarState
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.sampler import batch_of
from g2c_serving.sample.speculation import Drafts, Rows, Verdict, verify
from g2c_serving.sample.verify_budget import split
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.draft_rows import BudgetedDrafts, DraftRows, FixedDrafts
from g2c_serving.schedule.scheduled import Scheduled

# Of requests, how far each is in its grammar.
Grammars = Callable[[Sequence[Request]], Sequence[GrammarState | None]]


@dataclass(frozen=True)
class StepBudget:
    """Settled when a step is scheduled: how many drafts are checked in all, and how the scores that
    its drafts will have are read as confidences."""

    total: int
    read: Callable[[np.ndarray], np.ndarray]


@dataclass
class Round:
    """The drafts of one step. `row_of` finds a request's row by its sequence id."""

    row_of: dict[int, int]
    drafts: Drafts
    budget: StepBudget
    masks: DraftMasks | None  # of those under a grammar

    def rows_of(self, requests: Sequence[Request]) -> list[int]:
        return [self.row_of[request.sequence_id] for request in requests]


class Speculator:
    """The drafter, its pages, and the budget."""

    def __init__(
        self,
        speculation: Speculation,
        config: EngineConfig,
        target: Transformer,
        cache: KVCache,
        drafter: Drafter,
    ) -> None:
        self.speculation, self.drafter = speculation, drafter
        self.pages = PairedCache(cache, drafter.cache)
        self.is_fixed = speculation.mode == "fixed"
        self.device, self.shares_prompts = config.device, config.enable_prefix_caching
        self.reach = drafter.model.config.max_seq_len  # beyond it the drafter computes nothing
        most = min(target.config.max_seq_len, self.reach)
        self.longest = min(most, config.num_blocks * config.block_size)
        self.block_size, self.most_tokens = config.block_size, config.max_num_batched_tokens
        self.budget = VerifyBudget(speculation, target, drafter, config)

    def draft_rows(self, block_manager: BlockManager) -> DraftRows:
        """What the scheduler asks for the rows of drafts."""
        sizes = self.speculation.num_drafts, self.longest
        if self.is_fixed:
            return FixedDrafts(*sizes)
        return BudgetedDrafts(*sizes, block_manager, self.budget.total)

    def follows(self, s: Scheduled) -> bool:
        """Whether the drafter computes what the target does. Under a budget it is spared the rows
        of those that do not draft, and catches up when they do; but for what others may share: the
        prompt of several samples, and with a prefix cache each block that is full."""
        if self.is_fixed or s.num_drafts:
            return True
        end = s.num_computed + s.num_tokens
        fills = end // self.block_size > s.num_computed // self.block_size
        return bool(s.request.siblings) or self.shares_prompts and (fills or not s.is_decode)

    def mirror(self, scheduled: Sequence[Scheduled]) -> list[Scheduled]:
        """The step with what the drafter computes of each request: all that it is behind, as far as
        a step's tokens and its own context go. Who is not abreast then drafts another time."""
        room, mirrored = self.most_tokens, []
        for s in scheduled:
            behind = s.request.drafter_lag + s.num_tokens
            within = behind - max(0, s.num_computed + s.num_tokens - self.reach)
            taken = max(0, min(within, room)) if self.follows(s) else 0
            room -= taken
            lag = behind - taken
            drafts = 0 if lag else s.num_drafts
            mirrored.append(replace(s, num_mirrored=taken, drafter_lag=lag, num_drafts=drafts))
        return mirrored

    def draft(
        self,
        scheduled: list[Scheduled],
        tables: Sequence[Sequence[int]],
        budget: StepBudget,
        grammars: Grammars,
    ) -> tuple[list[Scheduled], Round | None]:
        """Draft for those that have rows for it; the step with the number of drafts that the target
        is to check. tables: block ids of each in `scheduled`."""
        followed = [i for i, s in enumerate(scheduled) if s.num_mirrored]
        if not followed:
            return scheduled, None
        rows = [i for i in followed if scheduled[i].num_drafts]
        requests = [scheduled[i].request for i in rows]
        batch = self._known([scheduled[i] for i in followed], [tables[i] for i in followed])
        states = grammars(requests)
        masks = DraftMasks(states, self.drafter.vocab_size) if any(states) else None
        drafts = self.drafter.propose(batch, requests, [followed.index(i) for i in rows], masks)
        if drafts is None:
            return scheduled, None
        verified = [scheduled[i].num_drafts for i in rows]
        if not self.is_fixed:
            verified = self._split(budget, drafts)
        for i, count in zip(rows, verified, strict=True):
            scheduled[i] = replace(scheduled[i], num_verified=count)
        row_of = {request.sequence_id: row for row, request in enumerate(requests)}
        return scheduled, Round(row_of, drafts, budget, masks)

    def _split(self, budget: StepBudget, drafts: Drafts) -> list[int]:
        """How many drafts of each request are checked. A GPU splits the total where the drafts are,
        and lays out the rows there; here the host does, and has to know the confidences."""
        with allow_sync("the split of the budget decides where the rows lie"):
            scores = drafts.scores.double().cpu().numpy()
        return split(budget.total, budget.read(scores)).tolist()

    def _known(
        self, scheduled: Sequence[Scheduled], tables: Sequence[Sequence[int]]
    ) -> ForwardBatch:
        """The known tokens that the drafter has not computed yet, of a step's requests."""
        chunks = []
        for s in scheduled:
            first = s.num_ready - s.num_mirrored
            chunks.append((s.request.token_ids[first : first + s.num_mirrored], first))
        return build_batch(chunks, tables, self.drafter.cache.block_size, [], self.device)

    def fill(self, batch: ForwardBatch, scheduled: Sequence[Scheduled], one: Round) -> ForwardBatch:
        """The batch with the drafts that are checked in their places, straight from the drafter."""
        rows: list[int] = []
        places: list[int] = []
        index: list[int] = []
        for start, s in zip(batch.query_start, scheduled, strict=False):
            if s.num_verified:
                rows += one.rows_of([s.request]) * s.num_verified
                places += range(start + s.num_tokens, start + s.num_tokens + s.num_verified)
                index += range(s.num_verified)
        at, r, i = (on_device(a, batch.token_ids.device) for a in (places, rows, index))
        token_ids = batch.token_ids.index_copy(0, at, one.drafts.tokens[r, i])
        return replace(batch, token_ids=token_ids)

    def verify(
        self,
        logits: torch.Tensor,
        scheduled: Sequence[Scheduled],
        one: Round,
        ledger: Ledger | None,
    ) -> Verdict:
        """The verdict on S scheduled requests with drafts, from their rows of logits (K, V)."""
        requests = [s.request for s in scheduled]
        which, mask = one.rows_of(requests), None
        verified = np.array([s.num_verified for s in scheduled])
        if one.masks is not None:
            rows = Rows.of(verified)
            mask = one.masks.rows(np.array(which)[rows.request], rows.draft)
        batch, drafts = batch_of(requests, logits.shape[1]), one.drafts.take(which)
        return verify(logits, batch, drafts, verified, self.speculation.guard, mask, ledger)

    def settle(
        self, one: Round, scheduled: Sequence[Scheduled], sampled: Mapping[int, list]
    ) -> list[Drafted]:
        """Remember what came of the drafts, once the tokens are appended. `sampled`: by sequence
        id the (token, log-probabilities) of this step."""
        mine = [s for s in scheduled if s.num_drafts]
        if not mine:
            return []
        rows = one.rows_of([s.request for s in mine])
        scores = one.drafts.scores.double().cpu().numpy()[rows]
        confidences = one.budget.read(scores)
        drafts = one.drafts.tokens.tolist()
        verified = np.array([s.num_verified for s in mine])
        accepted = np.array([len(sampled[s.request.sequence_id]) - 1 for s in mine])
        self.budget.learn(scores, verified, accepted)
        records = []
        for s, row, read, count in zip(mine, rows, confidences, accepted.tolist(), strict=True):
            s.request.confidences = read
            records.append(
                Drafted(
                    s.request.request_id,
                    s.request.sample_index,
                    s.num_computed + 1,
                    tuple(drafts[row]),
                    tuple(read.tolist()),
                    s.num_verified,
                    count,
                    sampled[s.request.sequence_id][-1][0],
                    len(s.request.token_ids) - s.num_computed - 1,
                )
            )
        return records
