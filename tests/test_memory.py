"""Blocks in a memory budget, against the Brief's 7B example and counts by hand."""

from __future__ import annotations

import pytest

import g2c_serving as g
from g2c_serving.lab import memory
from g2c_serving.lab.memory import SHAPES, Shape, num_blocks, requests_in_blocks, requests_reserved

BIG = SHAPES["7B of Module 16, float16"]


def test_the_7b_model_reserves_1_07_gb_for_2048_positions():
    assert BIG.token_bytes == 524_288
    assert BIG.reserved_bytes / 1e9 == pytest.approx(1.07, abs=0.005)


@pytest.mark.parametrize(
    "name, token_bytes",  # as worked out for the course's models: 2 * layers * width * 4
    [("StoryLM-30M, float32", 36_864), ("TinyLLM-100M, float32", 73_728), ("tiny, float32", 8192)],
)
def test_bytes_a_token(name, token_bytes):
    assert SHAPES[name].token_bytes == token_bytes


def test_the_shape_of_tiny_is_that_of_the_cache_that_the_engine_makes():
    lm = g.load("tiny")
    cache = g.Engine(lm, g.EngineConfig(num_blocks=4)).cache
    assert SHAPES["tiny, float32"].token_bytes == cache.bytes_per_token
    assert SHAPES["tiny, float32"].positions == lm.config.max_seq_len


def test_blocks_and_requests_by_hand():
    """2 layers of width 100 in 4 bytes are 1,600 bytes a token; 10 tokens, 16,000 bytes a block."""
    shape = Shape(2, 100, 4, 64)
    assert num_blocks(shape, 0.001, 10) == 62  # 1,000,000 / 16,000 = 62.5
    assert requests_in_blocks(62, 10, 10) == 62
    assert requests_in_blocks(62, 10, 11) == 31
    assert requests_in_blocks(62, 10, 64) == 8
    assert requests_reserved(shape, 0.001) == 9  # 1,000,000 / 102,400 = 9.8


def test_the_panel_says_the_counts_and_stops_at_the_context_limit():
    panel = memory.panel()
    assert "8 GB are 953 blocks of 16 tokens" in panel.text  # 8e9 / (524,288 * 16) = 953.7
    assert "300 tokens that fit: 50 in blocks, 7 with 2,048 slots" in panel.text  # 953 // 19
    panel.controls["model"].value = "StoryLM-30M, float32"
    panel.controls["tokens"].value = 2000
    assert "Requests of 256 tokens (the limit)" in panel.text
