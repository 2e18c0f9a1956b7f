"""How far a long cell is: one line that counts, and stays when all is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items; before each the line says how many are done, and at the end that all are."""
    for done, item in enumerate(items):
        print(f"\r{done} of {len(items)} {what} ...", end="", flush=True)
        yield item
    print(f"\r{len(items)} of {len(items)} {what}.   ", flush=True)
