"""Logits at every place: the serving model's, and the course's dense forward beside it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_models import random_ids, random_lm

from g2c_serving.lab.one_user import OneUserModel
from g2c_serving.lab.scoring import CourseModel, logits_of, next_logits, token_logprobs


@pytest.fixture(scope="module")
def lm():
    found = random_lm(layers=2)
    bias = torch.linspace(-1, 1, found.vocab_size)  # a course model may have one
    return dataclasses.replace(found, weights={**found.weights, "head_bias": bias})


def test_every_place_of_every_text_is_what_the_one_user_loop_gives(lm):
    texts = [random_ids(lm, n, seed=n) for n in (1, 17, 33)]
    for ids, logits in zip(texts, logits_of(lm.model, texts), strict=True):
        expected = OneUserModel(lm, torch.float64).forward(ids).float()
        assert logits.shape == (len(ids), lm.vocab_size)
        assert torch.allclose(logits, expected, atol=1e-4)
    assert torch.allclose(next_logits(lm, texts[1]), expected_last(lm, texts[1]), atol=1e-4)


def expected_last(lm, ids):
    return OneUserModel(lm, torch.float64).forward(ids).float()[-1]


def test_the_dense_forward_of_a_batch_is_that_of_each_text(lm):
    ids = torch.tensor([random_ids(lm, 20, seed=i) for i in range(3)])
    logits = CourseModel(lm)(ids)
    for row, one in zip(ids.tolist(), logits, strict=True):
        assert torch.allclose(one, OneUserModel(lm, torch.float64).forward(row).float(), atol=1e-4)


def test_the_trainers_forward_has_a_gradient(lm):
    weights = {name: w.clone().requires_grad_() for name, w in lm.weights.items()}
    model = CourseModel(dataclasses.replace(lm, weights=weights))
    token_logprobs(model(torch.tensor([[1, 2, 3]]))[0], [1, 2, 3]).sum().backward()
    assert weights["blocks.0.attn.q_proj.W"].grad.abs().sum() > 0


def test_log_probabilities_of_a_text_by_hand():
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]])  # the last predicts nothing here
    found = token_logprobs(logits, [0, 1, 0])
    expected = torch.log(torch.tensor([0.5, 1 / (1 + torch.tensor(-1.0).exp())]))
    assert torch.allclose(found, expected)


def test_window_layers_see_their_window_alone():
    """As the serving model computes them over pages."""
    lm = random_lm(layers=3, window=4, window_layers=(0, 2))
    ids = random_ids(lm, 30, seed=0)
    dense = CourseModel(lm)(torch.tensor([ids]))[0]
    assert torch.allclose(dense, logits_of(lm.model, [ids])[0], atol=1e-4)
    whole = dataclasses.replace(
        lm, config=dataclasses.replace(lm.config, window=0, window_layers=())
    )
    assert not torch.allclose(dense, CourseModel(whole)(torch.tensor([ids]))[0], atol=1e-2)
