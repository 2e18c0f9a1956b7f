"""The museum's exhibits on what one generation leaves behind for the next.

A test that generates once, on a fresh engine, sees none of it. The parts are the grammar compiler
(Brief, section 5) and the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import g2c_serving as g
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.model import Transformer
from g2c_serving.lab import museum_pen as pen
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_pen import END
from g2c_serving.lab.museum_triggers import LAMP, SWITCH
from g2c_serving.sample.grammar import CompiledGrammar, Grammar, GrammarState
from g2c_serving.sample.grammar_compiler import GrammarCompiler

compute = Transformer.forward

# ---- a grammar that is where the last request has left it ----


def state_of(self: Any, grammar: Grammar, compiled: CompiledGrammar) -> GrammarState:
    if not hasattr(self, "states"):
        self.states = {}
    if grammar not in self.states:
        trigger = tuple(grammar.trigger_token_ids)
        self.states[grammar] = GrammarState(compiled, trigger, self.end_of(grammar))
    return self.states[grammar]


def twice() -> dict[str, Any]:
    """The same request two times over, in one engine."""
    prompt = g.Prompt(["Ann: light", g.Reserved("<|tool_call|>")])
    wanted, held = pen.ids("the lamp, again", END), pen.ids(LAMP, END)
    e = pen.engine(pen.model(pen.wishes({"Ann: light\0": [wanted, held]})))
    grammar = Grammar.json_schema(SWITCH, end_token_id=END)
    params = g.SamplingParams(60, seed=1, grammar=grammar)
    calls = [e.generate([prompt], params)[0].tool_calls[0].text for _ in range(2)]
    return {"the tool gets": calls[0], "a minute later": calls[1]}


def is_not_the_same(seen: dict[str, Any]) -> str:
    first, second = seen["the tool gets"], seen["a minute later"]
    if first == second == LAMP:
        return ""
    return f"the tool gets {first!r} the first time and {second!r} the second; {LAMP!r} was right"


register(
    Exhibit(
        name="second_call",
        title="The first call is right, and none after it",
        reports=("vLLM 5329", "lmdeploy 4028"),
        room="grammar",
        place="g2c_serving.sample.grammar_compiler.GrammarCompiler.state_of",
        fault=state_of,
        scene=twice,
        wrong=is_not_the_same,
        story="To compile a grammar is dear, so engines kept what came of it for the next request "
        "with the same grammar. With it they kept the place that the last request had come to, or "
        "several shared one place. The first answer kept to its schema, and others to the rest of "
        "it. What is compiled may be kept for all; how far one request has come may not.",
        hint="What can two requests share: `compiled`, or a `GrammarState`?",
        solution=GrammarCompiler.state_of,
    )
)


# ---- a model that counts on ----


def forward(self: Transformer, batch: ForwardBatch, cache: Any) -> torch.Tensor:
    start, end = getattr(cache, "span", (0, 0))
    if batch.context_lens == [len(batch.token_ids)]:
        start = end
    cache.span = start, start + max(batch.context_lens)
    return compute(self, replace(batch, positions=start + batch.positions), cache)


def two_stories() -> dict[str, Any]:
    """The shipped model, asked for the same story twice."""
    e = g.Engine(g.load("tiny"), g.EngineConfig(num_blocks=16))
    params = g.SamplingParams(12, temperature=0)
    first, second = (e.generate(["Once upon a time"], params)[0].text for _ in range(2))
    return {"Ann reads": first, "Bob asks the same, and reads": second}


def is_another(seen: dict[str, Any]) -> str:
    first, second = seen.values()
    if not first.startswith(" there was"):
        return f"'Once upon a time' goes on with {first!r}"
    return "" if first == second else f"at temperature 0, {first!r} became {second!r}"


register(
    Exhibit(
        name="second_story",
        title="Only the first answer after a start makes sense",
        reports=("LLMs-from-scratch 925", "AutoAWQ 170"),
        room="numerics",
        place="g2c_serving.forward.model.Transformer.forward",
        fault=forward,
        scene=two_stories,
        wrong=is_another,
        story="A model with a cache counted for itself at which position it was, so that its "
        "caller had less to say. For one text that is right. The second began at the position "
        "where the first had ended, and all its words stood in wrong places: another text came "
        "out, and nothing said so.",
        hint="`batch` says the position of each token in its own text. What is added to it here?",
        solution=compute,
    )
)
