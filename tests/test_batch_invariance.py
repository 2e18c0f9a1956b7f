"""Batch invariance: whatever else is computed, a context's logits are the same bits.

Right values: the same context computed alone, whole, in one pass. Equal means `torch.equal`. The
ordinary mode fails the same tests, so they can fail. The reports: batch_invariant_ops 6 and 7 (one
path left variant), pegainfer 688 and vLLM 46592 (chunks cut by the company).
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import random_ids, random_llama, random_lm

import g2c_serving as g
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward import batch_invariance, tiled_attention
from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.batch_invariance import BatchInvariant, agreeing, by_tiles, cut
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.forward.numerics import Numerics
from g2c_serving.forward.tile_kernels import flash, one_by_one
from g2c_serving.parts import fingerprint
from g2c_serving.schedule.prefix_tiers import PrefixCache

LENGTHS = (1, 2, 63, 64, 65, 130, 33, 7, 100, 20)  # below, at and above the ends of tiles


def odd_lm() -> LanguageModel:
    """No size is a multiple of 8."""
    return random_lm(dim=35, heads=5, hidden=77, vocab_size=301, context=160, layers=2)


def window_lm(window: int = 7) -> LanguageModel:
    return random_lm(context=160, layers=3, window=window, window_layers=(0, 2))


def llama_lm(**more: Any) -> LanguageModel:
    """The other shape, with three query heads to a key head, in odd sizes."""
    odd = {"dim": 35, "heads": 6, "head_size": 10, "hidden": 77, "vocab_size": 301}
    return random_llama(**odd, context=160, **more)


MODELS = {
    "odd sizes": odd_lm,
    "llama": llama_lm,
    "windows of 7": window_lm,
    "windows of 70": lambda: window_lm(70),
    "tiny": g.load,
}


def model_of(
    lm: LanguageModel, numerics: Numerics | None = None, dtype: torch.dtype = torch.float32
) -> Transformer:
    return Transformer(lm.config, lm.weights, dtype).with_numerics(numerics or BatchInvariant())


def chunks(length: int, size: int | str, rng: random.Random) -> list[int]:
    """The lengths of the chunks that a text of `length` is cut into."""
    sizes = []
    while (left := length - sum(sizes)) > 0:
        one = rng.choice([1, 1, 5, rng.randint(1, 100)]) if size == "any" else size
        sizes.append(left if size == "whole" else min(left, one))
    return sizes


def run(
    model: Transformer,
    texts: list[list[int]],
    company: int = 1,
    size: int | str = "whole",
    block_size: int = 16,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Logits (T, V) of each text, cut into chunks of `size`, at most `company` texts a pass, which
    ones and in which order drawn anew for each pass, over scattered blocks."""
    rng = random.Random(seed)
    per_text = -(-model.config.max_seq_len // block_size)
    ids = rng.sample(range(per_text * len(texts)), per_text * len(texts))
    tables = [ids[i * per_text : (i + 1) * per_text] for i in range(len(texts))]
    cache = model.new_cache(len(ids), block_size)
    left = [chunks(len(text), size, rng) for text in texts]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    while any(left):
        rows = [i for i in range(len(texts)) if left[i]]
        rows = rng.sample(rows, min(company, len(rows)))
        counts = [left[i].pop(0) for i in rows]
        done = [sum(map(len, found[i])) for i in rows]
        spans = [(texts[i][at : at + n], at) for i, at, n in zip(rows, done, counts, strict=True)]
        batch = build_batch(spans, [tables[i] for i in rows], block_size, range(len(rows)))
        batch = dataclasses.replace(batch, logit_rows=torch.arange(len(batch.token_ids)))
        for i, part in zip(rows, model.forward(batch, cache).split(counts), strict=True):
            found[i].append(part)
    return [torch.cat(parts) for parts in found]


def texts_of(lm: LanguageModel, lengths=LENGTHS) -> list[list[int]]:
    return [random_ids(lm, length, seed) for seed, length in enumerate(lengths)]


def alone(model: Transformer, texts: list[list[int]]) -> list[torch.Tensor]:
    return [run(model, [text])[0] for text in texts]


def equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.fixture(params=MODELS)
def lm(request) -> LanguageModel:
    return MODELS[request.param]()


# every path: prefill, chunk, decode


@pytest.mark.parametrize("size", ["whole", 16, 7, "any"])
@pytest.mark.parametrize("company", [2, 10])
def test_company_and_chunks(lm: LanguageModel, company: int, size: int | str) -> None:
    """batch_invariant_ops 7 and 6: a reduction was swapped, and one path left variant, so the mode
    is held to its property and not to its list of kernels: here in prefill and chunks."""
    model, texts = model_of(lm), texts_of(lm)
    assert equal(run(model, texts, company, size), alone(model, texts))


def test_one_token_at_a_time(lm: LanguageModel) -> None:
    """batch_invariant_ops 6. Decode against prefill: with others from pass to pass, and alone."""
    model, texts = model_of(lm), texts_of(lm, (70, 66, 3))
    expected = alone(model, texts)
    assert equal(run(model, texts, 3, 1), expected)
    assert equal(run(model, texts, 2, 1), expected)
    assert equal(run(model, texts, 1, 1), expected)


@pytest.mark.parametrize("company", [2, 3, 7, 8, 33, 64])
def test_batches_of_the_decode_shape(company: int) -> None:
    lm = odd_lm()
    model, texts = model_of(lm), texts_of(lm, range(1, company + 1))
    assert equal(run(model, texts, company, 1), alone(model, texts))


@pytest.mark.parametrize("block_size", [1, 3, 4, 32, 64, 128])
def test_blocks_of_any_size(block_size: int) -> None:
    for lm in (odd_lm(), window_lm(), llama_lm()):
        model, texts = model_of(lm), texts_of(lm)
        assert equal(run(model, texts, 4, "any", block_size), alone(model, texts))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_mix(data: st.DataObject) -> None:
    """Any lengths, cuts, company, order, block size and window."""
    window = data.draw(st.integers(0, 90))
    lm = window_lm(window) if window else odd_lm()
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))
    model, texts = model_of(lm), texts_of(lm, lengths)
    found = run(
        model,
        texts,
        data.draw(st.integers(1, 6)),
        data.draw(st.one_of(st.just("any"), st.integers(1, 40))),
        data.draw(st.integers(1, 100)),
        data.draw(st.integers(0, 10**6)),
    )
    assert equal(found, alone(model, texts))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions(dtype: torch.dtype) -> None:
    for lm in (odd_lm(), window_lm(), llama_lm()):
        model, texts = model_of(lm, dtype=dtype), texts_of(lm)
        assert equal(run(model, texts, 4, "any"), alone(model, texts))


@pytest.mark.parametrize(
    "threads",
    [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 7))],  # more than cores
)
def test_threads(threads: int) -> None:
    """The same number of threads for all that is compared."""
    torch.set_num_threads(threads)
    try:
        for lm in (odd_lm(), window_lm(), llama_lm()):
            model, texts = model_of(lm), texts_of(lm, (1, 65, 100, 7))
            expected = alone(model, texts)
            assert equal(run(model, texts, 4, "any"), expected)
            assert equal(run(model, texts, 4, 16), expected)
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_path_at_once(lm: LanguageModel, threads: int, dtype: torch.dtype) -> None:
    """Many texts, cut and mixed at random, over blocks of many sizes."""
    torch.set_num_threads(threads)
    try:
        model, texts = model_of(lm, dtype=dtype), texts_of(lm)
        expected = alone(model, texts)
        for block_size in (3, 16, 128):
            for company in (1, 3, 10):
                assert equal(run(model, texts, company, "any", block_size, company), expected)
        assert equal(run(model, texts[-2:], 2, 1), expected[-2:])
    finally:
        torch.set_num_threads(1)


# the test can fail, and the numbers are right


class ByCompany(Numerics):
    """Kernels whose last bits depend on the number of rows, on every machine."""

    def rows(self, function, *tensors):
        return super().rows(function, *tensors) * (1 + 1e-6 * len(tensors[0]))


def test_the_tests_can_fail() -> None:
    lm = odd_lm()
    model, texts = model_of(lm, ByCompany()), texts_of(lm)
    expected = alone(model, texts)
    for company, size in ((2, "whole"), (1, 7), (3, 1)):
        assert not equal(run(model, texts, company, size), expected)


@pytest.mark.parametrize(
    "numerics",
    [Numerics(), BatchInvariant(attention=False), BatchInvariant(rows=False)],
    ids=["neither", "rows alone", "attention alone"],
)
def test_it_takes_both_halves(numerics: Numerics) -> None:
    lm = g.load("tiny")
    model, texts = model_of(lm, numerics), texts_of(lm, (70, 66, 100))
    if equal(run(model, texts, 3, 1), alone(model, texts)):
        pytest.skip("the ordinary kernels of this machine do not look at the company")


def test_the_logits_are_right(lm: LanguageModel) -> None:
    """Right values: the ordinary pass in float64."""
    texts = texts_of(lm)
    found = run(model_of(lm), texts, 4, "any")
    expected = alone(model_of(lm, Numerics(), torch.float64), texts)
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=0, atol=1e-4)


def test_the_ordinary_model_stays_as_it_is() -> None:
    lm = g.load("tiny")
    invariant = g.Engine(lm, g.EngineConfig(batch_invariant=True)).model
    assert type(lm.model.numerics) is Numerics and type(invariant.numerics) is BatchInvariant
    assert g.Engine(lm).model is lm.model
    assert invariant.trials is lm.model.trials  # made once for the weights
    assert invariant.token_embed is lm.model.token_embed  # the weights are not copied


# through the engine


class Watched(g.Engine):
    """Keeps each context's logits, and compares them when it sees a context again."""

    def __init__(self, *args, seen: dict | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[tuple[int, ...], torch.Tensor] = {} if seen is None else seen
        self.compared = self.differed = 0

    def _batch(self, step):
        self.now = step.scheduled
        return super()._batch(step)

    @allow_sync("the test compares")
    def _forward(self, batch):
        logits = super()._forward(batch)
        sampled = [s for s in self.now if s.samples]
        for s, row in zip(sampled, () if logits is None else logits, strict=True):
            context = tuple(s.request.token_ids[: s.num_computed + s.num_tokens])
            if context in self.seen:
                self.compared += 1
                self.differed += not torch.equal(self.seen[context], row)
            self.seen.setdefault(context, row.clone())
        return logits


GREEDY = g.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def watched(lm: LanguageModel, seen: dict | None = None, **config) -> Watched:
    settings = {"block_size": 8, "num_blocks": 256, "batch_invariant": True, **config}
    return Watched(lm, g.EngineConfig(**settings), seen=seen)


def reference(
    lm: LanguageModel, prompts: list[list[int]], **config
) -> tuple[dict, list[list[int]]]:
    """All contexts' logits and the tokens, one request at a time."""
    engine = watched(lm, **config)
    tokens = [engine.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
    return engine.seen, tokens


def tokens_of(outputs: list[g.RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("name", ["odd sizes", "windows of 7", "windows of 70"])
@pytest.mark.parametrize("budget", [13, 40, 256])
def test_chunks_cut_by_the_company(name: str, budget: int) -> None:
    """pegainfer 688, vLLM 46592: where a prompt is cut depends on who else is there."""
    lm = MODELS[name]()
    prompts = texts_of(lm, (90, 3, 65, 17, 40))
    seen, tokens = reference(lm, prompts)
    engine = watched(lm, seen, max_num_batched_tokens=budget)
    assert tokens_of(engine.generate(prompts, GREEDY)) == tokens
    assert (engine.compared, engine.differed) == (100, 0)


@pytest.mark.parametrize("drafts", [1, 4])
def test_drafts_that_are_verified(drafts: int) -> None:
    """batch_invariant_ops 6 and 7: the last path. Of each token the log-probability in float32, and
    those of the three best, are to the bit what a run alone and without drafts says."""
    lm = odd_lm()
    params = dataclasses.replace(GREEDY, logprobs=3)
    prompts = texts_of(lm, (60, 3, 33, 17))
    expected = [watched(lm).generate([prompt], params)[0] for prompt in prompts]
    for other in (lm, random_lm(vocab_size=301, context=160, seed=5)):
        engine = g.Engine(lm, g.EngineConfig(
            block_size=8, num_blocks=256, batch_invariant=True, max_num_batched_tokens=40,
            speculation=g.Speculation("fixed", drafts, other),
        ))  # fmt: skip
        found = engine.generate(prompts, params)
        assert [o.logprobs for o in found] == [o.logprobs for o in expected]
        assert engine.stats.verified > 20
    assert all(len(o.logprobs) == 20 for o in expected)


def test_the_watch_sees_what_differs() -> None:
    lm = odd_lm()
    prompts = texts_of(lm, (90, 3, 65, 17, 40))
    seen, _ = reference(lm, prompts)
    engine = watched(lm, seen, max_num_batched_tokens=13)
    engine.model = engine.model.with_numerics(ByCompany())
    engine.generate(prompts, GREEDY)
    assert engine.differed > 10


@pytest.mark.parametrize("name", ["odd sizes", "windows of 7"])
def test_preemption(name: str) -> None:
    lm = MODELS[name]()
    prompts = texts_of(lm, (60, 50, 40, 30))
    seen, tokens = reference(lm, prompts)
    engine = watched(lm, seen, num_blocks=24, max_num_batched_tokens=64)
    assert tokens_of(engine.generate(prompts, GREEDY)) == tokens
    assert engine.stats.preemptions > 0
    assert engine.compared >= 80 and engine.differed == 0


@pytest.mark.parametrize("name", ["odd sizes", "windows of 7"])
def test_prefix_hits_on_the_device(name: str) -> None:
    lm = MODELS[name]()
    shared = random_ids(lm, 70, seed=1)
    prompts = [shared + random_ids(lm, count, seed=count) for count in (1, 9, 30)]
    seen, tokens = reference(lm, prompts)
    engine = watched(lm, seen, enable_prefix_caching=True)
    for _ in range(2):
        assert tokens_of(engine.generate(prompts, GREEDY)) == tokens
    assert engine.stats.cached_tokens > 200 and engine.differed == 0


@pytest.mark.parametrize("name", ["odd sizes", "windows of 7"])
def test_prefix_hits_on_disk(name: str, tmp_path) -> None:
    lm = MODELS[name]()
    config = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 24}
    turns = texts_of(lm, (90, 65, 70))
    seen, tokens = reference(lm, turns)
    first = watched(lm, seen, **config)
    assert tokens_of(first.generate(turns, GREEDY)) == tokens
    turns = [turn + answer + [1, 2, 3] for turn, answer in zip(turns, tokens, strict=True)]
    seen, tokens = reference(lm, turns)
    second = watched(lm, seen, max_num_batched_tokens=30, **config)
    second.prefix_cache.windows = first.prefix_cache.windows  # they do not outlive an engine
    assert tokens_of(second.generate(turns, GREEDY)) == tokens
    assert second.stats.cached_tokens > 200 and second.differed == 0


def test_a_window_is_not_replayed(tmp_path) -> None:
    """What follows a replay is close, not equal; in this mode such a hit is not taken."""
    lm = window_lm()
    config = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 24}
    [prompt] = texts_of(lm, (90,))
    seen, tokens = reference(lm, [prompt])
    watched(lm, seen, **config).generate([prompt], GREEDY)
    engine = watched(lm, seen, **config)  # has no window states
    assert tokens_of(engine.generate([prompt], GREEDY)) == tokens
    assert engine.stats.cached_tokens == 0 and engine.differed == 0
    ordinary = {**config, "batch_invariant": False}
    watched(lm, **ordinary).generate([prompt], GREEDY)
    engine = watched(lm, **ordinary)
    engine.generate([prompt], GREEDY)
    assert engine.stats.cached_tokens > 0  # it could have been


def test_an_exact_cache_takes_the_longest_hit_whose_window_is_held() -> None:
    from types import SimpleNamespace

    blocks = SimpleNamespace(block_size=4)
    request = SimpleNamespace(token_ids=[0] * 40, block_hashes=[b"0", b"1", b"2", b"3", b"4", b"5"])
    cache = PrefixCache(blocks, enabled=True, window=5, exact=True)
    cache.windows.put(b"2", torch.zeros(1))
    assert cache._rule(request, 24).reused == 12 and cache._rule(request, 24).replayed == 0
    assert cache._rule(request, 8).reused == 0


def test_forks_and_samples() -> None:
    lm = odd_lm()
    prompts = texts_of(lm, (50, 20))
    seen, tokens = reference(lm, prompts)
    engine = watched(lm, seen)
    first, second = (engine.add(prompt, GREEDY) for prompt in prompts)
    for _ in range(6):
        engine.step()
    copy = engine.fork(first)
    found: dict[int, list[int]] = {}
    while engine.has_unfinished:
        found |= {o.request_id: o.token_ids for o in engine.step() if o.finish_reason}
    assert found == {first: tokens[0], second: tokens[1], copy: tokens[0]}
    assert engine.compared == 54 and engine.differed == 0
    several = dataclasses.replace(GREEDY, n=3)
    assert tokens_of(engine.generate(prompts, several)) == [t for t in tokens for _ in range(3)]
    assert engine.differed == 0


def test_what_is_drawn_and_how_likely_it_was() -> None:
    """DeepInfer's test: prompts as a batch and each alone; tokens, log-probabilities and the five
    best are equal, exactly."""
    lm = g.load("tiny")
    prompts = texts_of(lm, range(3, 80, 7))
    params = [g.SamplingParams(max_tokens=8, seed=i, logprobs=5) for i in range(len(prompts))]
    config = g.EngineConfig(batch_invariant=True, max_num_batched_tokens=50)
    together = g.Engine(lm, config).generate(prompts, params)
    one_by_one = g.Engine(lm, config)
    for output, prompt, one in zip(together, prompts, params, strict=True):
        (alone,) = one_by_one.generate([prompt], one)
        assert (alone.token_ids, alone.logprobs) == (output.token_ids, output.logprobs)


# the tiles


@pytest.mark.parametrize("sizes", [(64, 32, 16, 8, 4, 2), (64, 8), (4,), (1,)])
def test_cut(sizes: tuple[int, ...]) -> None:
    """Right values: every row is in a tile, and only the last tile has room."""
    for count in range(200):
        tiles = cut(count, sizes)
        assert set(tiles) <= set(sizes) and tiles == sorted(tiles, reverse=True)
        assert sum(tiles) >= count and sum(tiles[:-1]) < max(count, 1)
        spare = max(3, tiles[-1] // 4, min(sizes) - 1) if tiles else 0
        assert sum(tiles) - count <= spare
    assert cut(33, (64, 32, 16, 8, 4, 2)) == [32, 2]
    assert cut(61, (64, 32, 16, 8, 4, 2)) == [64]


@pytest.mark.parametrize("count", [0, 1, 5, 8, 9, 150])
def test_by_tiles_is_the_function(count: int) -> None:
    x, y = torch.randn(count, 3, 2), torch.randn(count, 3, 2)
    shapes = []

    def function(x, y):
        shapes.append(len(x))
        return x * 2 + y

    assert torch.equal(by_tiles(function, (x, y), cut(count, (8, 4))), x * 2 + y)
    assert count == 0 or set(shapes) <= {8, 4}


def bits_depend_on(case: str):
    """A row function that gives other bits at some sizes, or in some places of a tile."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        if case == "size 4" and len(x) == 4 or case == "sizes below 8" and len(x) < 8:
            y[:, 0] += 1e-3
        if case == "last place of 8" and len(x) == 8:
            y[-1, 0] += 1e-3
        if case == "place" and len(x) > 1:
            y[0] += 1e-3
        return y

    return function


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        ("nothing", [8, 4, 2, 1]),
        ("size 4", [8, 2, 1]),
        ("sizes below 8", [8]),
        ("last place of 8", [4, 2, 1]),
        ("place", [1]),
    ],
)
def test_only_sizes_that_agree_are_used(case: str, sizes: list[int]) -> None:
    function = bits_depend_on(case)
    assert agreeing(function, (torch.randn(8, 3),), (8, 4)) == [s for s in sizes if s > 2]
    assert agreeing(bits_depend_on(case), (torch.randn(8, 3),), (8, 4, 2, 1)) == sizes


@pytest.mark.parametrize("hidden", [64, 77, 96, 1024, 4096, 40_000])
def test_activations_fill_vectors_of_one_thread(hidden: int) -> None:
    """What fills no whole vector, and each thread's last numbers, take another formula: seen in
    float64 with 3 threads, where one number in 50,000 had other bits. Right values: no tile that is
    used has such numbers, or it is of one row, where they stand in the same place for all."""
    lm = random_lm(dim=8, hidden=hidden, layers=1)
    for size in model_of(lm, dtype=torch.float64).numerics.row_sizes:
        assert size == 1 or (size * hidden % 64 == 0 and size * hidden < 32768)


def no_kernel(*args):
    raise AttributeError("no such operator")


def depends_on_the_number_of_tiles(q, keys, values, mask):
    seen, weight = flash(q, keys, values, mask)
    return seen * (1 + 1e-3 * len(q)), weight


@pytest.mark.parametrize("kernel", [no_kernel, depends_on_the_number_of_tiles])
def test_without_a_kernel_that_does_tiles_go_one_by_one(kernel, monkeypatch) -> None:
    monkeypatch.setattr(batch_invariance, "flash", kernel)
    for lm in (odd_lm(), window_lm(), llama_lm()):
        model, texts = model_of(lm), texts_of(lm)
        assert model.numerics._attend.kernel is one_by_one
        found = run(model, texts, 4, "any")
        assert equal(found, alone(model, texts))
        right = alone(model_of(lm, Numerics(), torch.float64), texts)
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-4)


def test_results_are_added_up_a_few_at_a_time(monkeypatch) -> None:
    """With room for next to nothing the logits stay the same bits."""
    lm = odd_lm()
    model, texts = model_of(lm), texts_of(lm)
    expected = alone(model, texts)
    monkeypatch.setattr(tiled_attention, "RESULTS", 1)
    assert equal(run(model, texts, 4, "any"), expected)
    monkeypatch.setattr(tiled_attention, "GATHER_BYTES", 1)
    assert equal(run(model, texts, 4, "any"), expected)


# the option


def test_the_mode_names_other_blocks() -> None:
    lm = odd_lm()
    engines = [g.Engine(lm, g.EngineConfig(batch_invariant=mode)) for mode in (False, True)]
    assert len({fingerprint(lm, e.model, e.config) for e in engines}) == 2


@pytest.mark.parametrize("value", [1, "yes", None])
def test_the_option_is_a_bool(value) -> None:
    with pytest.raises(ValueError, match="batch_invariant=.* must be True or False"):
        g.EngineConfig(batch_invariant=value)


def test_the_option_needs_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ValueError, match="batch_invariant=True needs device='cpu'"):
        g.EngineConfig(device="mps", batch_invariant=True)
