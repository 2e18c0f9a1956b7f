"""Grammars by themselves: what a state allows, against `Words` of grammars.py; packed bits, against
shifts of ints; and what is refused."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import torch
from grammars import CALL, END, EOS, LM, PAD, SIZES, VOCAB, Words, engine, regex, unchecked
from small_models import random_lm

import g2c_serving as g
from g2c_serving.sample.grammar import DraftMasks, GrammarState, as_mask, bitmask
from g2c_serving.sample.grammar_compiler import GrammarCompiler

A, B, C, ED = *b"abc", 0xED
WORDS = ["ab", "abc", "c", "cab", "é"]
COMPILER = GrammarCompiler(LM.tokenizer, VOCAB, [EOS])
MERGES = [(A, B, 266), (266, C, 267), (0xC3, 0xA9, 268), (A, ED, 269), (0xA0, 0x80, 270)]
MERGED = g.Tokenizer(MERGES)
MERGED_COMPILER = GrammarCompiler(MERGED, 271, [EOS])


def state(grammar: g.Grammar, compiler=COMPILER) -> GrammarState:
    compiler.check(grammar)
    return compiler.state_of(grammar, compiler.submit(grammar).result())


def allowed(one: GrammarState, size: int = VOCAB) -> set[int] | None:
    """The ids whose bit is set, read bit by bit; None where nothing is masked."""
    bits = bitmask([one], size)
    if bits is None:
        return None
    words = [int(word) & 0xFFFFFFFF for word in bits[0]]
    return {i for i in range(size) if words[i // 32] >> (i % 32) & 1}


def accepts(one: GrammarState, data: bytes, end: int = EOS) -> bool:
    for token in (*data, end):
        if token not in (allowed(one) or set()):
            return False
        one.advance(token)
    return True


# ---- what a state allows ----


@pytest.mark.parametrize("seed", range(20))
def test_a_state_allows_what_the_language_does(seed):
    """Random walks through it and out of it again, from a trigger or without one."""
    generator = random.Random(seed)
    trigger = generator.choice([[], [A], [A, A, B], [CALL, C], [END, END]])
    words = generator.sample(WORDS, 3)
    end = PAD if trigger else EOS
    one, oracle = state(regex(words, trigger, end)), Words(words, trigger, end)
    for _ in range(60):
        assert allowed(one) == oracle.allowed() and one.is_inside == (oracle.begun is not None)
        free = [*trigger, A, B, C, *trigger]
        token = generator.choice(sorted(oracle.allowed() or free))
        one.advance(token)
        oracle.advance(token)
        assert one.is_over == oracle.is_over
        if oracle.is_over:
            assert allowed(one) is None
            break


def test_tokens_of_several_bytes_fit_where_their_bytes_do():
    """ab is 266, abc 267, é 268; the ids behind the vocabulary's last are never allowed."""
    one = state(regex(["abc", "é", "b"]), MERGED_COMPILER)
    assert allowed(one, 271) == {A, B, 266, 267, 0xC3, 268}
    one.advance(266)
    assert allowed(one, 271) == {C}
    wide = GrammarCompiler(MERGED, 300, [EOS])
    assert allowed(state(regex(["abc"]), wide), 300) == {A, 266, 267}


def test_reserved_ids_are_off_unless_the_grammar_ends_with_them():
    """xgrammar 0.2.8, run here: inside a JSON string its own mask allows `<|user|>`, since the text
    of a reserved token is ordinary bytes. Ours does not."""
    import xgrammar

    schema, user = '{"type": "string"}', LM.tokenizer.reserved["<|user|>"]
    names = [LM.tokenizer.token_bytes(i) for i in range(VOCAB)]
    naive = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(names, stop_token_ids=[EOS]))
    matcher = xgrammar.GrammarMatcher(naive.compile_json_schema(schema))
    assert matcher.accept_token(ord('"'))
    bits = xgrammar.allocate_token_bitmask(1, VOCAB).numpy()
    matcher.fill_next_token_bitmask(bits)
    assert bits[0, user // 32] >> (user % 32) & 1

    for end in (None, END):
        one = state(g.Grammar.json_schema(schema, (), end))
        one.advance(ord('"'))
        assert max(allowed(one)) < 256 and len(allowed(one)) > 100
        one.advance(ord('"'))
        assert allowed(one) == {END if end else EOS}


def test_whoever_is_free_has_no_mask():
    free, inside = state(regex(["ab"], [CALL])), state(regex(["ab"]))
    assert bitmask([free, None, free], VOCAB) is None and as_mask(None, VOCAB) is None
    assert bitmask([], VOCAB) is None
    bits = bitmask([free, inside, None], VOCAB)
    mask = as_mask(bits, VOCAB)
    assert mask.shape == (3, VOCAB) and mask.dtype == torch.bool
    assert mask[0].all() and mask[2].all() and mask[1].nonzero().flatten().tolist() == [A]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 266, 1024])
def test_bits_are_read_lowest_first(size):
    generator = torch.Generator().manual_seed(size)
    wanted = torch.rand((5, size), generator=generator) < 0.5
    numbers = np.zeros((5, -(-size // 32)), dtype=np.int64)
    for row, i in wanted.nonzero().tolist():
        numbers[row, i // 32] |= 1 << i % 32
    bits = numbers.astype(np.uint32).view(np.int32)
    assert torch.equal(as_mask(bits, size), wanted)


def test_a_fork_goes_its_own_way():
    for grammar in (regex(["ab", "ac"]), regex(["ab", "ac"], [CALL, CALL])):
        one = state(grammar)
        if grammar.trigger_token_ids:
            one.advance(CALL)
        other = one.fork()
        for token in (*grammar.trigger_token_ids[1:], A):
            one.advance(token)
        before = allowed(other)
        assert allowed(one) == {B, C} and before in (None, {A})
        one.advance(B)
        for token in (*grammar.trigger_token_ids[1:], A):
            other.advance(token)
        assert allowed(other) == {B, C} and len(allowed(one)) == 1


def test_a_token_that_the_grammar_refuses_breaks_the_state_for_good():
    """Nothing goes on from there, rather than anything."""
    one = state(regex(["ab"]))
    one.advance(B)
    assert one.is_broken and allowed(one) == set()
    one.advance(A)
    assert one.is_broken and allowed(one) == set() and allowed(one.fork()) == set()


# ---- JSON as it is, text as it is ----


STRINGS = [
    {}, {"maxLength": 9}, {"minLength": 1}, {"pattern": "^.*$"}, {"type": ["string", "null"]},
]  # fmt: skip


@pytest.mark.parametrize("how", STRINGS, ids=str)
def test_a_json_string_is_one_for_python_too(how):
    """xgrammar 0.2.9, run here: where a length is given its own mask allows control characters."""
    grammar = g.Grammar.json_schema({"type": "string", **how})
    for inner in (*range(256), *(b"\\" + bytes([c]) for c in b'nu"x')):
        data = b'"' + (inner if isinstance(inner, bytes) else bytes([inner])) + b'"'
        try:
            json.loads(data)
        except ValueError:
            assert not accepts(state(grammar), data)
    for text in ("a", " ", "é", "€", "😀", "~"):
        assert accepts(state(grammar), f'"{text}"'.encode())


TEXT = {"json": g.Grammar.json_schema({"type": "string"}), "regex": g.Grammar.regex('".*"'),
        "ebnf": g.Grammar.ebnf('root ::= "\\"" [^"]* "\\""')}  # fmt: skip


@pytest.mark.parametrize("kind", TEXT)
def test_what_a_grammar_admits_is_utf_8(kind):
    """xgrammar 0.2.9, run here: its own mask allows the bytes of half a surrogate pair."""
    corners = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF]
    for code in corners:
        assert accepts(state(TEXT[kind]), b'"' + chr(code).encode() + b'"'), hex(code)
    wrong = (
        "c080 c1bf e08080 e09fbf eda080 edafbf edb080 edbfbf f0808080 f08fbfbf f4908080 f5808080"
    )
    for data in map(bytes.fromhex, [*wrong.split(), "80", "ff"]):
        with pytest.raises(UnicodeDecodeError):
            data.decode()
        assert not accepts(state(TEXT[kind]), b'"' + data + b'"'), data.hex()


def test_no_half_surrogate_out_of_tokens_of_several_bytes():
    """ED ends one token, A0 80 is another; and in the fork of a state, and for drafts."""
    one = state(g.Grammar.regex(".*"), MERGED_COMPILER)
    for token in (A, 269, ED):
        ahead = one.fork()
        ahead.advance(token)
        following = allowed(ahead.fork(), 271)
        if token == A:
            assert A in following and 269 in following
        else:
            assert following == set(range(0x80, 0xA0))
        masks = DraftMasks([one], 271)
        masks.next()
        masks.advance(torch.tensor([token]))
        assert set(masks.next()[0].nonzero().flatten().tolist()) == following
    one.advance(ED)
    one.advance(0x9F)
    assert 0xBF in allowed(one, 271) and 270 not in allowed(one, 271)


@pytest.mark.parametrize(
    "pattern", [".", r"\w", r"\W", r"\d", r"\s", "[^a]", "[a-f0-9]", "é", r"\."]
)
def test_a_regex_reads_as_pythons(pattern):
    """`re.fullmatch` with DOTALL and ASCII; but `\\s` knows the other spaces of Unicode, too."""
    grammar = g.Grammar.regex(pattern)
    others = ["é", "ß", "€", "中", "😀", "\x85", *(["\u2028"] if pattern != r"\s" else [])]
    for char in (*map(chr, range(1, 128)), *others):
        expected = re.fullmatch(pattern, char, re.DOTALL | re.ASCII) is not None
        assert accepts(state(grammar), char.encode()) == expected, repr(char)


# ---- drafts ----


def test_drafts_are_masked_by_the_state_that_they_extend():
    """Three requests, of which one is free; their own states stay where they are."""
    grammars = [regex(["abcab", "cc"]), None, regex(["b"], [A, A])]
    states = [grammar and state(grammar) for grammar in grammars]
    oracles = [Words(["abcab", "cc"]), None, Words(["b"], [A, A], END)]
    drafts = [[A, B, C], [9, 9, 9], [A, A, B]]
    masks = DraftMasks(states, VOCAB)
    expected = []
    for i in range(4):
        rows = [None if oracle is None else oracle.allowed() for oracle in oracles]
        expected.append([set(range(VOCAB)) if row is None else row for row in rows])
        mask = masks.next()
        for row, wanted in zip(mask, expected[-1], strict=True):
            assert set(row.nonzero().flatten().tolist()) == wanted
        if i < 3:
            masks.advance(torch.tensor([draft[i] for draft in drafts]))
            for oracle, draft in zip(oracles, drafts, strict=True):
                if oracle is not None:
                    oracle.advance(draft[i])
    assert allowed(states[0]) == {A, C} and allowed(states[2]) is None

    requests, places = np.array([2, 0, 0, 1, 2]), np.array([2, 3, 0, 1, 3])
    for row, r, i in zip(masks.rows(requests, places), requests, places, strict=True):
        assert set(row.nonzero().flatten().tolist()) == expected[i][r]


def test_drafts_of_free_text_have_no_mask():
    masks = DraftMasks([state(regex(["b"], [A, A])), None], VOCAB)
    assert masks.next() is None
    masks.advance(torch.tensor([9, A]))
    assert masks.next() is None
    assert masks.rows(np.array([0, 1]), np.array([0, 1])) is None


# ---- the ends ----


def test_the_default_end_is_the_chats_with_a_trigger_and_the_models_without():
    assert COMPILER.end_of(regex(["a"])) == (EOS,)
    assert COMPILER.end_of(regex(["a"], [CALL])) == (END,)
    assert COMPILER.end_of(regex(["a"], [CALL], PAD)) == (PAD,)
    bare = GrammarCompiler(g.Tokenizer(special_tokens=["<|stop|>"]), 257, [256])
    assert bare.end_of(regex(["a"], [A])) == (256,)  # no chat: the model's


def test_each_of_a_models_ends_ends_the_whole_output_and_a_named_one_alone():
    """The bits of all ends where the text is complete, none of them before."""
    several = GrammarCompiler(LM.tokenizer, VOCAB, [EOS, PAD])
    for end in (EOS, PAD):
        one = state(regex(["ab"]), several)
        assert several.end_of(regex(["ab"])) == (EOS, PAD)
        assert allowed(one) == {A} and not one.is_over
        one.advance(A)
        one.advance(B)
        assert allowed(one) == {EOS, PAD} and allowed(one.fork()) == {EOS, PAD}
        one.advance(end)
        assert one.is_over and not one.is_broken
    named = regex(["a"], (), END)
    assert accepts(state(named, several), b"a", END)
    assert not accepts(state(named, several), b"a", PAD)
    with pytest.raises(ValueError, match="end_token_id=None"):
        GrammarCompiler(LM.tokenizer, VOCAB, []).end_of(regex(["a"]))
    with pytest.raises(ValueError, match="end_token_id"):
        GrammarCompiler(LM.tokenizer, VOCAB, [EOS, VOCAB]).end_of(regex(["a"]))


# ---- what is refused ----


@pytest.mark.parametrize("make", [
    lambda t: g.Grammar.json_schema({"type": "null"}, t), lambda t: g.Grammar.regex("a", t),
    lambda t: g.Grammar.ebnf('root ::= "a"', t),
], ids=["json_schema", "regex", "ebnf"])  # fmt: skip
def test_bad_triggers_are_named(make):
    for bad in ("<|tool_call|>", b"ab", 260, None, ["a"], [1.5], [-1], [True], [None]):
        with pytest.raises(ValueError, match="trigger_token_ids"):
            make(bad)
    with pytest.raises(ValueError, match="trigger_token_ids has more than 64 ids"):
        make([1] * 65)
    assert make([1] * 64).trigger_token_ids == (1,) * 64
    assert make(np.array([1, 2])).trigger_token_ids == (1, 2)
    assert make(i for i in (3, 4)).trigger_token_ids == (3, 4)


@pytest.mark.parametrize("bad", ["<|end|>", 1.5, -1, True, [262]])
def test_bad_ends_are_named(bad):
    with pytest.raises(ValueError, match="end_token_id"):
        g.Grammar.regex("a", (), bad)


@pytest.mark.parametrize("schema", [{"type": object}, {"const": {1, 2}}, {1: float, (2,): 3}])
def test_a_schema_that_is_no_json_is_refused(schema):
    with pytest.raises(ValueError, match="schema"):
        g.Grammar.json_schema(schema)


def test_equal_grammars_are_equal():
    """So that they can be keys, and a params object that has one can be compared."""
    one, other = (g.Grammar.json_schema({"type": "null"}, [t]) for t in (1, np.int64(1)))
    assert one == other and hash(one) == hash(other)
    assert one != g.Grammar.json_schema({"type": "null"}, [2])
    assert g.Grammar.json_schema('{"type": "null"}') == g.Grammar.json_schema({"type": "null"})


@pytest.mark.parametrize("bad", ["[a-c]", {"type": "string"}, 5, g.Grammar])
def test_params_want_a_grammar(bad):
    with pytest.raises(ValueError, match=r"grammar=.* must be a Grammar"):
        g.SamplingParams(grammar=bad)


@pytest.mark.parametrize(
    "grammar, said",
    [
        (regex(["a"], [VOCAB]), f"trigger_token_ids has {VOCAB}.*0 to {VOCAB - 1}"),
        (regex(["a"], [A, 10**9]), "trigger_token_ids has 1000000000"),
        (regex(["a"], [], A), f"end_token_id={A} is not a reserved id"),
        (regex(["a"], [CALL], 9999), "end_token_id=9999 is not a reserved id"),
    ],
)
def test_ids_that_the_vocabulary_lacks_are_refused_when_they_are_added(grammar, said):
    e = engine()
    with pytest.raises(ValueError, match=said):
        e.add([1, 2], g.SamplingParams(grammar=grammar))
    assert not e.has_unfinished and len(e.waiting_room) == 0


def test_an_end_behind_the_models_vocabulary_is_refused():
    """The tokenizer has `<|end|>`, 262; the model's logits end at 260."""
    e = engine(lm=random_lm(seed=1, **{**SIZES, "vocab_size": 261}))
    for grammar in (regex(["a"], [A]), regex(["a"], [], END)):
        with pytest.raises(ValueError, match="end_token_id=262"):
            e.add([1, 2], g.SamplingParams(grammar=grammar))


def test_a_vocabulary_without_reserved_tokens_has_no_end():
    """Unless the model has an end of text of its own."""
    plain = random_lm(seed=1, **{**SIZES, "vocab_size": 256, "eos_id": None})
    lm = g.LanguageModel("bytes", plain.config, plain.weights, g.Tokenizer(special_tokens=()), None)
    with pytest.raises(ValueError, match="end_token_id=None is not a reserved id"):
        engine(lm=lm).add([1, 2], g.SamplingParams(grammar=regex(["a"])))
    ended = g.LanguageModel("bytes", lm.config, lm.weights, lm.tokenizer, 0)
    (output,) = engine(lm=ended).generate([[1, 2]], g.SamplingParams(grammar=regex(["ab"]), seed=1))
    assert output.token_ids == [A, B, 0] and output.finish_reason == "stop"


@pytest.mark.parametrize("grammar, said", [
    (unchecked("regex", "(a"), "regex cannot be compiled"),
    (unchecked("ebnf", 'rot ::= "a"'), "ebnf cannot be compiled: .*root"),
    (unchecked("json_schema", "{"), "json_schema cannot be compiled"),
    (unchecked("json_schema", '{"type": "strin"}'), "json_schema cannot be compiled"),
    (unchecked("json_schema", "false"), "json_schema cannot be compiled"),
], ids=str)  # fmt: skip
def test_what_the_library_cannot_compile_is_told_with_its_reason(grammar, said):
    """Built past the checks of the three constructors, which see most of it earlier."""
    with pytest.raises(ValueError, match=said) as caught:
        COMPILER.submit(grammar).result()
    assert ".cc" not in str(caught.value) and "Check failed" not in str(caught.value).split(":")[0]


@pytest.mark.parametrize("rules", [
    "root ::= root", 'root ::= a\na ::= a "x"', 'root ::= a b\na ::= ""\nb ::= b',
])  # fmt: skip
def test_a_grammar_that_admits_nothing_is_told_before_it_runs(rules):
    with pytest.raises(ValueError, match="ebnf admits nothing"):
        COMPILER.submit(unchecked("ebnf", rules)).result()


def test_a_grammar_that_admits_the_empty_text_alone_ends_at_once():
    (output,) = engine().generate([[1, 2]], g.SamplingParams(grammar=g.Grammar.regex("a{0}")))
    assert output.token_ids == [EOS] and output.finish_reason == "stop"
