"""The prefix cache on the device: what is reused is what was computed, and only that."""

import random

import pytest
from fakes import GREEDY, FakeLM, continuation, engine, run
from small_models import random_lm

import g2c_serving as g

EIGHT = [3, 1, 4, 1, 5, 9, 2, 6]  # a whole number of blocks of 4


def caching(lm: FakeLM | None = None, **config) -> g.Engine:
    return engine(lm, enable_prefix_caching=True, **config)


def ask(e: g.Engine, prompt: list[int], **options) -> g.RequestOutput:
    request_id = e.add(prompt, GREEDY, **options)
    output = run(e)[request_id]
    assert output.token_ids == continuation(prompt, len(output.token_ids))
    return output


def test_the_same_prompt_of_whole_blocks_twice_still_computes_a_token():
    """nano-vllm 144, vLLM 17999: a hit is capped below the prompt's length, and the chain of hashes
    goes on as it should: the answer's blocks are found by the next turn."""
    e = caching()
    first, second = ask(e, EIGHT), ask(e, EIGHT)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 4)
    next_turn = EIGHT + second.token_ids + [7]
    assert ask(e, next_turn).num_cached_tokens == 12  # 15 tokens were written: three full blocks


def test_a_freed_block_given_to_another_prompt_is_no_hit():
    """nano-vllm 163, vLLM 4764."""
    e = caching(num_blocks=4)
    ask(e, EIGHT)
    ask(e, [8] * 8)
    assert ask(e, EIGHT).num_cached_tokens == 0


def test_the_next_chunk_of_a_preempted_request_is_cut_after_its_cached_tokens_are_known():
    """nano-vllm 211."""
    lm = FakeLM()
    e = caching(lm, num_blocks=7, max_num_batched_tokens=6, max_num_seqs=2)
    chunks = []
    for prompt in ([1] * 10, [2] * 10):
        e.add(prompt, GREEDY)
    outputs = {}
    while e.has_unfinished:
        for output in e.step():
            outputs[output.request_id] = output
        e.block_manager.check()
        chunks += [(row.num_computed, row.num_tokens) for row in e.history[-1].rows]
        assert e.history[-1].num_tokens <= 6
    assert e.stats.preemptions > 0
    assert outputs[0].token_ids == continuation([1] * 10, 8)
    assert outputs[1].token_ids == continuation([2] * 10, 8)
    assert outputs[0].num_cached_tokens == outputs[1].num_cached_tokens == 0  # recompute is no hit
    computed = e.stats.prefill_tokens + e.stats.decode_tokens
    assert computed == sum(size for _, size in chunks) < 2 * (10 + 7) + 12  # most came back


def test_a_block_is_found_only_when_it_is_written():
    """Two equal prompts that arrive together: the second does not read what is still to come."""
    e = caching()
    outputs = {e.add(EIGHT, GREEDY): None for _ in range(2)}
    outputs = run(e)
    assert [o.num_cached_tokens for o in outputs.values()] == [0, 0]
    assert all(o.token_ids == continuation(EIGHT, 8) for o in outputs.values())


def test_blocks_of_a_step_that_failed_are_not_found():
    lm = FakeLM()
    e = caching(lm)

    def fail(batch):
        raise RuntimeError("before anything is written")

    lm.model.on_forward = fail
    e.add(EIGHT, GREEDY)
    run(e)
    lm.model.on_forward = lambda batch: None
    assert ask(e, EIGHT).num_cached_tokens == 0


def test_running_requests_share_a_prefix_by_count():
    e = caching()
    ask(e, EIGHT)
    for tail in (7, 8, 9):
        e.add([*EIGHT, tail], GREEDY)
    e.step()
    tables = list(e.block_manager.tables.values())
    assert all(table[:2] == tables[0][:2] for table in tables)
    assert e.block_manager.ref_counts[tables[0][0]] == 3
    assert e.history[-1].num_tokens == 3
    outputs = run(e)
    assert all(o.num_cached_tokens == 8 for o in outputs.values())
    assert e.stats.cached_tokens == 24


def test_tenants_with_different_salts_never_share():
    """vLLM 12621, 15297."""
    e = caching()
    assert ask(e, EIGHT, cache_salt="one").num_cached_tokens == 0
    assert ask(e, EIGHT, cache_salt="two").num_cached_tokens == 0
    assert ask(e, EIGHT).num_cached_tokens == 0
    for salt in ("one", "two", ""):
        assert ask(e, EIGHT, cache_salt=salt).num_cached_tokens == 4
    one, two = (set(e.prefix_cache.names(EIGHT, salt)) for salt in ("one", "two"))
    assert one.isdisjoint(two)


def test_switched_off_nothing_is_found():
    e = engine()
    ask(e, EIGHT)
    assert ask(e, EIGHT).num_cached_tokens == 0 and e.stats.cached_tokens == 0
    assert not e.block_manager.hash_of


def test_an_aborted_request_leaves_what_it_had_computed():
    e = caching()
    request_id = e.add([*EIGHT, 5], GREEDY)
    e.step()
    e.abort(request_id)
    e.block_manager.check()
    assert ask(e, [*EIGHT, 6]).num_cached_tokens == 8


@pytest.mark.parametrize("options", [{"cache_salt": 3}, {"traffic": "batch"}])
def test_bad_options_are_named(options):
    e = caching()
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        e.add(EIGHT, GREEDY, **options)
    assert not e.has_unfinished


@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": 1},
        {"cache_dir": "somewhere"},  # without the prefix cache
        {"enable_prefix_caching": True, "cache_dir": 3},
        {"cache_bytes": -1},
    ],
)
def test_bad_configurations_are_named(config):
    with pytest.raises(ValueError, match="cache|caching"):
        g.EngineConfig(**config)


@pytest.mark.parametrize("seed", range(20))
def test_any_conversation_gives_the_tokens_of_a_run_without_a_cache(seed):
    """Float64, a small real model, sampled: turns that share beginnings, few blocks, two salts."""
    rng = random.Random(seed)
    lm = random_lm(seed=seed)
    config = {"block_size": rng.choice([2, 4, 8]), "dtype": "float64"}
    cached = g.Engine(lm, g.EngineConfig(num_blocks=24, enable_prefix_caching=True, **config))
    plain = g.Engine(lm, g.EngineConfig(**config))
    turns = [[rng.randrange(300) for _ in range(12)]]
    for turn in range(8):
        count = rng.randint(1, 3)
        prompts = [rng.choice(turns) + [rng.randrange(300)] for _ in range(count)]
        params = [
            g.SamplingParams(seed=rng.randrange(99), n=rng.choice([1, 2]), max_tokens=5)
            for _ in prompts
        ]
        found = cached.generate(prompts, params, cache_salt=rng.choice(["", "b"]))
        expected = plain.generate(prompts, params)
        assert [o.token_ids for o in found] == [o.token_ids for o in expected], turn
        cached.block_manager.check()
        turns += [p[: 40 - 8] for p in prompts]
        turns += [(o.prompt_token_ids + o.token_ids)[:40] for o in found]
    assert cached.stats.cached_tokens > 0
    done = cached.stats.cached_tokens + cached.stats.prefill_tokens
    assert done >= plain.stats.prefill_tokens  # what was not computed was found


def test_what_a_failed_request_wrote_is_not_found():
    """Logits that are not numbers: the blocks it wrote may hold the same."""
    lm = FakeLM()
    e = caching(lm)
    lm.model.broken = {9}
    for last in ([9], [1, 1, 1, 1, 9]):  # in one step, and after a block was named
        e.add(EIGHT + last, GREEDY)
        assert run(e).popitem()[1].finish_reason == "error"
        assert not e.block_manager.hash_of
    lm.model.broken = set()
    assert ask(e, EIGHT + [9]).num_cached_tokens == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interrupt_in_preparing_a_step_changes_no_token(count):
    """While blocks are copied, `count` times: the step is scheduled again."""
    e = caching()
    parent = e.add([*EIGHT, 5], GREEDY)
    e.step()
    child = e.fork(parent)
    copy = e.cache.copy

    def fail(pairs):
        nonlocal count
        count -= 1
        if not count:
            e.cache.copy = copy
        raise KeyboardInterrupt

    e.cache.copy = fail
    for _ in range(count):
        with pytest.raises(KeyboardInterrupt):
            e.step()
    outputs = run(e)
    expected = continuation([*EIGHT, 5], 8)
    assert outputs[parent].token_ids == outputs[child].token_ids == expected
