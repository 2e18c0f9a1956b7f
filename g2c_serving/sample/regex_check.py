"""A grammar's regular expression: what XGrammar keeps to the letter, within a stated size.

A pattern is matched as a whole, with or without `^` at its start and `$` at its end. In a JSON
schema it is searched for, so there both must stand. XGrammar passes over other anchors and, in a
schema, over what looks ahead: neither is allowed. Lazy quantifiers admit what greedy ones do.
`\\s` has the spaces of ECMAScript, Unicode's among them; `\\d` and `\\w` are of ASCII. A validator
may take them as Unicode's, so that a schema must not say what is none of them.
Brief, section 5.
"""

from __future__ import annotations

import re
import warnings

from g2c_serving.process.utf8 import as_utf8

MAX_PATTERN_CHARS = 10_000
MAX_PATTERN_SIZE = 10_000  # characters with all repetition written out, and `open_size`

ESCAPE = r"\\(?:[dDwWsS^$.*+?()\[\]{}|/\\nrtfv-]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
ATOM = re.compile(
    rf"(?P<any>\.|\[\^(?:{ESCAPE}|[^\]\[\\])+\]|\\[DWS])"
    rf"|(?P<one>{ESCAPE}|\[(?:{ESCAPE}|[^\]\[\\^])(?:{ESCAPE}|[^\]\[\\])*\]|[^\\\[\](){{}}|*+?.^$])"
    r"|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<many>(?:[*+?]|\{(?P<low>\d{1,6})(?:,(?P<high>\d{0,6}))?\})\??)"
)
UNBOUNDED = re.compile(r"[*+]")
OPTIONAL = re.compile(r"(?<![*+?}(\\])\?|\|(?=[|)]|$)|(?:^|\()\|")  # a?, and nothing as a choice
CLASS = re.compile(rf"\[\^?((?:{ESCAPE}|[^\]\[\\])+)\]")
MEMBER = re.compile(rf"(?P<low>{ESCAPE}|[^\\])(?:-(?P<high>{ESCAPE}|[^\\]))?", re.DOTALL)
OTHERS = re.compile(r"\\[DW]|\[\^(?:\\[^dw]|[^\]\[\\])*\\[dw]")  # what is no digit, no letter
UNWRITABLE = re.compile(r'["\x00-\x1f]|\\[\\sSnrtfvxu]')  # what a JSON string has to escape


def check_regex(pattern: str, in_json: bool = False) -> int:
    """The pattern's size. ValueError if it is too large, or has what would not be kept."""
    check_text("pattern", pattern, MAX_PATTERN_CHARS)
    if in_json and not (pattern.startswith("^") and pattern.endswith("$")):
        raise ValueError(f"{pattern!r} must begin with ^ and end with $: it is matched as a whole")
    if in_json and (found := UNWRITABLE.search(pattern)):
        raise ValueError(f"{pattern!r}: {found.group()!r} is written with an escape; take it out")
    if in_json and (found := OTHERS.search(pattern)):
        raise ValueError(
            f"{pattern!r}: {found.group()!r} is of ASCII here and of Unicode elsewhere; list the "
            "characters, as in [^0-9]"
        )
    inner = pattern.removeprefix("^")
    is_anchor = inner.endswith("$") and (len(inner) - len(inner[:-1].rstrip("\\"))) % 2 == 1
    size = _size(inner[:-1] if is_anchor else inner, in_json)
    size += open_size(len(UNBOUNDED.findall(pattern)), len(OPTIONAL.findall(pattern)))
    if size > MAX_PATTERN_SIZE:
        raise ValueError(f"{pattern[:40]!r} has too many * and +, or too much that is optional")
    _check_compiles(pattern)
    return size


def _check_compiles(pattern: str) -> None:
    """ValueError for what is no regular expression elsewhere, such as the class [z-a]."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of `[[`, which may change its meaning
            re.compile(pattern)
    except re.error as err:
        raise ValueError(f"{pattern[:40]!r} is no regular expression: {err}") from None
    except (RecursionError, OverflowError):
        raise ValueError(f"{pattern[:40]!r} has too many groups inside each other") from None


def open_size(unbounded: int, optional: int) -> int:
    """What so many * and +, and so many ? and alternatives that are nothing, add to a size:
    XGrammar's time grows with the square, as it follows all that may have begun. A hundred * in a
    row take 2 s at 32,000 tokens, 250 times ? as long at 1,000."""
    count = unbounded + optional // 2
    return count * count // 2


def check_text(name: str, text: object, most: int) -> None:
    """ValueError for what is no text, none at all, or too long."""
    if not isinstance(text, str):
        raise ValueError(f"{name}={text!r} must be a str")
    if not text:
        raise ValueError(f"{name} is empty; say what to admit")
    if len(text) > most:
        raise ValueError(f"{name} has {len(text)} characters; at most {most} serve")
    as_utf8(name, text)


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
    for low, high in _ranges(found.group()):
        if ord(low) < 0x80 <= ord(high) and any(low <= one <= high for one in '"\\'):
            raise ValueError(
                f"{pattern!r}: between {low!r} and {high!r} is a quotation mark or a backslash, "
                "which JSON writes with an escape; end the range before it and begin another one"
            )


def _ranges(text: str) -> list[tuple[str, str]]:
    """The ends of the ranges in a class."""
    found = CLASS.fullmatch(text)
    members = MEMBER.finditer(found[1]) if found else ()
    return [(m["low"][-1], m["high"][-1]) for m in members if m["high"]]
