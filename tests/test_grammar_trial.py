"""A grammar that would hold up everybody's steps is found out in the compiler's thread."""

from __future__ import annotations

import time

import pytest
from grammars import unchecked
from small_models import random_lm
from test_schema_check import END, KEPT, compiler

import g2c_serving as g
from g2c_serving.sample import grammar, grammar_compiler
from g2c_serving.sample.grammar import Grammar
from g2c_serving.sample.grammar_compiler import GrammarCompiler
from g2c_serving.sample.grammar_trial import check_pace

LM = random_lm(vocab_size=270, dim=16, hidden=32, seed=1)


def check(one: Grammar) -> None:
    state = compiler().state_of(one, compiler().submit(one).result())
    check_pace(state, compiler().vocab_size, [END])
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
    with pytest.raises(ValueError, match="too many"):
        check(getattr(Grammar, kind)(source))


def test_a_dead_end_inside_is_found():
    with pytest.raises(ValueError, match="admits nothing after 1 tokens"):
        check(Grammar.regex(r"a[^\s\S]"))


def test_a_token_that_takes_too_long_is_the_last(monkeypatch):
    """What a trial may miss, since it lies behind 50 other characters: each further a can be read
    in more ways, and reading it takes the time."""
    rules = 'root ::= [b-z ]{50,60} ((("a"{0,99}){0,99}){0,99}){0,99}'
    monkeypatch.setattr(grammar_compiler, "check_pace", lambda *_: None)
    mine = GrammarCompiler(LM.tokenizer, LM.vocab_size, [256])
    one = unchecked("ebnf", rules)
    state = mine.state_of(one, mine.submit(one).result())
    for token in b"b" * 50:
        state.advance(token)
    for _ in range(60):
        state.advance(ord("a"))
    assert "too many ways" in state.problem
    began = time.thread_time()
    state.advance(ord("a"))
    assert time.thread_time() - began < 0.01  # no further one is read


def test_what_is_too_slow_for_a_fork_says_nothing_of_its_parent(monkeypatch):
    one = Grammar.regex("[ab]{60}")
    parent = compiler().state_of(one, compiler().submit(one).result())
    child, ahead = parent.fork(), parent.ahead()
    monkeypatch.setattr(grammar, "MAX_TOKEN_MS", -1.0)
    child.advance(ord("a"))
    assert child.problem and not parent.problem
    ahead.advance(ord("a"))  # a draft of its own is another thing
    assert parent.problem


@pytest.mark.parametrize("speculation", [None, "fixed"])
def test_a_mask_that_takes_too_long_ends_its_request(speculation, monkeypatch):
    """What the trial did not find: the first slow mask is the last one, also where a draft met
    it."""
    spec = speculation and g.Speculation(speculation, drafter=LM)
    engine = g.Engine(LM, g.EngineConfig(num_blocks=32, block_size=8, speculation=spec))
    params = [g.SamplingParams(max_tokens=20, grammar=grammar.Grammar.regex("[ab]{60}", (), 262)),
              g.SamplingParams(max_tokens=20, ignore_eos=True)]  # fmt: skip
    assert [o.finish_reason for o in engine.generate([[65], [66]], params)] == ["length"] * 2
    monkeypatch.setattr(grammar, "MAX_TOKEN_MS", -1.0)  # every mask is too slow from here on
    bad, good = engine.generate([[65], [66]], params)
    assert bad.finish_reason == "error" and "too many ways" in bad.message
    assert good.finish_reason == "length"
