"""Models of Llama's shape through everything that the engine does with pages."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_models import random_ids, random_llama, random_lm
from test_model import PREFILL_THEN_DECODE, through_pages

import g2c_serving as g
from g2c_serving.cluster.handover import admit, export
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.rotary import Rotary
from g2c_serving.lab.dense import DenseModel
from g2c_serving.lab.one_user import OneUserModel
from g2c_serving.lab.scoring import CourseModel

GREEDY = g.SamplingParams(temperature=0, max_tokens=20)
SIZES = {
    "vocab_size": 100,
    "embedding_dim": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_seq_len": 64,
    "hidden_dim": 64,
}


def prompts_of(lm: g.LanguageModel, *lengths: int) -> list[list[int]]:
    return [random_ids(lm, length, seed) for seed, length in enumerate(lengths)]


def tokens(lm: g.LanguageModel, prompts: list[list[int]], **options) -> list[list[int]]:
    engine = g.Engine(lm, g.EngineConfig(dtype="float64", **options))
    outputs = engine.generate(prompts, GREEDY)
    engine.block_manager.check()
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def lm() -> g.LanguageModel:
    return random_llama()


@pytest.fixture(scope="module")
def alone(lm) -> list[list[int]]:
    """Each prompt by itself."""
    return [tokens(lm, [prompt])[0] for prompt in prompts_of(lm, 5, 20, 33, 40)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"num_blocks": 12, "block_size": 8},  # others are put back and computed again
        {"enable_prefix_caching": True},
        {"batch_invariant": True},
    ],
    ids=str,
)
def test_the_company_changes_no_token(lm, alone, options):
    """Right values: each prompt by itself, in float64."""
    assert tokens(lm, prompts_of(lm, 5, 20, 33, 40), **options) == alone


def test_a_prefix_hit_and_a_restart_change_no_token(lm, alone, tmp_path):
    """Blocks of the narrow heads go to disk and come back in another engine."""
    options = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 10**7}
    prompts = prompts_of(lm, 5, 20, 33, 40)
    assert tokens(lm, prompts, **options) == alone
    engine = g.Engine(lm, g.EngineConfig(dtype="float64", **options))
    again = engine.generate(prompts, GREEDY)
    assert [o.token_ids for o in again] == alone
    assert [o.num_cached_tokens for o in again] == [0, 16, 32, 32]


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize(
    "drafter", [random_lm(seed=5), random_llama(seed=5, kv_heads=1)], ids=["gpt", "llama"]
)
def test_drafts_change_no_greedy_token(lm, alone, mode, drafter):
    """The drafter may be of either shape."""
    speculation = g.Speculation(mode, 3, drafter, step_time=lambda rows: 10.0 + rows)
    assert tokens(lm, prompts_of(lm, 5, 20, 33, 40), speculation=speculation) == alone


def test_forks_go_on_alike(lm, alone):
    engine = g.Engine(lm, g.EngineConfig(dtype="float64"))
    first = engine.add(prompts_of(lm, 5, 20, 33, 40)[2], GREEDY)
    for _ in range(6):
        engine.step()
    second = engine.fork(first)
    found = {}
    while engine.has_unfinished:
        found |= {o.request_id: o.token_ids for o in engine.step() if o.finish_reason}
    assert found == {first: alone[2], second: alone[2]}


def test_the_cache_holds_the_key_heads_alone(lm):
    """Right value: 2 (keys, values) x 2 layers x 2 heads of 8 numbers of 4 bytes."""
    cache = lm.model.new_cache(4, 16)
    assert cache.bytes_per_token == 2 * 2 * 2 * 8 * 4
    slots = cache.slots([2, 0], 3, 20)
    cache.keys.normal_()
    cache.values.normal_()
    pages = cache.export_slots(slots, [0, 1])
    other = lm.model.new_cache(4, 16)
    other.import_slots(other.slots([1, 3], 3, 20), [0, 1], pages)
    blocks = cache.export_blocks([2], [0, 1]), other.export_blocks([1], [0, 1])
    assert len(blocks[0][0]) == 16 * cache.bytes_per_token
    per_token = [
        torch.frombuffer(bytearray(b[0]), dtype=torch.float32).view(16, -1) for b in blocks
    ]
    assert torch.equal(per_token[0][3:], per_token[1][3:])


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_a_cache_in_four_bits(name):
    """A head's numbers are rounded in blocks. Right values: the same engine, each prompt alone."""
    lm = random_llama(dim=64, heads=2, kv_heads=1)
    prompts = prompts_of(lm, 5, 30)
    options = {"kv_cache_dtype": name}
    expected = [tokens(lm, [prompt], **options)[0] for prompt in prompts]
    assert tokens(lm, prompts, **options) == expected


def test_windows(lm):
    """A window as long as the context hides nothing. Right values: no window."""
    windowed = dataclasses.replace(
        lm, config=dataclasses.replace(lm.config, window=64, window_layers=(1,))
    )
    texts = prompts_of(lm, 40, 17, 1)
    plain = through_pages(lm, texts, PREFILL_THEN_DECODE, 4, torch.float64)
    found = through_pages(windowed, texts, PREFILL_THEN_DECODE, 4, torch.float64)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_inflate_keeps_the_logits(lm):
    """Right values: the logits before, bit for bit, and the sum of the tensors' bytes."""
    big = g.inflate(lm, megabytes=5)
    assert sum(w.nbytes for w in big.weights.values()) == pytest.approx(5e6, rel=0.01)
    text = random_ids(lm, 20, seed=1)
    before, after = (
        through_pages(m, [text], [[(0, 12)], [(0, 8)]], 4, torch.float32)[0] for m in (lm, big)
    )
    assert torch.equal(before, after)


def test_handover_between_engines(lm, alone):
    """The pages of a running request in another engine's cache."""
    one, two = (g.Engine(lm, g.EngineConfig(dtype="float64")) for _ in range(2))
    first = one.add(prompts_of(lm, 5, 20, 33, 40)[1], GREEDY)
    for _ in range(4):
        one.step()
    second = admit(two, export(one, first))
    found = {}
    while two.has_unfinished:
        found |= {o.request_id: o.token_ids for o in two.step() if o.finish_reason}
    assert found[second] == alone[1]


# what computes the course's GPT alone


@pytest.mark.parametrize("kind", [OneUserModel, CourseModel, lambda lm: DenseModel(lm, 1, 8)])
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (random_llama(), "norm='rms'.*gated=True.*use the Engine"),
        (random_llama(kv_heads=4), "rotary=Rotary"),
    ],
    ids=["shared key heads", "a key head each"],
)
def test_a_lab_that_holds_one_shape_says_so(kind, shape, words):
    with pytest.raises(ValueError, match=words):
        kind(shape)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ({"activation": "gelu_tanh"}, "activation='gelu_tanh'"),
        ({"num_kv_heads": 2}, "num_kv_heads=2"),
        ({"head_size": 16}, "head_dim=16"),
    ],
)
def test_each_difference_is_named(fields, word):
    assert ModelConfig(**SIZES).other_than_gpt == []
    assert word in ModelConfig(**SIZES, **fields).other_than_gpt


def test_a_head_of_its_own_is_refused_by_the_loop():
    lm = random_lm()
    owned = dataclasses.replace(
        lm, weights={**lm.weights, "head.W": lm.weights["token_embed.weight"].T}
    )
    with pytest.raises(ValueError, match="a head of its own"):
        OneUserModel(owned)
    ids = random_ids(lm, 9, seed=1)
    plan = [[(0, 9)]]
    assert torch.equal(*(through_pages(m, [ids], plan, 4, torch.float64)[0] for m in (lm, owned)))


def test_without_a_head_bias_and_linear_biases():
    """Right values: the same with zeros for them."""
    lm = random_lm()
    bare = {n: w for n, w in lm.weights.items() if not n.endswith(".b") and n != "head_bias"}
    zeros = {n: w if n in bare else torch.zeros_like(w) for n, w in lm.weights.items()}
    ids = random_ids(lm, 20, seed=3)
    found, expected = (
        through_pages(
            dataclasses.replace(lm, weights=w), [ids], [[(0, 12)], [(0, 8)]], 4, torch.float64
        )
        for w in (bare, zeros)
    )
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)


# the config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads=3 must divide num_heads=4"),
        ({"num_kv_heads": 8}, "num_kv_heads=8 must divide num_heads=4"),
        ({"num_kv_heads": -1}, "num_kv_heads=-1"),
        ({"num_kv_heads": 2.0}, "num_kv_heads=2.0 must be an integer"),
        ({"head_size": 1.5}, "head_size=1.5"),
        ({"num_heads": 5}, "num_heads=5 must divide embedding_dim=32"),
        ({"norm": "batch"}, "norm='batch' must be one of"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 must be above 0"),
        ({"activation": "relu"}, "activation='relu' must be one of"),
        ({"gated": 1}, "gated=1 must be True or False"),
        ({"rotary": 10_000.0}, "rotary=10000.0 must be a Rotary"),
        ({"rotary": Rotary(), "head_size": 7}, "7 numbers has no pairs"),
    ],
)
def test_shapes_that_are_not_known(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**(SIZES | fields))


def test_what_follows_from_the_sizes():
    config = ModelConfig(**SIZES, num_kv_heads=2, head_size=10)
    assert (config.head_dim, config.attention_dim, config.num_kv_heads) == (10, 40, 2)
    assert ModelConfig(**SIZES).num_kv_heads == 4


def test_a_weight_that_is_not_there():
    lm = random_llama()
    weights = {n: w for n, w in lm.weights.items() if n != "blocks.1.ffn.gate.W"}
    with pytest.raises(KeyError, match="blocks.1.ffn.gate.W"):
        Transformer(lm.config, weights)
