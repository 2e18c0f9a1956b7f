"""Whose random numbers: one generator for all against keyed draws, and what each of them costs. The
course's way is checked against torch's own generator, the engine's against Philox's known answers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.history import Row, StepRecord
from g2c_serving.lab import draw_price, philox_rounds, whose_numbers
from g2c_serving.lab.shared_draws import SharedDrawEngine, first_difference, tell
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import below


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266)


# ---- the engine with one generator ----


def test_alone_with_the_same_generator_it_writes_the_same(lm):
    params = g.SamplingParams(max_tokens=12, ignore_eos=True)
    prompt = random_ids(lm, 8, seed=1)
    one, other = (SharedDrawEngine(lm, seed=3).generate([prompt], params)[0] for _ in range(2))
    assert one.token_ids == other.token_ids
    assert SharedDrawEngine(lm, seed=4).generate([prompt], params)[0].token_ids != one.token_ids


def test_each_row_takes_the_next_number_of_the_one_generator(lm):
    """Two requests of one length, so they stand in the order in which they came: the first of the
    four attempts at each token are the numbers of torch's generator, row after row."""
    engine = SharedDrawEngine(lm, seed=3)
    prompts = [random_ids(lm, 8, seed=i) for i in range(2)]
    engine.generate(prompts, g.SamplingParams(max_tokens=3, ignore_eos=True))
    generator = torch.Generator().manual_seed(3)
    for position in (8, 9, 10):
        words = torch.randint(2**62, (rng.ATTEMPTS, 2), generator=generator)[0].tolist()
        assert [engine.words_of[request, position] for request in (0, 1)] == words


def test_a_stranger_changes_the_story_of_one_and_not_of_the_other(lm):
    prompt, stranger = "one prompt", "another one"
    shared = tell(lm, True, prompt, stranger, tokens=20)
    keyed = tell(lm, False, prompt, stranger, tokens=20)
    assert shared.same < 20 and shared.alone != shared.in_company
    assert keyed.same == 20 and keyed.alone == keyed.in_company
    assert repr(keyed).endswith("All 20 tokens are the same.")
    assert f"first {shared.same} tokens are" in repr(shared) or "first token is" in repr(shared)


def test_the_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 4]) == 2
    assert first_difference([1, 2], [1, 2]) == 2
    assert first_difference([5], [6]) == 0
    assert first_difference([1, 2], [1]) == 1


# ---- the panel of numbers ----


def test_your_numbers_are_every_nth_of_the_generator():
    generator = torch.Generator().manual_seed(5)
    stream = torch.rand(4 * 3, generator=generator).view(4, 3).numpy()
    mine, others = whose_numbers.shared(5, strangers=2, tokens=4)
    assert mine.tolist() == stream[:, 2].tolist() and others.tolist() == stream[:, :2].tolist()


def test_strangers_move_one_curve_and_the_seed_both():
    panel = whose_numbers.panel()
    curves = {name: panel.artists[name].get_ydata().tolist() for name in ("shared", "keyed")}
    panel.controls["strangers"].value = 4
    assert panel.artists["shared"].get_ydata().tolist() != curves["shared"]
    assert panel.artists["keyed"].get_ydata().tolist() == curves["keyed"]
    assert "numbers 5, 10, 15, ... of its stream" in panel.text
    panel.controls["seed"].value = 8
    assert panel.artists["keyed"].get_ydata().tolist() != curves["keyed"]


# ---- Philox round by round ----


def test_ten_rounds_are_the_engines_philox_and_random123s_known_answer():
    words = philox_rounds.philox(0, np.zeros((1, 4)))[0].tolist()
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    counters = rng.counters(np.arange(50), rng.ACCEPT)
    key = 0x0123456789ABCDEF
    ours = rng.philox(np.full(50, key, dtype=np.uint64), counters)
    assert (philox_rounds.philox(key, counters) == ours).all()


def test_no_round_is_the_counter_and_ten_change_half_of_the_bits():
    counters = rng.counters(np.arange(3))
    assert (philox_rounds.philox(7, counters, rounds=0) == counters).all()
    assert philox_rounds.bits(np.array([[1, 0, 0, 2**31]], dtype=np.uint64)).nonzero()[
        1
    ].tolist() == [31, 96]
    assert philox_rounds.flipped(7, 0) < 5
    assert philox_rounds.flipped(7, 10) == pytest.approx(64, abs=4)


def test_the_streams_are_those_of_the_brief():
    """Position 7, use 2: stream 23."""
    lines = repr(philox_rounds.streams(7)).splitlines()
    assert "7 * 3 + 2 = 23" in lines[-1] and lines[-1].startswith("accept coin")
    assert len({line.split("= ")[1] for line in lines[1:]}) == 9


def test_the_rounds_panel():
    panel = philox_rounds.panel()
    assert panel.text.startswith("After 1 round, ")
    panel.controls["rounds"].value = 10
    assert "f4607a2d c009f9dc 1d3aba42 15edac82" in panel.text and panel.error is None


def test_shared_draws_are_of_one_sample_a_request(lm):
    with pytest.raises(AssertionError):
        engine = SharedDrawEngine(lm)
        engine.add(random_ids(lm, 4, seed=0), g.SamplingParams(n=2, max_tokens=2))
        engine._sample(engine._begin(), torch.zeros(1, 266))


# ---- the price ----


@pytest.fixture(scope="module")
def longer():
    return random_lm(vocab_size=266, context=128)


def test_the_price_is_of_both_ways_at_each_number_of_requests(longer):
    prices = draw_price.measure(longer, (1, 3), steps=4)
    found = [(price.batch, price.draws) for price in prices]
    ways = (draw_price.SHARED, draw_price.KEYED)
    assert found == [(batch, way) for batch in (1, 3) for way in ways]
    assert all(p.step > p.sampling > 0 and p.numbers > 0 for p in prices)


def test_only_steps_in_which_all_requests_decode_are_timed(longer):
    pair = draw_price.contenders(longer, batch=3, steps=5)
    draw_price.take_turns(pair, 5)
    for contender in pair:
        assert len(contender.records) == len(contender.numbers_ms) == 5
        assert contender.records == list(contender.engine.history)[-5:]
        for record in contender.records:
            assert [row.kind for row in record.rows] == ["decode"] * 3
        assert not contender.engine.has_unfinished  # nothing ended before the last
    shared, keyed = (c.records for c in pair)
    assert [r.rows for r in shared] == [r.rows for r in keyed]  # the same work


def test_the_numbers_that_are_timed_are_those_that_the_engines_draw(longer):
    shared, keyed = draw_price.contenders(longer, batch=2, steps=1)
    first = shared.numbers(draw_price.PROMPT)  # of a generator of its own, from its start
    ids = range(2)
    drawn = [shared.engine.words_of[i, draw_price.PROMPT] for i in ids]
    assert first.shape == (rng.ATTEMPTS, 2) and first[0].tolist() == drawn

    keyed.engine.ledger = g.Ledger()
    keyed.step()
    draws = [keyed.engine.ledger.of(seed)[0] for seed in ids]
    assert draws[0].position == keyed.records[0].rows[0].num_computed + 1
    words = keyed.numbers(draws[0].position)
    targets, _ = below(words, torch.tensor([draw.total for draw in draws]))
    assert targets.tolist() == [draw.target for draw in draws]


def test_they_take_turns_and_neither_is_always_first():
    class Recorder:
        def __init__(self, name):
            self.name = name

        def step(self):
            order.append(self.name)

    order = []
    draw_price.take_turns([Recorder("A"), Recorder("B")], 3)
    assert "".join(order) == "ABBAAB"


def test_the_table_shows_medians():
    rows = [Row(0, 0, "decode", 1, 64)]
    times = ((1.0, 0.2), (2.0, 0.4), (90.0, 30.0))  # one step was disturbed
    records = [StepRecord(0, forward_ms=f, sample_ms=s, rows=rows) for f, s in times]
    contender = draw_price.Contender("keyed", None, None, records, [0.1, 0.12, 7.0])
    price = draw_price.price_of(contender, 1)
    assert price == draw_price.DrawPrice(1, "keyed", 2.4, 0.4, 0.12)
    head, line = repr(draw_price.table([price])).splitlines()
    assert head.split("  ")[0] == "draws"
    assert line.split() == ["keyed", "1", "2.40", "ms", "0.400", "ms", "0.120", "ms", "5.0%"]
