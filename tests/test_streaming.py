"""The parser of what a model writes, against a parse of the whole that is written another way:
segments are decoded at once, and stop strings are found with `str.find`."""

from __future__ import annotations

import time
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.paths import DATA
from g2c_serving.process.stop_strings import as_stop
from g2c_serving.process.streaming import (
    CHANNELS,
    FINISH,
    OutputParser,
    ToolCall,
    initial_channel,
    open_bytes,
)
from g2c_serving.process.tokenizer import COURSE_SPECIAL_TOKENS, Tokenizer

TINY = Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")
END, CALL, THINK, DONE = (
    TINY.reserved[name] for name in ("<|end|>", "<|tool_call|>", "<think>", "</think>")
)
HEART = "\u2764".encode()  # e2 9d a4
# halves of characters, "ab", "abc", "</", and a heart's last two bytes with a letter
MERGES = [(0xE2, 0x9D, 266), (0x9D, 0xA4, 267), (97, 98, 268), (268, 99, 269), (60, 47, 270),
          (267, 97, 271), (0xF0, 0x9F, 272), (0x92, 0x96, 273)]  # fmt: skip
SMALL = Tokenizer(MERGES)


def parse(ids, stop=(), tokenizer=TINY, **how):
    """A finished parser of these ids, up to a stop string if one comes."""
    parser = OutputParser(tokenizer, stop, **how)
    for token_id in ids:
        if parser.feed(token_id) is not None:
            break
    parser.finish()
    return parser


def whole(tokenizer, ids, stops):
    """(texts in order as (channel, text), is_whole of each call, the stop string), at once."""
    names = {i: name for name, i in tokenizer.reserved.items()}
    texts, calls, channel, segment = [], [], "answer", []
    for place in range(len(ids) + 1):
        token_id = ids[place] if place < len(ids) else None
        if token_id is not None and token_id not in names:
            segment.append(token_id)
            continue
        data = b"".join(tokenizer.token_bytes(i) for i in segment)
        text = data.decode("utf-8", errors="replace")
        if channel == "answer":
            found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
            if found:
                end, _, stop = min(found)
                return [*texts, (channel, text[: end - len(stop)])], calls, stop
        texts.append((channel, text))
        if channel == "tool_call":
            calls.append((text, token_id is not None))
        name = names.get(token_id)
        channel = {"<think>": "reasoning", "<|tool_call|>": "tool_call"}.get(name, "answer")
        segment = []
    return texts, calls, None


def merged(texts):
    """Neighbours of one channel as one, empty ones dropped."""
    some = [(channel, text) for channel, text in texts if text]
    return [(c, "".join(t for _, t in group)) for c, group in groupby(some, lambda one: one[0])]


def given_out(parser):
    return merged([(piece.channel, piece.text) for piece in parser.pieces])


ODD = [*HEART, *"\U0001f496".encode(), 0xC0, 0xAF, 0xED, 0xA0, 0x80, 0xFF, *b"abcabc"]
tokens = st.one_of(
    st.sampled_from([*ODD, *range(266, 274)]),
    st.sampled_from([*ODD, *range(266, 274)]),
    st.integers(0, SMALL.vocab_size - 1),
)
streams = st.lists(tokens, max_size=24)
stop_strings = st.lists(
    st.text("abc\u2764\U0001f496\ufffd", min_size=1, max_size=4), max_size=3
).map(tuple)


# ---- any ids, any cut ----


@given(streams, stop_strings)
def test_the_pieces_joined_are_the_parse_of_the_whole(ids, stops):
    parser = parse(ids, stops, SMALL)
    texts, calls, stop = whole(SMALL, ids, stops)
    assert given_out(parser) == merged(texts)
    assert parser.stopped_by == stop
    assert [(call.text, call.is_whole) for call in parser.tool_calls()] == calls
    for channel in CHANNELS:
        assert parser.text(channel) == "".join(text for c, text in texts if c == channel)


@given(streams, stop_strings)
def test_what_was_shown_is_never_taken_back(ids, stops):
    parser = parse(ids, stops, SMALL)
    for k in range(parser.num_fed + 1):
        so_far = OutputParser(SMALL, stops)
        for token_id in ids[:k]:
            so_far.feed(token_id)
        for channel in CHANNELS:
            shown = parser.text(channel, upto=k)
            assert shown == so_far.text(channel) and parser.text(channel).startswith(shown)
        assert parser.tool_calls(upto=k) == so_far.tool_calls()


@given(streams, stop_strings)
def test_the_same_bytes_in_other_tokens_are_the_same_output(ids, stops):
    """Every merge taken apart into its bytes."""
    apart = [b for i in ids for b in ([i] if 256 <= i < 266 else SMALL.token_bytes(i))]
    one, other = parse(ids, stops, SMALL), parse(apart, stops, SMALL)
    assert given_out(one) == given_out(other) and one.tool_calls() == other.tool_calls()
    assert one.stopped_by == other.stopped_by


@given(streams)
def test_broken_bytes_are_those_that_are_in_no_character(ids):
    parser, broken, first = parse(ids, (), SMALL), 0, None
    segment: list[tuple[int, int]] = []  # byte, index of its token
    for index, token_id in enumerate([*ids, END]):
        if not 256 <= token_id < 266:
            segment += [(byte, index) for byte in SMALL.token_bytes(token_id)]
            continue
        data, place = bytes(byte for byte, _ in segment), 0
        while place < len(data):  # walk over what is whole; a byte that begins nothing is broken
            sizes = [n for n in (1, 2, 3, 4) if is_one_character(data[place : place + n])]
            if not sizes:
                broken, first = broken + 1, segment[place][1] if first is None else first
            place += sizes[0] if sizes else 1
        segment = []
    assert (parser.broken_bytes, parser.first_broken) == (broken, first)


def is_one_character(data):
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


@given(streams, stop_strings, st.integers(0, 24))
def test_a_fork_goes_its_own_way(ids, stops, place):
    parser = OutputParser(SMALL, stops)
    for token_id in ids[:place]:
        if parser.feed(token_id) is not None:
            return
    child = parser.fork()
    for token_id in (THINK, 97, 98, 99):
        if parser.feed(token_id) is not None:
            break
    for token_id in ids[place:]:
        if child.feed(token_id) is not None:
            break
    child.finish()
    assert child.pieces == parse(ids, stops, SMALL).pieces


# ---- characters ----


def test_a_heart_of_three_tokens_comes_with_the_third():
    """vllm-mlx 109: each token was decoded for itself, and a character that is cut came out as
    several U+FFFD. It comes whole, once, and nothing of it before."""
    ids = TINY.encode("I \u2764 tea")
    assert [TINY.token_bytes(i) for i in ids[2:5]] == [b"\xe2", b"\x9d", b"\xa4"]
    parser = parse(ids)
    shown = [parser.text(upto=k) for k in range(len(ids) + 1)]
    assert shown[:7] == ["", "I", "I ", "I ", "I ", "I \u2764", "I \u2764 t"]
    assert all("\ufffd" not in text for text in shown)


@pytest.mark.parametrize(
    "text",
    [
        "\u010f\u00e1belsk\u00e9",
        "\u0e20\u0e32\u0e29",
        "\U0001f9d1\u200d\U0001f680",
        "\ufeffBOM",
        "\x00",
    ],
)
def test_text_comes_back_whole(text):
    """vllm-mlx 109 again, in Czech, Thai and emoji."""
    parser = parse(TINY.encode(text))
    assert parser.text() == text and parser.broken_bytes == 0 and parser.first_broken is None


@pytest.mark.parametrize(
    "data, shown, broken, first",
    [
        (b"a\xff\xfeb", "a\ufffd\ufffdb", 2, 1),
        (b"\xc0\xaf", "\ufffd\ufffd", 2, 0),  # an overlong slash
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", 3, 0),  # a surrogate
        (b"\xf4\x90\x80\x80", "\ufffd" * 4, 4, 0),  # beyond the last code point
        (b"a\xe2\x9db", "a\ufffdb", 2, 1),  # a heart that lacks its end: one U+FFFD for two bytes
        (b"ab\xf0\x9f\x92", "ab\ufffd", 3, 2),  # the output ends inside a character
        (b"\xa4a", "\ufffda", 1, 0),  # a heart's end alone
    ],
)
def test_what_is_no_utf_8_is_shown_as_replacement_and_counted(data, shown, broken, first):
    parser = parse(list(data))
    assert (parser.text(), parser.broken_bytes, parser.first_broken) == (shown, broken, first)


@pytest.mark.parametrize("marker", sorted(TINY.reserved.values()))
def test_a_marker_cuts_a_character(marker):
    parser = parse([97, *HEART[:2], marker, *HEART[2:], 98])
    assert "".join(piece.text for piece in parser.pieces) == "a\ufffd\ufffdb"
    assert parser.text(upto=3) == "a"  # nothing of it before the marker came
    assert (parser.broken_bytes, parser.first_broken) == (3, 1)


def test_half_a_character_waits_until_finish():
    parser = OutputParser(TINY)
    for token_id in (97, *HEART[:2]):
        parser.feed(token_id)
    assert parser.text() == "a" and parser.held == ("", HEART[:2])
    parser.finish()
    assert parser.text() == "a\ufffd" and parser.text(upto=3) == "a"
    assert parser.pieces[-1].at == FINISH


# ---- the prompt's end ----


def test_a_prompt_that_ends_inside_a_character():
    """vLLM 48853: the whole prompt's text came out with the first token. The character comes whole,
    once, and nothing else of the prompt with it."""
    prompt = [*TINY.encode("Hello world "), *HEART[:2]]
    parser = OutputParser.after(prompt, TINY)
    for token_id in (HEART[2], 33):
        parser.feed(token_id)
    parser.finish()
    assert [piece.text for piece in parser.pieces] == ["\u2764", "!"] and parser.broken_bytes == 0


@pytest.mark.parametrize(
    "ids, shown, broken, first",
    [
        ([], "", 0, None),
        ([97], "a", 0, None),  # the model goes on otherwise: nothing of the prompt's half
        ([END, 97], "a", 0, None),
        ([0x92, 97], "\ufffda", 1, 0),  # a byte of the model's own is lost with it
    ],
)
def test_the_prompts_half_is_never_shown_for_itself(ids, shown, broken, first):
    parser = OutputParser.after([97, 0xF0, 0x9F], TINY)
    for token_id in ids:
        parser.feed(token_id)
    parser.finish()
    assert (parser.text(), parser.broken_bytes, parser.first_broken) == (shown, broken, first)


def test_open_bytes():
    assert open_bytes([97, *HEART[:2]], TINY) == HEART[:2]
    assert open_bytes([0xF0, 0x9F, 0x92], TINY) == b"\xf0\x9f\x92"
    for ids in ([], [97], [*HEART], [*HEART[:2], END], [0xFF], [0x9D], [0xF0, 0x9F, 97]):
        assert open_bytes(ids, TINY) == b""


@given(st.lists(tokens, max_size=8))
def test_open_bytes_are_what_a_decoder_would_hold(ids):
    parser = OutputParser(SMALL)
    for token_id in ids:
        parser.feed(token_id)
    assert open_bytes(ids, SMALL) == parser.held[1]


@pytest.mark.parametrize(
    "prompt, channel",
    [
        ([], "answer"),
        ([97], "answer"),
        ([THINK], "reasoning"),
        ([THINK, 97, 98], "reasoning"),
        ([THINK, DONE], "answer"),
        ([DONE, THINK], "reasoning"),
        ([CALL, 123], "tool_call"),
        ([CALL, 123, END], "answer"),
        ([*b"<think>"], "answer"),  # text spells it
    ],
)
def test_the_last_reserved_id_says_the_first_channel(prompt, channel):
    assert initial_channel(prompt, TINY) == channel
    assert OutputParser.after(prompt, TINY).channel == channel


written = st.lists(
    st.one_of(
        st.text("abc\u00e1\u2764\U0001f496", max_size=6).map(SMALL.encode),
        st.sampled_from([[i] for i in range(256, 266)]),
    ),
    max_size=6,
).map(lambda parts: [token_id for part in parts for token_id in part])


@given(written, st.integers(0, 30))
def test_prompt_and_output_may_be_cut_anywhere(ids, place):
    """The same comes out, whether the beginning was written by the model or is the prompt."""
    head, tail = OutputParser(SMALL), OutputParser.after(ids[:place], SMALL)
    for index, token_id in enumerate(ids):
        head.feed(token_id)
        if index >= place:
            tail.feed(token_id)
    rest = [(piece.channel, piece.text) for piece in head.pieces if piece.at > place]
    assert given_out(tail) == merged(rest)


# ---- channels ----


def test_a_chat_of_tiny():
    ids = [THINK, *TINY.encode("9 + 8 = 17"), DONE, *TINY.encode("Now Tom has 17 coins."), END]
    parser = parse(ids)
    assert parser.text("reasoning") == "9 + 8 = 17" and parser.text() == "Now Tom has 17 coins."
    assert parser.tool_calls() == []


def test_a_thought_that_spells_its_end_goes_on():
    """deepseek-recipe 5: a model that spells `</think>` from ordinary tokens has not ended its
    reasoning; the reserved id alone does."""
    ids = [THINK, *TINY.encode("a </think> b"), DONE, *TINY.encode("c </think> d <think>")]
    assert DONE not in TINY.encode("</think>")
    parser = parse(ids)
    assert parser.text("reasoning") == "a </think> b"
    assert parser.text() == "c </think> d <think>"  # shown as it is written


@pytest.mark.parametrize(
    "ids, reasoning, answer",
    [
        ([DONE, 97], "", "a"),  # an end without a beginning
        ([THINK, 97, THINK, 98, DONE, 99], "ab", "c"),  # nested: the first end ends it
        ([THINK, 97, DONE, 98, DONE, 99], "a", "bc"),
        ([THINK, 97], "a", ""),  # cut off
        ([THINK, 97, END, 98], "a", "b"),  # a message that ends ends its thought
        ([97, THINK, 98, DONE, 99, THINK, 100, DONE], "bd", "ac"),
        ([97, END, 98], "", "ab"),
    ],
)
def test_where_thoughts_begin_and_end(ids, reasoning, answer):
    parser = parse(ids)
    assert (parser.text("reasoning"), parser.text()) == (reasoning, answer)


def test_two_tool_calls():
    first, second = '{"name": "timer"}', '{"name": "add", "arguments": {"a": 1}}'
    ids = [97, CALL, *TINY.encode(first), END, 98, CALL, *TINY.encode(second), END, 99]
    parser = parse(ids)
    assert parser.tool_calls() == [ToolCall(first, True), ToolCall(second, True)]
    assert parser.tool_calls()[1].value() == {"name": "add", "arguments": {"a": 1}}
    assert parser.text() == "abc" and parser.text("tool_call") == first + second


def test_a_tool_call_as_it_comes():
    ids = [CALL, 123, 125, END, CALL]
    parser = parse(ids)
    assert [parser.tool_calls(upto=k) for k in range(6)] == [
        [],
        [ToolCall("", False)],
        [ToolCall("{", False)],
        [ToolCall("{}", False)],
        [ToolCall("{}", True)],
        [ToolCall("{}", True), ToolCall("", False)],
    ]


def test_a_tool_call_that_is_cut_off_says_so():
    (call,) = parse([CALL, *TINY.encode('{"name": "ti')]).tool_calls()
    assert not call.is_whole
    with pytest.raises(ValueError, match=r"name.*cut off.*max_tokens"):
        call.value()


def test_a_tool_call_ends_at_any_reserved_id():
    (one, two) = parse([CALL, 49, CALL, 50, THINK, 51]).tool_calls()
    assert (one.value(), one.is_whole, two.value(), two.is_whole) == (1, True, 2, True)
    assert parse([CALL, 49], channel="reasoning").tool_calls() == [ToolCall("1", False)]


def test_a_prompt_may_open_the_call():
    assert parse([49, END], channel="tool_call").tool_calls() == [ToolCall("1", True)]


@pytest.mark.parametrize("text", ["{", "no json", "[" * 100_000])
def test_a_call_that_is_no_json_is_told(text):
    with pytest.raises(ValueError, match=r"tool call .* is no JSON .*grammar") as caught:
        ToolCall(text, True).value()
    assert len(str(caught.value)) < 400


def test_vocabularies_without_these_markers():
    course = Tokenizer(special_tokens=COURSE_SPECIAL_TOKENS)
    parser = parse([*b"<think>a</think>", course.reserved["<|end|>"]], tokenizer=course)
    assert parser.text() == "<think>a</think>" and parser.text("reasoning") == ""
    plain = Tokenizer(special_tokens=())
    assert parse([*b"<|end|>"], tokenizer=plain).text() == "<|end|>"
    assert initial_channel([97], plain) == "answer"


# ---- stop strings ----


@pytest.mark.parametrize(
    "text, stops, shown, stop",
    [
        ("one two", ("two",), "one ", "two"),
        ("xabc", ("ab", "abc", "bc"), "x", "ab"),  # the earliest end
        ("xabc", ("abc", "bc", "c"), "x", "abc"),  # the same end: the longest
        ("xabc", ("c", "bc", "abc"), "x", "abc"),
        ("xabc", ("zz", "abc"), "x", "abc"),
        ("aabaaabaaaa", ("aabaaaa",), "aaba", "aabaaaa"),  # begins again inside itself
        ("abcx", ("abcd", "bc"), "a", "bc"),  # inside a longer one that does not come
        ("aab", ("ab",), "a", "ab"),
        ("aaab", ("aab",), "a", "aab"),
        ("ababac", ("abac",), "ab", "abac"),
        ("abab", ("abac",), "abab", None),  # held back, then shown
        ("ab", ("abc",), "ab", None),  # the end of the output frees it
        ("stop", ("stop",), "", "stop"),
        ("a\u2764b", ("\u2764",), "a", "\u2764"),
        ("\u2764\u2764", ("\u2764\u2764",), "", "\u2764\u2764"),
        ("\n\nx", ("\n\n",), "", "\n\n"),
        ("Stop", ("stop",), "Stop", None),
    ],
)
def test_stop_strings(text, stops, shown, stop):
    for ids in (TINY.encode(text), list(text.encode())):
        parser = parse(ids, stops)
        assert (parser.text(), parser.stopped_by) == (shown, stop)
        assert all(shown.startswith(parser.text(upto=k)) for k in range(len(ids) + 1))


def test_a_stop_string_over_tokens_is_held_back():
    parser = OutputParser(TINY, ["tea."])
    shown = [(parser.feed(i), parser.text(), parser.held[0]) for i in b"a te te"]
    assert shown[2:6] == [
        (None, "a ", "t"), (None, "a ", "te"), (None, "a te ", ""), (None, "a te ", "t")
    ]  # fmt: skip
    assert parser.feed(97) is None and parser.held[0] == "tea" and parser.feed(46) == "tea."


def test_a_fork_has_its_own_beginning_of_a_stop_string():
    parser = OutputParser(TINY, ["ab"])
    parser.feed(97)
    child = parser.fork()
    assert parser.feed(120) is None and child.feed(98) == "ab"
    assert (parser.text(), child.text()) == ("ax", "")


def test_a_stop_string_begins_and_ends_inside_characters_tokens():
    """One token holds the end of a heart and the letter after it."""
    ids = [97, 0xE2, 271, 98]  # a, then e2, then 9d a4 a, then b
    assert parse(ids, ("\u2764a",), SMALL).text() == "a"
    assert parse(ids, ("ab",), SMALL).text() == "a\u2764"


def test_the_rest_of_the_token_that_stops_is_not_shown():
    assert parse([269], ("b",), SMALL).text() == "a"  # the token is abc


def test_a_stop_string_does_not_reach_over_a_thought():
    """Nor over any reserved id: what follows one is a new segment."""
    for middle in ([THINK, 120, DONE], [END], [CALL, 49, END]):
        parser = parse([97, *middle, 98], ("ab",))
        assert parser.stopped_by is None and parser.text() == "ab"
        assert parser.text(upto=2) == "a"  # free as soon as the marker is there


def test_a_stop_string_in_a_thought_or_a_call_does_not_stop():
    ids = [THINK, *b"ab", DONE, CALL, *b"ab", END, *b"xab", 121]
    parser = parse(ids, ("ab",))
    assert parser.text("reasoning") == "ab" and parser.tool_calls() == [ToolCall("ab", True)]
    assert parser.text() == "x" and parser.stopped_by == "ab" and parser.num_fed == 11


def test_a_replacement_character_may_stop_as_any_other():
    parser = OutputParser(TINY, ["\ufffd"])
    assert [parser.feed(i) for i in (97, 0xE2, 0x9D)] == [None] * 3
    assert parser.finish() == "\ufffd" and parser.text() == "a"
    parser = OutputParser(TINY, ["\ufffd"])
    assert [parser.feed(i) for i in (97, 0xE2, CALL)] == [None, None, "\ufffd"]
    assert parser.tool_calls() == []  # the output was over before the call


# ---- bad input ----


@pytest.mark.parametrize(
    "value, words",
    [
        ("", r"stop\[0\]=''"),
        (["a", ""], r"stop\[1\]=''.*leave it out"),
        ([1], r"stop\[0\]=1 must be a str.*stop_token_ids"),
        ([None], r"stop\[0\]=None"),
        (b"a", "stop=b'a' must be a str or a sequence"),
        (3, "stop=3 must be a str or a sequence"),
        (["a"] * 65, "more than 64"),
        ("a" * 1001, r"stop\[0\] has 1,001 characters; at most 1,000"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_wrong_stop_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        as_stop(value)
    with pytest.raises(ValueError, match=words):
        OutputParser(TINY, value)


def test_a_right_stop_in_any_writing():
    assert as_stop("ab") == as_stop(["ab"]) == as_stop(("ab",)) == as_stop(iter(["ab"])) == ("ab",)
    assert as_stop(()) == as_stop(None) == ()
    assert len(as_stop(["a" * 1000] * 64)) == 64


@pytest.mark.parametrize("token_id", [-1, 1024, 10**30, 1.0, "a", None, True])
def test_an_id_outside_the_vocabulary_is_refused(token_id):
    parser = OutputParser(TINY)
    with pytest.raises(ValueError, match=r"token_id=.*from 0 to 1023"):
        parser.feed(token_id)
    assert parser.num_fed == 0


def test_numpys_integers_are_ids():
    assert parse(np.array([97, 98])).text() == "ab"


def test_nothing_follows_the_end():
    stopped = OutputParser(TINY, "a")
    assert stopped.feed(97) == "a"
    with pytest.raises(ValueError, match=r"token_id=98.*stopped at 'a'.*new parser"):
        stopped.feed(98)
    finished = parse([97])
    with pytest.raises(ValueError, match=r"token_id=98.*finish\(\) was called"):
        finished.feed(98)
    pieces = list(finished.pieces)
    finished.finish()  # twice is the same as once
    assert finished.pieces == pieces


def test_an_unknown_channel_is_refused():
    for ask in (lambda: OutputParser(TINY, channel="thought"), lambda: parse([]).text("thought")):
        with pytest.raises(ValueError, match=r"channel='thought' must be one of answer"):
            ask()


# ---- cost ----


@pytest.mark.parametrize("stop", [(), ("a" * 999 + "b", "a" * 500 + "c"), ("xyz",)])
def test_the_cost_of_a_token_does_not_grow(stop):
    """Four times the tokens take about four times as long, and not sixteen."""

    def seconds(count):
        best = []
        for _ in range(3):
            parser, start = OutputParser(TINY, stop), time.perf_counter()
            for _ in range(count):
                parser.feed(97)
            best.append(time.perf_counter() - start)
        return min(best)

    assert seconds(8_000) < 9 * seconds(2_000)
