"""What the tests of grammars share: a grammar's automaton worked out by hand, engines in the three
modes of speculation, and models that want to write a given script.

`Words` is the oracle. Its language is a plain set of byte strings, in which it looks up what may
follow; nothing of it comes from the library that is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from small_models import random_lm

import g2c_serving as g
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.sample.grammar import GrammarState, bitmask

EOS, CALL, END, PAD = 256, 260, 262, 263
VOCAB = 266  # bytes and reserved ids
MODES = ["off", "fixed", "budgeted"]
SIZES = {"vocab_size": VOCAB, "dim": 16, "hidden": 32, "context": 128, "eos_id": EOS}


def calm(lm: g.LanguageModel, scale: float = 0.25) -> g.LanguageModel:
    """The model with smaller logits, so that many tokens are likely."""
    weights = dict(lm.weights)
    for name in ("ln_final.gamma", "ln_final.beta"):
        weights[name] = scale * weights[name]
    return g.LanguageModel("calm", lm.config, weights, lm.tokenizer, lm.eos_id)


LM, DRAFTER = calm(random_lm(seed=1, **SIZES)), calm(random_lm(seed=2, **SIZES), 0.15)


def engine(
    mode: str = "off", lm=LM, drafter=DRAFTER, num_drafts: int = 4, row_ms: float = 1.0, **config
) -> g.Engine:
    """`row_ms`: what the budget believes a row costs, beside 10 ms a step."""
    sizes = {"num_blocks": 256, "block_size": 4, "batch_invariant": True, **config}
    if mode == "off":
        return g.Engine(lm, g.EngineConfig(**sizes))
    how = {"step_time": lambda rows: 10.0 + row_ms * rows} if mode == "budgeted" else {}
    speculation = g.Speculation(mode, num_drafts, drafter, **how)
    return g.Engine(lm, g.EngineConfig(speculation=speculation, **sizes))


def regex(words: Iterable[str], trigger: Sequence[int] = (), end: int | None = None) -> g.Grammar:
    """The language of some words of letters."""
    return g.Grammar.regex("|".join(words), trigger, end)


class Words:
    """The state of a grammar that admits `words`: `allowed()` are the ids that may follow, None for
    all."""

    def __init__(self, words: Iterable[str], trigger: Sequence[int] = (), end: int = EOS) -> None:
        self.words = {word.encode() for word in words}
        self.trigger, self.end = list(trigger), end
        self.free: list[int] = []  # generated since the start, or the last end
        self.begun: bytes | None = None if trigger else b""

    def allowed(self) -> set[int] | None:
        if self.begun is None:
            return None
        n = len(self.begun)
        longer = {w[n] for w in self.words if w[:n] == self.begun and len(w) > n}
        return longer | ({self.end} if self.begun in self.words else set())

    def advance(self, token: int) -> None:
        if self.begun is None:
            self.free.append(token)
            if self.trigger and self.free[-len(self.trigger) :] == self.trigger:
                self.begun = b""
        elif token == self.end:
            self.begun, self.free = None, []
        else:
            self.begun += bytes([token])

    @property
    def is_over(self) -> bool:
        return not self.trigger and self.begun is None


def held(script: Sequence[int], state: Words) -> list[int]:
    """What a greedy model writes that wants to write `script`, and else prefers low ids."""
    tokens: list[int] = []
    for wanted in script:
        allowed = state.allowed()
        tokens.append(wanted if allowed is None or wanted in allowed else min(allowed))
        state.advance(tokens[-1])
        if state.is_over:
            break
    return tokens


def follow_script(model, script: Sequence[int], prompt: int, patch) -> None:
    """Let `model` (a target or a drafter) want token `script[i]` as number i after the prompt."""
    real = model.forward

    @allow_sync("a script is followed by position")
    def forward(batch, cache):
        logits = real(batch, cache).clone()
        logits[:] = -1e-3 * torch.arange(logits.shape[1])
        places = batch.positions[batch.logit_rows].tolist()
        for row, position in zip(logits, places, strict=True):
            if 0 <= position + 1 - prompt < len(script):
                row[script[position + 1 - prompt]] = 30.0
        return logits

    patch.setattr(model, "forward", forward)


def fresh_state(e: g.Engine, request) -> GrammarState:
    """The state of a request that has drawn what this one has, worked out from the start."""
    grammar = request.params.grammar
    state = e.compiler.state_of(grammar, e.compiler.submit(grammar).result())
    for token in request.token_ids[request.num_prompt_tokens :]:
        state.advance(token)
    return state


def checked_step(e: g.Engine) -> list[g.RequestOutput]:
    """A step, and what must be true after each: sound blocks, and states that are those of the
    tokens, whatever was drafted and rejected. Who waits for a compiler holds nothing."""
    outputs = e.step()
    e.block_manager.check()
    for request in [r for samples in e._requests.values() for r in samples]:
        if request.state == "compiling":
            assert request.sequence_id not in e.block_manager.tables
        if request.grammar is not None:
            fresh = fresh_state(e, request)
            assert request.grammar.is_inside == fresh.is_inside and not fresh.is_broken
            assert request.grammar._tail == fresh._tail
            one, other = (bitmask([s], e.lm.vocab_size) for s in (request.grammar, fresh))
            assert one is None if other is None else (one == other).all()
    return outputs


def run(e: g.Engine) -> dict[tuple[int, int], g.RequestOutput]:
    """Step to the end with everything checked; final outputs by request and sample."""
    final = {}
    for _ in range(3000):
        if not e.has_unfinished:
            assert e.block_manager.num_free == e.config.num_blocks
            return final
        outputs = checked_step(e)
        final |= {(o.request_id, o.sample_index): o for o in outputs if o.finish_reason}
    raise AssertionError("3,000 steps and no end")


def drafts_of(e: g.Engine, request_id: int, sample: int = 0) -> list:
    """All that was drafted for one sample, step by step."""
    mine = [d for r in e.history for d in r.drafts]
    return [d for d in mine if (d.request_id, d.sample_index) == (request_id, sample)]


def unchecked(kind: str, source: str) -> g.Grammar:
    """A grammar that was not looked at: what the library itself makes of it."""
    grammar = g.Grammar.regex("a")
    for name, value in (("kind", kind), ("source", source)):
        object.__setattr__(grammar, name, value)
    return grammar
