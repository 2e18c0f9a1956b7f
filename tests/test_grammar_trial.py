"""A grammar that would hold up everybody's steps is found out in the compiler's thread."""

from __future__ import annotations

import pytest
from test_schema_check import END, KEPT, compiler

from g2c_serving.sample.grammar import Grammar
from g2c_serving.sample.grammar_trial import check_pace


def check(grammar: Grammar) -> None:
    state = compiler().state_of(grammar, compiler().submit(grammar).result())
    check_pace(state, compiler().vocab_size, END)
    assert state.is_inside and not state.is_broken


@pytest.mark.parametrize("name", KEPT)
def test_ordinary_schemas_pass(name):
    check(Grammar.json_schema(KEPT[name]))


@pytest.mark.parametrize(
    "pattern", ["[0-9]+", "([a-z]+ ?)+", "(((ab)+c)+d)+", "(.*a){100}", "a{0}"]
)
def test_ordinary_patterns_pass(pattern):
    check(Grammar.regex(pattern))


RULES = "root ::= (" + " | ".join(f"r{i}" for i in range(400)) + ")\n"
AMBIGUOUS = [
    ("regex", "(((a{0,10}){0,10}){0,10}){0,10}"),
    ("regex", "(" * 200 + "a*" + ")*" * 200),
    ("ebnf", 'root ::= (x x x){0,1000}\nx ::= x x | "a" | ""'),
    ("ebnf", RULES + "\n".join(f'r{i} ::= "a" | root root' for i in range(400))),
]


@pytest.mark.parametrize("kind, source", AMBIGUOUS, ids=range(len(AMBIGUOUS)))
def test_what_can_be_read_in_too_many_ways_is_refused(kind, source):
    with pytest.raises(ValueError, match="too many ways"):
        check(getattr(Grammar, kind)(source))


def test_a_dead_end_inside_is_found():
    with pytest.raises(ValueError, match="admits nothing after 1 tokens"):
        check(Grammar.regex(r"a[^\s\S]"))
