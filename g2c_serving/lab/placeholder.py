"""What stands in a batch where a token is yet to come, and what the embedding gets in its place.

Brief, section 6. The batch of step N+1 is laid out while step N runs; a stand-in is where N's token
will be, and the device puts the token there from what N has drawn. In our engine the stand-in is a
number that no embedding has a row for; an engine that forgets to replace a harmless looking 0
writes nonsense, without an error.
"""

from __future__ import annotations

import torch

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.table import Table
from g2c_serving.launches import PENDING, Launches, Step
from g2c_serving.request import SamplingParams

PROMPT, TOKENS = "Once upon a time", 7


class Watched(AsyncEngine):
    """Notes the ids of each batch: as it is laid out, and as the model gets it."""

    def _batch(self, step: Step) -> ForwardBatch | None:
        self.laid_out = [*getattr(self, "laid_out", []), Launches._batch(self, step)]
        return super()._batch(step)

    def _forward(self, batch: ForwardBatch | None) -> torch.Tensor | None:
        self.embedded = [*getattr(self, "embedded", []), batch]
        return super()._forward(batch)


def watch(lm: LanguageModel) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The ids of a request's batches, as they were laid out and as they were embedded, and what it
    wrote."""
    with Watched(lm) as engine:
        (output,) = engine.generate([PROMPT], SamplingParams(TOKENS, seed=0, ignore_eos=True))
    laid_out, embedded = (
        [batch.token_ids.tolist() for batch in batches if batch is not None]
        for batches in (engine.laid_out, engine.embedded)
    )
    return laid_out, embedded, output.token_ids


def table(lm: LanguageModel) -> Table:
    head = "step", "laid out", "what the embedding got", "the token that came of it"
    rows = []
    for step, (plan, real, token) in enumerate(zip(*watch(lm), strict=True)):
        ids = " ".join("?" if i == PENDING else str(i) for i in plan)
        text = lm.tokenizer.decode([token])
        rows.append((str(step), ids, " ".join(map(str, real)), f"{token} {text!r}"))
    return Table(head, rows)
