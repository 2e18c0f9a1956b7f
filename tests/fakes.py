"""A model for tests of the scheduler and the engine: exact, instant, and read through the pages.

Its next token is a checksum of the whole context, which it reads back from the cache through the
block tables. A token in a wrong block, a stale block or a lost token changes what follows.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import g2c_serving as g
from g2c_serving import parts
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.model_config import ModelConfig

VOCAB_SIZE = 266
UNWRITTEN = -1
BYTES = bytes(range(256))


def checksum(context: Sequence[int], letters: bytes = BYTES) -> int:
    """The next token after `context`: an ordinary byte that depends on every token and place."""
    return letters[sum((i + 1) * (token + 1) for i, token in enumerate(context)) % len(letters)]


def continuation(prompt: list[int], count: int) -> list[int]:
    """What the model must generate after `prompt`, worked out with no cache at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(checksum(tokens))
    return tokens[len(prompt) :]


class FakeCache:
    """`tokens` stand for the keys and values of a layer that sees all, `window` for those of a
    window layer."""

    num_layers, bytes_per_token = 1, 8  # of those that see all

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens, self.window = torch.full((2, num_blocks, block_size), UNWRITTEN)

    def write(self, batch: ForwardBatch) -> None:
        """What is replayed goes to the window alone."""
        new = slice(None) if batch.new_rows is None else batch.new_rows
        self.tokens.view(-1)[batch.slots[new]] = batch.token_ids[new]
        self.window.view(-1)[batch.slots] = batch.token_ids

    def read(self, batch: ForwardBatch, r: int, window: int) -> list[int]:
        """All tokens of a request, and the proof that its window holds the last of them."""
        table, length = batch.block_tables[r], batch.context_lens[r]
        context = self.tokens[table].flatten()[:length].tolist()
        assert UNWRITTEN not in context, f"{context} is not written yet"
        if window:
            new = batch.query_start[r + 1] - batch.query_start[r]
            oldest = batch.window_start[r] if batch.window_start else 0
            first = max(length - new + 1 - window, oldest)
            seen = self.window[table].flatten()[first:length].tolist()
            assert seen == context[first:], f"the window has {seen}, not {context[first:]}"
        return context

    def clear(self, blocks: list[int]) -> None:
        self.tokens[blocks] = self.window[blocks] = UNWRITTEN

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        for pages in (self.tokens, self.window):
            copied = [(pages[source].clone(), to) for source, to in pairs]
            for tokens, to in copied:
                pages[to] = tokens

    def block_bytes(self, layers: Sequence[int]) -> int:
        return self.block_size * self.bytes_per_token

    def export_blocks(self, blocks: list[int], layers: list[int]) -> list[bytes]:
        return [self.tokens[block].numpy().tobytes() for block in blocks]

    def import_blocks(self, blocks: list[int], layers: list[int], pages: list[bytes]) -> None:
        for block, page in zip(blocks, pages, strict=True):
            self.tokens[block] = torch.frombuffer(bytearray(page), dtype=torch.int64)

    # the state of window layers

    def slots(self, table: Sequence[int], first: int, last: int) -> torch.Tensor:
        size = self.block_size
        return torch.tensor([table[i // size] * size + i % size for i in range(first, last)])

    def export_slots(self, slots: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        return self.window.view(-1)[slots].clone()

    def import_slots(self, slots: torch.Tensor, layers: Sequence[int], pages: torch.Tensor) -> None:
        self.window.view(-1)[slots] = pages


class FakeModel:
    """`on_forward(batch)` may raise or look; `broken` tokens give logits that are not numbers. It
    writes in `letters`; `height` is the logit of the checksum, among zeros for the other letters,
    and `dull` that of all else."""

    def __init__(
        self,
        config: ModelConfig,
        letters: bytes = BYTES,
        height: float = 9.0,
        dull: float = 0.0,
    ) -> None:
        self.config, self.letters, self.height = config, letters, height
        self.silent = torch.full((VOCAB_SIZE,), dull)
        self.silent[list(letters)] = 0.0
        layers = [(0, False), (1, True)][: 1 + (config.window > 0)]
        self.blocks = [
            SimpleNamespace(
                attention=SimpleNamespace(layer=i), windowed=w, up=SimpleNamespace(packed=None)
            )
            for i, w in layers
        ]
        self.on_forward = lambda batch: None
        self.broken: set[int] = set()

    def new_cache(self, num_blocks: int, block_size: int) -> FakeCache:
        return FakeCache(num_blocks, block_size)

    def choose(self, context: list[int]) -> int:
        return checksum(context, self.letters)

    def logits_after(self, context: list[int]) -> torch.Tensor:
        """(V,)"""
        row = self.silent.clone()
        row[self.choose(context)] = self.height
        return row

    @allow_sync("a stand-in for a model reads what it is given")
    def forward(self, batch: ForwardBatch, cache: FakeCache) -> torch.Tensor:
        self.on_forward(batch)
        cache.write(batch)
        window = self.config.window
        texts = [cache.read(batch, r, window) for r in range(len(batch.context_lens))]
        wanted = batch.logit_rows.tolist()
        logits = torch.empty(len(wanted), VOCAB_SIZE)
        for row, at in zip(logits, wanted, strict=True):
            r = bisect(batch.query_start, at) - 1
            context = texts[r][: len(texts[r]) - (batch.query_start[r + 1] - 1 - at)]
            row[:] = self.logits_after(context)
            if context[-1] in self.broken:
                row[:] = torch.nan
        return logits


class FakeDraftModel(FakeModel):
    """Takes the place of `DraftModel`: right in two tokens of three. What it needs of the target
    stands in `weights`."""

    has_confidence = False

    def __init__(self, config: ModelConfig, weights: dict[str, Any], *how: object) -> None:
        super().__init__(config, **weights)

    def choose(self, context: list[int]) -> int:
        total = sum(context)
        return checksum(context, self.letters) if total % 3 else self.letters[total % 2]


def new_engine(kind: type[g.Engine], lm: FakeLM, config: g.EngineConfig) -> g.Engine:
    """An engine whose drafter, if it has one, is a fake, too."""
    with patch.object(parts, "DraftModel", FakeDraftModel):
        return kind(lm, config)


@dataclass
class FakeLM:
    """Stands in for a LanguageModel with a context limit of `max_seq_len`. window: tokens that
    its second layer sees, 0 for a model of one layer."""

    max_seq_len: int = 64
    window: int = 0
    letters: bytes = BYTES
    height: float = 9.0
    dull: float = 0.0
    eos_id: int | None = None
    other_eos_ids: tuple[int, ...] = ()
    name: str = "fake"
    fingerprint: str = "fake"
    tokenizer: g.Tokenizer = field(default_factory=g.Tokenizer)
    vocab_size: int = VOCAB_SIZE

    def __post_init__(self) -> None:
        self.weights = {name: getattr(self, name) for name in ("letters", "height", "dull")}
        layers = {"window": self.window, "window_layers": (1,)} if self.window else {}
        sizes = VOCAB_SIZE, 8, 1 + (self.window > 0), 1, self.max_seq_len, 8
        self.config = ModelConfig(*sizes, **layers)
        self.model = FakeModel(self.config, **self.weights)


GREEDY = g.SamplingParams(temperature=0, max_tokens=8)


def engine(lm: FakeLM | None = None, **config) -> g.Engine:
    """An engine over the fake with blocks of 4 tokens."""
    return g.Engine(lm or FakeLM(), g.EngineConfig(**{"num_blocks": 32, "block_size": 4, **config}))


def run(e: g.Engine) -> dict[int, g.RequestOutput]:
    """Step to the end, checking the blocks after every step; the final outputs by request id."""
    final = {}
    for _ in range(10_000):
        if not e.has_unfinished:
            assert e.block_manager.num_free == e.config.num_blocks
            return final
        outputs = e.step()
        e.block_manager.check()
        final |= {o.request_id: o for o in outputs if o.finish_reason is not None}
    raise AssertionError("10,000 steps and no end")
