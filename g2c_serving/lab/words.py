"""Words that many places need: for a name that is none, for a number of things, of a token."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

Thing = TypeVar("Thing")


def known(name: str, those: Mapping[str, Thing], kind: str) -> Thing:
    """The thing of that name. Raises ValueError, with the nearest name, where there is none."""
    if name in those:
        return those[name]
    near = difflib.get_close_matches(name, those, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(those)}"
    raise ValueError(f"name {name!r} is no {kind}{guess}")


def many(count: int, thing: str) -> str:
    """ "1 request", "2,000 requests"."""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def visible(text: str, most: int) -> str:
    """A token's text in one line of at most `most` characters: a blank as a dot, the rest as Python
    writes it."""
    shown = repr(text)[1:-1].replace(" ", "\u00b7")
    return shown if len(shown) <= most else shown[: most - 1] + "\u2026"
