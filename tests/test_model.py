"""The forward pass over pages, against transformers' GPT-2 with the same weights."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from small_models import ragged_plan, random_ids, random_lm

import g2c_serving as g
from g2c_serving.forward import attention, kv_cache
from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.forward.model import Transformer
from g2c_serving.lab.one_user import OneUserModel
from g2c_serving.lab.theirs import to_gpt2
from g2c_serving.paths import DATA

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
Plan = list[list[tuple[int, int]]]  # passes over (text, number of its next tokens)

ONE_GO: Plan = [[(0, 40), (1, 17), (2, 1)]]
CHUNKS: Plan = [[(0, 7), (1, 7)], [(0, 7), (1, 7)], [(0, 7), (1, 3)], [(2, 1), (0, 19)]]
DECODE: Plan = [[(0, 1), (1, 1), (2, 1)], *([[(0, 1), (1, 1)]] * 16), *([[(0, 1)]] * 23)]
PREFILL_THEN_DECODE: Plan = [
    [(0, 25), (1, 12)],
    *([[(1, 1), (0, 1)]] * 4),
    [(2, 1), (0, 11), (1, 1)],
]


def reference(lm: LanguageModel, text: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Logits (T, V) of transformers."""
    with torch.inference_mode():
        return to_gpt2(lm, dtype)(torch.tensor([text])).logits[0]


def through_pages(
    lm: LanguageModel, texts: list[list[int]], plan: Plan, block_size: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Logits (T, V) of each text, computed pass by pass over scattered blocks that hold garbage."""
    model = Transformer(lm.config, lm.weights, dtype)
    num_blocks = -(-lm.config.max_seq_len // block_size)
    ids = random.Random(block_size).sample(range(3 * num_blocks), 3 * num_blocks)
    tables = [ids[i * num_blocks : (i + 1) * num_blocks] for i in range(len(texts))]
    cache = model.new_cache(3 * num_blocks, block_size)
    cache.keys.fill_(1e3)  # what a former owner left behind
    cache.values.fill_(1e3)
    done, found = [0] * len(texts), [[] for _ in texts]
    for rows in plan:
        chunks = [(texts[i][done[i] : done[i] + count], done[i]) for i, count in rows]
        batch = build_batch(chunks, [tables[i] for i, _ in rows], block_size, range(len(rows)))
        batch = dataclasses.replace(batch, logit_rows=torch.arange(len(batch.token_ids)))
        logits = model.forward(batch, cache).split([count for _, count in rows])
        for (i, count), part in zip(rows, logits, strict=True):
            done[i] += count
            found[i].append(part)
    assert done == [len(text) for text in texts]
    return [torch.cat(parts) for parts in found]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize(
    "plan",
    [ONE_GO, CHUNKS, DECODE, PREFILL_THEN_DECODE],
    ids=["one go", "chunks", "decode", "prefill then decode"],
)
def test_logits_are_those_of_gpt2(plan, block_size, dtype):
    """Right values: transformers' GPT2LMHeadModel with the same weights, each text by itself."""
    lm = random_lm()
    texts = [random_ids(lm, count, seed=count) for count in (40, 17, 1)]
    found = through_pages(lm, texts, plan, block_size, dtype)
    for text, logits in zip(texts, found, strict=True):
        expected = reference(lm, text, dtype)
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("seed", range(10))
def test_logits_of_any_ragged_mix_are_those_of_gpt2(seed):
    """Right values: transformers, for texts cut at random and mixed at random, up to the last
    position of the context."""
    lm, rng = random_lm(seed=seed), random.Random(seed)
    texts = [random_ids(lm, count, seed) for count in (64, rng.randint(1, 64), rng.randint(1, 64))]
    plan = ragged_plan([len(text) for text in texts], rng)
    found = through_pages(lm, texts, plan, rng.choice([1, 3, 8, 16]), torch.float64)
    for text, logits in zip(texts, found, strict=True):
        torch.testing.assert_close(logits, reference(lm, text, torch.float64), rtol=0, atol=1e-10)


@pytest.mark.skipif(not (DATA / "models" / "tiny").exists(), reason="tiny is not trained yet")
@pytest.mark.filterwarnings("error")  # torch warns when a buffer is too small and grows
@pytest.mark.parametrize("limit", ["GATHER_BYTES", "MASK_BYTES"])
def test_groups_are_cut_where_buffers_end(limit, monkeypatch):
    """With room for next to nothing each group is cut short, and the logits stay GPT-2's."""
    module = kv_cache if limit == "GATHER_BYTES" else attention
    monkeypatch.setattr(module, limit, 1)
    test_logits_of_any_ragged_mix_are_those_of_gpt2(seed=1)


def test_shipped_weights_are_a_gpt2():
    """Right values: transformers with the shipped weights, on a text of 60 tokens in two chunks."""
    lm = g.load("tiny")
    text = lm.tokenizer.encode("Once upon a time there was a little " * 20)[:60]
    [found] = through_pages(lm, [text], [[(0, 45)], [(0, 15)]], 16, torch.float64)
    torch.testing.assert_close(found, reference(lm, text, torch.float64), rtol=0, atol=1e-10)
    [found] = through_pages(lm, [text], [[(0, 45)], [(0, 15)]], 16, torch.float32)
    torch.testing.assert_close(found, reference(lm, text, torch.float32), rtol=0, atol=1e-4)


def test_the_one_user_loop_is_a_gpt2_too():
    """Right values: transformers, for one pass over the text and for one token at a time."""
    lm = random_lm()
    text = random_ids(lm, 30, seed=1)
    expected = reference(lm, text, torch.float64)
    model = OneUserModel(lm, torch.float64)
    torch.testing.assert_close(model.forward(text), expected, rtol=0, atol=1e-10)
    cache = model.empty_cache()
    for token, row in zip(text, expected, strict=True):
        logits, cache = model.forward_cached(token, cache)
        torch.testing.assert_close(logits, row, rtol=0, atol=1e-10)


def test_the_head_bias_is_added():
    """Right values: the definition, logits + head_bias (GPT-2 has none to compare with)."""
    lm = random_lm()
    bias = torch.linspace(-1, 1, lm.vocab_size)
    biased = dataclasses.replace(lm, weights=lm.weights | {"head_bias": bias})
    text = random_ids(lm, 10, seed=1)
    [plain] = through_pages(lm, [text], [[(0, 10)]], 4, torch.float64)
    [found] = through_pages(biased, [text], [[(0, 10)]], 4, torch.float64)
    torch.testing.assert_close(found, plain + bias.double(), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="head_bias"):
        to_gpt2(biased)


def test_inflate_keeps_the_logits_and_reaches_its_size():
    """Right values: the logits of the model before, bit for bit, and the sum of the tensors'
    bytes."""
    lm = random_lm()
    big = g.inflate(lm, megabytes=12)
    weights = sum(w.numel() * w.element_size() for w in big.weights.values())
    assert weights == pytest.approx(12e6, rel=0.01)
    text = random_ids(lm, 20, seed=1)
    plan: Plan = [[(0, 12)], [(0, 8)]]
    for dtype in TOLERANCE:
        [before] = through_pages(lm, [text], plan, 4, dtype)
        [after] = through_pages(big, [text], plan, 4, dtype)
        assert torch.equal(before, after)
    cache = Transformer(big.config, big.weights).new_cache(4, 4)
    assert cache.keys.shape[0] == lm.config.num_layers  # no KV for what was added
    with pytest.raises(ValueError, match="megabytes"):
        g.inflate(lm, megabytes="many")


def test_inflate_to_less_than_there_is_says_so_and_to_less_than_nothing_is_refused(capsys):
    lm = random_lm()
    assert g.inflate(lm, 0) is lm and "it is used as it is" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"megabytes=-5 must be 0 or more; pass a size"):
        g.inflate(lm, -5)
    assert not capsys.readouterr().out


ORACLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda y: y,
    "gelu": lambda y: y * (1 + torch.erf(y / 2**0.5)) / 2,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "silu": lambda y: y * torch.sigmoid(y),
}


@pytest.mark.parametrize("activation", ORACLES)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 64, 65])
def test_the_linear_layer_is_f_linear(rows, activation):
    """Right values: torch's F.linear and activations in float64."""
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((rows, 40), (40, 70), 70)
    )
    expected = F.linear(x.double(), weight.T.double(), bias.double())
    expected = ORACLES[activation](expected)
    found = Linear(weight, bias, activation)(x)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


def no_operators(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())


def no_pointwise(monkeypatch):
    packed = SimpleNamespace(_reorder_linear_weight=lambda weight, rows: weight)
    monkeypatch.setattr(torch.ops, "mkldnn", packed)


def wrong_results(monkeypatch):
    def wrong(x, weight, *rest):
        return x.new_zeros(x.shape[0], weight.shape[0])

    both = SimpleNamespace(_reorder_linear_weight=lambda w, rows: w, _linear_pointwise=wrong)
    monkeypatch.setattr(torch.ops, "mkldnn", both)


@pytest.mark.parametrize("fault", [no_operators, no_pointwise, wrong_results])
def test_the_linear_layer_falls_back(fault, monkeypatch):
    """Right values: F.linear, where torch lacks the private operators or they give wrong values."""
    fault(monkeypatch)
    weight, bias, x = torch.randn(40, 70), torch.randn(70), torch.randn(8, 40)
    layer = Linear(weight, bias)
    assert layer.packed is None
    assert torch.equal(layer(x), F.linear(x, weight.T, bias))
