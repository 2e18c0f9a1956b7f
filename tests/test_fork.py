"""n samples of one prompt, and forks of a running request: computed once, its blocks shared."""

import pytest
import torch
from fakes import GREEDY, FakeLM, continuation, engine, run
from small_models import random_lm

import g2c_serving as g

PROMPT = [5, 1, 4, 1, 3, 2, 6, 6, 7, 7]  # 10 tokens: two full blocks of 4 and a half one


def test_n_samples_compute_their_prompt_once():
    e = engine()
    e.add(PROMPT, g.SamplingParams(n=8, max_tokens=4, seed=1))
    run_all(e)
    assert e.stats.prefill_tokens == len(PROMPT)
    assert e.stats.decode_tokens == 8 * 3  # each first token came from the prompt's own logits
    assert e.stats.cached_tokens == 0


def run_all(e: g.Engine) -> list[g.RequestOutput]:
    """Step to the end with the blocks checked; final outputs by request and sample."""
    final = []
    while e.has_unfinished:
        final += [o for o in e.step() if o.finish_reason is not None]
        e.block_manager.check()
    assert e.block_manager.num_free == e.config.num_blocks
    return sorted(final, key=lambda o: (o.request_id, o.sample_index))


def test_samples_share_full_blocks_and_own_their_tails():
    e = engine()
    e.add(PROMPT, g.SamplingParams(n=5, max_tokens=8, temperature=0))
    e.step()
    assert e.block_manager.num_used == 3  # before anyone has written
    e.step()
    assert e.block_manager.num_used == 2 + 5
    tables = list(e.block_manager.tables.values())
    assert all(table[:2] == tables[0][:2] for table in tables)
    assert len({table[2] for table in tables}) == 5
    assert {tuple(o.token_ids) for o in run_all(e)} == {tuple(continuation(PROMPT, 8))}


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_sample_0_is_the_same_for_every_n_and_the_samples_differ(n):
    """nanochat 201, 38: one seed, n samples."""
    e = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
    outputs = e.generate([PROMPT], g.SamplingParams(n=n, seed=3, max_tokens=12))
    alone = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
    (first,) = alone.generate([PROMPT], g.SamplingParams(seed=3, max_tokens=12))
    assert outputs[0].token_ids == first.token_ids
    assert len({tuple(o.token_ids) for o in outputs}) == n


def test_each_sample_equals_a_request_of_its_own_with_that_seed():
    e = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
    outputs = e.generate([PROMPT], g.SamplingParams(n=6, seed=11, max_tokens=10))
    for output in outputs:
        alone = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
        params = g.SamplingParams(seed=output.seed, max_tokens=10)
        assert alone.generate([PROMPT], params)[0].token_ids == output.token_ids


def test_more_samples_than_seats_wait_with_the_prompt_they_share():
    e = engine(max_num_seqs=3)
    e.add(PROMPT, g.SamplingParams(n=9, max_tokens=5, temperature=0))
    outputs = run_all(e)
    assert [o.token_ids for o in outputs] == [continuation(PROMPT, 5)] * 9
    assert e.stats.prefill_tokens == len(PROMPT)


def test_waiting_samples_give_way_and_nothing_is_lost():
    """What waits may be dropped to recompute, so its references never block the pool."""
    e = engine(num_blocks=5, max_num_seqs=2)
    e.add(PROMPT, g.SamplingParams(n=6, max_tokens=6, temperature=0))
    other = e.add([9, 9, 9, 9, 9], GREEDY)
    outputs = run_all(e)
    assert [o.token_ids for o in outputs[:6]] == [continuation(PROMPT, 6)] * 6
    assert outputs[6].request_id == other
    assert outputs[6].token_ids == continuation([9] * 5, GREEDY.max_tokens)
    assert e.stats.prefill_tokens > len(PROMPT) + 5


def test_a_prompt_as_large_as_the_pool_with_many_samples_ends():
    e = engine(num_blocks=3)
    e.add([1] * 12, g.SamplingParams(n=4, max_tokens=4, temperature=0))
    for output in run_all(e):
        assert output.finish_reason == "error" and "num_blocks" in output.message


def test_samples_that_end_with_their_first_token():
    e = engine()
    e.add(PROMPT, g.SamplingParams(n=4, max_tokens=1, temperature=0))
    assert [o.token_ids for o in run_all(e)] == [continuation(PROMPT, 1)] * 4


def test_an_abort_before_the_prompt_is_computed_ends_all_samples():
    e = engine(max_num_batched_tokens=4, max_num_seqs=4)
    request_id = e.add(PROMPT, g.SamplingParams(n=4, max_tokens=4))
    assert [o.sample_index for o in e.step()] == [0]  # a chunk of the prompt
    outputs = e.abort(request_id)
    assert [o.finish_reason for o in outputs] == ["abort"] * 4
    assert not e.has_unfinished and e.block_manager.num_free == 32
    e.block_manager.check()


def test_a_step_that_fails_ends_all_samples_of_its_prompt_and_no_others():
    lm = FakeLM()
    e = engine(lm, max_num_batched_tokens=10)
    e.add(PROMPT, g.SamplingParams(n=3, max_tokens=4))
    other = e.add([1, 2], GREEDY)

    def fail_once(batch):
        lm.model.on_forward = lambda batch: None
        raise RuntimeError("a fault in the forward")

    lm.model.on_forward = fail_once
    outputs = run_all(e)
    assert [(o.request_id, o.finish_reason) for o in outputs[:3]] == [(0, "error")] * 3
    assert outputs[3].request_id == other
    assert outputs[3].token_ids == continuation([1, 2], GREEDY.max_tokens)


def test_a_fork_shares_the_blocks_and_goes_on_by_itself():
    """vLLM 417, xLLM 1984: both append to the tail that they share; neither reads the other's."""
    e = engine()
    parent = e.add(PROMPT, GREEDY)
    e.step()
    child = e.fork(parent)
    assert e.block_manager.num_used == 3
    e.step()
    assert e.block_manager.num_used == 4  # the tail alone was copied
    outputs = run(e)
    expected = continuation(PROMPT, GREEDY.max_tokens)
    assert outputs[parent].token_ids == outputs[child].token_ids == expected
    assert e.stats.prefill_tokens == len(PROMPT)


def test_a_fork_draws_otherwise_and_its_seed_is_told():
    e = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
    params = g.SamplingParams(temperature=3, seed=5, max_tokens=16)
    parent = e.add(PROMPT, params)
    for _ in range(4):
        e.step()
    children = [e.fork(parent), e.fork(parent), e.fork(parent, seed=77)]
    outputs = run(e)
    tokens = [outputs[i].token_ids for i in (parent, *children)]
    assert len({tuple(t) for t in tokens}) == 4
    assert len({tuple(t[:4]) for t in tokens}) == 1 and all(len(t) == 16 for t in tokens)
    seeds = [outputs[i].seed for i in (parent, *children)]
    assert len(set(seeds)) == 4 and seeds[0] == 5 and seeds[3] == 77
    alone = g.Engine(random_lm(), g.EngineConfig(block_size=4, dtype="float64"))
    (plain,) = alone.generate([PROMPT], params)
    assert tokens[0] == plain.token_ids  # to be forked changes nothing for the parent


def test_forks_of_waiting_half_computed_and_full_engines():
    e = engine(max_num_batched_tokens=4, max_num_seqs=2)
    waiting = e.fork(e.add(PROMPT, GREEDY))
    e.step()  # the first chunk of the prompt
    half = e.fork(0)
    e.step()
    full = e.fork(half)  # no seat: it is parked
    outputs = run(e)
    expected = continuation(PROMPT, GREEDY.max_tokens)
    assert [outputs[i].token_ids for i in (0, waiting, half, full)] == [expected] * 4
    assert all(outputs[i].num_cached_tokens == 0 for i in outputs)


def test_bad_forks_are_refused():
    e = engine()
    with pytest.raises(KeyError, match="request_id 7"):
        e.fork(7)
    several = e.add(PROMPT, g.SamplingParams(n=2, max_tokens=4))
    with pytest.raises(ValueError, match="2 unfinished samples"):
        e.fork(several)
    one = e.add(PROMPT, GREEDY)
    for seed in (-1, 2**64, 1.5):
        with pytest.raises(ValueError, match="seed"):
            e.fork(one, seed=seed)
    assert len(run_all(e)) == 3


def test_32_samples_of_a_long_prompt_take_little_more_than_one():
    """At most 1.2 times the blocks of one prompt, beside the samples' own tokens."""
    lm = FakeLM(max_seq_len=512)
    e = engine(lm, num_blocks=400, block_size=16)
    e.add([i % 200 for i in range(256)], g.SamplingParams(n=32, max_tokens=16, temperature=0))
    run_all(e)
    own = 32 * 1  # 16 tokens each, the last of which is never written
    assert e.stats.peak_blocks <= 1.2 * 16 + own
    assert e.stats.prefill_tokens == 256


def test_a_copied_tail_holds_the_same_bits():
    lm = random_lm()
    e = g.Engine(lm, g.EngineConfig(block_size=4))
    parent = e.add(PROMPT, GREEDY)
    e.step()
    child = e.fork(parent)
    e.step()
    tables = list(e.block_manager.tables.values())
    tail, copy = tables[0][-1], tables[1][-1]
    assert tail != copy
    for pool in (e.cache.keys, e.cache.values):
        assert torch.equal(pool[:, tail, :2], pool[:, copy, :2])
    assert run(e)[child].finish_reason == "length"


def test_parked_samples_keep_the_prompt_while_others_use_it_too():
    """To take the table of one that waits frees nothing while running ones use the same blocks, and
    one that is preempted gives up its own blocks alone: the prompt is computed once."""
    e = engine(FakeLM(max_seq_len=256), num_blocks=26, max_num_seqs=4)
    e.add([i % 200 for i in range(80)], g.SamplingParams(n=32, max_tokens=8, temperature=0))
    assert len(run_all(e)) == 32
    assert e.stats.preemptions > 0
    assert e.stats.prefill_tokens <= 80 + 8 * e.stats.preemptions  # what each had of its own


def test_many_samples_in_a_small_pool():
    e = engine(FakeLM(max_seq_len=64), num_blocks=8, max_num_seqs=2)
    e.add(PROMPT, g.SamplingParams(n=3000, max_tokens=2, temperature=0))
    for _ in range(5):
        e.step()
    assert e.block_manager.num_used <= 5
    e.abort(0)
    assert not e.has_unfinished
    e.block_manager.check()


def test_a_fork_does_not_overtake_those_who_wait():
    e = engine(max_num_seqs=2)
    parent = e.add([1, 2, 3], g.SamplingParams(temperature=0, max_tokens=50))
    child = e.add([4, 5, 6], GREEDY)
    e.step()
    waiting = e.add([7], GREEDY)
    e.abort(child)
    child = e.fork(parent)
    e.step()
    running = [request.request_id for request in e.scheduler.running]
    assert running == [parent, waiting] and [r.request_id for r in e.scheduler.waiting] == [child]
    e.abort(parent)
    outputs = run(e)
    assert outputs[child].token_ids == continuation([1, 2, 3], 50)


def test_a_fork_that_waits_makes_way_for_one_who_came_before():
    """Nobody runs, the first in the queue has no room, and a fork behind it holds what it needs."""
    e = engine(num_blocks=8, max_num_seqs=1)
    parent = e.add([1] * 12, g.SamplingParams(temperature=0, max_tokens=3))
    e.step()
    first = e.add([2] * 24, GREEDY)
    child = e.fork(parent)
    outputs = run(e)
    assert outputs[first].token_ids == continuation([2] * 24, 8)
    assert outputs[child].token_ids == continuation([1] * 12, 3)


def test_a_fork_keeps_its_stop_tokens_and_its_tenant():
    stop = continuation(PROMPT, 5)[4]
    e = engine(enable_prefix_caching=True)
    params = g.SamplingParams(temperature=0, max_tokens=9, stop_token_ids=[stop])
    parent = e.add(PROMPT, params, cache_salt="ann", traffic="agent")
    e.step()
    child = e.fork(parent)
    e.abort(parent)
    outputs = run(e)
    assert outputs[child].finish_reason == "stop" and outputs[child].token_ids[-1] == stop
    found = {salt: e.prefix_cache.names(PROMPT, salt)[0] for salt in ("ann", "")}
    assert e.block_manager.match([found["ann"]]) and not e.block_manager.match([found[""]])
    long = e.add(PROMPT + outputs[child].token_ids + [1], GREEDY, cache_salt="ann")
    assert run(e)[long].num_cached_tokens == 12  # what the child alone had written, too


def test_the_first_tokens_of_many_samples_are_drawn_a_thousand_at_a_time(monkeypatch):
    sizes = []
    draw = g.sampling.sample

    def watched(logits, batch, *options, **more):
        sizes.append(len(logits))
        return draw(logits, batch, *options, **more)

    monkeypatch.setattr(g.sampling, "sample", watched)
    e = engine(max_num_seqs=8)
    e.add(PROMPT, g.SamplingParams(n=2500, max_tokens=1, seed=4))
    outputs = run_all(e)
    assert sizes == [1024, 1024, 452] and len(outputs) == 2500
    alone = engine()
    alone.add(PROMPT, g.SamplingParams(max_tokens=1, seed=outputs[2222].seed))
    assert run_all(alone)[0].token_ids == outputs[2222].token_ids
