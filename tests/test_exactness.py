"""Equal bits and what they are good for: decode steps, DeepInfer's tests, scores, rollouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.numerics import Numerics
from g2c_serving.lab import decode_bits, deepinfer_tests, exact_scores, invariant_price, rollouts
from g2c_serving.lab.scoring import DecodeStep, decoded_logits, logits_of


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266, context=128, dim=64, heads=4)


# ---- the decode shape ----


def test_a_decode_step_gives_the_logits_of_the_whole_text(lm):
    texts = [[7 * i % 250 for i in range(length)] for length in (5, 20, 33)]
    step = DecodeStep(lm.model.with_numerics(Numerics()), texts)
    for row, ids in zip(step.logits([0, 1, 2]), texts, strict=True):
        assert torch.allclose(row, logits_of(lm.model, [ids])[0][-1], atol=1e-4)
    again = step.logits([0, 1, 2])
    assert torch.equal(again, step.logits([0, 1, 2]))  # a step leaves no trace


@pytest.mark.parametrize("contexts", decode_bits.CONTEXTS)
def test_with_both_causes_mended_no_row_differs(lm, contexts):
    found = decode_bits.measure(lm, "both fixed", contexts, (1, 2, 5, 8))
    assert [f.batch for f in found] == [1, 2, 5, 8]
    assert all((f.differ, f.gap) == (0, 0.0) for f in found)


def test_the_panel_of_the_two_causes(lm):
    measured = {
        (f, c): [
            decode_bits.Found(b, b // 2, 1e-6 if f == "rows fixed" else 0.0)
            for b in decode_bits.BATCHES
        ]
        for f in decode_bits.FIXED
        for c in decode_bits.CONTEXTS
    }
    panel = decode_bits.panel(measured)
    assert "rows fixed: 4 of 8, by up to 1.0e-06" in panel.text
    panel.controls["batch"].value = 16
    assert "rows fixed: 8 of 16" in panel.text and panel.error is None


# ---- DeepInfer's tests ----


def test_a_shuffled_batch_and_single_rows_give_the_same_tokens():
    assert deepinfer_tests.shuffled_and_alone() == (True, True)
    assert deepinfer_tests.shuffled_and_alone(rows=3, vocab_size=50) == (True, True)


def test_replayed_alone_everything_is_equal_in_the_invariant_mode(lm):
    found = deepinfer_tests.replayed_alone(lm, True, count=6, tokens=5)
    assert found == deepinfer_tests.Replayed(6, 6, 6, 6)


def test_a_forced_engine_follows_the_tokens_and_keeps_what_it_would_have_drawn(lm):
    prompt, params = (
        random_ids(lm, 9, seed=0),
        g.SamplingParams(max_tokens=4, seed=3, ignore_eos=True),
    )
    (out,) = g.Engine(lm).generate([prompt], params)
    engine = deepinfer_tests.ForcedEngine(lm)
    engine.force(out.token_ids)
    (again,) = engine.generate([prompt], params)
    assert again.token_ids == engine.drawn == out.token_ids
    other = [(t + 1) % 256 for t in out.token_ids]
    engine.force(other)
    (forced,) = engine.generate([prompt], params)
    assert forced.token_ids == other and engine.drawn[0] == out.token_ids[0]


# ---- the price ----


def test_the_price(lm):
    prices = invariant_price.measure(lm, (1, 2))
    assert [p.batch for p in prices] == [1, 2] and all(p.ordinary > 0 < p.invariant for p in prices)
    panel = invariant_price.panel(
        [invariant_price.Price(1, 2.0, 5.0), invariant_price.Price(8, 4.0, 5.0)]
    )
    assert panel.text == (
        "8 requests: 4.00 ms a step in the ordinary mode, 5.00 ms in the batch-invariant one, "
        "1.25 times as long."
    )
    panel.controls["batch"].value = 1
    assert panel.text.startswith("1 request: ") and "2.50 times" in panel.text


# ---- scores ----


def test_token_by_token_is_the_whole_text_at_once(lm):
    texts = [random_ids(lm, n, seed=n) for n in (1, 9, 20)]
    for one, other in zip(decoded_logits(lm.model, texts), logits_of(lm.model, texts), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_perplexity_by_hand(lm):
    """Of a text whose every token has the same logits as every other, V."""
    flat = random_lm(vocab_size=266, context=64)
    for weight in flat.weights.values():
        weight.zero_()
    assert exact_scores.perplexities(flat.model, [[1, 2, 3]], 1) == [pytest.approx(266)]


def test_scores_in_the_invariant_mode_are_exact_and_a_fault_is_seen(lm):
    texts = [random_ids(lm, n, seed=n) for n in (12, 20, 16)]
    changes = {c.name: c for c in exact_scores.changes(lm, texts)}
    assert changes[exact_scores.INVARIANT].equal == 3
    assert changes[exact_scores.FAULT].equal == 0
    assert max(changes[exact_scores.COMPANY].moved) < 1e-4
    assert max(changes[exact_scores.KERNEL].moved) < 1e-4
    picture = exact_scores.compare(list(changes.values()))
    assert "invariant: other company, 3 of 3" in picture.text


def test_on_tiny_the_fault_moves_all_texts_but_a_point_or_two_beyond_another_kernel():
    """What the notebook says of its picture."""
    changes = {c.name: c.moved for c in exact_scores.changes(g.load("tiny"))}
    kernel, fault = max(changes[exact_scores.KERNEL]), changes[exact_scores.FAULT]
    assert sum(share > kernel for share in fault) >= len(fault) - 2
    assert sorted(fault)[len(fault) // 2] > 10 * kernel


def test_the_other_kernel_is_never_the_packed_one(lm):
    model = exact_scores.other_kernel(lm)
    assert len(exact_scores.linears(model)) == 1 + 4 * lm.config.num_layers
    assert all(layer.packed is None for layer in exact_scores.linears(model))


def test_a_fault_is_one_weight(lm):
    faulty = exact_scores.with_a_fault(lm, share=1e-9)
    weight = faulty.blocks[0].up.weight.T
    assert int((weight != lm.weights["blocks.0.ffn.fc1.W"]).sum()) == 1


# ---- rollouts ----


def test_only_equal_bits_give_ratios_of_exactly_one(lm, monkeypatch):
    monkeypatch.setattr(rollouts, "ANSWERS", 4)

    def of(rollout, trainer):
        return rollouts.ratios(*rollouts.roll_out(lm, **rollouts.ROLLOUTS[rollout]), trainer)

    exact = of("float32, batch invariant", rollouts.SAME)
    assert exact.tokens.shape == (4, rollouts.TOKENS) and exact.exact == exact.tokens.size
    near = of("float32, ordinary", rollouts.DENSE)
    assert 0 <= near.worst < 1e-3
    far = of("bfloat16, ordinary", rollouts.DENSE)
    assert far.worst > 1e-3


def test_a_whole_answer_is_the_product_of_its_tokens():
    found = rollouts.Ratios(np.array([[1.0, 0.5], [2.0, 3.0]]))
    assert found.answers.tolist() == [0.5, 6.0] and found.exact == 1 and found.worst == 2.0


def test_the_rollouts_panel():
    ones = rollouts.Ratios(np.ones((rollouts.ANSWERS, rollouts.TOKENS)))
    off = rollouts.Ratios(ones.tokens + 1e-3)
    measured = {
        (r, t): ones if "invariant" in r else off
        for r in rollouts.ROLLOUTS
        for t in rollouts.TRAINERS
    }
    panel = rollouts.panel(measured)
    assert "0 of 384 tokens have a ratio of exactly 1; the farthest is off by 1.0e-03" in panel.text
    panel.controls["rollout"].value = "float32, batch invariant"
    assert panel.text.endswith("all 384 tokens have a ratio of exactly 1.")


def test_one_half_of_the_mode_alone_is_allowed(lm):
    for rows, attention in ((True, False), (False, True)):
        model = lm.model.with_numerics(BatchInvariant(rows, attention))
        ids = random_ids(lm, 10, seed=1)
        assert torch.allclose(logits_of(model, [ids])[0], logits_of(lm.model, [ids])[0], atol=1e-4)
