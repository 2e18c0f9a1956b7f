"""Window layers over pages, and replay, against attention written out densely with its masks."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from small_models import ragged_plan, random_ids, random_lm
from test_model import CHUNKS, DECODE, ONE_GO, PREFILL_THEN_DECODE, Plan, through_pages

import g2c_serving as g
from g2c_serving.forward import attention, kv_cache
from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.lab.one_user import OneUserModel
from g2c_serving.lab.theirs import to_gpt2
from g2c_serving.paths import DATA
from g2c_serving.train.gpt import DEFAULT_CONFIG, WINDOW_CONFIG

KeysValues = list[tuple[torch.Tensor, torch.Tensor]]  # (T, H, d) of each layer
LAYERS = (0, 2, 3)  # the window layers of the models here, of 5
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def window_lm(window: int = 5, seed: int = 0, **sizes) -> LanguageModel:
    return random_lm(layers=5, window=window, window_layers=LAYERS, seed=seed, **sizes)


def dense(
    lm: LanguageModel,
    ids: list[int],
    start: int = 0,
    first_new: int = 0,
    exact: KeysValues | None = None,
) -> tuple[torch.Tensor, KeysValues]:
    """Logits (T - start, V) of the tokens from `start` on, and all keys and values, in float64.

    Window layers see nothing before `start`. Of the tokens before `first_new` the other layers see
    the keys and values in `exact`."""
    w = {name: weight.double() for name, weight in lm.weights.items()}
    shape = (lm.config.num_heads, lm.config.head_dim)
    queries, keys_at = torch.arange(start, len(ids))[:, None], torch.arange(len(ids))
    x = w["token_embed.weight"][ids[start:]] + w["pos_embed.weight"][start : len(ids)]
    stored = []
    for i in range(lm.config.num_layers):
        name, windowed = f"blocks.{i}", i in lm.config.window_layers
        normed = _norm(x, w, f"{name}.ln1")
        q, k, v = (_linear(normed, w, f"{name}.attn.{p}_proj").unflatten(1, shape) for p in "qkv")
        before = torch.zeros(start, *shape, dtype=x.dtype)
        k, v = torch.cat((before, k)), torch.cat((before, v))  # (T, H, d)
        seen = keys_at <= queries  # (T - start, T)
        if windowed:
            seen &= (keys_at > queries - lm.config.window) & (keys_at >= start)
        elif exact is not None:
            k[:first_new], v[:first_new] = exact[i][0][:first_new], exact[i][1][:first_new]
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(shape[1])
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        x = x + _linear(mixed, w, f"{name}.attn.out_proj")
        hidden = F.gelu(_linear(_norm(x, w, f"{name}.ln2"), w, f"{name}.ffn.fc1"))
        x = x + _linear(hidden, w, f"{name}.ffn.fc2")
        stored.append((k, v))
    return _norm(x, w, "ln_final") @ w["token_embed.weight"].T + w["head_bias"], stored


def _linear(x, w, name):
    return x @ w[f"{name}.W"] + w[f"{name}.b"]


def _norm(x, w, name):
    return F.layer_norm(x, x.shape[1:], w[f"{name}.gamma"], w[f"{name}.beta"], 1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize(
    "plan",
    [ONE_GO, CHUNKS, DECODE, PREFILL_THEN_DECODE],
    ids=["one go", "chunks", "decode", "prefill then decode"],
)
def test_logits_are_those_of_dense_attention_with_masks(plan: Plan, block_size, dtype) -> None:
    """Right values: the dense reference above in float64, each text by itself."""
    lm = window_lm()
    texts = [random_ids(lm, count, seed=count) for count in (40, 17, 1)]
    found = through_pages(lm, texts, plan, block_size, dtype)
    for text, logits in zip(texts, found, strict=True):
        expected = dense(lm, text)[0].to(dtype)
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("seed", range(10))
def test_any_ragged_mix_and_any_window(seed: int) -> None:
    """Right values: the dense reference, for texts cut and mixed at random, windows of 1 to 70."""
    rng = random.Random(seed)
    lm = window_lm(rng.choice([1, 2, 3, 8, 16, 17, 63, 64, 70]), seed)
    texts = [random_ids(lm, count, seed) for count in (64, rng.randint(1, 64), rng.randint(1, 64))]
    plan = ragged_plan([len(text) for text in texts], rng)
    found = through_pages(lm, texts, plan, rng.choice([1, 3, 8, 16]), torch.float64)
    for text, logits in zip(texts, found, strict=True):
        torch.testing.assert_close(logits, dense(lm, text)[0], rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("error")  # torch warns when a buffer is too small and grows
@pytest.mark.parametrize("limit", ["GATHER_BYTES", "MASK_BYTES"])
def test_groups_are_cut_where_buffers_end(limit: str, monkeypatch) -> None:
    """With room for next to nothing each group is cut short, and the logits stay the same."""
    module = kv_cache if limit == "GATHER_BYTES" else attention
    monkeypatch.setattr(module, limit, 1)
    test_any_ragged_mix_and_any_window(seed=1)


@pytest.mark.parametrize("window", [40, 64, 1000])
def test_a_window_as_long_as_the_text_is_no_window(window: int) -> None:
    """Right values: the same weights without a window, and transformers' GPT-2."""
    lm = window_lm(window)
    config = dataclasses.replace(lm.config, window=0, window_layers=())
    plain = dataclasses.replace(lm, config=config)
    text = random_ids(lm, 40, seed=1)
    with torch.inference_mode():
        gpt2 = to_gpt2(plain, torch.float64)(torch.tensor([text])).logits[0]
    for one in (lm, plain):
        [found] = through_pages(one, [text], [[(0, 23)], [(0, 16)], [(0, 1)]], 4, torch.float64)
        torch.testing.assert_close(found, gpt2, rtol=0, atol=1e-10)


def test_gpt_neo_has_the_same_windows() -> None:
    """Right values: transformers' GPT-Neo, whose local layers are our window layers; it has no
    biases on q, k, v, no division by sqrt(d), and takes its scores in float32."""
    import transformers

    lm = window_lm(7)
    lm.weights.update({n: w * 0 for n, w in lm.weights.items() if n.endswith(tuple(_NO_BIAS))})
    config = transformers.GPTNeoConfig(
        vocab_size=lm.vocab_size,
        max_position_embeddings=lm.config.max_seq_len,
        hidden_size=lm.config.embedding_dim,
        num_layers=5,
        num_heads=lm.config.num_heads,
        intermediate_size=lm.config.hidden_dim,
        attention_types=[[["local", "global"], 1], [["local"], 2], [["global"], 1]],
        window_size=7,
        activation_function="gelu",
        bos_token_id=None,
        eos_token_id=None,
    )
    neo = transformers.GPTNeoForCausalLM(config).eval()
    neo.load_state_dict(_neo_weights(lm), strict=False)
    text = random_ids(lm, 60, seed=1)
    with torch.inference_mode():
        expected = neo(torch.tensor([text])).logits[0]
    [found] = through_pages(lm, [text], [[(0, 41)], [(0, 18)], [(0, 1)]], 16, torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)


_NO_BIAS = ("q_proj.b", "k_proj.b", "v_proj.b")
_NEO = {"ln1.gamma": "ln_1.weight", "ln1.beta": "ln_1.bias", "ln2.gamma": "ln_2.weight",
        "ln2.beta": "ln_2.bias", "attn.out_proj.b": "attn.attention.out_proj.bias",
        "ffn.fc1.b": "mlp.c_fc.bias", "ffn.fc2.b": "mlp.c_proj.bias"}  # fmt: skip


def _neo_weights(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """Linear weights are (out, in) there, and the query carries the factor 1 / sqrt(d)."""
    ours = lm.weights
    embed, norm = ours["token_embed.weight"], "transformer.ln_f"
    neo = {"transformer.wte.weight": embed, "lm_head.weight": embed}
    neo["transformer.wpe.weight"] = ours["pos_embed.weight"]
    neo |= {f"{norm}.weight": ours["ln_final.gamma"], f"{norm}.bias": ours["ln_final.beta"]}
    for i in range(lm.config.num_layers):
        block, there = f"blocks.{i}", f"transformer.h.{i}"
        neo |= {f"{there}.{name}": ours[f"{block}.{mine}"] for mine, name in _NEO.items()}
        for p, scale in (("q", lm.config.head_dim**-0.5), ("k", 1), ("v", 1), ("out", 1)):
            weight = ours[f"{block}.attn.{p}_proj.W"].T * scale
            neo[f"{there}.attn.attention.{p}_proj.weight"] = weight
        for mine, name in (("ffn.fc1", "mlp.c_fc"), ("ffn.fc2", "mlp.c_proj")):
            neo[f"{there}.{name}.weight"] = ours[f"{block}.{mine}.W"].T
    return neo


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_tiles_that_are_hidden_whole_give_numbers(dtype: torch.dtype) -> None:
    """A chunk of 1,500 tokens and a window of 8: for most tokens nearly all keys that are gathered
    lie behind the window. Right values: the dense reference."""
    lm = window_lm(8, context=2048)
    text = random_ids(lm, 1600, seed=1)
    [found] = through_pages(lm, [text], [[(0, 100)], [(0, 1500)]], 16, dtype)
    assert found.isfinite().all()
    expected = dense(lm, text)[0].to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=10 * TOLERANCE[dtype])


# replay


class Replay:
    """A text of 60 tokens run once; then the window state before position `hit` is lost, the last
    `count` tokens of the hit are replayed and the text goes on, chunk by chunk of `chunk`."""

    def __init__(self, lm: LanguageModel, hit: int, count: int, chunk: int = 100) -> None:
        self.ids, self.hit, self.start = random_ids(lm, 60, seed=2), hit, hit - count
        self.model = Transformer(lm.config, lm.weights, torch.float64)
        self.cache = self.model.new_cache(20, 4)
        self.table = random.Random(1).sample(range(20), 15)
        self.exact = self.run(0, 60)
        self.before = self.cache.keys.clone(), self.cache.values.clone()
        self._lose_window_state(lm)
        self.logits = torch.cat(
            [self.run(i, min(i + chunk, 60), True) for i in range(self.start, 60, chunk)]
        )

    def _lose_window_state(self, lm: LanguageModel) -> None:
        for i in lm.config.window_layers:
            for pages in (self.cache.keys, self.cache.values):
                pages[i, self.table[: self.hit // 4]] = 1e3

    def run(self, first: int, last: int, replay: bool = False) -> torch.Tensor:
        """Logits (last - first, V)."""
        known = {"window_start": [self.start], "first_new": [self.hit]} if replay else {}
        chunk = [(self.ids[first:last], first)]
        batch = build_batch(chunk, [self.table], 4, [0], **known)
        every = dataclasses.replace(batch, logit_rows=torch.arange(last - first))
        return self.model.forward(every, self.cache)


@pytest.mark.parametrize("chunk", [100, 7, 1])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 11, 12, 30])
def test_replay_is_what_its_definition_says(count: int, chunk: int) -> None:
    """Right values: the dense reference, in which the window layers see only what was replayed and
    the other layers the exact keys of all that was hit."""
    lm = window_lm()
    replay = Replay(lm, hit=40, count=count, chunk=chunk)
    exact, stored = dense(lm, replay.ids)
    torch.testing.assert_close(replay.exact, exact, rtol=0, atol=1e-10)
    expected, _ = dense(lm, replay.ids, replay.start, 40, stored)
    torch.testing.assert_close(replay.logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunk", [100, 7, 1])
def test_replay_leaves_the_global_layers_alone(chunk: int) -> None:
    """Right values: the bits before; a block of them may be shared with other requests."""
    replay = Replay(window_lm(), hit=40, count=8, chunk=chunk)
    hit_blocks = replay.table[:10]
    for now, before in zip((replay.cache.keys, replay.cache.values), replay.before, strict=True):
        for layer in (1, 4):
            assert torch.equal(now[layer, hit_blocks], before[layer, hit_blocks])
        for layer in LAYERS:
            assert not torch.equal(now[layer, hit_blocks], before[layer, hit_blocks])
        assert (now[0, replay.table[8:10]] - before[0, replay.table[8:10]]).abs().max() < 1e-12


@pytest.mark.parametrize("window", [2, 5, 9])
def test_exactness_returns_at_the_receptive_field(window: int) -> None:
    """k window layers of W tokens chained reach k (W - 1) tokens back: replayed as many, the text
    goes on exactly; with one less it does not. Right values: the run that lost nothing."""
    lm = window_lm(window)
    reach = len(LAYERS) * (window - 1)
    for count, is_exact in ((reach, True), (reach + 3, True), (reach - 1, False)):
        replay = Replay(lm, hit=40, count=count)
        error = (replay.logits[count:] - replay.exact[40:]).abs().max()
        assert (error < 1e-11) == is_exact, (count, error)
        assert is_exact or error > 1e-9


def test_replayed_and_other_requests_share_a_batch() -> None:
    """Right values: each request in a batch of its own."""
    lm = window_lm()
    model = Transformer(lm.config, lm.weights, torch.float64)
    texts = [random_ids(lm, 40, seed) for seed in (1, 2, 3)]
    tables = [list(range(i, 30, 3)) for i in range(3)]
    rows = [(22, 16, 24), (30, 0, 0), (39, 0, 0)]  # first computed, window start, first new

    def run(which: list[int]) -> torch.Tensor:
        cache = model.new_cache(30, 4)
        model.forward(build_batch([(t, 0) for t in texts], tables, 4, []), cache)
        batch = build_batch(
            [(texts[i][rows[i][0] :], rows[i][0]) for i in which],
            [tables[i] for i in which], 4, range(len(which)),
            window_start=[rows[i][1] for i in which], first_new=[rows[i][2] for i in which],
        )  # fmt: skip
        return model.forward(batch, cache)

    alone = torch.cat([run([i]) for i in range(3)])
    torch.testing.assert_close(run([0, 1, 2]), alone, rtol=0, atol=1e-10)


# what a config says


@pytest.mark.parametrize(
    ("window", "layers", "message"),
    [
        (-1, (0,), "window=-1 must be an integer, from 0"),
        (2.5, (0,), "window=2.5 must be an integer"),
        (4, (), r"window=4 and window_layers=\[\]: a window needs at least one layer"),
        (0, (1,), r"window=0 and window_layers=\[1\]"),
        (4, (2,), "window_layers=2 must be an integer, from 0 to 1"),
        (4, (-1,), "window_layers=-1 must be an integer, from 0 to 1"),
        (4, (0, 0), "names a layer twice"),
        (4, "01", "window_layers='01' must be a list"),
        (4, 1, "window_layers=1 must be a list"),
    ],
)
def test_errors_of_the_config(window, layers, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(300, 32, 2, 2, 64, 64, window, layers)


def save_window_lm(folder, **changes) -> LanguageModel:
    lm = window_lm(vocab_size=1024)
    sizes = dataclasses.asdict(lm.config)
    content = {"vocab_size": sizes.pop("vocab_size"), "model_config": sizes | changes}
    (folder / "models" / "w").mkdir(parents=True)
    (folder / "models" / "w" / "config.json").write_text(json.dumps(content))
    manifest = json.dumps({"tokenizer_artifact": "tiny"})
    (folder / "models" / "w" / "manifest.json").write_text(manifest)
    save_file(lm.weights, folder / "models" / "w" / "model.safetensors")
    (folder / "tokenizers" / "tiny").mkdir(parents=True)
    g.load("tiny").tokenizer.save(folder / "tokenizers" / "tiny" / "tokenizer.json")
    return lm


def test_a_folder_names_its_window(tmp_path) -> None:
    lm = save_window_lm(tmp_path)
    loaded = g.load(tmp_path / "models" / "w")
    assert loaded.config == lm.config and loaded.config.window_layers == LAYERS
    plain = dataclasses.replace(lm.config, window=0, window_layers=())
    assert loaded.fingerprint != dataclasses.replace(loaded, config=plain).fingerprint


def test_a_folder_with_a_wrong_window_is_refused(tmp_path) -> None:
    save_window_lm(tmp_path, window_layers=[7])
    with pytest.raises(ValueError, match=r"config\.json.*window_layers=7.*from 0 to 4"):
        g.load(tmp_path / "models" / "w")


def test_the_shipped_window_model() -> None:
    """Right values: the shape that the trainer names, and the dense reference."""
    lm = g.load("tiny-window")
    shape = WINDOW_CONFIG | {"window_layers": tuple(WINDOW_CONFIG["window_layers"])}
    assert {name: getattr(lm.config, name) for name in shape} == shape
    text = lm.tokenizer.encode("Once upon a time there was a little " * 30)[:150]
    [found] = through_pages(lm, [text], [[(0, 90)], [(0, 59)], [(0, 1)]], 16, torch.float64)
    torch.testing.assert_close(found, dense(lm, text)[0], rtol=0, atol=1e-10)


def test_all_shipped_models_stay_below_20_mb() -> None:
    files = (DATA / "models").rglob("*.safetensors")
    assert sum(path.stat().st_size for path in files) < 20e6


def test_models_without_a_window_are_as_they_were() -> None:
    sizes = {name: getattr(g.load("tiny").config, name) for name in DEFAULT_CONFIG}
    assert sizes == DEFAULT_CONFIG
    assert (g.load("tiny").config.window, g.load("tiny").config.window_layers) == (0, ())


@pytest.mark.parametrize("make", [to_gpt2, OneUserModel])
def test_models_without_windows_refuse_one(make) -> None:
    with pytest.raises(ValueError, match=r"window layers \[0, 2, 3\]"):
        make(window_lm())
