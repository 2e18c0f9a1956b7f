"""A grammar's EBNF: rules that are defined, that come to an end, within a stated size.

XGrammar takes `root ::= "a" root`, and a model would write for ever; here every rule must derive
some finite text. Left out of its language: what looks ahead, `(= ...)`, which it does not hold to,
and its own functions, `Regex(...)`, `TagDispatch(...)`, `Token(...)` and the like, which would get
around what is checked. Brief, section 5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from g2c_serving.sample.regex_check import check_text, open_size

MAX_EBNF_CHARS = 20_000
MAX_RULES = 500
MAX_REPEAT = 10_000  # of one bound, and of bounds inside each other
MAX_SIZE = 10_000  # characters of all rules with their repetition written out

TOKEN = re.compile(
    r"(?P<space>\s+|\#[^\n]*)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\])'
    r"|(?P<head>[A-Za-z_][\w.-]*\s*::=)|(?P<call>[A-Za-z_][\w.-]*\()|(?P<name>[A-Za-z_][\w.-]*)"
    r"|(?P<ahead>\(\s*=)|(?P<open>\()|(?P<close>\))|(?P<or>\|)"
    r"|(?P<many>[*+?]|\{\s*(?P<low>\d+)\s*(?:,\s*(?P<high>\d*)\s*)?\})"
)
Tokens = Sequence[tuple[str, str]]  # kind and text


def check_ebnf(rules: str) -> None:
    """ValueError for rules that are too many or too long, miss one, or have no way out."""
    check_text("rules", rules, MAX_EBNF_CHARS)
    bodies = _bodies(rules)
    for name, body in bodies.items():
        for kind, text in body:
            if kind == "name" and text not in bodies:
                raise ValueError(f"rule {name!r} uses {text!r}, which is not defined")
    ends: set[str] = set()
    names = list(bodies)
    while new := {name for name in names if _ends(bodies[name], ends)}:
        ends |= new
        names = [name for name in reversed(names) if name not in new]
    if names:
        raise ValueError(f"rule {names[0]!r} has no way out: no finite text is of it")
    _check_size(bodies)


def _check_size(bodies: dict[str, Tokens]) -> None:
    """ValueError for rules that repeat too much, written out or inside each other."""
    known: dict[str, int] = {}
    try:
        size = sum(_measure(body, bodies, known)[0] for body in bodies.values())
    except RecursionError:
        raise ValueError("rules lead through too many others; put some into one") from None
    texts = [text for body in bodies.values() for _, text in body]
    size += open_size(sum(map(texts.count, "*+")), sum(map(texts.count, ("?", '""'))))
    if size > MAX_SIZE:
        raise ValueError(
            f"rules repeat too much: written out they have {size} characters; at most {MAX_SIZE} "
            "serve"
        )


def _measure(body: Tokens, bodies: dict[str, Tokens], known: dict[str, int]) -> tuple[int, int]:
    """A rule's characters, written out, each rule that it names as one; and how often what is
    innermost repeats, with the rules that it names. `known`: the second by name, 1 for those that
    are being looked at, so that recursion counts once."""
    groups, last = [(0, 1)], (0, 1)
    for kind, text in body:
        if kind == "open":
            groups.append((0, 1))
        elif kind != "or":
            size, deep = groups.pop() if kind in ("close", "many") else groups[-1]
            if kind == "many":
                times = _times(text)
                size, last = size + last[0] * (times - 1), (last[0] * times, last[1] * times)
                groups.append((size, max(deep, last[1])))
            else:
                last = (size, deep) if kind == "close" else _one(kind, text, bodies, known)
                size, deep = groups.pop()
                groups.append((size + last[0], max(deep, last[1])))
        if groups[-1][1] > MAX_REPEAT:
            raise ValueError(
                f"rules repeat too much: bounds inside each other come to over {MAX_REPEAT}"
            )
    return groups[0]


def _one(kind: str, text: str, bodies: dict[str, Tokens], known: dict[str, int]) -> tuple[int, int]:
    if kind == "text":
        return (1 if text[0] == "[" else len(text) - 2), 1
    if text not in known:
        known[text] = 1
        known[text] = _measure(bodies[text], bodies, known)[1]
    return 1, known[text]


def _times(many: str) -> int:
    """How often a quantifier may repeat, its lower bound where there is no upper one."""
    bounds = re.findall(r"\d+", many)
    return max(1, int(bounds[-1])) if bounds else 1


def _bodies(rules: str) -> dict[str, Tokens]:
    """The tokens of each rule by its name."""
    found: dict[str, Tokens] = {}
    body: list[tuple[str, str]] | None = None
    for kind, text in _tokens(rules):
        if kind == "head":
            name = text.removesuffix("::=").strip()
            if name in found:
                raise ValueError(f"rule {name!r} is defined twice")
            found[name] = body = []
        elif body is None:
            raise ValueError(f"rules begin with {text!r}; a rule is `name ::= ...`")
        else:
            body.append((kind, text))
    if "root" not in found:
        raise ValueError("rules have no 'root', where a text begins")
    if len(found) > MAX_RULES:
        raise ValueError(f"there are {len(found)} rules; at most {MAX_RULES} serve")
    return found


def _tokens(rules: str) -> Tokens:
    found, place = [], 0
    while place < len(rules):
        match = TOKEN.match(rules, place)
        kind = (match.lastgroup or "") if match else ""
        kind = "many" if kind in ("low", "high") else kind
        if match is None or kind in ("call", "ahead"):
            raise ValueError(
                f"rules: {rules[place : place + 12]!r} at {place} does not serve; texts, classes, "
                "names, groups, |, * + ? and {m,n} do"
            )
        for bound in (match["low"], match["high"]):
            if bound and (len(bound) > 6 or int(bound) > MAX_REPEAT):
                raise ValueError(f"{match.group()} repeats too often; at most {MAX_REPEAT} serve")
        if kind != "space":
            found.append((kind, match.group()))
        place = match.end()
    return found


def _ends(body: Tokens, ends: set[str]) -> bool:
    """Whether a rule derives a finite text if those in `ends` do. For each open group: whether some
    alternative before does, and whether the one begun does so far."""
    groups = [[False, True]]
    last = True  # of what stands before, in case it may be left out
    for (kind, text), after in zip(body, [*body[1:], ("", "")], strict=True):
        if kind == "open":
            groups.append([False, True])
            continue
        if kind == "or":
            groups[-1] = [groups[-1][0] or groups[-1][1], True]
            continue
        if kind == "many":
            continue
        if kind == "close":
            if len(groups) == 1:
                raise ValueError("rules: a parenthesis is closed that was not opened")
            last = any(groups.pop())
        else:
            last = kind != "name" or text in ends
        may_be_none = after[0] == "many" and (after[1] in "*?" or re.match(r"\{\s*0+\D", after[1]))
        groups[-1][1] &= bool(last or may_be_none)
    if len(groups) > 1:
        raise ValueError("rules: a parenthesis is not closed")
    return any(groups[0])
