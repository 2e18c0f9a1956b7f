"""Grammars in the engine, without speculation, with fixed and with budgeted: what comes out keeps
to the grammar from the trigger to its end, is what the model would write under that mask, and harms
nobody else. The right values are the `jsonschema` and `re` modules, and `Words` of grammars.py."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter

import jsonschema
import numpy as np
import pytest
import torch
from chi_square import fits
from grammars import (
    CALL,
    DRAFTER,
    END,
    EOS,
    LM,
    MODES,
    PAD,
    SIZES,
    Words,
    calm,
    checked_step,
    drafts_of,
    engine,
    follow_script,
    held,
    regex,
    run,
)  # fmt: skip
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.forward.batch import build_batch

PROMPT = [5, 6, 7]
A, B, C = b"abc"
WORDS = ["ab", "abc", "c", "cab"]
TOOL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["timer", "lamp"]},
        "minutes": {"type": "integer", "minimum": 0, "maximum": 120},
        "note": {"type": "string"},
    },
    "required": ["name", "minutes"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}
EITHER = {"anyOf": [{"type": "number"}, {"type": "null"}, {"const": {"a": [1, "b"]}}]}


def params(grammar=None, **how) -> g.SamplingParams:
    return g.SamplingParams(**{"max_tokens": 40, "seed": 3, "grammar": grammar, **how})


def bytes_of(tokens: list[int]) -> bytes:
    return bytes(token for token in tokens if token < 256)


# ---- what comes out is of the language ----


@pytest.mark.parametrize("mode", MODES)
def test_every_whole_call_is_valid_and_what_is_cut_off_says_so(mode):
    """500 runs, some with few tokens to write in."""
    schemas = [TOOL, LIST, EITHER]
    count = 500 if mode == "off" else 150
    wanted = [
        params(g.Grammar.json_schema(schemas[i % 3]), seed=i, max_tokens=(7, 30, 70, 200)[i % 4])
        for i in range(count)
    ]
    e = engine(mode, lm=WIDE_CONTEXT, drafter=WIDE_DRAFTER, num_blocks=4096, batch_invariant=False)
    whole = 0
    for i, output in enumerate(e.generate([PROMPT] * count, wanted)):
        text = bytes_of(output.token_ids)
        if output.finish_reason == "stop":
            assert output.token_ids[-1] == EOS and len(text) == len(output.token_ids) - 1
            jsonschema.validate(json.loads(text), schemas[i % 3])
            whole += 1
        else:
            assert output.finish_reason == "length"
            assert len(text) == len(output.token_ids) == wanted[i].max_tokens
    assert count / 2 < whole < count


WIDE_CONTEXT = calm(random_lm(seed=1, **{**SIZES, "context": 256}))
WIDE_DRAFTER = calm(random_lm(seed=2, **{**SIZES, "context": 256}), 0.15)


@pytest.mark.parametrize("mode", MODES)
def test_the_shipped_model_writes_valid_calls(mode):
    """It knows calls of this kind; held to the schema each of them is one."""
    lm = g.load("tiny")
    trigger = [lm.tokenizer.reserved["<|tool_call|>"]]
    number = {"type": "integer", "minimum": 0, "maximum": 60}
    arguments = {
        "type": "object", "properties": {"minutes": number}, "required": ["minutes"],
        "additionalProperties": False,
    }  # fmt: skip
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["timer", "alarm"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    grammar = g.Grammar.json_schema(schema, trigger_token_ids=trigger)
    e = engine(mode, lm=lm, drafter=g.load("tiny-drafter"), batch_invariant=False)
    parts = [g.Reserved("<|user|>"), "\nSet a timer for 31 minutes.\n", g.Reserved("<|assistant|>")]
    outputs = e.generate([[*parts, "\n"]] * 6, [params(grammar, seed=i) for i in range(6)])
    calls = 0
    for output in outputs:
        ids = output.token_ids
        if trigger[0] in ids and END in ids[ids.index(trigger[0]) :]:
            inside = ids[ids.index(trigger[0]) + 1 : ids.index(END)]
            jsonschema.validate(json.loads(lm.tokenizer.decode(inside)), schema)
            calls += 1
    assert calls >= 3


PATTERNS = [
    "[a-c]{2,5}", "(yes|no|maybe)", r"\d{1,3}\.\d{2}", "a*b", "[^x]{3}", "(ab?c){1,3}d", "a{0}",
    "é|ü{2}", r"[\w-]{4}!",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_regex_outputs_match(mode):
    e = engine(mode, batch_invariant=False, num_blocks=2048)
    asked = [params(g.Grammar.regex(p), seed=i, max_tokens=90) for p in PATTERNS for i in range(8)]
    for one, output in zip(asked, e.generate([PROMPT] * len(asked), asked), strict=True):
        pattern, text = one.grammar.source, bytes_of(output.token_ids).decode(errors="replace")
        if output.finish_reason == "stop":
            assert re.fullmatch(pattern, text, re.ASCII | re.DOTALL), (pattern, text)
        else:
            assert output.finish_reason == "length" and pattern == "a*b"


# ---- word for word, against the automaton worked out by hand ----


def outputs_of(
    mode, monkeypatch, script, grammar, drafted=None, how=None, models=(LM, DRAFTER), prompt=PROMPT
) -> tuple[g.Engine, g.RequestOutput]:
    """What a greedy model writes that follows a script, with a drafter that follows another."""
    e = engine(mode, *models)
    follow_script(e.model, script, len(prompt), monkeypatch)
    if mode != "off":
        drafted = script if drafted is None else drafted
        follow_script(e.speculator.drafter.model, drafted, len(prompt), monkeypatch)
    asked = params(grammar, **{"temperature": 0, "max_tokens": len(script), **(how or {})})
    request_id = e.add(prompt, asked)
    return e, run(e)[request_id, 0]


def assert_drafts_were_masked(e: g.Engine, output: g.RequestOutput, fresh) -> None:
    """Each draft is one that the grammar admits after what was written and the drafts before it."""
    for drafted in drafts_of(e, output.request_id):
        state = fresh()
        for token in output.token_ids[: drafted.position - len(output.prompt_token_ids)]:
            state.advance(token)
        for token in drafted.tokens:
            allowed = state.allowed()
            assert allowed is None or token in allowed
            state.advance(token)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_any_script_comes_out_as_the_automaton_says(mode, seed, monkeypatch):
    """Text before and after a trigger, smg 789 and llama.cpp 12291. Triggers that overlap
    themselves, calls one after the other, drafts that are right, and wrong, and cross both ends."""
    generator = random.Random(seed)
    for _ in range(4):
        ids = [A, B, C, CALL, END, PAD]
        trigger = generator.choice([[], [CALL], [A, A, B], [A], [CALL, C, CALL], [END, A]])
        words = generator.choice([WORDS, ["a"], ["", "aab"], ["abcabcabcabcabc"]])
        end = generator.choice([END, PAD]) if trigger else EOS
        script = [generator.choice([A, A, B, C, *trigger, *trigger, end, *ids]) for _ in range(36)]
        drafted = [t if generator.random() < 0.7 else generator.choice(ids) for t in script]
        fresh = lambda how=(words, trigger, end): Words(*how)  # noqa: E731
        grammar = regex(words, trigger, end)
        e, output = outputs_of(mode, monkeypatch, script, grammar, drafted)
        assert output.token_ids == held(script, fresh())
        assert output.finish_reason == ("stop" if output.token_ids[-1] == EOS else "length")
        assert_drafts_were_masked(e, output, fresh)
        if mode != "off":
            assert e.stats.verified > 0


@pytest.mark.parametrize("mode", MODES)
def test_before_the_trigger_all_is_free_and_after_it_nothing_else(mode, monkeypatch):
    """smg 789, llama.cpp 12291: every id before the marker, none outside the grammar behind it."""
    script = [200, PAD, 264, CALL, 201, 202, 203, 204, 210, EOS]
    _, output = outputs_of(mode, monkeypatch, script, regex(["ab"], [CALL]))
    assert output.token_ids == [200, PAD, 264, CALL, A, B, END, 204, 210, EOS]
    assert output.finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
def test_a_trigger_that_overlaps_itself(mode, monkeypatch):
    """1, 1, 2 is in 1, 1, 1, 2; a search that starts over at the mismatch would miss it."""
    script = [1, 1, 1, 2, 9, 9, 9]
    _, output = outputs_of(mode, monkeypatch, script, regex(["ab"], [1, 1, 2]))
    assert output.token_ids == [1, 1, 1, 2, A, B, END]


@pytest.mark.parametrize("mode", MODES)
def test_what_spells_the_trigger_is_not_the_trigger(mode, monkeypatch):
    """The bytes of `<|tool_call|>` are no call; nor is "ab" in one token the two ids a, b."""
    script = [*b"<|tool_call|>", 200, 201, 202]
    _, output = outputs_of(mode, monkeypatch, script, regex(["ab"], [CALL]))
    assert output.token_ids == script
    merged = g.Tokenizer([(A, B, 266)])
    models = [
        g.LanguageModel("merged", m.config, m.weights, merged, EOS)
        for m in (random_lm(seed=s, **{**SIZES, "vocab_size": 267}) for s in (1, 2))
    ]
    for script, words, expected in [
        ([266, 9, 9], ["c"], [266, 9, 9]),
        ([A, B, 9, 9], ["ab"], [A, B, A, B]),  # the lowest id of those that go on: a, not ab
        ([A, B, 266], ["ab"], [A, B, 266]),  # inside, any ids that spell the word
    ]:
        _, output = outputs_of(mode, monkeypatch, script, regex(words, [A, B]), models=models)
        assert output.token_ids == expected


@pytest.mark.parametrize("mode", MODES)
def test_only_generated_ids_trigger(mode, monkeypatch):
    """Neither a prompt with the trigger in it, nor one that ends with its first half."""
    for prompt in ([5, CALL, 7], [5, 6, CALL], [5, A, A]):
        trigger = [A, A, B] if A in prompt else [CALL]
        script = [B, 200, 201, 202, 203]
        _, output = outputs_of(mode, monkeypatch, script, regex(["ab"], trigger), prompt=prompt)
        assert output.token_ids == script


@pytest.mark.parametrize("mode", MODES)
def test_after_the_end_text_is_free_again_and_the_next_call_is_held_too(mode, monkeypatch):
    script = [CALL, 9, 9, 9, 200, CALL, 9, 9, 9, 201, 202]
    _, output = outputs_of(mode, monkeypatch, script, regex(["ab"], [CALL]))
    assert output.token_ids == [CALL, A, B, END, 200, CALL, A, B, END, 201, 202]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_trigger_the_end_is_the_end_of_the_request(mode, monkeypatch):
    e, output = outputs_of(mode, monkeypatch, [A, B, EOS, 9, 9, 9, 9], regex(WORDS))
    assert (output.token_ids, output.finish_reason) == ([A, B, EOS], "stop")
    _, output = outputs_of(
        mode, monkeypatch, [A, B, PAD, 9, 9, 9, 9], regex(WORDS, (), PAD), how={"ignore_eos": True}
    )
    assert (output.token_ids, output.finish_reason) == ([A, B, PAD], "stop")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_model_with_several_ends_ends_a_grammar_with_each(mode, ignore_eos):
    """Over some seeds both come, each time behind a whole word: a chat model may have been taught
    the second one alone."""
    lm = dataclasses.replace(LM, other_eos_ids=(PAD,))
    asked = [params(regex(WORDS), seed=seed, ignore_eos=ignore_eos) for seed in range(24)]
    outputs = engine(mode, lm).generate([PROMPT] * len(asked), asked)
    assert {output.token_ids[-1] for output in outputs} == {EOS, PAD}
    for output in outputs:
        assert output.finish_reason == "stop" and bytes(output.token_ids[:-1]).decode() in WORDS


@pytest.mark.parametrize("mode", MODES)
def test_what_is_cut_off_says_length(mode, monkeypatch):
    """Also where the text is whole but its end was not written any more; and where the last token
    is the end, it is whole."""
    for count, reason in ((1, "length"), (2, "length"), (3, "stop")):
        how = {"max_tokens": count}
        e, output = outputs_of(mode, monkeypatch, [A, B, EOS], regex(["ab"]), how=how)
        assert (output.token_ids, output.finish_reason) == ([A, B, EOS][:count], reason)


@pytest.mark.parametrize("mode", MODES)
def test_reserved_ids_are_never_inside_but_the_own_end(mode):
    """xgrammar 0.2.8, run here: its own mask lets `<|user|>` through in a string: what that spells
    is ordinary bytes. 200 calls, at a temperature at which all is equally likely."""
    e = engine(mode, batch_invariant=False, num_blocks=4096)
    grammar = g.Grammar.json_schema({"type": "string"}, (), END)
    outputs = e.generate(
        [PROMPT] * 200, [params(grammar, seed=i, temperature=50.0) for i in range(200)]
    )
    assert {t for o in outputs for t in o.token_ids if t >= 256} == {END}
    assert all(END not in o.token_ids[:-1] for o in outputs)


# ---- nothing changes where nothing is masked ----


@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_whose_trigger_never_comes_changes_no_bit(mode):
    """Tokens and log-probabilities, with the same seed."""
    plain, free = params(logprobs=3), params(regex(WORDS, [PAD, PAD, PAD]), logprobs=3)
    for prompt in (PROMPT, [*PROMPT, PAD, PAD, PAD]):
        (one,), (other,) = (engine(mode).generate([prompt], p) for p in (plain, free))
        assert one.token_ids == other.token_ids and one.logprobs == other.logprobs


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_up_to_the_trigger_the_tokens_are_those_of_free_text(mode):
    """The trigger is what the model writes anyhow: tokens 9 and 10 of the same seed's free text.
    With drafts the path after it may differ, up to it the request draws the same numbers."""
    (free,) = engine(mode).generate([PROMPT], params())
    trigger = free.token_ids[8:10]
    first = next(i for i in range(9) if free.token_ids[i : i + 2] == trigger)
    for company in (0, 3):
        e = engine(mode)
        request_id = e.add(PROMPT, params(regex(["ab" * 9], trigger)))
        for i in range(company):
            e.add(random_ids(LM, 4 + i, i), params(regex(WORDS), seed=i))
        output = run(e)[request_id, 0]
        assert output.token_ids[: first + 2] == free.token_ids[: first + 2]
        inside = output.token_ids[first + 2 :]
        assert bytes_of(inside[:18]) == b"ab" * 9 and inside[18] == END


def test_logprobs_are_the_models_own_before_the_mask():
    (output,) = engine().generate([PROMPT], params(regex(["q"]), logprobs=0))
    p = next_token(LM, PROMPT)
    assert output.logprobs[0].logprob == pytest.approx(np.log(p[ord("q")]), abs=1e-5)


def next_token(lm, ids: list[int], allowed=None, temperature: float = 1.0, top_k: int = 0):
    """The target's probabilities (V,) after `ids`, of the allowed tokens alone."""
    batch = build_batch([(ids, 0)], [list(range(20))], 4, [0])
    scores = lm.model.forward(batch, lm.model.new_cache(20, 4))[0].double().numpy()
    if allowed is not None:
        scores[[t for t in range(len(scores)) if t not in allowed]] = -np.inf
    p = np.exp((scores - scores.max()) / temperature)
    if top_k:
        p[np.argsort(-p, kind="stable")[top_k:]] = 0
    return p / p.sum()


# ---- settings act on what is allowed ----


@pytest.mark.parametrize("mode", MODES)
def test_temperature_0_takes_the_likeliest_of_the_allowed(mode):
    e = engine(mode)
    language = [x + y for x in "adgjm" for y in "xyz"]
    for i in range(8):
        prompt, state = random_ids(LM, 5, i), Words(language)
        (output,) = e.generate([prompt], params(regex(language), temperature=0))
        for n, token in enumerate(output.token_ids):
            p = next_token(LM, [*prompt, *output.token_ids[:n]], state.allowed())
            assert token == int(p.argmax())
            state.advance(token)
        assert output.finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
def test_top_k_and_top_p_count_what_is_allowed(mode):
    """Of the letters, not of the vocabulary, in which no letter is among the best two."""
    letters = "abcdefgh"
    p = next_token(LM, PROMPT, [ord(c) for c in letters])
    order = [chr(t) for t in np.argsort(-p)[:8]]
    assert not set(np.argsort(-next_token(LM, PROMPT))[:2]) & set(map(ord, letters))
    nucleus = 1 + int(np.searchsorted(np.cumsum(np.sort(p)[::-1]), 0.5))
    e = engine(mode, batch_invariant=False, num_blocks=2048)
    for how, keeps in (({"top_k": 2}, 2), ({"top_p": 0.5}, nucleus), ({}, 8)):
        asked = [params(regex(letters), seed=i, **how) for i in range(150)]
        outputs = e.generate([PROMPT] * 150, asked)
        assert {chr(o.token_ids[0]) for o in outputs} == set(order[:keeps])
        assert {o.finish_reason for o in outputs} == {"stop"}


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_a_seed_replays_in_any_company(mode):
    """Fixed: the path belongs to the request alone, under a grammar too."""
    asked = params(regex(["ab" * i + "c" for i in range(9)] + ["c"]), temperature=3.0)
    (alone,) = engine(mode).generate([PROMPT], asked)
    e = engine(mode, max_num_batched_tokens=30)
    others = [e.add(random_ids(LM, 3 + i, i), params(regex(WORDS, [A]), seed=i)) for i in range(3)]
    checked_step(e)
    request_id = e.add(PROMPT, asked)
    e.add(random_ids(LM, 9, 9), params(seed=8))
    final = run(e)
    assert final[request_id, 0].token_ids == alone.token_ids
    assert all(final[other, 0].finish_reason in ("length", "stop") for other in others)


@pytest.mark.parametrize("mode", MODES)
def test_greedy_speculation_is_greedy_decoding_under_a_grammar(mode):
    """With a drafter that is often right and one that never is."""
    prompts = [random_ids(LM, 3 + i, i) for i in range(6)]
    asked = params(g.Grammar.json_schema(TOOL), temperature=0, max_tokens=60)
    expected = [o.token_ids for o in engine().generate(prompts, asked)]
    for drafter in (LM, DRAFTER):
        e = engine(mode, drafter=drafter)
        assert [o.token_ids for o in e.generate(prompts, asked)] == expected
        if mode != "off" and drafter is LM:
            assert e.stats.acceptance_rate == 1.0  # masked alike: each draft is the target's token


# ---- by distribution ----


def exact(state_of, length: int, **how) -> dict[tuple[int, ...], float]:
    """The probability of each output of at most `length` tokens, token by token as the target has
    it, of what is allowed; all of them."""
    found: dict[tuple[int, ...], float] = {}
    open_ended = [((), 1.0)]
    while open_ended:
        tokens, p = open_ended.pop()
        state = state_of()
        for token in tokens:
            state.advance(token)
        if len(tokens) == length or state.is_over:
            found[tokens] = p
            continue
        each = next_token(CHI_LM, [*PROMPT, *tokens], state.allowed(), **how)
        open_ended += [((*tokens, int(t)), p * each[t]) for t in np.flatnonzero(each)]
    return found


CHI_SIZES = {**SIZES, "dim": 8, "heads": 1, "layers": 1, "hidden": 8, "context": 80}
CHI_LM, CHI_DRAFTER = (calm(random_lm(seed=seed, **CHI_SIZES), 0.5) for seed in (3, 8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("triggered", [False, True], ids=["all of it", "from a trigger on"])
def test_the_output_follows_the_targets_masked_distribution(mode, triggered):
    """3,000 outputs against the probability of each, worked out from the target alone; the drafter
    is another model. The trigger is the token that free text most likely begins with."""
    count, language = 3000, ["ab", "ac", "b", "ba", "cab", "cba"]
    trigger = [int(next_token(CHI_LM, PROMPT).argmax())] if triggered else []
    end = END if triggered else EOS
    expected = exact(lambda: Words(language, trigger, end), 4, top_k=3)
    assert sum(expected.values()) == pytest.approx(1)
    e = engine(
        mode, lm=CHI_LM, drafter=CHI_DRAFTER, num_drafts=3, row_ms=0.01, batch_invariant=False
    )
    how = {"max_tokens": 4, "ignore_eos": True, "top_k": 3, "grammar": regex(language, trigger)}
    outputs = e.generate([PROMPT] * count, [params(seed=i, **how) for i in range(count)])
    found = Counter(tuple(output.token_ids) for output in outputs)
    assert set(found) <= set(expected)
    likely = [key for key, p in expected.items() if p * count >= 5]
    counts = np.array([found[key] for key in likely])
    shares = np.array([expected[key] for key in likely])
    counts, shares = np.append(counts, count - counts.sum()), np.append(shares, 1 - shares.sum())
    if shares[-1] * count < 5:  # the rare ones together are rare, too
        counts[-2], shares[-2] = counts[-2:].sum(), shares[-2:].sum()
        counts, shares = counts[:-1], shares[:-1]
    assert len(counts) > 4 and fits(counts, count * shares)
    if mode != "off":
        assert 0.05 < e.stats.acceptance_rate < 0.95 and e.stats.verified > count / 2


# ---- faults ----


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize("grammar", [regex(["ab" * 9 + "c"]), regex(["ab" * 4], [C])])
def test_a_drafter_without_numbers_is_never_followed(mode, grammar, monkeypatch):
    """What it drafts then is no token of the grammar: no state goes astray, nor does the text."""
    script = [C, *[9] * 15]
    _, expected = outputs_of("off", monkeypatch, script, grammar)
    e = engine(mode)
    follow_script(e.model, script, len(PROMPT), monkeypatch)
    model = e.speculator.drafter.model
    real = model.forward
    monkeypatch.setattr(model, "forward", lambda *a: torch.full_like(real(*a), torch.nan))
    request_id = e.add(PROMPT, params(grammar, temperature=0, max_tokens=len(script)))
    output = run(e)[request_id, 0]
    assert output.token_ids == expected.token_ids
    assert (output.finish_reason, output.message) == (expected.finish_reason, expected.message)
    assert e.stats.accepted == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_target_without_any_allowed_token_ends_its_own_request(mode, monkeypatch):
    """Minus infinity for all letters."""
    e = engine(mode)
    real = e.model.forward

    def silent(batch, cache):
        logits = real(batch, cache).clone()
        logits[:, [A, B, C]] = -torch.inf
        return logits

    monkeypatch.setattr(e.model, "forward", silent)
    bad, good = e.add(PROMPT, params(regex(WORDS))), e.add(PROMPT, params(regex(["xyz"])))
    final = run(e)
    assert final[bad, 0].finish_reason == "error" and "masked" in final[bad, 0].message
    assert bytes_of(final[good, 0].token_ids) == b"xyz"


# ---- forks, preemption, the cache, the stop button ----


@pytest.mark.parametrize("mode", MODES)
def test_samples_have_a_state_of_their_own(mode):
    """Each of four is what its seed gives alone, and they are not the same."""
    grammar = g.Grammar.json_schema(TOOL)
    asked = params(grammar, n=4, max_tokens=60, temperature=2.0)
    e = engine(mode, max_num_seqs=3)
    request_id = e.add(PROMPT, asked)
    final = run(e)
    texts = {tuple(final[request_id, i].token_ids) for i in range(4)}
    assert len(texts) == 4
    for i in range(4):
        output = final[request_id, i]
        if output.finish_reason == "stop":
            jsonschema.validate(json.loads(bytes_of(output.token_ids)), TOOL)
        if mode != "budgeted":
            alone = params(grammar, seed=output.seed, max_tokens=60, temperature=2.0)
            assert engine(mode).generate([PROMPT], alone)[0].token_ids == output.token_ids


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_in_the_middle_of_json(mode):
    schema = {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 6, "maxItems": 8}
    asked = params(g.Grammar.json_schema(schema), max_tokens=60, temperature=3.0)
    e = engine(mode)
    parent = e.add(PROMPT, asked)
    while len(e._requests[parent][0].token_ids) < len(PROMPT) + 8:
        checked_step(e)
    before = e._requests[parent][0].token_ids[len(PROMPT) :]
    children = [e.fork(parent) for _ in range(3)]
    final = run(e)
    texts = [final[request_id, 0].token_ids for request_id in (parent, *children)]
    assert all(tokens[: len(before)] == before and tokens[-1] == EOS for tokens in texts)
    assert len(set(map(tuple, texts))) > 1
    for tokens in texts:
        jsonschema.validate(json.loads(bytes_of(tokens)), schema)


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_before_the_trigger_and_within_it(mode, monkeypatch):
    """The child has seen the first half of the trigger, as its parent has."""
    script = [A, A, B, 9, 9, 9, 200]
    grammar = regex(["ab"], [A, A, B])
    for steps in (1, 2, 3):
        e = engine(mode)
        follow_script(e.model, script, len(PROMPT), monkeypatch)
        parent = e.add(PROMPT, params(grammar, temperature=0, max_tokens=7))
        for _ in range(steps):
            checked_step(e)
        child = e.fork(parent)
        final = run(e)
        expected = held(script, Words(["ab"], [A, A, B], END))
        assert final[parent, 0].token_ids == final[child, 0].token_ids == expected


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_preemption_and_the_prefix_cache_change_nothing(mode):
    """A pool in which not all have room, and a prompt that is found."""
    asked = [params(regex([c * 30 for c in "abcd"]), seed=i, temperature=5.0) for i in range(4)]
    prompts = [random_ids(LM, 9, i) for i in range(4)]
    alone = [
        engine(mode).generate([p], a)[0].token_ids for p, a in zip(prompts, asked, strict=True)
    ]
    e = engine(mode, num_blocks=21, enable_prefix_caching=True)
    for _ in range(2):
        ids = [e.add(p, a) for p, a in zip(prompts, asked, strict=True)]
        final = run(e)
        assert [final[i, 0].token_ids for i in ids] == alone
    assert e.stats.preemptions > 0 and e.stats.cached_tokens > 0


@pytest.mark.parametrize("mode", MODES)
def test_an_abort_in_the_middle_of_a_grammar(mode):
    e = engine(mode)
    one, other = (e.add(PROMPT, params(regex([c * 30]), seed=1)) for c in "ab")
    for _ in range(3):
        checked_step(e)
    (output,) = e.abort(one)
    assert output.finish_reason == "abort" and set(output.token_ids) == {A}
    assert bytes_of(run(e)[other, 0].token_ids) == b"b" * 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("late", range(1, 6))
def test_an_interrupt_in_a_grammar_loses_nothing(mode, late, monkeypatch):
    """The step that was broken off had advanced no state."""
    asked = params(regex(["ab" * 12, "ab" * 4 + "c" * 9]), temperature=2.0)
    (whole,) = engine(mode).generate([PROMPT], asked)
    e = engine(mode)
    request_id = e.add(PROMPT, asked)
    calls = []

    def interrupted(real):
        def forward(*args):
            calls.append(0)
            if len(calls) == 2 * late:
                raise KeyboardInterrupt
            return real(*args)

        return forward

    with monkeypatch.context() as patch:
        patch.setattr(e.model, "forward", interrupted(e.model.forward))
        if mode != "off":
            drafter = e.speculator.drafter.model
            patch.setattr(drafter, "forward", interrupted(drafter.forward))
        with pytest.raises(KeyboardInterrupt):
            while True:
                checked_step(e)
    output = run(e)[request_id, 0]
    assert output.token_ids == whole.token_ids and output.finish_reason == "stop"


def test_a_step_that_fails_ends_its_grammars_alone(monkeypatch):
    e = engine()
    bad = e.add(PROMPT, params(regex(["ab" * 9])))
    checked_step(e)
    with monkeypatch.context() as patch:
        patch.setattr(g.sampling, "sample", lambda *a, **k: 1 / 0)
        outputs = checked_step(e)
    assert [o.finish_reason for o in outputs] == ["error"] and outputs[0].request_id == bad
    good = e.add(PROMPT, params(regex(["ab" * 9])))
    assert bytes_of(run(e)[good, 0].token_ids) == b"ab" * 9


@pytest.mark.parametrize("mode", MODES)
def test_many_samples_are_masked_in_every_piece(mode, monkeypatch):
    """The sampler takes some rows at a time; each keeps its own mask."""
    monkeypatch.setattr(g.sampling, "MAX_SAMPLED_ROWS", 6)
    e = engine(mode, num_blocks=1024)
    words = ["".join(pair) for pair in zip("abcdefghij", "klmnopqrst", strict=True)]
    ids = [e.add(PROMPT, params(regex([word]), seed=i)) for i, word in enumerate(words)]
    free = e.add(PROMPT, params(max_tokens=3))
    final = run(e)
    assert [bytes_of(final[i, 0].token_ids).decode() for i in ids] == words
    assert final[free, 0].finish_reason == "length"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", MODES)
def test_random_traces(mode, seed):
    """Adds, forks and aborts in any order, with and without grammars, in a small pool:
    all that ends whole is a word."""
    generator = random.Random(seed)
    e = engine(mode, num_blocks=40, max_num_seqs=5, enable_prefix_caching=seed % 2 == 0)
    language = [c * n for c in "abc" for n in (1, 5, 13)]
    kinds = [regex(language), regex(language, [A]), g.Grammar.json_schema(LIST), None]
    asked: dict[int, g.Grammar | None] = {}
    final = {}
    for _ in range(60):
        live = [i for i, samples in e._requests.items() if len(samples) == 1]
        what = generator.random()
        if what < 0.3 and len(asked) < 14:
            grammar = generator.choice(kinds)
            how = params(grammar, seed=len(asked), max_tokens=generator.randint(1, 25),
                         n=generator.choice([1, 1, 3]), temperature=2.0)  # fmt: skip
            asked[e.add(random_ids(LM, generator.randint(2, 9), seed), how)] = grammar
        elif what < 0.4 and live:
            parent = generator.choice(live)
            asked[e.fork(parent)] = asked[parent]
        elif what < 0.45 and live:
            e.abort(generator.choice(live))
        else:
            final |= {(o.request_id, o.sample_index): o for o in checked_step(e) if o.finish_reason}
    final |= run(e)
    assert len(final) >= 5
    for (request_id, _), output in final.items():
        grammar, text = asked[request_id], bytes_of(output.token_ids)
        assert output.finish_reason in ("stop", "length"), output.message
        if grammar is not None and not grammar.trigger_token_ids and output.finish_reason == "stop":
            if grammar.kind == "regex":
                assert text.decode() in language
            else:
                jsonschema.validate(json.loads(text), LIST)


def test_a_forced_token_is_a_sure_draft():
    """A drafter without a head is asked among what the grammar allows: where that is one token, its
    draft stands for certain."""
    e = engine("budgeted")
    e.generate([[5, 6, 7]], g.SamplingParams(max_tokens=20, seed=1, grammar=regex(["a" * 18])))
    scores = []
    real = e.speculator.budget.learn
    e.speculator.budget.learn = lambda s, *a: (scores.append(s.copy()), real(s, *a))[1]
    e.generate([[5, 6, 7]], g.SamplingParams(max_tokens=20, seed=1, grammar=regex(["a" * 18])))
    assert scores and all(one[0, 0] == 1.0 for one in scores)
