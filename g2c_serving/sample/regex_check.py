"""Limits of a grammar's regular expression, or of its EBNF rules, and what XGrammar would bend.

A pattern is matched as a whole, with or without `^` at its start and `$` at its end. In a JSON
schema it is searched for, so there both must stand. XGrammar passes over other anchors and, in a
schema, over what looks ahead: neither is allowed. Lazy quantifiers admit what greedy ones do.
Brief, section 5.
"""

from __future__ import annotations

import re

MAX_PATTERN_CHARS = 10_000
MAX_EBNF_CHARS = 100_000
MAX_REPEAT = 10_000  # of one bound, and of bounds inside each other multiplied

BOUND = re.compile(r"\{(\d*)(?:,(\d*))?\}")
ESCAPE = r"\\(?:[dDwWsS^$.*+?()\[\]{}|/\\nrtfv-]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
ATOM = re.compile(
    rf"(?P<any>\.|\[\^(?:{ESCAPE}|[^\]\[\\])+\]|\\[DWS])"
    rf"|(?P<one>{ESCAPE}|\[(?:{ESCAPE}|[^\]\[\\^])(?:{ESCAPE}|[^\]\[\\])*\]|[^\\\[\](){{}}|*+?.^$])"
    r"|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<many>[*+?]\??|\{\d+(?:,\d*)?\}\??)"
)
UNWRITABLE = re.compile(r'["\x00-\x1f]|\\[\\sSnrtfvxu]')  # what a JSON string has to escape


def check_regex(pattern: str, in_json: bool = False) -> None:
    """ValueError for a pattern that is too large, or has what would not be kept."""
    if not isinstance(pattern, str):
        raise ValueError(f"pattern={pattern!r} must be a str")
    _check_text("pattern", pattern, MAX_PATTERN_CHARS)
    if in_json and not (pattern.startswith("^") and pattern.endswith("$")):
        raise ValueError(f"{pattern!r} must begin with ^ and end with $: it is matched as a whole")
    _check_bounds(pattern)
    inner = pattern.removeprefix("^")
    _check_syntax(inner[:-1] if re.search(r"(?<!\\)(\\\\)*\$$", inner) else inner, in_json)
    if in_json and (found := UNWRITABLE.search(pattern)):
        raise ValueError(f"{pattern!r}: {found.group()!r} is written with an escape; take it out")


def check_ebnf(rules: str) -> None:
    """ValueError for rules that are too large."""
    if not isinstance(rules, str):
        raise ValueError(f"rules={rules!r} must be a str")
    _check_text("rules", rules, MAX_EBNF_CHARS)
    _check_bounds(rules)


def _check_text(name: str, text: str, most: int) -> None:
    if not text.strip():
        raise ValueError(f"{name} is empty")
    if len(text) > most:
        raise ValueError(f"{name} has {len(text)} characters; at most {most} serve")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise ValueError(f"{name} is no text: {err}") from None


def _check_bounds(text: str) -> None:
    for bound in BOUND.finditer(text):
        for number in bound.groups():
            if number and (len(number) > 6 or int(number) > MAX_REPEAT):
                raise ValueError(f"{bound.group()} repeats too often; at most {MAX_REPEAT} serve")


def _check_syntax(pattern: str, in_json: bool) -> None:
    """ValueError for what is not on the list: `ATOM`'s."""
    place, depth, before = 0, 0, ""
    while place < len(pattern):
        found = ATOM.match(pattern, place)
        kind = found.lastgroup if found else None
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        if found is None or depth < 0 or (kind == "many" and before in ("", "open", "or", "many")):
            raise ValueError(
                f"{pattern!r}: {pattern[place : place + 8]!r} at {place} does not serve; groups, "
                "classes, alternatives, * + ? and {m,n} do"
            )
        if in_json and kind == "or" and depth == 0:
            raise ValueError(f"{pattern!r}: put the alternatives in a group, ^(...|...)$")
        if in_json and kind == "any" and not re.match(r"[*+]", pattern[found.end() :]):
            raise ValueError(
                f"{pattern!r}: {found.group()!r} at {place} admits broken characters, which count "
                "as several; name the characters, such as [ -~], or repeat it by * or +"
            )
        place, before = found.end(), kind or ""
    if depth:
        raise ValueError(f"{pattern!r}: a parenthesis is not closed")
