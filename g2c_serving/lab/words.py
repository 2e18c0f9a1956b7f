"""Words that many sentences and pictures have in common: a number of things, a token's text."""

from __future__ import annotations


def many(count: int, thing: str) -> str:
    """ "1 request", "2,000 requests"."""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def visible(text: str, most: int) -> str:
    """A token's text in one line of at most `most` characters: a blank as a dot, the rest as Python
    writes it."""
    shown = repr(text)[1:-1].replace(" ", "\u00b7")
    return shown if len(shown) <= most else shown[: most - 1] + "\u2026"
