"""A long prompt among requests that decode: what each rule does with it."""

from __future__ import annotations

import pytest
from small_models import random_lm

from g2c_serving.lab import chunking
from g2c_serving.lab.chunking import ARRIVES, DECODERS, LONG
from g2c_serving.schedule.cost_model import CostModel

MODEL = CostModel(1.0, 0.1, 0.0, 0.05, 1e-4, 1e-4)


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266, context=512, layers=1)


@pytest.fixture(scope="module")
def runs(lm):
    return chunking.measure(lm)


def chunks(run):
    """Prompt tokens of the long one, step by step."""
    steps = [[r.num_tokens for r in s.rows if r.kind == "prefill"] for s in run.steps[ARRIVES:]]
    return [sum(sizes) for sizes in steps if sizes]


def test_the_decode_rows_come_first_and_the_prompt_gets_the_rest(runs):
    """440 tokens, six rows decoding: 58 of 64 are left, so seven full chunks and one of 34."""
    assert chunks(runs[512]) == [LONG]
    assert chunks(runs[64]) == [58] * 7 + [34]
    assert chunks(runs[16]) == [10] * 44


def test_every_user_gets_a_token_in_every_step(runs):
    for run in runs.values():
        for life in run.lives[:DECODERS]:
            ends = [end for _, end in run.spans if end >= life.tokens[0]]
            assert life.tokens == ends[:60]


def test_the_longest_gap_is_that_of_the_step_with_the_whole_prompt(runs):
    run = runs[512]
    assert chunking.longest_gap(run) >= run.steps[ARRIVES].total_ms - 1e-6


def test_the_panel_counts_the_chunks(runs):
    panel = chunking.panel(runs)
    assert "goes in 1 chunk," in panel.text
    panel.controls["most"].value = 64
    assert "goes in 8 chunks," in panel.text


def test_under_a_budget_every_chunk_is_the_largest_that_fits(lm):
    runs, budget = chunking.rules(lm, MODEL)
    run = list(runs.values())[2]
    decoding = 1.0 + DECODERS * 0.1
    cached = 0
    for size in chunks(run)[:-1]:
        assert (
            decoding + MODEL.cost(size, cached) <= budget < decoding + MODEL.cost(size + 1, cached)
        )
        cached += size
    assert chunks(run)[0] == 58  # the budget is that of a step of 64 tokens at the start
    assert chunks(run)[0] > chunks(run)[-2]


def test_the_picture_says_what_each_rule_costs(lm):
    said = chunking.picture(*chunking.rules(lm, MODEL)).text
    assert said.count("longest wait") == said.count("first token after") == 3
