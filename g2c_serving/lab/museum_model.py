"""A model for the museum: it copies, letter by letter, from what it finds in the cache.

Its next token is one that stood after the same three tokens before, in its own context: after "PIN
is 4711. Her PIN is" it says " 4711.". Where several have stood there, each is as likely as it was
frequent. It reads the context from the pages through the block tables, and knows nothing else: a
token in a wrong block, or one that somebody else has written, is a wrong letter in the text. So it
shows what a fault does to a text, exactly and at once, which a real model does less plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

import g2c_serving as g
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.model_config import ModelConfig

ORDER = 3  # tokens that it goes by
VOCAB_SIZE = 266  # bytes and reserved tokens
UNWRITTEN = -1
UNKNOWN = ord("?")  # where nothing like it stood before, or where nothing was written
GREEDY = g.SamplingParams(temperature=0, max_tokens=8)
MOST_STEPS = 200


def followers(context: Sequence[int]) -> list[int]:
    """The tokens that stood after the last three, as often as they did; fewer than three where the
    three are new."""
    for order in range(min(ORDER, len(context) - 1), 0, -1):
        last = context[-order:]
        ends = range(order, len(context))
        if found := [context[i] for i in ends if context[i - order : i] == last]:
            return [token if token != UNWRITTEN else UNKNOWN for token in found]
    return [UNKNOWN]


class TokenPages:
    """Pages that hold the tokens themselves in place of keys and values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.tokens = torch.full((num_blocks, block_size), UNWRITTEN)

    def clear(self, blocks: Sequence[int]) -> None:
        self.tokens[list(blocks)] = UNWRITTEN

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        copied = [(self.tokens[source].clone(), to) for source, to in pairs]
        for tokens, to in copied:
            self.tokens[to] = tokens


class Copier:
    """Stands in for a `Transformer`."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.blocks: list[object] = []  # no layer has keys and values

    def new_cache(self, num_blocks: int, block_size: int) -> TokenPages:
        return TokenPages(num_blocks, block_size)

    @allow_sync("a stand-in for a model reads what it is given")
    def forward(self, batch: ForwardBatch, cache: TokenPages) -> torch.Tensor:
        """Logits (M, V), each row from what the pages hold of its context."""
        cache.tokens.view(-1)[batch.slots] = batch.token_ids
        wanted = batch.logit_rows.tolist()
        logits = torch.zeros(len(wanted), VOCAB_SIZE)
        for row, last in zip(logits, wanted, strict=True):
            r = next(i for i, start in enumerate(batch.query_start) if start > last) - 1
            length = batch.context_lens[r] - (batch.query_start[r + 1] - 1 - last)
            tokens = cache.tokens[batch.block_tables[r]].flatten()[:length]
            row[:] = self.logits(tokens.tolist())
        return logits

    def logits(self, context: list[int]) -> torch.Tensor:
        """A row (V,): the tokens that may follow stand out."""
        counts = torch.bincount(torch.tensor(followers(context)), minlength=VOCAB_SIZE)
        return torch.where(counts > 0, counts.float().log() + 30, 0.0)


@dataclass
class CopierLM:
    """Stands in for a `LanguageModel`; its tokens are bytes."""

    max_seq_len: int = 512
    eos_id: int | None = None
    other_eos_ids: tuple[int, ...] = ()
    name: str = "copier"
    fingerprint: str = "copier"
    tokenizer: g.Tokenizer = field(default_factory=g.Tokenizer)
    vocab_size: int = VOCAB_SIZE
    weights: tuple = ()

    def __post_init__(self) -> None:
        self.config = ModelConfig(VOCAB_SIZE, 8, 1, 1, self.max_seq_len, 8)
        self.model = Copier(self.config)


def engine(num_blocks: int = 64, block_size: int = 8, **config: object) -> g.Engine:
    """An engine over a copier."""
    sizes = {"num_blocks": num_blocks, "block_size": block_size}
    return g.Engine(CopierLM(), g.EngineConfig(**sizes, **config))  # type: ignore[arg-type]


def drive(e: g.Engine) -> dict[int, g.RequestOutput]:
    """Step until all is done, or MOST_STEPS are; the last output of each request. RuntimeError
    for a request that ends with an error."""
    last: dict[int, g.RequestOutput] = {}
    for _ in range(MOST_STEPS):
        if not e.has_unfinished:
            break
        for output in e.step():
            if output.finish_reason == "error":
                raise RuntimeError(output.message)
            last[output.request_id] = output
    return last


def said(outputs: dict[int, g.RequestOutput], request_id: int) -> str:
    """What a user was told by the end of `drive`."""
    output = outputs.get(request_id)
    if output is None or output.finish_reason is None:
        return f"still waiting after {MOST_STEPS} steps"
    return output.text


def is_told(text: str) -> str:
    """The same in a sentence, after a name."""
    return f"is {text}" if text.startswith("still waiting") else f"is told {text!r}"
