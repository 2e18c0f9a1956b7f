"""Two engines in one process: a prompt computed in the one, its answer written in the other.

Brief, section 1. `two_engines` serves a few prompts with a prefill and a decode engine and counts
what either has computed; `price` times what a move costs with the cache, and with the tokens alone.
Measured here, on real engines in one process: nothing goes over a network.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from g2c_serving.cluster.handover import export, move
from g2c_serving.cluster.two_pools import DECODE, PREFILL, TwoPools
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.table import Table
from g2c_serving.request import SamplingParams

PROMPTS = ("Once upon a time there was a little dog.", "Anna has a red ball and", "One day")
TOKENS = 24
LENGTHS = (64, 256, 480)


@dataclass(frozen=True)
class Apart:
    """What came of it. `table` counts; `equal`: whether all tokens are those of one engine."""

    table: Table
    equal: bool
    shipped_bytes: int
    shipped_tokens: int

    @property
    def verdict(self) -> str:
        """What was shipped, and whether anybody could tell, in words."""
        tokens = "All tokens are equal to" if self.equal else "Tokens differ from"
        return (
            f"{self.shipped_tokens} tokens of cache were shipped, {self.shipped_bytes / 1e3:,.0f} "
            f"kB. {tokens} those of one engine."
        )

    def __repr__(self) -> str:
        return f"{self.table!r}\n{self.verdict}"

    def _repr_markdown_(self) -> str:
        return f"{self.table._repr_markdown_()}\n\n{self.verdict}"


def two_engines(lm: LanguageModel) -> Apart:
    """Some prompts through one engine, then through two, in batch-invariant mode."""
    config = EngineConfig(batch_invariant=True)
    params = [SamplingParams(max_tokens=TOKENS, seed=i, ignore_eos=True) for i in range(3)]
    one = Engine(lm, config)
    expected = [out.token_ids for out in one.generate(list(PROMPTS), params)]
    pools = TwoPools(Engine(lm, config), Engine(lm, config))
    ids = [pools.add(prompt, p) for prompt, p in zip(PROMPTS, params, strict=True)]
    found: dict[int, list[int]] = {}
    while pools.has_unfinished:
        found |= {out.request_id: out.token_ids for out in pools.step()}
    moves = [note for note in pools.log if note.what == "moves"]
    tokens = sum(note.num_bytes for note in moves) // one.cache.bytes_per_token
    engines = {"one engine": one, PREFILL: pools.engines[PREFILL], DECODE: pools.engines[DECODE]}
    rows = [
        (name, str(e.stats.prefill_tokens), str(e.stats.decode_tokens), str(e.stats.steps))
        for name, e in engines.items()
    ]
    head = ("Measured here", "prompt tokens", "decode rows", "steps")
    equal = [found[i] for i in ids] == expected
    return Apart(Table(head, rows), equal, pools.shipped_bytes, tokens)


def price(lm: LanguageModel, repeats: int = 3) -> Table:
    """ms until a moved request has its next token, by its length: with its cache, or with the
    tokens alone. Medians."""
    lengths = [n for n in LENGTHS if n + 8 < lm.config.max_seq_len]
    rows = []
    for n in lengths:
        ms = {pages: [_moved_ms(lm, n, pages) for _ in range(repeats)] for pages in (True, False)}
        with_pages, without = (statistics.median(ms[pages]) for pages in (True, False))
        size = _size(lm, n)
        rows.append((f"{n} tokens", f"{size / 1e6:.1f}", f"{with_pages:.1f}", f"{without:.1f}"))
    return Table(("Measured here", "cache, MB", "shipped, ms", "computed again, ms"), rows)


def _running(lm: LanguageModel, length: int) -> tuple[Engine, Engine, int]:
    """Two engines, and a request that decodes in the first."""
    config = EngineConfig(num_blocks=64, max_num_batched_tokens=1024)
    source, target = Engine(lm, config), Engine(lm, config)
    params = SamplingParams(max_tokens=8, seed=1, ignore_eos=True)
    request_id = source.add([7 * i % 250 for i in range(length)], params)
    source.step()
    source.step()
    target.generate([[1, 2, 3]], SamplingParams(max_tokens=2, seed=1))  # it is warm
    return source, target, request_id


def _moved_ms(lm: LanguageModel, length: int, pages: bool) -> float:
    source, target, request_id = _running(lm, length)
    began = time.perf_counter()
    move(source, target, request_id, pages)
    target.step()
    return 1e3 * (time.perf_counter() - began)


def _size(lm: LanguageModel, length: int) -> int:
    source, _, request_id = _running(lm, length)
    return export(source, request_id).num_bytes
