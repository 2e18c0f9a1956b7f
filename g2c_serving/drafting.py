"""The drafter at work: n tokens for each request that speculates, one small pass after the other.

It ties a forward and a sampling phase of its own together, as the engine does for the target.
Before it drafts, its cache is brought abreast of the target's, and the last draft is sent through
it although nothing is drawn after it, since the draft may be accepted. Its draws lie on a lane of
their own of each request's key, so that drafts too depend on the request alone. Plays the part of
DSpark in DeepInfer (Brief, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from g2c_serving.forward.batch import ForwardBatch, one_token_each
from g2c_serving.forward.draft_model import DraftModel
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.on_device import on_device
from g2c_serving.request import Request
from g2c_serving.sample import rng
from g2c_serving.sample.grammar import DraftMasks
from g2c_serving.sample.sampler import SamplingBatch, batch_of, draw, weigh
from g2c_serving.sample.speculation import Drafts


class Drafter:
    """Proposes tokens; holds the drafter's own pages, under the target's block ids."""

    def __init__(self, model: DraftModel, cache: KVCache, num_drafts: int) -> None:
        self.model, self.cache, self.num_drafts = model, cache, num_drafts
        self.vocab_size = model.config.vocab_size

    def propose(
        self,
        batch: ForwardBatch,
        requests: Sequence[Request],
        rows: Sequence[int],
        masks: DraftMasks | None,
    ) -> Drafts | None:
        """Compute `batch`, the known tokens of a step, and draft for S of its requests.

        rows (S,)   which requests of the batch they are; their last token stands in the batch
        masks       of their grammars, which go ahead with the drafts; None without any
        None without any request.
        """
        last = [batch.query_start[r + 1] - 1 for r in rows]
        first = replace(batch, logit_rows=on_device(last, batch.token_ids.device))
        logits = self.model.forward(first, self.cache)  # (S, V or V + 1)
        if not requests:
            return None
        settings = batch_of(requests, self.vocab_size)
        tables = batch.host_tables[list(rows)]
        size, vocab = len(requests), self.vocab_size
        tokens = torch.empty((size, self.num_drafts), dtype=torch.int64, device=logits.device)
        weights = torch.empty((*tokens.shape, vocab), dtype=torch.int64, device=logits.device)
        scores = torch.empty(tokens.shape, dtype=torch.float32, device=logits.device)
        for i in range(self.num_drafts):
            ahead = settings.take(np.arange(size), i)
            mask = None if masks is None else masks.next()
            tokens[:, i], weights[:, i] = self._draw(logits[:, :vocab], ahead, i, mask)
            if masks is not None:
                masks.advance(tokens[:, i])
            scores[:, i] = self._score(logits, mask)
            logits = self._advance(tokens[:, i], ahead.positions, tables, i)
        if masks is not None:
            masks.next()  # of the token after the last draft
        return Drafts(tokens, weights, scores)

    def _draw(
        self, logits: torch.Tensor, settings: SamplingBatch, i: int, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft i of each request, (S,), and the weights that it is drawn by, (S, V). A row with a
        fault has no weights, so that its draft is never accepted."""
        weights, faults = weigh(logits, settings, mask)
        weights.masked_fill_((faults < 0)[:, None], 0)
        lane = rng.DRAFTER_LANE
        words = rng.target_words(settings.seeds, settings.positions, lane=lane, draft=i)
        tokens = draw(weights.clone(), words).tokens
        return tokens.clamp(max=self.vocab_size - 1), weights

    def _score(self, logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """How likely the drafts are accepted, (S,), from what is known before they are drawn: the
        confidence head's word, or else the drafter's largest probability among what the grammar
        allows, at temperature 1 for all. The probability of the token that was drawn would look at
        the draft itself."""
        if self.model.has_confidence:
            score = logits[:, -1].float().sigmoid()
        else:
            if mask is not None:
                logits = logits.masked_fill(~on_device(mask, logits.device), -torch.inf)
            score = logits.float().softmax(-1).amax(-1)
        return score.nan_to_num(0.0)

    def _advance(
        self, tokens: torch.Tensor, positions: np.ndarray, tables: np.ndarray, i: int
    ) -> torch.Tensor:
        """Send draft i through the model; logits after it, none after the last."""
        batch = one_token_each(tokens, positions, tables, self.cache.block_size)
        if i == self.num_drafts - 1:
            batch = replace(batch, logit_rows=batch.logit_rows[:0])
        return self.model.forward(batch, self.cache)
