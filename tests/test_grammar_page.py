"""What notebook 05 shows of grammars: a mask by hand, a hole in one, a call token by token."""

from __future__ import annotations

import json

import pytest
import torch

import g2c_serving as g
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import allowed_tokens, hand_automaton, hole_in_mask

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    torch.set_num_threads(1)
    return g.load("tiny")


# ---- by hand ----


def test_the_automaton_by_hand_admits_the_timers_calls_and_nothing_else():
    def reads(text: str) -> bool:
        return hand_automaton.advance(0, text.encode()) == hand_automaton.DONE

    for minutes in range(-5, 1200):
        call = {"name": "timer", "arguments": {"minutes": minutes}}
        assert reads(json.dumps(call)) == (1 <= minutes <= 999)
        assert not reads(json.dumps(call) + "}") and not reads(json.dumps(call)[:-1])
    for minutes in ("", "031", "3.5", "1e2", "+3", " 3", "3 "):
        assert not reads(f'{{"name": "timer", "arguments": {{"minutes": {minutes}}}}}')


def test_both_masks_agree_bit_by_bit(lm):
    found = hand_automaton.compare(lm, texts=60)
    assert found.differing == 0 and found.vocab_size == 1024 and found.steps > 1000
    assert "0 differ" in repr(found)


def test_a_wrong_automaton_is_found_and_where(lm):
    def zero_first(state: int, byte: int) -> int | None:
        if state == hand_automaton.DIGITS and byte == ord("0"):
            return state + 1
        return hand_automaton.step(state, byte)

    found = hand_automaton.compare(lm, zero_first, texts=5)
    assert found.differing >= 5 and found.where.endswith('"minutes": ')
    early = hand_automaton.compare(lm, done=0, texts=5)
    assert early.differing == 10 and early.where == ""  # the end at the start, none at the end


def test_an_automaton_that_stops_short_is_no_crash(lm):
    assert hand_automaton.compare(lm, lambda state, byte: None, texts=3).differing > 0


# ---- the hole ----


def test_only_inside_the_string_and_only_in_their_mask(lm):
    hole = hole_in_mask.find(lm)
    first = hole_in_mask.CALL.index("buy milk")
    inside = range(first, first + len("buy milk") + 1)  # up to the closing quote
    assert {place for place, row in enumerate(hole.spelled) if row.any()} == set(inside)
    assert all(hole.spelled[place].all() for place in inside)
    assert "<|user|>" in hole.names and not hole.ours.any()


def test_the_picture_says_so(lm):
    assert "at 9 of 52 places" in repr(hole_in_mask.picture(hole_in_mask.find(lm)))


# ---- a call, token by token ----


@pytest.mark.parametrize("arguments", allowed_tokens.MINUTES)
def test_every_call_fulfils_its_schema(lm, arguments):
    jsonschema = pytest.importorskip("jsonschema")
    written = allowed_tokens.write(lm, allowed_tokens.MINUTES[arguments])
    assert len(written.token_ids) < allowed_tokens.MOST
    text = lm.tokenizer.decode(written.token_ids)
    call = json.loads(text.removeprefix("<|tool_call|>").split("<|end|>")[0])
    jsonschema.validate(call, allowed_tokens.schema(allowed_tokens.MINUTES[arguments]))
    assert written.is_inside == (False, *[True] * (len(written.token_ids) - 2), False)


def test_the_probabilities_are_those_that_the_engine_drew_from(lm):
    """At temperature 0 each token is the likeliest of the allowed ones."""
    written = allowed_tokens.write(lm, allowed_tokens.MINUTES["seconds, not minutes"])
    assert written.masked.argmax(1).tolist() == list(written.token_ids)
    assert written.masked.sum(1) == pytest.approx(1.0)
    free = [i for i, inside in enumerate(written.is_inside) if not inside]
    assert all(written.masks[i].all() for i in free)


def test_the_panel_tells_the_step(lm):
    panel = allowed_tokens.panel(lm)
    assert "'1' (99.9%), which is forbidden" in panel.text and "inside the grammar" in panel.text
    panel.controls["step"].value = 1
    assert "Step 1 of 21, free" in panel.text and "1,024 tokens may follow" in panel.text
    for name in panel.controls["arguments"].ends:
        panel.controls["arguments"].value = name
        for step in (1, 18, 36):
            panel.controls["step"].value = step
            assert panel.error is None
