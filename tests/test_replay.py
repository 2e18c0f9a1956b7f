"""Bounded replay, measured: right values are zeros where theory says exact, and the definition."""

from __future__ import annotations

import dataclasses
import math
import re
import time

import numpy as np
import pytest
import torch
from small_models import random_lm
from test_window import dense

import g2c_serving as g
from g2c_serving.lab.replay import replay_panel, replay_table
from g2c_serving.lab.replay_errors import ReplayErrors, measure_replay, receptive_field
from g2c_serving.train.batches import batch

LENGTHS = (0, 4, 8, 12, 14, 16, 18, 20, 21, 24)


def small_lm():
    return random_lm(vocab_size=1024, layers=5, context=80, window=8, window_layers=(0, 2, 3))


@pytest.fixture(scope="module")
def errors() -> ReplayErrors:
    return measure_replay(tokens(small_lm()), LENGTHS, contexts=3, hit=48, following=8)


def tokens(lm):
    """The random model with the tokenizer of our corpus."""
    return dataclasses.replace(lm, tokenizer=g.load("tiny").tokenizer)


def test_receptive_field_by_hand() -> None:
    """A window of 8 looks 7 tokens back, three of them 21."""
    config = small_lm().config
    assert [receptive_field(config, depth) for depth in (1, 2, 3)] == [7, 14, 21]
    assert receptive_field(config) == 21


def test_exact_from_the_receptive_field_on(errors: ReplayErrors) -> None:
    for i, length in enumerate(errors.lengths):
        exact = length >= 21
        assert (errors.largest[i] < 1e-10) == exact, length
        assert not exact or (errors.kl[i] < 1e-12 and errors.flipped[i] == 0)
        assert (errors.largest[i] >= errors.mean[i]) and errors.kl[i] > -1e-12


def test_each_window_layer_has_its_own_receptive_field(errors: ReplayErrors) -> None:
    """Layer d of the window layers is exact from 7 d tokens on, and holds nothing (error 1) where
    nothing was replayed."""
    for i, length in enumerate(errors.lengths):
        for depth in (1, 2, 3):
            state = errors.state[i, depth - 1]  # (7,)
            assert (state.max() < 1e-10) == (length >= 7 * depth), (length, depth)
            assert state[: max(0, 7 - length)] == pytest.approx(1)


def test_the_figures_are_those_of_a_dense_run() -> None:
    """Right values: the dense reference of the window tests, errors and KL counted by hand."""
    lm = tokens(small_lm())
    found = measure_replay(lm, (6,), contexts=2, hit=40, following=5)
    texts = batch(lm.tokenizer, 9_000_000, 0, 2, 45, drills=0)[:, :45].tolist()
    largest, kls, flips = 0.0, [], []
    for text in texts:
        exact, stored = dense(lm, text)
        replayed = dense(lm, text, 34, 40, stored)[0][6:]
        p, q = exact[40:].softmax(-1), replayed.softmax(-1)
        largest = max(largest, (exact[40:] - replayed).abs().max().item())
        kls += [sum(a * math.log(a / b) for a, b in zip(r, s, strict=True) if a > 0)
                for r, s in zip(p.tolist(), q.tolist(), strict=True)]  # fmt: skip
        flips += (p.argmax(-1) != q.argmax(-1)).tolist()
    assert found.largest[0] == pytest.approx(largest)
    assert found.kl[0] == pytest.approx(np.mean(kls))
    assert found.flipped[0] == pytest.approx(np.mean(flips)) and found.positions == 10


def test_float32_is_exact_but_for_its_rounding() -> None:
    found = measure_replay(
        tokens(small_lm()), (8, 24), contexts=2, hit=48, following=8, dtype=torch.float32
    )
    assert found.largest[1] < 1e-3 < found.largest[0]


def test_the_shipped_model_loses_little_by_a_window_and_nothing_by_124_tokens() -> None:
    """4 window layers of 32 tokens reach 4 * 31 back. What is below that is no exact memo."""
    nothing, window, less, reach = range(4)
    found = measure_replay(g.load("tiny-window"), (0, 32, 120, 124), contexts=4)
    assert found.reach == 124 and found.config.window == 32
    assert found.kl[nothing] > 0.1 > 0.01 > found.kl[window] > 1e-6
    assert found.largest[window] > 0.1 > found.largest[less] > 1e-8 > 1e-10 > found.largest[reach]
    assert found.state[window, -1].mean() > 0.1 and found.state[reach].max() < 1e-10


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match="no window layers"):
        measure_replay(random_lm())
    with pytest.raises(ValueError, match="lengths from 0 to 50: a hit of 48 tokens"):
        measure_replay(small_lm(), (0, 50), contexts=1, hit=48, following=8)


def even() -> ReplayErrors:
    """Lengths at equal steps, as the slider wants them."""
    return measure_replay(tokens(small_lm()), range(0, 25, 4), contexts=2, hit=48, following=8)


def test_the_panel_moves_fast_and_says_what_it_shows() -> None:
    panel = replay_panel(even())
    assert "The last 8 tokens replayed, as the hit rule has it: no exact memo" in panel.text
    assert (
        "Window layer 3 (layer 4 of the model's 5)" in panel.text
    )  # window_layers (0, 2, 3), from 1 on
    texts = set()
    for name, values in (("length", (0, 4, 8, 20, 24)), ("depth", (1, 2, 3))):
        for value in values:
            start = time.process_time()
            panel.controls[name].value = value
            assert time.process_time() - start < 0.1
            assert panel.error is None
            texts.add(panel.text)
    assert len(texts) == 7
    assert "24 tokens replayed: exact, " in panel.text and "layers, 21 tokens" in panel.text


def test_the_table_has_a_line_a_length(errors: ReplayErrors) -> None:
    text = repr(replay_table(errors))
    assert [int(n) for n in re.findall(r"^(\d+) tokens", text, re.M)] == [0, 4, 8, 21, 24]
    assert repr(replay_table(errors, [16])).count("\n") == 1
