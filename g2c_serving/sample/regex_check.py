"""A grammar's regular expression: what XGrammar keeps to the letter, within a stated size.

A pattern is matched as a whole, with or without `^` at its start and `$` at its end. In a JSON
schema it is searched for, so there both must stand. XGrammar passes over other anchors and, in a
schema, over what looks ahead: neither is allowed. Lazy quantifiers admit what greedy ones do.
`\\s` has the spaces of ECMAScript, Unicode's among them; `\\d` and `\\w` are of ASCII.
Brief, section 5.
"""

from __future__ import annotations

import re

MAX_PATTERN_CHARS = 10_000
MAX_PATTERN_SIZE = 10_000  # characters with all repetition written out, {m,n} as n times

ESCAPE = r"\\(?:[dDwWsS^$.*+?()\[\]{}|/\\nrtfv-]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
ATOM = re.compile(
    rf"(?P<any>\.|\[\^(?:{ESCAPE}|[^\]\[\\])+\]|\\[DWS])"
    rf"|(?P<one>{ESCAPE}|\[(?:{ESCAPE}|[^\]\[\\^])(?:{ESCAPE}|[^\]\[\\])*\]|[^\\\[\](){{}}|*+?.^$])"
    r"|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<many>(?:[*+?]|\{(?P<low>\d{1,6})(?:,(?P<high>\d{0,6}))?\})\??)"
)
UNBOUNDED = re.compile(r"[*+]")
UNWRITABLE = re.compile(r'["\x00-\x1f]|\\[\\sSnrtfvxu]')  # what a JSON string has to escape


def check_regex(pattern: str, in_json: bool = False) -> int:
    """The pattern's size. ValueError if it is too large, or has what would not be kept."""
    check_text("pattern", pattern, MAX_PATTERN_CHARS)
    if in_json and not (pattern.startswith("^") and pattern.endswith("$")):
        raise ValueError(f"{pattern!r} must begin with ^ and end with $: it is matched as a whole")
    if in_json and (found := UNWRITABLE.search(pattern)):
        raise ValueError(f"{pattern!r}: {found.group()!r} is written with an escape; take it out")
    inner = pattern.removeprefix("^")
    is_anchor = inner.endswith("$") and (len(inner) - len(inner[:-1].rstrip("\\"))) % 2 == 1
    return _size(inner[:-1] if is_anchor else inner, in_json)


def check_text(name: str, text: object, most: int) -> None:
    """ValueError for what is no text, none at all, or too long."""
    if not isinstance(text, str):
        raise ValueError(f"{name}={text!r} must be a str")
    if not text:
        raise ValueError(f"{name} is empty; say what to admit")
    if len(text) > most:
        raise ValueError(f"{name} has {len(text)} characters; at most {most} serve")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise ValueError(f"{name} is no text: {err}") from None


def _size(pattern: str, in_json: bool) -> int:
    """Reads the pattern part by part. A list of sizes stands for the groups that are open."""
    sizes, last, place, before = [0], 0, 0, ""
    while place < len(pattern):
        found = ATOM.match(pattern, place)
        kind = (found.lastgroup or "") if found else ""
        kind = "many" if kind in ("low", "high") else kind
        is_lost = kind == "many" and before in ("", "open", "or", "many")
        if found is None or is_lost or (kind == "close" and len(sizes) == 1):
            raise ValueError(
                f"{pattern!r}: {pattern[place : place + 8]!r} at {place} does not serve; groups, "
                "classes, alternatives, * + ? and {m,n} do"
            )
        if in_json:
            _check_in_json(pattern, found, kind, len(sizes) == 1)
        if kind == "open":
            sizes.append(0)
        elif kind == "many":
            more = last * (_times(found) - 1)
            last, sizes[-1] = last + more, sizes[-1] + more
        else:
            last = sizes.pop() if kind == "close" else 0 if kind == "or" else 1
            sizes[-1] += last
        if sizes[-1] > MAX_PATTERN_SIZE:
            raise ValueError(
                f"{pattern[:40]!r} repeats too much: with all repetition written out it has more "
                f"than {MAX_PATTERN_SIZE} characters"
            )
        place, before = found.end(), kind
    if len(sizes) > 1:
        raise ValueError(f"{pattern!r}: a parenthesis is not closed")
    return sizes[0]


def _times(found: re.Match[str]) -> int:
    """How often a quantifier may repeat, its lower bound where there is no upper one."""
    low, high = found["low"], found["high"]
    if high and low and int(high) < int(low):
        raise ValueError(f"{found.group()!r}: the lower bound is above the upper one")
    return max(1, int(high or low or 1))


def _check_in_json(pattern: str, found: re.Match[str], kind: str, is_outside: bool) -> None:
    if kind == "or" and is_outside:
        raise ValueError(f"{pattern!r}: put the alternatives in a group, ^(...|...)$")
    if kind == "any" and not UNBOUNDED.match(pattern, found.end()):
        raise ValueError(
            f"{pattern!r}: {found.group()!r} at {found.start()} admits bytes that are no "
            "character, so that it cannot count; name the characters, as in [ -~], or repeat it "
            "by * or +"
        )
