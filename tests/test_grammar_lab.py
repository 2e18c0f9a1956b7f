"""What is measured of grammars: the shape of it, and sums by hand; no time is asserted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import compile_timeline, made_up, mask_price
from g2c_serving.lab.compile_timeline import BESIDE, INSIDE, Timeline
from g2c_serving.lab.mask_price import MaskPrice

LM = random_lm(vocab_size=400, context=512, eos_id=256)
LM = dataclasses.replace(LM, tokenizer=made_up.made_up_tokenizer(400))


def test_a_made_up_vocabulary_is_one():
    """Every merge joins two earlier tokens, no two are alike, and text goes there and back."""
    tokenizer = made_up.made_up_tokenizer(2000)
    assert tokenizer.vocab_size == 2000
    texts = [tokenizer.token_bytes(i) for i in range(266, 2000)]
    assert len(set(texts)) == 1734 and max(map(len, texts)) <= made_up.LONGEST
    assert all(a < new and b < new for a, b, new in tokenizer.merges)
    text = "nothing in it, 1234 of it"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < len(text)
    assert made_up.made_up_tokenizer(2000).merges == tokenizer.merges


def test_a_made_up_model_serves():
    lm = made_up.made_up_model(1500, dim=64, layers=1, context=64)
    (output,) = g.Engine(lm).generate(["nothing"], g.SamplingParams(max_tokens=9, seed=1))
    assert len(output.token_ids) == 9 and lm.vocab_size == 1500
    assert lm.config.hidden_dim == 256


# ---- the price of a mask ----


def test_the_price_is_the_difference_and_its_share():
    price = MaskPrice("m", 1000, 64, step=50.0, free=10.0, held=12.5, bits=0.5, unpack=0.1, apply=1)
    assert price.extra == 2.5 and price.share == 0.05
    line = repr(mask_price.table([price])).splitlines()[1].split()
    assert line[:4] == ["m", "1,000", "64", "50.0"] and "5.0%" in line and "2.50" in line


def test_one_engine_is_held_and_the_other_free():
    grammar = g.Grammar.json_schema(mask_price.ENDLESS)
    free, held = (mask_price.contender(LM, one, 3, 6) for one in (None, grammar))
    for one in (free, held):
        for _ in range(6):
            one.step()
        assert [r.num_decode_rows for r in one.records] == [3] * 6  # nobody has ended
    assert all(r.grammar is None for r in free.engine.scheduler.running)
    states = [r.grammar for r in held.engine.scheduler.running]
    assert len(states) == 3 and all(state.is_inside for state in states)
    for request in held.engine.scheduler.running:
        text = b"".join(map(LM.tokenizer.token_bytes, request.token_ids[mask_price.PROMPT :]))
        assert text.startswith(b'[{"name": "'[: len(text)])


def test_each_model_has_its_line():
    prices = mask_price.measure([LM, dataclasses.replace(LM, name="other")], batch=2, steps=3)
    assert [(p.model, p.vocab_size, p.batch) for p in prices] == [
        ("random", 400, 2), ("other", 400, 2),
    ]  # fmt: skip
    assert min(min(p.step, p.free, p.held, p.bits, p.unpack) for p in prices) > 0
    assert len(repr(mask_price.table(prices)).splitlines()) == 3


# ---- the timeline of a compilation ----


def test_gaps_by_hand():
    """Steps of 10 ms, one of them 30 while it compiles; the step after it is as usual."""
    ends = np.array([-20, -10, 0, 10, 40, 50, 60.0])
    line = Timeline(BESIDE, np.stack([ends - 9, ends], 1), began=12, done=38)
    assert line.usual.tolist() == [10, 10] and line.largest == 30
    assert line.ratios == (3, 3)
    late = dataclasses.replace(line, began=41, done=47)
    assert late.largest == 10 and late.ratios == (1, 1)


def test_others_step_on_beside_the_compiler_and_stand_still_inside(monkeypatch):
    """The compiler takes as long as 20 of the steps take, at least."""
    monkeypatch.setattr(compile_timeline, "MOST", 10_000)
    lm = random_lm(vocab_size=400, context=16_000, dim=16, hidden=16, eos_id=256)
    lm = dataclasses.replace(lm, tokenizer=LM.tokenizer)
    beside, inside = compile_timeline.measure(lm, requests=2)
    assert (beside.where, inside.where) == (BESIDE, INSIDE)
    for line in (beside, inside):
        assert 0 <= line.began < line.done and len(line.usual) >= compile_timeline.BEFORE - 2
        assert (line.steps[1:, 0] >= line.steps[:-1, 1]).all()
        assert (line.steps[:, 1] > line.done).sum() >= compile_timeline.AFTER - 1
    while_beside = (beside.steps[:, 0] > beside.began) & (beside.steps[:, 1] < beside.done)
    assert while_beside.any()
    assert not ((inside.steps[:, 1] > inside.began) & (inside.steps[:, 0] < inside.done)).any()
    assert inside.largest >= inside.done - inside.began
    lines = repr(compile_timeline.table([beside, inside])).splitlines()
    assert len(lines) == 3 and lines[1].startswith(BESIDE)


def test_the_picture_says_what_it_shows():
    ends = np.array([-20, -10, 0, 10, 40, 50, 60.0])
    steps = np.stack([ends - 9, ends], 1)
    pair = [Timeline(where, steps, began=12, done=38) for where in (BESIDE, INSIDE)]
    picture = compile_timeline.draw(pair)
    assert "beside the engine for 26 ms" in picture.text and "30 ms apart" in picture.text
    assert "3.0 times the usual 10 ms" in picture.text and picture.png[:4] == b"\x89PNG"


def test_the_schema_has_its_fields():
    schema = compile_timeline.schema()
    assert len(schema["properties"]) == len(schema["required"]) == 300
    with pytest.raises(ValueError, match="schema"):
        g.Grammar.json_schema({**schema, "properties": {"a": object}})
