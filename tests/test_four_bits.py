"""What four bits do to tiny: the yardsticks by hand, and the loss by another model code."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

import g2c_serving as g
from g2c_serving.forward.low_precision import MXFP4, NVFP4, encode
from g2c_serving.lab import four_bits
from g2c_serving.lab.four_bits import compare, held_out, measured, relative_error
from g2c_serving.lab.scoring import CourseModel


@pytest.fixture(scope="module")
def lm():
    return g.load("tiny")


def test_yardsticks_by_hand():
    """Two texts of one place: the true token is as likely in one, half as likely in the other."""
    exact = torch.tensor([[[0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25]]]).log()
    other = torch.tensor([[[0.25, 0.5, 0.25]], [[0.25, 0.5, 0.25]]]).log()
    found = compare("x", exact, other, torch.tensor([[2], [0]]))
    assert found.loss == pytest.approx(math.log(4))
    assert found.more.value == pytest.approx(math.log(2) / 2)
    assert (found.more.low, found.more.high) == pytest.approx((0, math.log(2)), abs=1e-6)
    assert found.kl == pytest.approx(0.25 * math.log(2))
    assert found.changed == 1


def test_the_loss_of_the_exact_run_is_the_dense_model_s(lm):
    ids = torch.tensor(held_out(lm))
    dense = CourseModel(lm)(ids)[:, :-1]
    right = F.cross_entropy(dense.flatten(0, 1), ids[:, 1:].flatten()).item()
    assert measured(lm)[0].loss == pytest.approx(right, abs=1e-5)


def test_what_the_ways_to_store_cost(lm):
    """Shorter blocks with finer scales are nearer; nothing ruins the model."""
    found = {effect.name: effect for effect in measured(lm)}
    assert found["float32"].kl == found["float32"].changed == 0
    assert 0 < found["KV cache NVFP4-like"].kl < found["KV cache MXFP4"].kl < 0.01
    for effect in found.values():
        assert abs(effect.loss - found["float32"].loss) < 0.01
    rows = four_bits.table(measured(lm)).rows
    none = "+0.0000 (+0.0000 to +0.0000)"
    assert len(rows) == 6 and rows[0][2:] == (none, "0.00000", "0.00%")


def test_what_notebook_07_says_of_them(lm):
    ways = measured(lm)[1:]
    assert all(0.02 < effect.changed < 0.05 and effect.more.value < 0.003 for effect in ways)
    as_deepinfer = ways[-1]
    assert as_deepinfer.name.startswith("as DeepInfer") and as_deepinfer.more.low > 0
    assert as_deepinfer.more.value == max(effect.more.value for effect in ways)
    assert as_deepinfer.kl == max(effect.kl for effect in ways)
    assert any(effect.more.is_zero for effect in ways)
    assert len(held_out(lm)) == 32


def test_weights_are_rounded_along_their_inputs(lm):
    """A column of a matrix, one output's weights, is rounded by itself; all else is untouched."""
    rough = four_bits.with_rounded_weights(lm, NVFP4)
    name = "blocks.1.ffn.fc1.W"
    column = rough.weights[name][:, 7]
    scaled = dict(lm.weights)
    scaled[name] = lm.weights[name].clone()
    scaled[name][:, 6] *= 1000
    other = four_bits.with_rounded_weights(dataclasses.replace(lm, weights=scaled), NVFP4)
    assert torch.equal(other.weights[name][:, 7], column)
    changed = {k for k, w in rough.weights.items() if not torch.equal(w, lm.weights[k])}
    assert changed == {f"blocks.{i}.ffn.fc{k}.W" for i in range(4) for k in (1, 2)}


def test_the_error_of_normal_numbers():
    """Sums over many numbers, none of ours: a uniform number between 4 and 6 is off by a third of
    half a step's square, sqrt(1/3) of 5 and a bit."""
    values = 4 + 2 * torch.rand(4000, 32, generator=torch.Generator().manual_seed(0))
    values[:, 0] = 6  # so that the scale is 1
    steps = torch.where(values < 5, values - 4, 6 - values)
    right = (steps.norm() / values.norm()).item()
    assert relative_error(values, MXFP4) == pytest.approx(right, rel=1e-6)


def test_bytes_of_a_token_and_the_picture(lm):
    found = four_bits.bytes_per_token(lm)
    assert list(found.values()) == [8192, 4096, 1152, 1088]
    real = four_bits.tensors_by_layer(lm)  # (N, H, d) a layer
    for name, format in ((name, format) for name in found for format in (NVFP4, MXFP4)):
        if name == f"{format.name}, packed":
            pages = [encode(layer, format) for kind in ("keys", "values") for layer in real[kind]]
            assert sum(page.nbytes for page in pages) == found[name] * len(real["keys"][0])
    picture = four_bits.layer_picture(lm)
    assert "keys 9." in picture.text and "feed-forward weights" in picture.text
