"""Rotary positions: speeds of the pairs, and what turning does to products."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from small_models import random_llama
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import g2c_serving as g
from g2c_serving.forbid_sync import forbid_sync
from g2c_serving.forward.rotary import Rotary, RotaryTable

LLAMA31 = Rotary(500_000.0, "llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
QWEN_YARN = Rotary(1_000_000.0, "yarn", 4.0, 32_768)
KINDS = {
    "default": (Rotary(), {}),
    "another base": (Rotary(1_000_000.0), {"rope_theta": 1_000_000.0}),
    "linear": (Rotary(scaling="linear", factor=2.5), {"rope_type": "linear", "factor": 2.5}),
    "llama 3.1": (
        LLAMA31,
        {
            "rope_theta": 500_000.0,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "qwen with yarn": (
        QWEN_YARN,
        {
            "rope_theta": 1_000_000.0,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32_768,
        },
    ),
    "yarn, all numbers": (
        Rotary(150_000.0, "yarn", 32.0, 4096, 1, 4, 2.0, 16.0, 1.25, False),
        {
            "rope_theta": 150_000.0,
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_slow": 2.0,
            "beta_fast": 16.0,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
}


def theirs(fields: dict, head_dim: int) -> LlamaRotaryEmbedding:
    full = {"rope_theta": 10_000.0, "rope_type": "default"} | fields
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=131_072,
        rope_scaling=full,
        rope_theta=full["rope_theta"],
    )
    return LlamaRotaryEmbedding(config)


def test_speeds_by_hand():
    """Right values: base^(-2i / d)."""
    found = Rotary(10_000.0).frequencies(8)
    torch.testing.assert_close(found, torch.tensor([1, 0.1, 0.01, 0.001]))
    torch.testing.assert_close(Rotary(scaling="linear", factor=4.0).frequencies(8), found / 4)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_speeds_are_those_of_transformers(kind, head_dim):
    rotary, fields = KINDS[kind]
    expected = theirs(fields, head_dim)
    found = rotary.frequencies(head_dim)
    torch.testing.assert_close(found, expected.inv_freq, rtol=2e-6, atol=0)
    assert rotary.length_factor == pytest.approx(expected.attention_scaling, rel=1e-12)


def test_llama3_slows_the_slow_pairs_alone():
    """Right values: the definition. A pair that turns more than 4 times in 8,192 tokens keeps its
    speed, one that turns less than once has an eighth of it."""
    plain = Rotary(500_000.0).frequencies(128)
    turns = 8192 * plain / (2 * math.pi)
    share = LLAMA31.frequencies(128) / plain
    assert (turns > 4).any() and torch.allclose(share[turns > 4], torch.ones(()))
    assert (turns < 1).any() and torch.allclose(share[turns < 1], torch.full((), 1 / 8))
    between = share[(turns > 1) & (turns < 4)]
    assert len(between) and ((between > 1 / 8) & (between < 1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_turned_as_in_transformers(kind):
    """Rows at any positions, in any order, up to the last."""
    rotary, fields = KINDS[kind]
    x = torch.randn(7, 5, 64, generator=torch.Generator().manual_seed(0))  # (N, H, d)
    positions = torch.tensor([0, 1, 2047, 5, 5, 100, 1023])
    turned = RotaryTable(rotary, 64, 2048).at(positions, torch.float32, 2048)(x)
    cos, sin = theirs(fields, 64)(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    # the speeds agree to 2e-6 of themselves, and angles are up to 2,047 radians
    torch.testing.assert_close(turned, expected[0].transpose(0, 1), rtol=0, atol=5e-4)


def test_products_depend_on_the_distance_alone():
    """What rotary positions are for. Right value: the same pair of rows elsewhere."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 32, generator=generator, dtype=torch.float64)
    table = RotaryTable(Rotary(), 32, 512)

    def product(at: int, other: int) -> float:
        turned = [table.at(torch.tensor([p]), q.dtype, p + 1)(x) for p, x in ((at, q), (other, k))]
        return float((turned[0] * turned[1]).sum())

    here = [product(p, p - 7) for p in (7, 8, 100, 511)]
    assert here == pytest.approx([here[0]] * 4, abs=1e-4)  # angles are float32
    assert abs(product(100, 50) - here[0]) > 1e-2
    assert product(0, 0) == pytest.approx(float((q * k).sum()), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_turned_the_same_in_any_company(dtype):
    """Bit for bit, wherever it stands."""
    x = torch.randn(33, 3, 10, generator=torch.Generator().manual_seed(2)).to(dtype)
    positions, table = torch.arange(33) * 3, RotaryTable(Rotary(), 10, 128)
    together = table.at(positions, dtype, 97)(x)
    assert together.dtype == dtype
    for i in (0, 1, 17, 32):
        assert torch.equal(table.at(positions[i : i + 1], dtype, 97)(x[i : i + 1])[0], together[i])


def turns(table: RotaryTable, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
    turn = table.at(torch.tensor(positions), torch.float32, positions.stop)
    return turn.cos, turn.sin


@pytest.mark.parametrize("head_dim", [10, 64])
def test_a_table_that_grows_has_the_rows_of_a_longer_one(head_dim):
    """Bit for bit, however it grew. Right values: those of every position, made at once."""
    places = torch.arange(30_000, dtype=torch.float32)[:, None]
    angles = (places * LLAMA31.frequencies(head_dim)).double()
    cos, sin = (torch.cat((part, part), 1).float() for part in (angles.cos(), angles.sin()))
    for steps in ([29_999], [5, 4096, 4097, 10_001, 29_999], [8191, 20_000, 29_999]):
        table = RotaryTable(LLAMA31, head_dim, 30_000)
        for stop in steps:
            found = turns(table, range(max(0, stop - 5000), stop))
            assert torch.equal(found[0][:, 0], cos[max(0, stop - 5000) : stop])
            assert torch.equal(found[1][:, 0].abs(), sin[max(0, stop - 5000) : stop].abs())
        assert torch.equal(turns(table, range(30_000))[0][:, 0], cos)


def test_a_table_takes_the_room_of_the_positions_that_came():
    """Not of the context limit, which may be anything."""
    table = RotaryTable(Rotary(), 8, 2**31 - 1)
    for end in (1, 4096, 4097, 20_000):
        turns(table, range(end - 1, end))
        assert all(len(part) <= max(4096, 2 * end) for part in table._rows)
    assert len(RotaryTable(Rotary(), 8, 100)._rows[0]) == 100


def test_a_table_grows_without_a_wait_for_the_device():
    table, positions = RotaryTable(Rotary(), 8, 50_000), torch.tensor([3, 9000])
    with forbid_sync("forward"):
        turn = table.at(positions, torch.float32, 9001)
    assert turn.cos.shape == (2, 1, 8)


def test_a_model_with_a_long_context_takes_the_room_of_its_texts():
    """The engine, with a context of two thousand million and texts beyond one piece of the table.
    Right values: the same model with a context that its table holds at once, in either order of the
    texts, batch-invariant."""
    generator = torch.Generator().manual_seed(4)
    texts = [torch.randint(0, 300, (n,), generator=generator).tolist() for n in (5, 4200)]
    params = g.SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    found = []
    for context, order in ((4300, (0, 1)), (2**31 - 1, (0, 1)), (2**31 - 1, (1, 0))):
        lm = random_llama(dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=context)
        engine = g.Engine(lm, g.EngineConfig(num_blocks=300, batch_invariant=True))
        outputs = {i: engine.generate([texts[i]], params)[0] for i in order}
        assert len(lm.model.rotary._rows[0]) <= 8400
        found.append([(outputs[i].token_ids, outputs[i].logprobs) for i in (0, 1)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scaling": "ntk"}, "scaling='ntk'.*'yarn'"),
        ({"base": 1.0}, "base=1.0 must be above 1"),
        ({"base": math.nan}, "base=nan"),
        ({"factor": 0.9}, "factor=0.9 must be 1 or more"),
        ({"scaling": "llama3"}, "original_max_seq_len=0"),
        ({"scaling": "yarn", "original_max_seq_len": 4.5}, "original_max_seq_len=4.5"),
        ({"low_freq_factor": 4.0}, "low_freq_factor=4.0 must be above 0 and below"),
        ({"beta_slow": 0}, "beta_slow=0.0 must be above 0"),
        ({"truncate": 1}, "truncate=1 must be True or False"),
        ({"attention_factor": "1"}, "attention_factor='1'"),
    ],
)
def test_numbers_that_mean_nothing(fields, message):
    with pytest.raises(ValueError, match=message):
        Rotary(**fields)
