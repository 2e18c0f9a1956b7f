"""What an engine reports of a request: channels, stop strings, what was shown at each step."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import Request

TINY, DRAFTER = g.load("tiny"), g.load("tiny-drafter")
RESERVED = TINY.tokenizer.reserved
END = RESERVED["<|end|>"]
SPECULATION = [None, g.Speculation("fixed", drafter=DRAFTER)]
MODES = pytest.mark.parametrize("speculation", SPECULATION, ids=["off", "fixed"])


def chat(text: str) -> list:
    return [g.Reserved("<|user|>"), f"\n{text}\n", g.Reserved("<|assistant|>"), "\n"]


CALL = chat("Set a timer for 31 minutes.")
RIDDLE = chat("Today Tom has 9 coins and finds 8 more. How many are there now?")
GREEDY = {"temperature": 0.0, "max_tokens": 60, "stop_token_ids": (END,)}


def engine(speculation=None) -> g.Engine:
    return g.Engine(TINY, g.EngineConfig(speculation=speculation, batch_invariant=True))


def one(prompt, speculation=None, **params) -> g.RequestOutput:
    (output,) = engine(speculation).generate([prompt], g.SamplingParams(**{**GREEDY, **params}))
    return output


@MODES
def test_a_tool_call_is_no_answer(speculation):
    output = one(CALL, speculation)
    (call,) = output.tool_calls
    assert call.is_whole and call.value() == {"name": "timer", "arguments": {"minutes": 31}}
    assert output.text == output.reasoning == ""
    assert output.token_ids[0] == RESERVED["<|tool_call|>"] and output.token_ids[-1] == END


@MODES
def test_a_thought_is_no_answer(speculation):
    output = one(RIDDLE, speculation)
    assert "17" in output.reasoning and "17" in output.text and "=" not in output.text
    assert "think" not in output.text + output.reasoning
    assert output.finish_reason == "stop" and output.message is None


def test_a_prompt_that_opens_the_thought():
    output = one([*RIDDLE, g.Reserved("<think>")])
    assert "17" in output.reasoning and "17" in output.text


def test_a_call_that_is_cut_off_is_not_whole():
    output = one(CALL, max_tokens=12)
    (call,) = output.tool_calls
    assert output.finish_reason == "length" and not call.is_whole
    with pytest.raises(ValueError, match="cut off.*max_tokens"):
        call.value()


@MODES
@pytest.mark.parametrize("span", [(3, 4), (3, 9), (0, 2), (5, 20)])
def test_a_stop_string_ends_the_answer_and_is_not_shown(speculation, span):
    whole = one("Once upon a time", max_tokens=40)
    stop = whole.text[slice(*span)]
    first = whole.text.index(stop)
    output = one("Once upon a time", speculation, max_tokens=40, stop=stop)
    assert output.finish_reason == "stop" and output.message == f"the stop string {stop!r}"
    assert output.text == whole.text[:first]
    text = TINY.tokenizer.decode(output.token_ids)  # the tokens end with the one that completed it
    assert stop in text and stop not in TINY.tokenizer.decode(output.token_ids[:-1])
    assert output.token_ids == whole.token_ids[: len(output.token_ids)]


def test_what_was_shown_is_never_taken_back():
    """And an output of an earlier step stays as it was."""
    e = engine()
    e.add(
        "Once upon a time", g.SamplingParams(temperature=0, max_tokens=40, stop=["zebra", "the "])
    )
    shown, outputs = [], []
    while e.has_unfinished:
        for output in e.step():
            outputs.append(output)
            shown.append(output.text)
    assert [output.text for output in outputs] == shown
    assert all(later.startswith(sooner) for sooner, later in zip(shown, shown[1:], strict=False))
    assert not any("the " in text for text in shown)


def test_a_fork_reads_what_it_was_forked_with():
    e = engine()
    params = g.SamplingParams(temperature=0, max_tokens=30, stop="qqqq")
    parent = e.add("Once upon a time", params)
    for _ in range(9):
        e.step()
    child = e.fork(parent)
    final = {}
    while e.has_unfinished:
        final |= {o.request_id: o for o in e.step() if o.finish_reason}
    assert final[child].text == final[parent].text == one("Once upon a time", max_tokens=30).text


def test_bytes_that_are_no_text_are_named():
    """The output goes on, as text can not: each run of broken bytes is one U+FFFD."""
    lm = random_lm(vocab_size=266, dim=8, heads=1, layers=1, hidden=8, seed=1)
    e = g.Engine(lm, g.EngineConfig(num_blocks=16, block_size=8))
    params = g.SamplingParams(temperature=3.0, max_tokens=50, seed=1, ignore_eos=True)
    (output,) = e.generate([[65]], params)
    data = bytes(i for i in output.token_ids if i < 256)
    with pytest.raises(UnicodeDecodeError):
        data.decode()
    assert output.finish_reason == "length"
    assert "not UTF-8" in output.message and "U+FFFD" in output.message
    assert "\ufffd" in output.text + output.reasoning


@pytest.mark.parametrize(
    "ids, words",
    [
        ([65, 255, 66], "1 byte is not UTF-8, in generated token 1: it is shown as U+FFFD"),
        ([255, 65, 254], "2 bytes are not UTF-8, the first in generated token 0: each run of them "
         "is shown as U+FFFD"),
        ([65, 66], None),
    ],
)  # fmt: skip
def test_broken_bytes_in_words(ids, words):
    request = Request(0, 0, 0, [65], g.SamplingParams(), seed=0)
    request.token_ids[1:] = ids
    request.finish("length")
    assert g.RequestOutput(request, Tokenizer()).message == words


def test_a_grammar_and_the_channels_tell_the_same():
    schema = {
        "type": "object",
        "properties": {
            "name": {"enum": ["timer"]},
            "arguments": {"type": "object", "properties": {"minutes": {"type": "integer"}},
                          "required": ["minutes"], "additionalProperties": False},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }  # fmt: skip
    grammar = g.Grammar.json_schema(schema, trigger_token_ids=(RESERVED["<|tool_call|>"],))
    output = one(CALL, temperature=2.0, seed=5, grammar=grammar)
    for call in output.tool_calls:
        assert call.value()["name"] == "timer"
        assert isinstance(json.loads(call.text)["arguments"]["minutes"], int)
    assert output.tool_calls


def test_an_output_under_a_grammar_can_be_copied_and_sent():
    params = g.SamplingParams(max_tokens=8, grammar=g.Grammar.regex("[ab]{3}"), seed=1)
    (output,) = engine().generate(["hi"], params)
    for other in (copy.deepcopy(output), pickle.loads(pickle.dumps(output))):
        assert other.token_ids == output.token_ids and other.text == output.text


@pytest.mark.parametrize("stop", ["", [""], [3], 5, ["a"] * 1000, b"x"])
def test_stop_strings_that_are_none(stop):
    with pytest.raises(ValueError, match="stop"):
        g.SamplingParams(stop=stop)
