"""The ledger of draws as a table: one line a token of one request. Brief, section 3."""

from __future__ import annotations

from collections.abc import Sequence

from g2c_serving.lab.table import Table
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample.ledger import Draw

HEAD = ("position", "use", "key", "counter", "target", "of total", "token", "text", "probability")


def table(draws: Sequence[Draw], tokenizer: Tokenizer) -> Table:
    """`draws` of `Ledger.of(seed)`. The key is the seed, in hexadecimal; the counter is its four
    words. Equal draws give equal lines."""
    rows = []
    for draw in draws:
        text = tokenizer.decode([draw.token]) if draw.token >= 0 else ""
        share = f"{draw.weight / draw.total:.4f}" if draw.token >= 0 else ""
        counter = " ".join(map(str, draw.counter))
        numbers = (f"{draw.seed:016x}", counter, f"{draw.target:,}", f"{draw.total:,}")
        rows.append((str(draw.position), draw.use, *numbers, str(draw.token), repr(text), share))
    return Table(HEAD, rows, words=2)
