"""A grammar's EBNF: rules that are defined, that come to an end, within a stated size.

XGrammar takes `root ::= "a" root`, and a model would write for ever; here every rule must derive
some finite text. Left out of its language: what looks ahead, `(= ...)`, which it does not hold to,
and its own functions, `Regex(...)`, `TagDispatch(...)`, `Token(...)` and the like, which would get
around what is checked. Brief, section 5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from g2c_serving.sample.regex_check import check_text

MAX_EBNF_CHARS = 20_000
MAX_RULES = 500
MAX_REPEAT = 10_000  # of one bound

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


def _bodies(rules: str) -> dict[str, list[tuple[str, str]]]:
    """The tokens of each rule by its name."""
    found: dict[str, list[tuple[str, str]]] = {}
    body: list[tuple[str, str]] | None = None
    for kind, text in _tokens(rules):
        if kind == "head":
            name = text.removesuffix("::=").strip()
            if name in found:
                raise ValueError(f"rule {name!r} is defined twice")
            body = found[name] = []
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
