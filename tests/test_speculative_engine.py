"""Speculation in the engine: the tokens of fixed verification belong to the request alone, those
of budgeted verification follow the target; blocks, pages and stops are right after every step."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from chi_square import fits
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.forbid_sync import allow_sync
from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.draft_model import DraftModel
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.schedule.cost_model import CostModel

SMALL = {"vocab_size": 270, "dim": 16, "hidden": 32}
LM, OTHER = random_lm(seed=1, **SMALL), random_lm(seed=2, **SMALL)
PROMPT = random_ids(LM, 9, 3)
SEEDED = g.SamplingParams(max_tokens=24, temperature=0.7, seed=2**63 + 5)
GREEDY = g.SamplingParams(max_tokens=20, temperature=0)


def near(lm: g.LanguageModel, noise: float = 0.05, seed: int = 9) -> g.LanguageModel:
    """A drafter that is often right: the target's weights, a little off."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: w + noise * w.std(correction=0) * torch.randn(w.shape, generator=generator)
        for name, w in lm.weights.items()
    }
    return g.LanguageModel("near", lm.config, weights, lm.tokenizer, lm.eos_id)


NEAR = near(LM)
_WIDE = random_lm(vocab_size=300, dim=128, hidden=256, seed=4)
WIDE = _WIDE, near(_WIDE)


def engine(mode="fixed", drafter=NEAR, lm=LM, num_drafts=5, spec=None, **config) -> g.Engine:
    how = {"mode": mode, "num_drafts": num_drafts, "drafter": drafter, **(spec or {})}
    sizes = {"num_blocks": 64, "block_size": 4, "batch_invariant": True, **config}
    return g.Engine(lm, g.EngineConfig(speculation=g.Speculation(**how), **sizes))


def plain(lm=LM, **config) -> g.Engine:
    sizes = {"num_blocks": 64, "block_size": 4, "batch_invariant": True, **config}
    return g.Engine(lm, g.EngineConfig(**sizes))


def checked_step(e: g.Engine) -> list[g.RequestOutput]:
    """A step, and what must be true after each."""
    outputs = e.step()
    e.block_manager.check()
    for request in [r for samples in e._requests.values() for r in samples]:
        table = e.block_manager.tables.get(request.sequence_id, [])
        computed, blocks = request.num_computed_tokens, e.block_manager.blocks_for
        if table:
            assert blocks(computed) <= len(table) <= blocks(len(request.token_ids))
        assert 0 <= request.drafter_lag <= computed < len(request.token_ids)
        named = [i for i, b in enumerate(table) if b in e.block_manager.hash_of]
        assert all(i < computed // e.config.block_size for i in named)  # accepted tokens only
        if named:
            names = e.prefix_cache.names(request.token_ids, request.cache_salt)
            assert all(e.block_manager.hash_of[table[i]] == names[i] for i in named)
    if e.history:
        assert e.history[-1].num_tokens <= e.config.max_num_batched_tokens
    return outputs


def run(e: g.Engine) -> dict[tuple[int, int], g.RequestOutput]:
    """Step to the end with everything checked; final outputs by request and sample."""
    final = {}
    for _ in range(3000):
        if not e.has_unfinished:
            assert e.block_manager.num_free == e.config.num_blocks
            return final
        outputs = checked_step(e)
        final |= {(o.request_id, o.sample_index): o for o in outputs if o.finish_reason}
    raise AssertionError("3,000 steps and no end")


def tokens(e: g.Engine, prompt=PROMPT, params=SEEDED, salt="") -> list[int]:
    request_id = e.add(prompt, params, cache_salt=salt)
    output = run(e)[request_id, 0]
    assert output.finish_reason in ("stop", "length"), output.message
    return output.token_ids


ALONE = tokens(engine())

# ---- greedy ----


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize("drafter", [LM, NEAR, OTHER], ids=["itself", "near", "other"])
def test_greedy_speculation_is_greedy_decoding(mode, drafter):
    spec = {"step_time": lambda rows: 10.0 + rows}
    prompts = [random_ids(LM, 3 + i % 9, i) for i in range(12)]
    expected = [o.token_ids for o in plain().generate(prompts, GREEDY)]
    e = engine(mode, drafter, spec=spec)
    assert [o.token_ids for o in e.generate(prompts, GREEDY)] == expected
    if drafter is LM:
        assert e.stats.acceptance_rate == 1.0 and e.stats.verified > 0
    if drafter is OTHER:
        assert e.stats.acceptance_rate < 0.2


def test_a_target_that_drafts_for_itself_is_always_right():
    """vLLM 3951: sampled tokens too, with bits that are the same; no fall after a full round."""
    e = engine(drafter=LM)
    outputs = e.generate([PROMPT, PROMPT[:4]], g.SamplingParams(max_tokens=40, seed=3))
    assert [len(o.token_ids) for o in outputs] == [40, 40]
    assert e.stats.acceptance_rate == 1.0
    assert e.stats.passes == 2 * 7  # 1, then 6 a pass: 37 after six, all 40 in the seventh


SHIPPED = [
    "Once upon a time", "<|user|>", "Tom has 3 apples and", "The cat", "2 + 2 =", "A dog and a boy",
    "In the morning", "She said", "hello", "Mia went to the",
]  # fmt: skip


@pytest.mark.parametrize(
    "count, how",
    [
        (200, {"mode": "fixed"}),
        (20, {"mode": "budgeted", "recalibrate": True, "step_time": lambda rows: 10.0 + rows}),
    ],
    ids=["fixed", "budgeted"],
)
def test_greedy_on_the_shipped_models(count, how):
    """The drafter's confidence head is read here, too."""
    lm, drafter = g.load("tiny"), g.load("tiny-drafter")
    generator = random.Random(count)
    prompts = []
    for i in range(count):
        ids = lm.tokenizer.encode(SHIPPED[i % len(SHIPPED)])
        prompts.append(ids + [generator.randrange(266, lm.vocab_size) for _ in range(i // 10)])
    params = g.SamplingParams(temperature=0, max_tokens=24)
    one, other = (
        g.Engine(lm, g.EngineConfig(batch_invariant=True, speculation=speculation))
        for speculation in (None, g.Speculation(drafter=drafter, **how))
    )
    expected = [o.token_ids for o in one.generate(prompts, params)]
    assert [o.token_ids for o in other.generate(prompts, params)] == expected
    assert other.stats.acceptance_rate > 0.2  # most prompts end in noise


# ---- fixed: the tokens are the request's own ----


def test_twelve_runs_of_one_seed_give_one_output():
    """SGLang 33395."""
    assert {tuple(tokens(engine())) for _ in range(12)} == {tuple(ALONE)}
    assert 0 < len({tuple(tokens(engine(), params=seeded(s))) for s in range(4)}) == 4


def seeded(seed: int, **how) -> g.SamplingParams:
    return g.SamplingParams(**{"max_tokens": 24, "temperature": 0.7, "seed": seed, **how})


def test_some_drafts_stand_and_some_fall():
    """So that what follows is about all three ways to a token."""
    e = engine()
    e.ledger = Ledger()
    tokens(e)
    uses = [draw.use for draw in e.ledger.of(SEEDED.seed)]
    assert min(uses.count(use) for use in ("accept", "resample", "sample")) > 0
    assert 0.2 < e.stats.acceptance_rate < 1


@pytest.mark.parametrize("lm_seed", range(3))
def test_the_same_tokens_in_company(lm_seed):
    e = engine(max_num_batched_tokens=40)
    for i in range(4):
        e.add(random_ids(LM, 5 + 4 * i, 40 + i + lm_seed), seeded(i, max_tokens=5 + 9 * i))
    checked_step(e)
    request_id = e.add(PROMPT, SEEDED)
    e.add(random_ids(LM, 30, 50), seeded(7))
    assert run(e)[request_id, 0].token_ids == ALONE


@pytest.mark.parametrize("limit", [6, 7, 13, 64])
def test_the_same_tokens_at_any_step_size(limit):
    e = engine(max_num_batched_tokens=limit)
    other = e.add(random_ids(LM, 20, 8), seeded(1))
    request_id = e.add(PROMPT, SEEDED)
    final = run(e)
    assert final[request_id, 0].token_ids == ALONE
    assert final[other, 0].token_ids == tokens(engine(), random_ids(LM, 20, 8), seeded(1))


def test_the_same_tokens_after_preemptions():
    """vLLM 30916, 19940: the pool holds every request, and not all of them."""
    e = engine(num_blocks=20)  # 80 tokens: more than the context, so that nobody's drafts are cut
    prompts = [random_ids(LM, 9, i) for i in range(5)]
    ids = [e.add(prompt, seeded(i, max_tokens=40)) for i, prompt in enumerate(prompts)]
    final = run(e)
    assert e.stats.preemptions > 3
    for i, request_id in enumerate(ids):
        alone = tokens(engine(), prompts[i], seeded(i, max_tokens=40))
        assert final[request_id, 0].token_ids == alone


@pytest.mark.parametrize("limit", [6, 64])
def test_a_preempted_request_drafts_anew(limit):
    """vLLM 30916: at each point of the run, with few and with many tokens a step."""
    for steps in range(2, 7):
        e = engine(max_num_batched_tokens=limit)
        request_id = e.add(PROMPT, SEEDED)
        for _ in range(steps):
            checked_step(e)
        (request,) = e.scheduler.running
        e.scheduler._preempt(request)
        assert run(e)[request_id, 0].token_ids == ALONE
        assert e.stats.preemptions == 1


def test_the_same_tokens_after_a_prefix_hit():
    e = engine(enable_prefix_caching=True)
    prompt = random_ids(LM, 21, 4)
    first = tokens(e, prompt)
    hit = e.add(prompt, SEEDED)
    output = run(e)[hit, 0]
    assert output.num_cached_tokens == 20 and output.token_ids == first
    assert first == tokens(engine(), prompt)
    longer = prompt + first[:11]  # the hit ends in blocks that were filled by drafts
    again = e.add(longer, SEEDED)
    output = run(e)[again, 0]
    assert output.num_cached_tokens == 28 and output.token_ids == tokens(engine(), longer)


@pytest.mark.parametrize("window", [0, 6])
def test_the_same_tokens_through_the_disk(tmp_path, window):
    """The drafter's pages lie beside the target's, whose window layers are not on disk."""
    lm = random_lm(layers=3, window=window, window_layers=(0, 2), **SMALL) if window else LM
    drafter = NEAR
    prompt = random_ids(LM, 21, 4)
    expected = tokens(engine(lm=lm, drafter=drafter), prompt)
    how = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 24}
    one = engine(lm=lm, drafter=drafter, **how)
    assert tokens(one, prompt) == expected
    other = one if window else engine(lm=lm, drafter=drafter, **how)
    if window:  # its window state is in this engine's memory, its blocks on disk alone
        tokens(one, random_ids(LM, 40, 77), seeded(3, max_tokens=20))
    request_id = other.add(prompt, SEEDED)
    output = run(other)[request_id, 0]
    assert output.num_cached_tokens >= 12 and output.token_ids == expected
    assert_drafter_pages_are_right_after(other, prompt, expected, drafter)


def test_speculation_without_a_cache_of_the_drafters_finds_nothing(tmp_path):
    how = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 24}
    tokens(plain(**how), random_ids(LM, 21, 4))
    for drafter in (NEAR, OTHER):  # each has pages of its own
        e = engine(drafter=drafter, **how)
        request_id = e.add(random_ids(LM, 21, 4), SEEDED)
        assert run(e)[request_id, 0].num_cached_tokens == 0


def test_n_samples_are_what_their_seeds_give_alone():
    e = engine(max_num_seqs=3)
    request_id = e.add(PROMPT, seeded(12, n=5))
    final = run(e)
    assert final[request_id, 0].token_ids == tokens(engine(), params=seeded(12))
    for i in range(5):
        one = final[request_id, i]
        assert one.token_ids == tokens(engine(), params=seeded(one.seed))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_fork_replays_from_its_tokens_and_its_seed(steps):
    e = engine()
    parent = e.add(PROMPT, SEEDED)
    for _ in range(steps):
        (before,) = checked_step(e)
    child, twin = e.fork(parent), e.fork(parent, seed=SEEDED.seed)
    final = run(e)
    given = before.token_ids
    own = final[child, 0].token_ids
    assert own[: len(given)] == given and final[parent, 0].token_ids == ALONE
    left = seeded(final[child, 0].seed, max_tokens=24 - len(given))
    assert own[len(given) :] == tokens(engine(), PROMPT + given, left)
    assert final[twin, 0].token_ids == ALONE  # the parent's seed: the parent's tokens


def test_a_fork_of_a_fork_with_its_seed_draws_as_it_does():
    """The first token after what the child was given is an ordinary draw for both."""
    hot = g.SamplingParams(max_tokens=9, temperature=3.0, seed=4)
    for seed in range(10, 18):
        e = engine(num_drafts=2)
        parent = e.add(PROMPT, hot)
        checked_step(e)
        child = e.fork(parent, seed)
        twin = e.fork(child, seed)
        final = run(e)
        assert final[child, 0].token_ids == final[twin, 0].token_ids != final[parent, 0].token_ids


def test_a_fork_that_waits_and_is_computed_anew_replays_too():
    e = engine(max_num_seqs=1)
    parent = e.add(PROMPT, SEEDED)
    checked_step(e)
    (before,) = checked_step(e)
    child = e.fork(parent, seed=8)
    e.scheduler._unpark(useless_too=True)
    final = run(e)
    left = seeded(8, max_tokens=24 - len(before.token_ids))
    expected = before.token_ids + tokens(engine(), PROMPT + before.token_ids, left)
    assert final[child, 0].token_ids == expected


# ---- the drafter's pages ----


def assert_drafter_pages_are_right_after(e, prompt, generated, drafter) -> None:
    """Run the request again in `e` for a few steps: its drafter pages are those of one pass over
    its tokens."""
    request_id = e.add(prompt, g.SamplingParams(max_tokens=24, temperature=0.7, seed=77))
    for _ in range(4):
        checked_step(e)
    (request,) = e._requests[request_id]
    compare_pages(e, request, drafter)
    e.abort(request_id)


def compare_pages(e: g.Engine, request, drafter: g.LanguageModel) -> None:
    count = request.num_ready
    if count == 0:  # under a budget its prompt comes with its first drafts
        return
    model = DraftModel(drafter.config, drafter.weights)
    size = e.config.block_size
    table = list(range(e.block_manager.blocks_for(count)))
    fresh = model.new_cache(len(table), size)
    chunk = request.token_ids[:count], 0
    model.forward(build_batch([chunk], [table], size, []), fresh)
    layers = range(fresh.num_layers)
    ours = e.block_manager.tables[request.sequence_id]
    held = e.speculator.drafter.cache
    got = held.export_slots(held.slots(ours, 0, count), layers)
    expected = fresh.export_slots(fresh.slots(table, 0, count), layers)
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize("drafter", [LM, NEAR], ids=["all accepted", "some accepted"])
def test_the_drafters_cache_keeps_step_with_the_targets(mode, drafter):
    """vLLM 3951. Under a budget it may lag, and says by how much."""
    times = {"step_time": lambda rows: 10.0 + (rows > 5) * 3 * rows}
    e = engine(mode, drafter, spec=times, max_num_batched_tokens=16)
    ids = [e.add(random_ids(LM, 6 + i, i), seeded(i, max_tokens=30)) for i in range(2)]
    for _ in range(8):
        checked_step(e)
        for request in [r for i in ids for r in e._requests.get(i, [])]:
            compare_pages(e, request, drafter)
            if mode == "fixed":
                assert request.drafter_lag == 0
    assert all(request.num_ready > 0 for i in ids for request in e._requests.get(i, []))


def test_each_draft_has_words_of_its_own(monkeypatch):
    """A position is drafted again after a rejection, as an earlier draft: with the same words the
    second draft would look at the first, and even a settled total would not be exact."""
    seen = []
    real = rng.target_words

    def watched(seeds, positions, use=0, lane=0, draft=0):
        if lane == rng.DRAFTER_LANE:
            words = real(seeds, positions, use, lane=lane, draft=draft)
            seen.extend((int(p), draft, words[:, i].tolist()) for i, p in enumerate(positions))
            return words
        return real(seeds, positions, use, lane=lane, draft=draft)

    monkeypatch.setattr(rng, "target_words", watched)
    tokens(engine())
    again = {}
    for position, draft, words in seen:
        again.setdefault(position, {}).setdefault(draft, words)
    several = [list(by_draft.values()) for by_draft in again.values() if len(by_draft) > 1]
    assert several
    assert all(len({tuple(words) for words in some}) == len(some) for some in several)


def test_a_preempted_fork_knows_how_far_the_drafter_is():
    """It keeps the blocks that it shares; the drafter has not read all of them."""
    e = engine("budgeted", LM, num_blocks=40)
    fate = {"on": False}
    e.scheduler.drafting.planner = lambda able, room: (
        (min(room, 5 * len(able)), able) if fate["on"] else (0, [])
    )
    parent = e.add(random_ids(LM, 13, 2), seeded(1, max_tokens=30))
    for _ in range(4):
        checked_step(e)
    child = e._requests[e.fork(parent)][0]
    checked_step(e)
    e.scheduler._preempt(child)
    assert child.num_computed_tokens == 16 and child.drafter_lag == 16
    fate["on"] = True
    for _ in range(3):
        checked_step(e)
        compare_pages(e, child, LM)
    run(e)
    assert e.stats.acceptance_rate == 1


def test_a_drafter_that_lags_catches_up():
    """Measured times say that drafting does not pay, then that it does."""
    e = engine("budgeted", LM)
    fate = {"on": False}
    e.scheduler.drafting.planner = lambda able, room: (
        (min(room, 5 * len(able)), able) if fate["on"] else (0, [])
    )
    request_id = e.add(PROMPT, seeded(1, max_tokens=30))
    for _ in range(6):
        checked_step(e)
    (request,) = e._requests[request_id]
    assert request.drafter_lag == len(PROMPT) + 5 and e.stats.drafted == 0
    child = e.fork(request_id)
    fate["on"] = True
    checked_step(e)
    assert request.drafter_lag == 0
    for one in (request, e._requests[child][0]):
        compare_pages(e, one, LM)
    run(e)
    assert e.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("threads", [1, 2])
def test_the_drafter_computes_the_same_bits_in_company(threads):
    """Draft weights and scores, bit for bit: else a draft could change with the others."""
    torch.set_num_threads(threads)
    try:
        alone, company = drafted_bits(0), drafted_bits(6)
    finally:
        torch.set_num_threads(1)
    assert len(alone) == len(company) > 3
    for one, other in zip(alone, company, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def drafted_bits(others: int) -> list[tuple[torch.Tensor, ...]]:
    """What the drafter proposes to one request in each step, with so many others beside it."""
    lm, drafter = WIDE
    e = engine(lm=lm, drafter=drafter, num_blocks=200)
    mine = e.add(random_ids(lm, 9, 3), SEEDED)
    for i in range(others):
        e.add(random_ids(lm, 3 + 2 * i, i), seeded(i, max_tokens=40))
    real, seen = e.speculator.drafter.propose, []

    def watched(batch, requests, *how):
        drafts = real(batch, requests, *how)
        for i, request in enumerate(requests):
            if request.request_id == mine:
                seen.append((drafts.tokens[i], drafts.weights[i], drafts.scores[i]))
        return drafts

    e.speculator.drafter.propose = watched
    run(e)
    return seen


# ---- ends ----


def test_no_token_after_a_stop_inside_accepted_drafts():
    """Stop at each token of a run in which all drafts stand, from the first place it is seen."""
    full = tokens(engine(drafter=LM), params=GREEDY)
    for i in range(len(full)):
        if full[i] in full[:i]:
            continue
        params = g.SamplingParams(max_tokens=20, temperature=0, stop_token_ids=[full[i]])
        e = engine(drafter=LM, enable_prefix_caching=True)
        request_id = e.add(PROMPT, params)
        output = run(e)[request_id, 0]
        assert output.token_ids == full[: i + 1] and output.finish_reason == "stop"
        cached = e.block_manager.match(e.prefix_cache.names(PROMPT + full))
        assert len(cached) <= (len(PROMPT) + i + 1) // 4
        assert len(e.block_manager.hash_of) == len(cached)  # no name of a token that fell


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_no_token_after_max_tokens(max_tokens):
    e = engine(drafter=LM)
    request_id = e.add(PROMPT, seeded(4, max_tokens=max_tokens))
    real, computed = e.scheduler.remove, []
    e.scheduler.remove = lambda r: (computed.append(r.num_computed_tokens), real(r))
    output = run(e)[request_id, 0]
    assert computed[0] <= len(PROMPT) + max_tokens  # no more than it has
    assert len(output.token_ids) == max_tokens and output.finish_reason == "length"
    assert output.token_ids == tokens(engine(drafter=LM), params=seeded(4))[:max_tokens]


@pytest.mark.parametrize("max_tokens", range(2, 8))
def test_what_ends_inside_its_drafts_is_kept_as_far_as_it_goes(max_tokens, tmp_path):
    """Six tokens come of one pass. The accepted drafts are in the cache, those after the end are
    not the request's, and the seventh token, which follows them, is not computed."""
    how = {"enable_prefix_caching": True, "cache_dir": tmp_path, "cache_bytes": 1 << 24}
    e = engine(drafter=LM, **how)
    text = PROMPT + tokens(e, params=g.SamplingParams(max_tokens=max_tokens, temperature=0))
    computed = len(PROMPT) + min(max_tokens, 6)
    assert e.prefix_cache.disk.match(e.prefix_cache.names(text)) == computed // 4


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_the_context_limit_ends_a_request(mode):
    e = engine(mode, drafter=LM, spec={"step_time": lambda rows: 1.0})
    request_id = e.add(PROMPT, g.SamplingParams(max_tokens=100, temperature=0))
    output = run(e)[request_id, 0]
    assert len(PROMPT) + len(output.token_ids) == LM.config.max_seq_len
    assert output.finish_reason == "length" and "64" in output.message
    expected = tokens(plain(), params=g.SamplingParams(max_tokens=100, temperature=0))
    assert output.token_ids == expected


def test_a_pool_that_cannot_hold_the_drafts_still_serves():
    """Where drafts do not fit the pool, a request goes on without them; past the pool it ends."""
    e = engine(num_blocks=4)
    request_id = e.add(PROMPT[:3], seeded(2, max_tokens=13))  # 16 tokens: the whole pool
    assert len(run(e)[request_id, 0].token_ids) == 13
    request_id = e.add(PROMPT[:3], seeded(2, max_tokens=40))
    output = run(e)[request_id, 0]
    assert output.finish_reason == "error" and "num_blocks" in output.message


# ---- what is told ----


def test_logprobs_are_those_of_the_same_tokens_scored_alone():
    e = engine(drafter=NEAR)
    request_id = e.add(PROMPT, seeded(6, logprobs=3))
    output = run(e)[request_id, 0]
    ids = PROMPT + output.token_ids
    cache = LM.model.new_cache(20, 4)
    batch = build_batch([(ids, 0)], [list(range(16))], 4, [0], logits_each=[len(ids)])
    scores = LM.model.forward(batch, cache).double().log_softmax(-1)
    assert len(output.logprobs) == len(output.token_ids)
    for i, one in enumerate(output.logprobs):
        row = scores[len(PROMPT) + i - 1]
        assert one.token_id == output.token_ids[i]
        assert one.logprob == pytest.approx(row[one.token_id].item(), abs=1e-4)
        best = row.topk(3)
        assert [t for t, _ in one.top] == best.indices.tolist()
        assert [p for _, p in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_the_records_and_the_ledger_tell_the_same_story():
    e = engine()
    e.ledger = Ledger()
    generated = tokens(e)
    position, drafts = len(PROMPT) + 1, [d for record in e.history for d in record.drafts]
    for one in drafts:
        assert one.position == position and one.verified == len(one.tokens) == 5
        mine = generated[position - len(PROMPT) :][: one.accepted + 1]
        assert [*one.tokens[: one.accepted], one.token][: len(mine)] == mine
        draws = [d for d in e.ledger.of(SEEDED.seed)]
        here = [d for d in draws if position <= d.position <= position + one.accepted]
        coins = [d for d in here if d.use == "accept"]
        assert [d.token for d in coins] == list(one.tokens[: len(coins)])
        assert len(coins) == min(one.accepted + 1, 5)
        (last,) = [d for d in here if d.use != "accept"]
        assert last.token == one.token
        assert last.use == ("resample" if one.accepted < 5 else "sample")
        position += one.accepted + 1
    assert e.stats.passes == len(drafts) and e.stats.drafted == e.stats.verified == 5 * len(drafts)
    assert e.stats.accepted == sum(d.accepted for d in drafts)
    assert e.stats.kept == len(generated) - 1 == sum(d.kept for d in drafts)  # the first was drawn
    assert e.stats.tokens_per_pass == e.stats.kept / len(drafts)
    assert [d.kept for d in drafts[:-1]] == [d.accepted + 1 for d in drafts[:-1]]


# ---- interruptions ----


@pytest.mark.parametrize("where", ["drafter", "target", "verify"])
@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_an_interrupt_loses_nothing(mode, where, monkeypatch):
    spec = {"step_time": lambda rows: 10.0 + rows}
    whole = tokens(engine(mode, spec=spec))
    e = engine(mode, spec=spec)
    request_id = e.add(PROMPT, SEEDED)
    for _ in range(3):
        checked_step(e)
    owner, name = {
        "drafter": (e.speculator.drafter.model, "forward"),
        "target": (e.model, "forward"),
        "verify": (e.speculator, "verify"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(KeyboardInterrupt(), getattr(owner, name), late=2))
        with pytest.raises(KeyboardInterrupt):
            for _ in range(20):
                e.step()
    e.block_manager.check()
    assert run(e)[request_id, 0].token_ids == whole


def raising(error, real, late=1):
    """Do as `real` does until call number `late`, which raises."""
    calls = []

    def wrapped(*args, **how):
        calls.append(0)
        if len(calls) == late:
            raise error
        return real(*args, **how)

    return wrapped


@pytest.mark.parametrize(
    "spec", [{}, {"step_time": lambda rows: 10.0 + rows}], ids=["own", "given"]
)
@pytest.mark.parametrize("where", ["drafter", "target", "verify"])
def test_an_error_under_a_budget_is_no_measurement(spec, where, monkeypatch):
    """The step that failed says nothing of times: the waiting one goes on."""
    e = engine("budgeted", max_num_seqs=1, spec=spec)
    gone, goes_on = e.add(PROMPT, SEEDED), e.add(PROMPT[:4], SEEDED)
    checked_step(e)
    owner = {"drafter": e.speculator.drafter.model, "target": e.model, "verify": g.sampling}[where]
    name = "next_tokens" if where == "verify" else "forward"
    owner = g.launches if where == "verify" else owner
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(RuntimeError("no more memory"), getattr(owner, name)))
        if spec:  # drafts for sure
            (output,) = checked_step(e)
        else:
            output = next(o for _ in range(40) for o in checked_step(e) if o.finish_reason)
    final = run(e)
    if output.finish_reason == "error":
        assert output.request_id == gone and "no more memory" in output.message
    assert final[goes_on, 0].finish_reason == "length"


@pytest.mark.parametrize("where", ["drafter", "verify"])
@pytest.mark.parametrize("late", [1, 4])
def test_an_error_ends_the_rows_of_its_step_and_leaks_nothing(where, late, monkeypatch):
    e = engine(enable_prefix_caching=True, max_num_seqs=2)
    ids = [e.add(random_ids(LM, 9, i), seeded(i)) for i in range(3)]
    for _ in range(2):
        checked_step(e)
    owner, name = {
        "drafter": (e.speculator.drafter.model, "forward"),
        "verify": (e.speculator, "verify"),
    }[where]
    late = 1 if where == "verify" else late
    with monkeypatch.context() as patch:
        patch.setattr(
            owner, name, raising(RuntimeError("no more memory"), getattr(owner, name), late)
        )
        outputs = checked_step(e)
    assert [o.finish_reason for o in outputs] == ["error", "error"]
    assert "no more memory" in outputs[0].message
    assert not e.block_manager.hash_of
    final = run(e)
    assert final[ids[2], 0].token_ids == tokens(engine(), random_ids(LM, 9, 2), seeded(2))


def test_an_abort_in_the_middle():
    e = engine()
    gone = e.add(random_ids(LM, 9, 1), seeded(1))
    request_id = e.add(PROMPT, SEEDED)
    for _ in range(3):
        checked_step(e)
    (output,) = e.abort(gone)
    e.block_manager.check()
    assert output.finish_reason == "abort" and len(output.token_ids) > 2
    assert run(e)[request_id, 0].token_ids == ALONE


def test_a_target_without_numbers_ends_its_own_request(monkeypatch):
    e = engine()
    bad, good = e.add(PROMPT[:5], seeded(1)), e.add(PROMPT, SEEDED)
    real = e.model.forward

    @allow_sync("the test looks for a row")
    def spoiled(batch, cache):
        logits = real(batch, cache).clone()
        if len(e.history) == 3:
            first_block = e.block_manager.tables[0][0]
            r = int((batch.block_tables[:, 0] == first_block).nonzero()[0])
            at = batch.logit_rows
            logits[(at >= batch.query_start[r]) & (at < batch.query_start[r + 1])] = torch.nan
        return logits

    monkeypatch.setattr(e.model, "forward", spoiled)
    final = run(e)
    assert final[bad, 0].finish_reason == "error" and "not numbers" in final[bad, 0].message
    assert final[good, 0].token_ids == ALONE


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_drafter_without_numbers_is_never_followed(value, monkeypatch):
    e = engine(drafter=LM)
    real = e.speculator.drafter.model.forward

    def spoiled(*args):
        logits = real(*args).clone()
        logits[:, ::2] = value
        return logits

    monkeypatch.setattr(e.speculator.drafter.model, "forward", spoiled)
    assert tokens(e, params=GREEDY) == tokens(plain(), params=GREEDY)
    assert e.stats.accepted == 0 and e.stats.verified > 0
    assert max(c for r in e.history for d in r.drafts for c in d.confidences) < 0.1


# ---- the budget ----


def steps(rows: int) -> float:
    """The stairs of the Brief: 4 rows, 6, 8, and so on."""
    return 10.0 if rows <= 4 else 10.0 + 3 * ((rows - 3) // 2)


def test_a_budget_trims_as_plan_and_split_say():
    e = engine("budgeted", spec={"step_time": steps}, max_num_batched_tokens=24)
    ids = [e.add(random_ids(LM, 5 + i, i), seeded(i, max_tokens=30)) for i in range(3)]
    seen = set()
    while e.has_unfinished:
        running = {r.request_id: r for r in e.scheduler.running}
        before = {i: None if r.confidences is None else r.confidences.copy()
                  for i, r in running.items()}  # fmt: skip
        usual = e.speculator.budget.usual.copy()
        checked_step(e)
        drafts = e.history[-1].drafts
        if not drafts or len(drafts) < len(running):
            continue
        known = np.stack([usual if before[d.request_id] is None else before[d.request_id]
                          for d in sorted(drafts, key=lambda d: d.request_id)])  # fmt: skip
        total = g.plan(known, steps, 24).rows - len(known)
        assert sum(d.verified for d in drafts) == total
        fresh = {d.request_id: d.confidences for d in drafts}
        order = [d.request_id for d in drafts]
        expected = g.split(total, [fresh[i] for i in order])
        assert [d.verified for d in drafts] == expected.tolist()
        seen.add(total)
    assert len(ids) == 3 and len(seen) > 1


def test_drafts_leave_the_next_in_the_queue_its_blocks():
    """8 blocks: 3 run, 5 are free and 5 are what the next one needs. Where it cannot run in any
    case, drafts may have them."""
    e = engine("budgeted", spec={"step_time": lambda rows: 1.0}, num_blocks=8)
    e.add(PROMPT, seeded(1))
    checked_step(e)
    later = e.add(random_ids(LM, 20, 5), seeded(2))
    checked_step(e)
    assert {row.request_id for row in e.history[-1].rows} == {0, later}
    assert not e.history[-1].drafts
    e.abort(later)
    e.add(random_ids(LM, 24, 5), seeded(2))
    checked_step(e)
    assert len(e.history[-1].rows) == 1 and len(e.history[-1].drafts) == 1
    run(e)


def test_blocks_of_drafts_that_were_broken_off_come_back(monkeypatch):
    """The step after an interrupt drafts nothing; checked_step() counts the blocks."""
    e = engine("budgeted", LM)
    fate = {"on": True}
    e.scheduler.drafting.planner = lambda able, room: (5, able) if fate["on"] else (0, [])
    request_id = e.add(PROMPT[:3], SEEDED)
    checked_step(e)
    with monkeypatch.context() as patch:
        patch.setattr(e.model, "forward", raising(KeyboardInterrupt(), e.model.forward))
        with pytest.raises(KeyboardInterrupt):
            e.step()
    assert len(e.block_manager.tables[request_id]) == 3
    fate["on"] = False
    checked_step(e)
    assert len(e.block_manager.tables[request_id]) == 1
    run(e)


def test_a_low_confidence_does_not_end_speculation():
    """A given step time makes drafting free, so all go on drafting, even where none is checked."""
    e = engine("budgeted", drafter=LM, spec={"step_time": lambda rows: 1.0 + rows}, num_blocks=400)
    e.generate([random_ids(LM, 5, 0)], seeded(0, max_tokens=55))
    assert all(len(record.drafts) == 1 for record in list(e.history)[1:-1])
    assert e.stats.acceptance_rate == 1 and 0 < e.stats.verified < e.stats.drafted


def test_a_budget_that_checks_nothing_keeps_the_prefix_cache():
    """The second turn finds what the first one wrote, as without speculation."""
    found = {}
    for mode in ("off", "fixed", "budgeted"):
        how = {"enable_prefix_caching": True}
        e = plain(**how) if mode == "off" else engine(mode, spec={"step_time": steep}, **how)
        if mode == "budgeted":
            e.scheduler.drafting.planner = lambda able, room: (0, [])
        first = e.generate([PROMPT[:8]], seeded(1, max_tokens=30))[0].token_ids
        second = e.generate([PROMPT[:8] + first + [7, 8, 9]], seeded(2, max_tokens=2))[0]
        found[mode] = second.num_cached_tokens
    assert found == {"off": 36, "fixed": 36, "budgeted": 36}


def steep(rows: int) -> float:
    return float(rows)


def test_catching_up_takes_no_more_tokens_than_a_step_has():
    """Contexts of 40 tokens and steps of 16: the drafter reads them in pieces, and drafts then."""
    e = engine("budgeted", LM, max_num_batched_tokens=16, spec={"step_time": lambda rows: 1.0})
    fate, sizes = {"on": False}, []
    real = e.speculator.drafter.model.forward

    def watched(batch, cache):
        sizes.append(len(batch.token_ids))
        return real(batch, cache)

    e.speculator.drafter.model.forward = watched
    e.scheduler.drafting.planner = lambda able, room: (
        (min(room, 5 * len(able)), able) if fate["on"] else (0, [])
    )
    ids = [e.add(random_ids(LM, 40, i), seeded(i, max_tokens=20)) for i in range(2)]
    for _ in range(8):
        checked_step(e)
    assert not sizes and all(e._requests[i][0].drafter_lag >= 40 for i in ids)
    fate["on"] = True
    for _ in range(8):
        checked_step(e)
        for request in [r for i in ids for r in e._requests.get(i, [])]:
            compare_pages(e, request, LM)
    assert max(sizes) <= 16 and e.stats.drafted > 0
    run(e)
    assert e.stats.acceptance_rate == 1


def test_the_samples_of_a_prompt_let_the_drafter_read_it_once():
    e = engine("budgeted", LM, spec={"step_time": lambda rows: 1.0}, max_num_batched_tokens=60)
    seen = []
    real = e.speculator.drafter.model.forward
    e.speculator.drafter.model.forward = lambda batch, cache: (
        seen.append(len(batch.token_ids)), real(batch, cache),
    )[1]  # fmt: skip
    e.add(random_ids(LM, 30, 1), seeded(1, n=8, max_tokens=4))
    run(e)
    assert seen[0] == 30 and max(seen[1:]) <= 16


def test_where_one_token_is_missing_no_draft_is_made():
    e = engine("budgeted", LM, spec={"step_time": lambda rows: 1.0})
    e.generate([PROMPT], seeded(1, max_tokens=2))
    assert e.stats.drafted == 0 and e.stats.steps == 2


def test_greedy_requests_without_a_head_have_confidences_of_their_own():
    """Temperature 0 leaves one token, whose share is 1 whatever the drafter thinks of it."""
    e = engine("budgeted", NEAR, spec={"step_time": lambda rows: 1.0 + 0.01 * rows})
    e.generate([random_ids(LM, 6, i) for i in range(6)], GREEDY)
    confidences = {c for record in e.history for d in record.drafts for c in d.confidences}
    assert len(confidences) > 20


@pytest.mark.parametrize("guard", [0.0, 0.5])
def test_the_guard_is_the_engines_option(guard, monkeypatch):
    seen = []
    real = g.speculating.verify
    monkeypatch.setattr(
        g.speculating, "verify", lambda *a, **k: (seen.append(a[4]), real(*a, **k))[1]
    )
    e = engine(spec={"guard": guard})
    tokens(e)
    assert set(seen) == {guard}


def test_a_request_remembers_its_own_confidences():
    e = engine("budgeted", spec={"step_time": steps}, max_num_batched_tokens=24)
    for i in range(3):
        e.add(random_ids(LM, 5 + i, i), seeded(i, max_tokens=30))
    for _ in range(6):
        checked_step(e)
        running = {r.request_id: r for r in e.scheduler.running}
        for d in e.history[-1].drafts:
            if d.request_id in running:
                assert running[d.request_id].confidences.tolist() == list(d.confidences)


def test_the_table_learns_from_raw_scores_of_the_right_requests(monkeypatch):
    e = engine("budgeted", spec={"step_time": lambda rows: 1.0})
    learnt, scores, table = [], {}, e.speculator.budget.table
    table.learn(np.linspace(0, 1, 500), np.zeros(500, dtype=bool))  # so far all fell
    real = e.speculator.drafter.propose

    @allow_sync("the test notes the scores")
    def propose(batch, requests, *how):
        drafts = real(batch, requests, *how)
        scores.update({r.request_id: drafts.scores[i].tolist() for i, r in enumerate(requests)})
        return drafts

    monkeypatch.setattr(e.speculator.drafter, "propose", propose)
    monkeypatch.setattr(e.speculator.budget, "learn", lambda *a: learnt.append(a))
    for i in range(4):
        e.add(random_ids(LM, 4 + 3 * i, i), seeded(i, max_tokens=12))
    for _ in range(4):
        checked_step(e)
        if e.history[-1].drafts:
            got, verified, accepted = learnt[-1]
            for row, d in enumerate(e.history[-1].drafts):
                mine = scores[d.request_id]
                assert got[row].tolist() == pytest.approx(mine)
                assert d.confidences == pytest.approx(table.read(np.array(mine)))
                assert max(d.confidences) < max(mine)
                assert (verified[row], accepted[row]) == (d.verified, d.accepted)
    assert learnt


def test_what_comes_out_under_a_budget_follows_the_target():
    """The first three tokens of 3,000 requests, 64 at a time, whose confidences decide whose drafts
    are checked: each by the target's distribution, given those before it."""
    lm = random_lm(vocab_size=270, dim=8, heads=1, layers=1, hidden=8, seed=3, context=16)
    cold = g.SamplingParams(max_tokens=3, temperature=0.8, top_k=4, ignore_eos=True)
    e = engine(
        "budgeted", near(lm, 0.4), lm, 2, {"step_time": lambda rows: 10.0 + 0.5 * rows},
        num_blocks=512, max_num_seqs=64, max_num_batched_tokens=150, batch_invariant=False,
    )  # fmt: skip
    count = 3000
    params = [g.SamplingParams(**{**vars_of(cold), "seed": 1000 + i}) for i in range(count)]
    outputs = e.generate([[5, 6, 7]] * count, params)
    assert 0.1 < e.stats.acceptance_rate < 0.95 and e.stats.verified < e.stats.drafted
    texts = np.array([o.token_ids for o in outputs])
    check_against(lm, texts, 0.8, 4)


def vars_of(params: g.SamplingParams) -> dict:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def check_against(lm, texts: np.ndarray, temperature: float, top_k: int) -> None:
    """Texts (M, 3) after the prompt 5, 6, 7: chi-square of each token given those before it, where
    there are enough of them."""
    compared = 0
    for length in range(3):
        for begin in {tuple(row[:length]) for row in texts.tolist()}:
            here = texts[(texts[:, :length] == begin).all(1)]
            p = next_token(lm, [5, 6, 7, *begin], temperature, top_k)
            if len(here) * p[p > 0].min() >= 5:
                assert fits(np.bincount(here[:, length], minlength=len(p)), len(here) * p), begin
                compared += 1
    assert compared >= 4


def next_token(lm, ids: list[int], temperature: float, top_k: int) -> np.ndarray:
    batch = build_batch([(ids, 0)], [[0, 1, 2, 3]], 4, [0])
    scores = lm.model.forward(batch, lm.model.new_cache(4, 4))[0].double().numpy()
    p = np.exp((scores - scores.max()) / temperature)
    p[np.argsort(-p, kind="stable")[top_k:]] = 0
    return p / p.sum()


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_prompts_get_in_while_drafts_run(mode):
    """Drafts have most of a step's rows; a prompt of more than are left is computed all the same.
    Fixed: a running request takes six rows, so that three can run."""
    e = engine(mode, LM, spec={"step_time": lambda rows: 1.0}, max_num_batched_tokens=20)
    for i in range(2):
        e.add(random_ids(LM, 4, i), seeded(i, max_tokens=50, ignore_eos=True))
    for _ in range(3):
        checked_step(e)
    late = e.add(random_ids(LM, 15, 9), seeded(5, max_tokens=3))
    for _ in range(30):
        if any(o.request_id == late and o.token_ids for o in checked_step(e)):
            break
    else:
        raise AssertionError("the late prompt never began")
    assert len(e._requests) > 1  # while others were still running
    run(e)


def test_a_measured_budget_serves_too():
    """No given step time: the planner measures. Greedy, so that the tokens are known."""
    e = engine("budgeted", LM, max_num_batched_tokens=32)
    prompts = [random_ids(LM, 5, i) for i in range(6)]
    expected = [o.token_ids for o in plain().generate(prompts, GREEDY)]
    ids = [e.add(prompt, GREEDY) for prompt in prompts]
    final = run(e)
    assert [final[i, 0].token_ids for i in ids] == expected


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_prompts_get_in_under_a_time_budget(mode):
    """Drafts cost time, so what is left to a chunk may be nothing: then a token of it goes on."""
    model = CostModel(1.0, 0.2, 0.01, 0.1, 0.001, 0.001)
    e = engine(mode, spec={"step_time": steps}, cost_model=model, step_time_budget_ms=4.0)
    e.add(random_ids(LM, 4, 1), seeded(1, max_tokens=50))
    for _ in range(3):
        checked_step(e)
    request_id = e.add(PROMPT, SEEDED)
    final = run(e)
    assert len(final[request_id, 0].token_ids) == 24
    if mode == "fixed":
        assert final[request_id, 0].token_ids == ALONE


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_precisions(mode, dtype):
    how = {"dtype": dtype, "batch_invariant": False}
    e = engine(mode, LM, spec={"step_time": lambda rows: 10.0 + rows}, **how)
    found = tokens(e, params=GREEDY)
    assert len(found) == 20 and e.stats.acceptance_rate > 0.5
    if dtype == "float64":
        assert found == tokens(plain(**how), params=GREEDY)


# ---- window layers ----


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_a_window_model_may_be_the_target(mode):
    lm = random_lm(layers=3, window=6, window_layers=(0, 2), seed=4, **SMALL)
    e = engine(mode, NEAR, lm, spec={"step_time": lambda rows: 10.0 + rows})
    assert tokens(e, params=GREEDY) == tokens(plain(lm), params=GREEDY)
    if mode == "fixed":
        alone = tokens(engine(mode, NEAR, lm))
        e = engine(mode, NEAR, lm, max_num_batched_tokens=13)
        request_id = e.add(PROMPT, SEEDED)
        e.add(random_ids(LM, 20, 4), seeded(3))
        assert run(e)[request_id, 0].token_ids == alone


# ---- anything, in any order ----


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
@pytest.mark.parametrize("seed", range(10))
def test_random_traces(mode, seed):
    """Add, step, fork, abort, preempt, in a pool that is too small: the blocks are right after each
    step, and greedy tokens are greedy decoding's."""
    generator = random.Random(seed)
    sizes = {
        "num_blocks": generator.choice([17, 24, 40]),
        "max_num_batched_tokens": generator.choice([6, 11, 30]),
        "max_num_seqs": generator.choice([2, 4, 9]),
        "enable_prefix_caching": generator.random() < 0.6,
    }
    shape = generator.choice([steps, lambda rows: 10.0 + rows, lambda rows: float(rows)])
    drafter = generator.choice([LM, NEAR, OTHER])
    e = engine(mode, drafter, num_drafts=generator.choice([1, 3, 5]), spec={"step_time": shape},
               **sizes)  # fmt: skip
    final = {}
    for _ in range(60):
        action, live = generator.random(), list(e._requests)
        if action < 0.2 and len(live) < 8:
            prompt = random_ids(LM, generator.randrange(1, 20), generator.randrange(4))
            greedy = generator.random() < 0.5
            params = g.SamplingParams(
                max_tokens=generator.randrange(1, 40), temperature=0 if greedy else 1.0,
                n=1 if greedy else generator.choice([1, 1, 3]), seed=generator.randrange(99),
            )  # fmt: skip
            e.add(prompt, params, cache_salt=generator.choice(["", "a"]))
        elif action < 0.3 and live:
            if len(e._requests[live[0]]) == 1:
                e.fork(live[0], seed=generator.choice([None, 5]))
        elif action < 0.35 and live:
            e.abort(generator.choice(live))
        elif action < 0.37 and live:
            for request in e.scheduler.running:
                compare_pages(e, request, drafter)
        elif action < 0.42 and e.scheduler.running:
            e.scheduler._preempt(e.scheduler.running[-1])
        else:
            final |= {(o.request_id, o.sample_index): o for o in checked_step(e) if o.finish_reason}
        e.block_manager.check()
    final |= run(e)
    once = plain()
    for output in final.values():
        assert output.finish_reason in ("stop", "length")
        if output._request.params.temperature == 0:
            params = g.SamplingParams(max_tokens=len(output.token_ids), temperature=0)
            assert output.token_ids == once.generate([output.prompt_token_ids], params)[0].token_ids


# ---- what is refused ----


def window_drafter() -> g.LanguageModel:
    return random_lm(window=4, window_layers=(0,), **SMALL)


@pytest.mark.parametrize(
    "how, said",
    [
        ({"mode": "fix"}, "mode='fix' must be 'fixed' or 'budgeted'"),
        ({"num_drafts": 0}, "num_drafts"),
        ({"num_drafts": 17}, "num_drafts"),
        ({"num_drafts": 2.5}, "num_drafts"),
        ({"drafter": None}, "load.'tiny-drafter'"),
        ({"drafter": "tiny-drafter"}, "load.'tiny-drafter'"),
        ({"guard": -1e-9}, "guard=-1e-09 must be 0"),
        ({"guard": float("nan")}, "guard"),
        ({"recalibrate": 1}, "recalibrate=1"),
        ({"drafter": window_drafter()}, "window layers"),
        ({"step_time": []}, "step_time"),
        ({"step_time": [1.0] * 256}, "256 rows.*max_num_batched_tokens"),
        ({"step_time": [1.0] * 99 + [0.0] + [1.0] * 200}, "99 rows is 0.0 ms"),
        ({"step_time": lambda rows: -1.0}, "1 rows is -1.0 ms"),
        ({"step_time": lambda rows: float("nan")}, "nan ms"),
        ({"step_time": "fast"}, "step_time"),
    ],
)
def test_what_cannot_be_is_refused_when_the_engine_is_made(how, said):
    """No later: an error in the middle of a step would be nobody's."""
    with pytest.raises(ValueError, match=said):
        speculation = g.Speculation(**{"mode": "budgeted", "drafter": NEAR, **how})
        g.Engine(LM, g.EngineConfig(speculation=speculation))


def test_a_step_too_small_for_one_requests_drafts_is_refused():
    with pytest.raises(ValueError, match="max_num_batched_tokens=5 must be at least 6"):
        engine(max_num_batched_tokens=5)
    with pytest.raises(ValueError, match="speculation='fixed' must be Speculation"):
        g.EngineConfig(speculation="fixed")
