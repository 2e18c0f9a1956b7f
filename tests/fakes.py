"""A model for tests of the scheduler and the engine: exact, instant, and read through the pages.

Its next token is a checksum of the whole context, which it reads back from the cache through the
block tables. A token in a wrong block, a stale block or a lost token changes what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

import g2c_serving as g
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.model import ModelConfig

VOCAB_SIZE = 266
UNWRITTEN = -1


def checksum(context: list[int]) -> int:
    """The next token after `context`: an ordinary byte that depends on every token and place."""
    return sum((i + 1) * (token + 1) for i, token in enumerate(context)) % 256


def continuation(prompt: list[int], count: int) -> list[int]:
    """What the model must generate after `prompt`, worked out with no cache at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(checksum(tokens))
    return tokens[len(prompt) :]


class FakeCache:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.tokens = torch.full((num_blocks, block_size), UNWRITTEN)

    def clear(self, blocks: list[int]) -> None:
        self.tokens[blocks] = UNWRITTEN

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        copied = [(self.tokens[source].clone(), to) for source, to in pairs]
        for tokens, to in copied:
            self.tokens[to] = tokens

    def export_blocks(self, blocks: list[int], layers: list[int]) -> list[bytes]:
        return [self.tokens[block].numpy().tobytes() for block in blocks]

    def import_blocks(self, blocks: list[int], layers: list[int], pages: list[bytes]) -> None:
        for block, page in zip(blocks, pages, strict=True):
            self.tokens[block] = torch.frombuffer(bytearray(page), dtype=torch.int64)


class FakeModel:
    """`on_forward(batch)` may raise or look; `broken` tokens give logits that are not numbers."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.blocks = config, []
        self.on_forward = lambda batch: None
        self.broken: set[int] = set()

    def new_cache(self, num_blocks: int, block_size: int) -> FakeCache:
        return FakeCache(num_blocks, block_size)

    @allow_sync("a stand-in for a model reads what it is given")
    def forward(self, batch: ForwardBatch, cache: FakeCache) -> torch.Tensor:
        self.on_forward(batch)
        cache.tokens.view(-1)[batch.slots] = batch.token_ids
        wanted = batch.logit_rows.tolist()
        logits = torch.zeros(len(wanted), VOCAB_SIZE)
        for row, last in zip(logits, wanted, strict=True):
            r = batch.query_start.index(last + 1) - 1
            table, length = batch.block_tables[r], batch.context_lens[r]
            context = cache.tokens[table].flatten()[:length].tolist()
            assert UNWRITTEN not in context
            row[checksum(context)] = 9.0
            if context[-1] in self.broken:
                row[:] = torch.nan
        return logits


@dataclass
class FakeLM:
    """Stands in for a LanguageModel with a context limit of `max_seq_len`."""

    max_seq_len: int = 64
    eos_id: int | None = None
    other_eos_ids: tuple[int, ...] = ()
    name: str = "fake"
    fingerprint: str = "fake"
    tokenizer: g.Tokenizer = field(default_factory=g.Tokenizer)
    vocab_size: int = VOCAB_SIZE
    weights: tuple = ()

    def __post_init__(self) -> None:
        self.config = ModelConfig(VOCAB_SIZE, 8, 1, 1, self.max_seq_len, 8)
        self.model = FakeModel(self.config)


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
