"""What batch invariance holds on this machine, tried out rather than promised.

Brief, section 3: whether the batch changes your logits "is a property of the kernels, not the
model". So are the sizes of tiles that `batch_invariance.py` finds to agree. `probe` runs the model
in both modes: requests that decode in company of many sizes against each alone, and a text cut into
chunks against the whole, for several numbers of threads. Measured here: another processor, library
or number of threads may answer otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.numerics import Numerics
from g2c_serving.lab.machine import num_threads
from g2c_serving.lab.scoring import BLOCK, DecodeStep
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many

THREADS = (1, 2, 3, 7)
COMPANY = (2, 3, 7, 8, 33, 64)  # requests in a decode step
CHUNKS = (1, 7, 16)  # tokens, of a text that is also computed whole


@dataclass(frozen=True)
class Differ:
    """How many logit rows differ from the same context's alone and whole, of how many compared."""

    in_company: int
    of_company: int
    in_chunks: int
    of_chunks: int


@dataclass(frozen=True)
class Held:
    """The result for one number of threads; `sizes` are those that the mode goes by here."""

    threads: int
    ordinary: Differ
    invariant: Differ
    row_sizes: Sequence[int]
    query_sizes: Sequence[int]

    @property
    def holds(self) -> bool:
        return self.invariant.in_company == self.invariant.in_chunks == 0


@dataclass
class Report:
    results: list[Held] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(held.holds for held in self.results)

    @property
    def table(self) -> Table:
        head = ("Measured here: rows with other bits", "in company", "in chunks", "tiles of rows",
                "tiles of queries")  # fmt: skip
        rows = []
        for held in self.results:
            name = many(held.threads, "thread")
            rows.append((f"{name}, ordinary", *_counts(held.ordinary), "any", "any"))
            row_sizes, query_sizes = _list(held.row_sizes), _list(held.query_sizes)
            invariant = (*_counts(held.invariant), row_sizes, query_sizes)
            rows.append((f"{name}, batch_invariant=True", *invariant))
        return Table(head, rows)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_markdown_(self) -> str:
        return self.table._repr_markdown_()


def _counts(differ: Differ) -> tuple[str, str]:
    return (
        f"{differ.in_company} of {differ.of_company}",
        f"{differ.in_chunks} of {differ.of_chunks}",
    )


def _list(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def probe(lm: LanguageModel, threads: Sequence[int] = THREADS, length: int = 70) -> Report:
    """Try both modes out with `lm` in float32. The number of threads is as before afterwards.

    length   tokens of the longest context, at least 16 and below the model's limit
    """
    if not 16 <= length < lm.config.max_seq_len:
        raise ValueError(
            f"length={length} must be from 16 to {lm.config.max_seq_len - 1}, below the context "
            f"limit of {lm.name}"
        )
    report = Report()
    for count in threads:
        with num_threads(count):
            numerics = BatchInvariant()
            invariant = _compare(lm.model.with_numerics(numerics), length)
            ordinary = _compare(lm.model.with_numerics(Numerics()), length)
            sizes = numerics.row_sizes, numerics.query_sizes
            report.results.append(Held(count, ordinary, invariant, *sizes))
    return report


def _compare(model: Transformer, length: int) -> Differ:
    generator = torch.Generator().manual_seed(0)
    shape = (max(COMPANY), length)
    texts = torch.randint(model.config.vocab_size, shape, generator=generator).tolist()
    texts = [text[: length - 13 * i % (length // 2)] for i, text in enumerate(texts)]
    decode = DecodeStep(model, texts)
    alone = torch.cat([decode.logits([i]) for i in range(len(texts))])
    in_company = sum(_differing(decode.logits(range(n)), alone[:n]) for n in COMPANY)
    whole = _chunked(model, texts[0], length)
    in_chunks = sum(_differing(_chunked(model, texts[0], size), whole) for size in CHUNKS)
    return Differ(in_company, sum(COMPANY), in_chunks, len(CHUNKS) * length)


def _differing(found: torch.Tensor, expected: torch.Tensor) -> int:
    return int((found != expected).any(-1).sum())


def _chunked(model: Transformer, text: list[int], size: int) -> torch.Tensor:
    """Logits (T, V) of all tokens of a text that is computed in chunks of `size`."""
    blocks = -(-len(text) // BLOCK)
    cache, found = model.new_cache(blocks, BLOCK), []
    for at in range(0, len(text), size):
        batch = build_batch([(text[at : at + size], at)], [range(blocks)], BLOCK, [0])
        every = dataclasses.replace(batch, logit_rows=torch.arange(len(batch.token_ids)))
        found.append(model.forward(every, cache))
    return torch.cat(found)
