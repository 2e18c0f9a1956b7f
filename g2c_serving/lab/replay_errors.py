"""Bounded replay, measured: a window state is lost and rebuilt from the last tokens alone.

The window layers' keys and values behind the end of a hit are dropped. The last `length` tokens of
the hit run again: their window layers see only what was replayed, the other layers the exact keys
of the whole hit. Then the text goes on with its true tokens, beside a run that lost nothing.
Brief, section 2, "A cache that outlives the request": the replay is approximate. This is the one
place where the cache is not an exact memo.

Replayed tokens need what lies before them: each window layer looks W - 1 tokens back, so the state
after k window layers depends on k (W - 1) tokens. From that length on the replay is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.low_precision import Format
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.lab.held_out import held_out_rows

MODEL = "tiny-window"
LENGTHS = tuple(range(0, 137, 4))  # a little beyond what is exact
CONTEXTS, HIT, FOLLOWING = 8, 320, 32  # texts, tokens of each in the hit, tokens compared after it
BLOCK_SIZE = 16


@dataclass(frozen=True)
class ReplayErrors:
    """Replays of R lengths against the exact run, over all contexts and following tokens.

    lengths  (R,)         tokens replayed
    largest  (R,)         largest error of a logit
    mean     (R,)         mean absolute error of a logit
    kl       (R,)         mean KL(exact || replayed) of the next token, in nats
    flipped  (R,)         share of positions at which the most likely token is another
    state    (R, K, W-1)  error of the K window layers' keys and values at the last W - 1 tokens of
                          the hit, relative to their size; 1: nothing is there
    """

    config: ModelConfig
    positions: int
    lengths: Sequence[int]
    largest: np.ndarray
    mean: np.ndarray
    kl: np.ndarray
    flipped: np.ndarray
    state: np.ndarray

    @property
    def reach(self) -> int:
        return receptive_field(self.config)


def receptive_field(config: ModelConfig, depth: int | None = None) -> int:
    """How many tokens back the state of the window layer number `depth` depends on; None: the last.

    Each window layer up to it looks window - 1 tokens further back."""
    depth = len(config.window_layers) if depth is None else depth
    return depth * (config.window - 1)


class Contexts:
    """Texts (C, T) that ran once, exactly (but for keys and values in `cache_format`); the first
    `hit` tokens of each are a hit."""

    def __init__(
        self,
        lm: LanguageModel,
        texts: Sequence[Sequence[int]],
        hit: int,
        dtype: torch.dtype,
        cache_format: Format | None = None,
    ) -> None:
        self.texts, self.hit, self.config = texts, hit, lm.config
        self.model = Transformer(lm.config, lm.weights, dtype).with_cache_format(cache_format)
        blocks = -(-len(texts[0]) // BLOCK_SIZE)
        self.tables = [list(range(c * blocks, (c + 1) * blocks)) for c in range(len(texts))]
        self.cache = self.model.new_cache(len(texts) * blocks, BLOCK_SIZE)
        self.exact = self._run(0)  # (C, T - hit, V)
        self.exact_state = self.window_state()

    def replay(self, length: int) -> torch.Tensor:
        """Logits (C, T - hit, V) after the window state is lost and `length` tokens replayed."""
        for pages in (self.cache.keys, self.cache.values):
            pages[list(self.config.window_layers)] = 0
        return self._run(self.hit - length, replayed=True)

    def window_state(self) -> torch.Tensor:
        """What the next token would see: (K, C, W-1, numbers of a token) of the window layers."""
        last = range(self.hit - self.config.window + 1, self.hit)
        blocks = torch.tensor([[t[p // BLOCK_SIZE] for p in last] for t in self.tables])
        offsets = torch.tensor([p % BLOCK_SIZE for p in last])
        seen = [
            torch.stack(
                (self.cache.keys[i][blocks, offsets], self.cache.values[i][blocks, offsets])
            )
            for i in self.config.window_layers
        ]  # of each layer (2, C, W-1, H, d)
        return torch.stack(seen).permute(0, 2, 3, 1, 4, 5).flatten(3)

    def _run(self, start: int, replayed: bool = False) -> torch.Tensor:
        chunks = [(text[start:], start) for text in self.texts]
        known = [start] * len(chunks), [self.hit] * len(chunks)
        window_start, first_new = known if replayed else (None, None)
        batch = build_batch(
            chunks, self.tables, BLOCK_SIZE, [], window_start=window_start, first_new=first_new
        )
        rows = torch.nonzero(batch.positions >= self.hit).flatten()
        logits = self.model.forward(dataclasses.replace(batch, logit_rows=rows), self.cache)
        return logits.unflatten(0, (len(self.texts), -1))


def measure_replay(
    lm: LanguageModel,
    lengths: Sequence[int] = LENGTHS,
    contexts: int = CONTEXTS,
    hit: int = HIT,
    following: int = FOLLOWING,
    dtype: torch.dtype = torch.float64,
) -> ReplayErrors:
    """Replay each of `lengths` tokens for held-out texts of our corpus.

    ValueError for a model without window layers, or lengths beyond the hit."""
    if not lm.config.window:
        raise ValueError(f"{lm.name} has no window layers: nothing is lost and nothing replayed")
    if not 0 <= min(lengths) <= max(lengths) <= hit:
        raise ValueError(f"lengths from {min(lengths)} to {max(lengths)}: a hit of {hit} tokens "
                         f"can replay 0 to {hit}")  # fmt: skip
    size = hit + following
    texts = held_out_rows(lm, contexts, size)[:, :size]
    runs = Contexts(lm, texts.tolist(), hit, dtype)
    found = [_compare(runs, length) for length in lengths]
    columns = [np.array(column) for column in zip(*found, strict=True)]
    return ReplayErrors(lm.config, contexts * following, tuple(lengths), *columns)


def _compare(runs: Contexts, length: int) -> tuple[float, float, float, float, np.ndarray]:
    logits = runs.replay(length)
    error = (logits - runs.exact).abs()
    exact, replayed = runs.exact.log_softmax(-1), logits.log_softmax(-1)
    kl = (exact.exp() * (exact - replayed)).sum(-1).mean()  # (C, n) -> ()
    flipped = (logits.argmax(-1) != runs.exact.argmax(-1)).double().mean()
    wrong, size = runs.window_state() - runs.exact_state, runs.exact_state  # (K, C, W-1, numbers)
    state = (wrong.norm(dim=-1) / size.norm(dim=-1)).mean(1)  # (K, W-1)
    return error.max().item(), error.mean().item(), kl.item(), flipped.item(), state.numpy()


@cache
def measured() -> ReplayErrors:
    """The shipped model at all `LENGTHS`, in float64; measured once a session, some seconds."""
    return measure_replay(load(MODEL))
