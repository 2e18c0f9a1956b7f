"""The museum's room of grammars, first half: masks that let through too much.

Brief, section 5. The parts are those of `sample/grammar_compiler.py` and the sampler; the models
are those of `museum_pen.py`, which would like to write something else. Second half:
`museum_triggers.py`.
"""

from __future__ import annotations

import json
from typing import Any

import torch

import g2c_serving as g
from g2c_serving import sampling
from g2c_serving.lab import museum_pen as pen
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_pen import END, USER
from g2c_serving.sample import grammar_compiler, sampler
from g2c_serving.sample.grammar import Grammar
from g2c_serving.sample.grammar_compiler import CONTROL, NO_TEXT
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.sampler import INFINITE, NOT_NUMBERS, NOTHING_LEFT, SamplingBatch

NOTE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def _params(grammar: Grammar, max_tokens: int = 60, temperature: float = 1.0) -> g.SamplingParams:
    return g.SamplingParams(
        max_tokens, temperature, seed=1, grammar=grammar, stop_token_ids=(END,), ignore_eos=True
    )


# ---- a reserved id in a string ----


def library(tokenizer: g.Tokenizer, vocab_size: int, is_json: bool) -> Any:
    import xgrammar

    vocabulary = [tokenizer.token_bytes(i) for i in range(min(vocab_size, tokenizer.vocab_size))]
    vocabulary = [b"" if NO_TEXT.search(token) else token for token in vocabulary]
    if is_json:
        vocabulary = [b"" if CONTROL.search(token) else token for token in vocabulary]
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def note() -> dict[str, Any]:
    """The prompt opens the call; the model wants a role marker in its argument."""
    wanted = pen.ids('{"text": "ask ', USER, '"}', END)
    instead = [ord("?") if token == USER else token for token in wanted]
    prompt = ["Ann: a note", g.Reserved("<|tool_call|>")]
    write = pen.wishes({"a note\0": [wanted, instead]})
    grammar = Grammar.json_schema(NOTE, end_token_id=END)
    return pen.read(pen.answer(pen.model(write), prompt, _params(grammar)))


def is_no_json(seen: dict[str, Any]) -> str:
    call, text = seen["the tool gets"], seen["Ann reads"]
    try:
        json.loads(call)
    except ValueError:
        return f"the tool gets {call!r}, which is no JSON, and Ann reads {text!r}"
    return ""


register(
    Exhibit(
        name="reserved_in_string",
        title="A tool's argument breaks off, and its rest is shown as the answer",
        reports=("xgrammar 0.2.8",),
        room="grammar",
        place="g2c_serving.sample.grammar_compiler.library",
        fault=library,
        scene=note,
        wrong=is_no_json,
        story="A JSON string may hold any text, and the grammar library was told the vocabulary as "
        "text. So its mask allowed a role marker inside an argument: to it, `<|user|>` is eight "
        "characters. The model sampled the reserved id, and whatever reads ids took it for the end "
        "of the call. The library does as it is told; nobody had told it which ids are reserved.",
        hint="Which tokens does the library see as text? Look at what stands for a reserved id in "
        "`vocabulary`.",
        solution=grammar_compiler.library,
    )
)


# ---- temperature 0 ----


def sample(
    logits: torch.Tensor,
    batch: SamplingBatch,
    mask: torch.Tensor | None = None,
    ledger: Ledger | None = None,
) -> torch.Tensor:
    if not batch.temperature.any():
        return logits.argmax(-1)
    return sampler.sample(logits, batch, mask, ledger)


def greedy() -> dict[str, Any]:
    write = pen.wishes({"Ann: red or blue?": [pen.ids("Well, blue."), pen.ids("blue")]})
    params = _params(Grammar.regex("red|blue"), temperature=0)
    return {"Ann reads": pen.answer(pen.model(write), "Ann: red or blue?", params).text}


def is_neither(seen: dict[str, Any]) -> str:
    text = seen["Ann reads"]
    return "" if text in ("red", "blue") else f"red or blue was asked for; Ann reads {text!r}"


register(
    Exhibit(
        name="greedy_unmasked",
        title="At temperature 0 the grammar is not kept",
        reports=("vllm-metal 238", "vLLM 22180"),
        room="grammar",
        place="g2c_serving.sampling.sample",
        fault=sample,
        scene=greedy,
        wrong=is_neither,
        story="An engine had two ways to sample, and applied the mask in one of them. Temperature "
        "0 is where a second way is most tempting, since greedy decoding is one argmax. In another "
        "engine -1 stood for temperature 0 inside; dividing by it made plus infinity of what was "
        "masked by minus infinity, and NaN of the whole row.",
        hint="Which tokens does this argmax compare?",
        solution=sampling.sample,
    )
)


# ---- a row that is masked whole ----


def readable(
    logits: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best = top = scores.amax(-1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
        best = scores.amax(-1)
    problems = (best == -torch.inf) * NOTHING_LEFT
    problems.masked_fill_(top == torch.inf, INFINITE).masked_fill_(top.isnan(), NOT_NUMBERS)
    return scores, best, problems


def nothing_left() -> dict[str, Any]:
    """The model rules out all tokens but those of its wish, and the grammar rules those out."""
    lm = pen.model(pen.wishes({"Ann: red or blue?": [pen.ids("green")]}), others=-torch.inf)
    output = pen.answer(lm, "Ann: red or blue?", _params(Grammar.regex("red|blue"), 7))
    return {"Ann reads": output.text or "nothing", "ended by": output.finish_reason,
            "Ann is told": output.message or "nothing"}  # fmt: skip


def is_made_up(seen: dict[str, Any]) -> str:
    if seen["ended by"] == "error":
        return ""
    return f"no token was left to draw, and yet Ann reads {seen['Ann reads'][:12]!r}"


register(
    Exhibit(
        name="mask_too_weak",
        title="Noise, where no token was left to draw",
        reports=("vLLM 53665", "vLLM 22180"),
        room="grammar",
        place="g2c_serving.sample.sampler._readable",
        fault=readable,
        scene=nothing_left,
        wrong=is_made_up,
        story="Two rules met. A grammar was complete and allowed the end of the text alone, and a "
        "minimum length forbade just that. No token was left, one came out all the same, and the "
        "grammar could not go on with it. Nothing marks such a row where forbidden tokens are only "
        "very unlikely: then the best of them is drawn, and the user gets noise. Here it is a "
        "model and a grammar that rule out each other's tokens.",
        hint="Which is lower, -1e9 or minus infinity? And which of them does `problems` look for?",
        solution=sampler._readable,
    )
)
