"""The sampling path: what is kept, what is drawn, and that rows do not touch each other."""

import math
from dataclasses import fields, replace
from fractions import Fraction

import fakes
import numpy as np
import pytest
import torch
from chi_square import fits
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import g2c_serving as g
from g2c_serving.sample import rng
from g2c_serving.sample.sampler import (
    FAULTS,
    INFINITE,
    NOT_NUMBERS,
    NOTHING_LEFT,
    SamplingBatch,
    below,
    integer_weights,
    sample,
)

ROWS = 4000


def settings(rows, temperature=1.0, top_k=0, top_p=1.0, seeds=None, position=5):
    seeds = np.arange(rows) if seeds is None else np.asarray(seeds)
    return SamplingBatch(
        seeds.astype(np.uint64),
        np.full(rows, position),
        np.full(rows, float(temperature)),
        np.full(rows, top_k),
        np.full(rows, float(top_p)),
    )


def drawn(probabilities, **options) -> set[int]:
    """The tokens that 4,000 seeds draw from one distribution."""
    logits = torch.tensor(probabilities).log().expand(ROWS, -1)
    return set(sample(logits, settings(ROWS, **options)).tolist())


@pytest.mark.parametrize(
    "probabilities, options, kept",
    [
        ([0.3, 0.1, 0.1, 0.5], {"top_p": 0.8}, {0, 3}),  # transformers 18976
        ([0.3, 0.1, 0.1, 0.5], {"top_p": 1e-4}, {3}),  # transformers 19839
        ([0.25] * 4, {"top_p": 1.0}, {0, 1, 2, 3}),  # a threshold of 2^k would cut these two short
        ([0.1] * 10, {"top_p": 0.3}, {0, 1, 2}),
        ([0.1] * 10, {"top_p": 0.1}, {0}),  # 0.1 as written, not the float just above it
        ([0.1] * 10, {"top_p": 0.7}, set(range(7))),
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 2}, {2, 3}),
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 0}, {0, 1, 2, 3}),  # nanochat 466: 0 is off
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 99}, {0, 1, 2, 3}),
        ([0.25] * 4, {"top_k": 2}, {0, 1}),  # exactly k, the lowest ids on ties
        ([0.1, 0.2, 0.3, 0.4], {"top_k": 3, "top_p": 0.77}, {2, 3}),  # of 0.9: 0.4 + 0.3 reach it
        ([0.0, 0.5, 0.0, 0.5], {}, {1, 3}),  # minus infinity is never drawn
    ],
)
def test_kept_tokens(probabilities, options, kept):
    """transformers 18976 (the token that crosses top_p is kept, none after it) and 19839 (so small
    a top_p leaves the most likely one); a fixed-point CDF that compares with 2^k and not with its
    own total cuts even parts short; nanochat 466 (top_k = 0 is off, as `SamplingParams` says)."""
    assert drawn(probabilities, **options) == kept


PARTS = [1, 30, 7, 7, 12, 7, 2, 20, 0, 9, 4, 1]  # of 100; the rows that are drawn from


def filtered(parts: list[int], top_k: int, top_p: Fraction) -> list[Fraction]:
    """Exact probabilities after top-k and top-p, in Python's rationals: the rule, word by word.

    Order by part, the lower id first; keep k; keep up to the token that brings the sum to p.
    """
    order = sorted(range(len(parts)), key=lambda i: (-parts[i], i))
    kept = order[: top_k or len(order)]
    total, so_far, chosen = sum(parts[i] for i in kept), 0, []
    for i in kept:
        chosen.append(i)
        so_far += parts[i]
        if top_p < 1 and so_far >= top_p * total:
            break
    left = sum(parts[i] for i in chosen)
    return [Fraction(parts[i] if i in chosen else 0, left) for i in range(len(parts))]


def log(parts: list[int]) -> torch.Tensor:
    return torch.tensor(parts, dtype=torch.float64).log().float()


@pytest.mark.parametrize(
    "walk, top_k, top_p",
    [
        ("positions", 0, "1"),
        ("positions", 7, "0.9"),
        ("seeds", 0, "1"),
        ("seeds", 4, "1"),
        ("seeds", 0, "0.8"),
        ("seeds", 0, "0.75"),
    ],
)
def test_a_million_draws_have_the_exact_probabilities(walk, top_k, top_p):
    """Chi-square over 1,000,000 draws: one request at a million positions, or a million seeds at
    one position."""
    count, chunk = 1_000_000, 50_000
    logits, counts = log(PARTS).expand(chunk, -1), np.zeros(len(PARTS))
    for start in range(0, count, chunk):
        batch = settings(chunk, top_k=top_k, top_p=float(top_p))
        walked = np.arange(start, start + chunk)
        if walk == "positions":
            batch = replace(batch, positions=walked, seeds=np.full_like(batch.seeds, 99))
        else:
            batch = replace(batch, seeds=walked.astype(np.uint64))
        counts += np.bincount(sample(logits, batch).numpy(), minlength=len(PARTS))
    exact = filtered(PARTS, top_k, Fraction(top_p))
    assert fits(counts, np.array([float(p) * count for p in exact]))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power_of_the_probabilities(temperature):
    """p^(1/T), normalised: at T = 1/2 the squares, at T = 2 the roots."""
    tokens = sample(log(PARTS).expand(200_000, -1), settings(200_000, temperature=temperature))
    powers = np.array(PARTS, dtype=float) ** (1 / temperature)
    expected = 200_000 * powers / powers.sum()
    counts = np.bincount(tokens.numpy(), minlength=len(PARTS))
    rare = expected < 5  # too few for the test: their sum is one cell
    merged = [np.append(x[~rare], x[rare].sum()) for x in (counts, expected)]
    keep = merged[1] > 5
    assert fits(merged[0][keep], merged[1][keep])


SOME_PARTS = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


@st.composite
def cuts(draw) -> tuple[list[int], int, Fraction]:
    """Small vectors with many ties, a top-k, and a top-p: two decimals, or just what the first few
    of the kept tokens sum up to."""
    parts = draw(SOME_PARTS)
    top_k = draw(st.integers(0, len(parts) + 1))
    ordered = sorted(parts, reverse=True)[: top_k or None]
    few = draw(st.integers(1, len(ordered)))
    reached = Fraction(sum(ordered[:few]), sum(ordered))
    return parts, top_k, draw(st.sampled_from([reached, Fraction(draw(st.integers(1, 100)), 100)]))


@given(cuts(), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.0, 5.0, -11.0]))
@hypothesis_settings(max_examples=300, deadline=None)
def test_filters_keep_what_exact_arithmetic_keeps(cut, temperature, shift):
    """Each weight is within float32's rounding of the exact share, and 0 exactly where that is 0.
    Logits may stand anywhere; equal parts are kept lowest ids first."""
    parts, top_k, top_p = cut
    exact = np.array(filtered(parts, top_k, top_p), dtype=float)
    logits = log(parts)[None] * temperature + shift
    batch = settings(1, temperature=temperature, top_k=top_k, top_p=float(top_p))
    weights = integer_weights(logits, batch)[0].numpy()
    assert ((weights > 0) == (exact > 0)).all()
    assert np.abs(weights / weights.sum() - exact).max() < 1e-5


def test_temperature_zero_is_the_exact_argmax_beside_sampled_rows():
    """nano-vllm 249: greedy and sampled rows in one batch; the lowest id on ties, and a tie broken
    by the last bit of a float32 is no tie."""
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1))
    logits[0, [40, 70]] = 9.0
    logits[1, 40] = 9.0
    logits[1, 70] = torch.nextafter(torch.tensor(9.0), torch.tensor(10.0))
    batch = settings(64)
    batch.temperature[::2] = 0
    batch.temperature[1] = 0
    tokens = sample(logits, batch)
    assert tokens[:2].tolist() == [40, 70]
    assert tokens[2::2].tolist() == logits[2::2].argmax(-1).tolist()
    alone = sample(logits[3:4], settings(1, seeds=[3]))
    assert tokens[3] == alone[0]


def test_a_row_does_not_depend_on_its_place_or_company():
    """DeepInfer's own test: a batch, the same rows shuffled, and each row alone."""
    logits = torch.randn(32, 200, generator=torch.Generator().manual_seed(2))
    batch = settings(32, top_p=0.9)
    batch.top_p[::3] = 1.0
    batch.top_k[::4] = 7
    tokens = sample(logits, batch)
    order = np.random.default_rng(0).permutation(32)
    fields = (batch.seeds, batch.positions, batch.temperature, batch.top_k, batch.top_p)
    shuffled = sample(logits[order], SamplingBatch(*(f[order] for f in fields)))
    assert shuffled.tolist() == tokens[order].tolist()
    for i in range(32):
        one = SamplingBatch(*(f[i : i + 1] for f in fields))
        assert sample(logits[i : i + 1], one).tolist() == [tokens[i]]


ONE_ROW = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 7.0]), st.sampled_from([0, 1, 3, 99]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]), st.integers(0, 2**64 - 1), st.integers(0, 2**33),
)  # fmt: skip


@given(st.lists(ONE_ROW, min_size=1, max_size=9), st.randoms(), st.integers(0, 99))
@hypothesis_settings(max_examples=60, deadline=None)
def test_no_neighbour_and_no_order_changes_a_token(rows, random, seed):
    """Rows with ties and all kinds of settings, together, in another order, and each alone."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (len(rows), 37), generator=generator).float()
    temperature, top_k, top_p, seeds, positions = zip(*rows, strict=True)
    keys = np.array(seeds, dtype=np.uint64)
    batch = SamplingBatch(keys, *map(np.array, (positions, temperature, top_k, top_p)))
    together = sample(logits, batch).tolist()
    order = random.sample(range(len(rows)), len(rows))
    assert sample(logits[order], rows_of(batch, order)).tolist() == [together[i] for i in order]
    for i in range(len(rows)):
        assert sample(logits[i : i + 1], rows_of(batch, [i])).tolist() == [together[i]]


def rows_of(batch: SamplingBatch, rows: list[int]) -> SamplingBatch:
    arrays = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{k: v[rows] for k, v in arrays.items() if isinstance(v, np.ndarray)})


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.5}]
)
def test_the_vocabularys_order_leaves_the_distribution(options):
    """Each token's weight goes with it, bit for bit, so the probabilities do."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(8, 301, generator=generator) * 3
    order = torch.randperm(301, generator=generator)
    batch = settings(8, **options)
    weights, permuted = integer_weights(logits, batch), integer_weights(logits[:, order], batch)
    assert torch.equal(permuted, weights[:, order])


@pytest.mark.parametrize("vocab_size", [1, 7, 1024, 1025, 4099])
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_nothing(threads, vocab_size):
    logits = torch.randn(65, vocab_size, generator=torch.Generator().manual_seed(4)) * 3
    batch = settings(65, top_p=0.9)
    batch.top_p[::2], batch.top_k[::3], batch.temperature[::5] = 1.0, 5, 0
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = integer_weights(logits, batch), sample(logits, batch)
        torch.set_num_threads(threads)
        more = integer_weights(logits, batch), sample(logits, batch)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one[0], more[0]) and torch.equal(one[1], more[1])


def test_a_mask_leaves_the_allowed_tokens_in_their_proportions():
    """Against the same logits with minus infinity, and top-k counts the allowed alone."""
    logits = torch.randn(64, 90, generator=torch.Generator().manual_seed(5))
    mask = torch.rand(64, 90, generator=torch.Generator().manual_seed(6)) < 0.3
    before = logits.clone(), mask.clone()
    for options in ({}, {"top_k": 3}, {"top_p": 0.4}, {"temperature": 0}):
        tokens = sample(logits, settings(64, **options), mask)
        assert mask.gather(1, tokens[:, None]).all()
        hidden = logits.masked_fill(~mask, -torch.inf)
        assert tokens.tolist() == sample(hidden, settings(64, **options)).tolist()
    assert tokens.tolist() == hidden.argmax(-1).tolist()
    assert torch.equal(logits, before[0]) and torch.equal(mask, before[1])


def test_a_fully_masked_row_is_a_stated_error_and_its_neighbours_are_drawn():
    """vLLM 22180: temperature 0 under a grammar's mask is the argmax of what is allowed, and a row
    that allows nothing says so. What is wrong with the model is told before what is masked."""
    logits = torch.tensor([[5.0, 1.0, 3.0]]).repeat(4, 1)
    logits[2, 0], logits[3, 0] = torch.nan, torch.inf
    mask = torch.tensor([[False, True, True], [False] * 3, [False, True, True], [True] * 3])
    tokens = sample(logits, settings(4, temperature=0), mask).tolist()
    assert tokens == [2, NOTHING_LEFT, NOT_NUMBERS, INFINITE]
    assert "masked" in FAULTS[NOTHING_LEFT] and "infinity" in FAULTS[INFINITE]


@pytest.mark.parametrize("mask", [torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 3)])
def test_a_mask_of_another_shape_or_type_is_refused(mask):
    with pytest.raises(ValueError, match="must be bool, of the logits' shape"):
        sample(torch.zeros(2, 3), settings(2), mask)


def test_logits_of_half_precision_are_read_as_float32():
    logits = (torch.randn(16, 50, generator=torch.Generator().manual_seed(7)) * 3).bfloat16()
    batch = settings(16, top_k=5)
    assert sample(logits, batch).tolist() == sample(logits.float(), batch).tolist()


WORDS = st.lists(st.one_of(st.integers(0, 2**62 - 1), st.integers(0, 9)), min_size=4, max_size=4)
TOTALS = st.one_of(st.integers(1, 2**60), st.integers(0, 60).map(lambda bits: 2**bits))


@given(WORDS, TOTALS)
@hypothesis_settings(max_examples=500, deadline=None)
def test_the_first_word_that_is_not_rejected_gives_the_target(words, total):
    """Against Python's own integers, of any size."""
    products = [word * total for word in words]
    accepted = [i for i, p in enumerate(products) if p % 2**62 >= 2**62 % total]
    first = accepted[0] if accepted else 0
    target, attempt = below(torch.tensor(words)[:, None], torch.tensor([total]))
    assert (target.item(), attempt.item()) == (products[first] >> 62, first)


@pytest.mark.parametrize("total", [1, 2, 3, 5, 6, 7, 100, 255])
def test_each_target_gets_as_many_words_as_any_other(total):
    """The rule on 8 bits, where all 256 words can be counted: as many for each target, and only as
    many are rejected as do not go up evenly."""
    products = [word * total for word in range(256)]
    targets = [p >> 8 for p in products if p % 256 >= 256 % total]
    assert np.bincount(targets, minlength=total).tolist() == [256 // total] * total


def test_a_last_bit_of_the_total_moves_the_target_by_at_most_as_much():
    """A request's total differs in its last bits with its company, in the ordinary mode: a target
    taken as a remainder would be another one altogether."""
    words = torch.from_numpy(rng.target_words(np.arange(1000, dtype=np.uint64), np.arange(1000)))
    one, other = (below(words, torch.full((1000,), 2**36 + d))[0] for d in (0, 37))
    assert 0 <= (other - one).min() and (other - one).max() <= 37


def test_the_targets_of_a_total_that_rejects_many_words_are_even():
    """Below 3 * 2^58, of each three targets in a row the first has 6 words of 16 and the others 5:
    a chi-square over their places tells that from even. One word in 16 is rejected."""
    count, total = 100_000, 3 * 2**58
    words = torch.from_numpy(rng.target_words(np.arange(count, dtype=np.uint64), np.arange(count)))
    target, attempt = below(words, torch.full((count,), total))
    assert fits(np.bincount(target.numpy() % 3, minlength=3), np.full(3, count / 3))
    assert not fits(np.array([6, 5, 5]) * count / 16, np.full(3, count / 3))
    assert fits(np.bincount((target // (total // 300)).numpy()), np.full(300, count / 300))
    assert (attempt > 0).float().mean().item() == pytest.approx(1 / 16, abs=0.005)
    assert below(words, torch.ones(count, dtype=torch.int64))[0].max() == 0
    assert torch.equal(below(words, torch.full((count,), 2**60))[0], words[0] >> 2)


def test_rows_that_cannot_be_drawn_say_why_and_the_others_are_drawn():
    """Not numbers, plus infinity, and nothing but minus infinity: three faults of their own row."""
    logits = torch.zeros(5, 5)
    logits[0, 2] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3, [3, 4]] = torch.tensor([torch.inf, torch.nan])
    for options in ({"temperature": 0}, {"top_k": 2, "top_p": 0.5}, {"top_p": 0.1}):
        tokens = sample(logits, settings(5, **options)).tolist()
        assert tokens == [NOT_NUMBERS, NOTHING_LEFT, INFINITE, NOT_NUMBERS, 0]
    assert set(FAULTS) == {NOT_NUMBERS, NOTHING_LEFT, INFINITE}


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("scale", [1.0, 1e30, 3e38])
def test_no_finite_temperature_or_logit_overflows(temperature, scale):
    """The masked token is never drawn, and a row of finite logits always draws one."""
    logits = torch.tensor([[-scale, scale, scale, -torch.inf]]).expand(200, -1)
    tokens = set(sample(logits, settings(200, temperature=temperature)).tolist())
    assert {1, 2} <= tokens <= {0, 1, 2}


def test_logits_are_not_changed():
    logits = torch.randn(4, 50)
    before = logits.clone()
    sample(logits, settings(4, temperature=0.7, top_k=3, top_p=0.5))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "token, value, said",
    [(3, math.nan, "not numbers"), (3, math.inf, "infinity"), (slice(None), -math.inf, "masked")],
)
@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_p": 0.9}, {"n": 2}])
def test_a_fault_ends_its_own_request_and_says_which(token, value, said, options):
    """In the engine: the request whose logits are spoilt ends with an error, all samples of it, and
    the tokens of the other are those that it has alone."""
    other = g.SamplingParams(temperature=3, seed=5, max_tokens=6)
    (alone,) = fakes.engine().generate([[4]], other)
    lm = fakes.FakeLM()
    lm.model.broken = {200}  # the rows to spoil
    forward, spoils = lm.model.forward, torch.zeros(lm.vocab_size, dtype=torch.bool)
    spoils[token] = True

    def spoilt(batch, cache):
        logits = forward(batch, cache)
        rows = logits.isnan().any(-1, keepdim=True)  # (M, 1)
        return logits.masked_fill(rows, 1.0).masked_fill(rows & spoils, value)

    lm.model.forward = spoilt
    *bad, good = fakes.engine(lm).generate([[3, 200], [4]], [g.SamplingParams(**options), other])
    assert len(bad) == options.get("n", 1) and good.token_ids == alone.token_ids
    for out in bad:
        assert (out.finish_reason, out.token_ids) == ("error", []) and said in out.message


class Refusing(TorchFunctionMode):
    """Stops at whatever would make a device wait: a tensor's value read by Python, or a shape that
    depends on one."""

    NAMES = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "nonzero",
             "masked_select", "unique", "cpu", "__contains__", "equal", "argwhere")  # fmt: skip

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert getattr(func, "__name__", "") not in self.NAMES, func
        if getattr(func, "__name__", "") in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(getattr(i, "dtype", None) == torch.bool for i in index)
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_a_tensors_value():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(9))
    batch = settings(6, top_p=0.9)
    batch.temperature[0], batch.top_k[1], batch.top_p[2:4] = 0, 5, 1.0
    mask = torch.ones(6, 40, dtype=torch.bool)
    with Refusing():
        tokens = sample(logits, batch, mask)
        plain = sample(logits, settings(6))
        with pytest.raises(AssertionError):
            bool(tokens[0] == 3)
    assert tokens.shape == plain.shape == (6,)


def test_plus_infinity_is_told_also_where_it_is_masked():
    logits = torch.zeros(2, 4)
    logits[0, 2] = torch.inf
    mask = torch.tensor([[True, True, False, True]] * 2)
    tokens = sample(logits, settings(2), mask)
    assert tokens[0] == INFINITE and tokens[1] >= 0


@pytest.mark.parametrize("miss, kept", [(0.5e-6, 2), (2e-6, 3)])
def test_a_sum_that_misses_top_p_by_a_millionth_reaches_it(miss, kept):
    """And one that misses it by two does not."""
    logits = torch.tensor([[0.5 - miss, 0.3, 0.2 + miss]], dtype=torch.float64).log()
    weights = integer_weights(logits, settings(1, top_p=0.8))
    assert (weights > 0).sum() == kept


def test_greedy_rows_weigh_the_same_with_and_without_a_sampled_one_beside_them():
    """Where all rows are greedy the weights are written down at once."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    logits[2, [9, 4]] = 8.0  # equal ones
    mixed = replace(settings(6, temperature=0), temperature=np.array([0, 0, 0, 0, 0, 1.0]))
    alone = integer_weights(logits[:5], settings(5, temperature=0))
    assert torch.equal(alone, integer_weights(logits, mixed)[:5])
    assert alone[2].nonzero().tolist() == [[4]]
    logits[3] = -torch.inf
    tokens = sample(logits[:5], settings(5, temperature=0)).tolist()
    assert tokens[2:4] == [4, NOTHING_LEFT]
