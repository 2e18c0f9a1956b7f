"""The museum's room of grammars, second half: those that begin too early, or never.

Brief, section 5. The parts are those of `sample/grammar.py`. First half: `museum_masks.py`; another
one is in `museum_again.py`.
"""

from __future__ import annotations

from typing import Any

import g2c_serving as g
from g2c_serving.lab import museum_pen as pen
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_pen import CALL, END, END_THINK, THINK
from g2c_serving.sample.grammar import CompiledGrammar, Grammar, GrammarState

LAMP = '{"name": "lamp"}'
SWITCH = {"type": "object", "properties": {"name": {"const": "lamp"}}, "required": ["name"]}


def _params(grammar: Grammar) -> g.SamplingParams:
    return g.SamplingParams(60, seed=1, grammar=grammar, stop_token_ids=(END,))


# ---- before the trigger ----


def begin(self: GrammarState, compiled: CompiledGrammar, trigger: tuple, end: Any) -> None:
    self._compiled, self._trigger, self._end = compiled, trigger, end
    self._tail = ()
    self._matcher = self._new_matcher()
    self._follows = None
    self.is_broken = False
    self._slow = []


def think_first() -> dict[str, Any]:
    """A thought, then a call that is held to its schema; without the thought the call alone."""
    call = pen.ids(LAMP, END)
    wanted = [THINK, *pen.ids("it is dark"), END_THINK, CALL, *call]
    grammar = Grammar.json_schema(SWITCH, trigger_token_ids=[CALL])
    write = pen.wishes({"Ann: light": [wanted, call]})
    return pen.read(pen.answer(pen.model(write), "Ann: light", _params(grammar)))


def has_no_thought(seen: dict[str, Any]) -> str:
    if seen["reasoning"] == "it is dark":
        return ""
    return f"the model wanted to think 'it is dark' first, and could think {seen['reasoning']}"


register(
    Exhibit(
        name="grammar_too_early",
        title="A model that may not think before it calls a tool",
        reports=("smg 789", "vLLM 46149"),
        room="grammar",
        place="g2c_serving.sample.grammar.GrammarState.__init__",
        fault=begin,
        scene=think_first,
        wrong=has_no_thought,
        story="A schema was meant for the final answer alone. The grammar held from the first "
        "token instead of from its trigger, so that the model could not open its thought: each "
        "token of it was masked. What came out was valid, and worse, since nobody had thought "
        "about it.",
        hint="Before its trigger a state is free: `is_inside` is False as long as there is no "
        "matcher.",
        solution=GrammarState.__init__,
    )
)


# ---- after the trigger ----


def advance(self: GrammarState, token_id: int) -> None:
    if self._matcher is None:
        if (token_id,) == self._trigger:
            self._matcher = self._new_matcher()
    elif not self._matcher.accept_token(token_id):
        self.is_broken = True
    elif self._matcher.is_terminated():
        self._matcher = None
    self._follows = self._compiled.follows.get(token_id)


def call_on_a_new_line() -> dict[str, Any]:
    """The trigger is the marker and the line's end; after it the model wants to talk."""
    start = [*pen.ids("Yes.\n"), CALL, ord("\n")]
    wanted, held = [*start, *pen.ids("the lamp!", END)], [*start, *pen.ids(LAMP, END)]
    grammar = Grammar.json_schema(SWITCH, trigger_token_ids=start[-2:])
    write = pen.wishes({"Ann: light": [wanted, held, pen.ids(LAMP, END)]})
    return pen.read(pen.answer(pen.model(write), "Ann: light", _params(grammar)))


def is_not_held(seen: dict[str, Any]) -> str:
    call = seen["the tool gets"]
    if call == "nothing" and seen["Ann reads"] != LAMP:
        return f"the grammar held before its trigger was whole: Ann reads {seen['Ann reads']!r}"
    if call.strip() in (LAMP, "nothing"):
        return ""
    return f"the tool gets {call.strip()!r}, and its schema admits {LAMP!r} alone"


register(
    Exhibit(
        name="trigger_missed",
        title="A tool call that keeps to no schema",
        reports=("llama.cpp 12291",),
        room="grammar",
        place="g2c_serving.sample.grammar.GrammarState.advance",
        fault=advance,
        scene=call_on_a_new_line,
        wrong=is_not_held,
        story="A grammar that waits for a trigger is free until it comes. In a rewrite the "
        "trigger's id was cast to a string, so that nothing ever matched it, and the grammar never "
        "began. No error, no warning, and hard to test: only now and then an argument that nothing "
        "could read. Here it is triggers of more than one id that are never matched.",
        hint="How many ids may a trigger have, and how many of those that were generated does this "
        "compare with it?",
        solution=GrammarState.advance,
    )
)
