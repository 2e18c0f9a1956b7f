"""The tiers below the device: blocks on disk, window state in host memory, through the engine."""

import random
from contextlib import nullcontext

import pytest
import torch
from fakes import GREEDY, FakeLM, continuation, engine, run
from small_models import random_lm

import g2c_serving as g
from g2c_serving.schedule.block_files import BlockFiles
from g2c_serving.schedule.hit_rule import hit
from g2c_serving.schedule.window_states import WindowStates

EIGHT = [3, 1, 4, 1, 5, 9, 2, 6]
WINDOW = 6


def on_disk(folder, lm=None, cache_bytes=1 << 20, **config) -> g.Engine:
    return engine(
        lm, enable_prefix_caching=True, cache_dir=folder, cache_bytes=cache_bytes, **config
    )


def ask(e: g.Engine, prompt: list[int], **options) -> g.RequestOutput:
    request_id = e.add(prompt, GREEDY, **options)
    output = run(e)[request_id]
    assert output.token_ids == continuation(prompt, len(output.token_ids))
    return output


def test_another_engine_finds_what_the_first_has_left(tmp_path):
    first = ask(on_disk(tmp_path), EIGHT)
    later = on_disk(tmp_path)
    prompt = EIGHT + first.token_ids + [7]
    names = later.prefix_cache.names(prompt)
    assert later.prefix_cache.disk.match(names) == 3  # known before any engine is chosen
    assert ask(later, prompt).num_cached_tokens == 12
    assert later.history[0].num_tokens == len(prompt) - 12
    assert ask(later, prompt).num_cached_tokens == 16  # from the device now


def test_blocks_of_the_device_come_before_those_of_the_disk(tmp_path):
    one, other = on_disk(tmp_path), on_disk(tmp_path)
    ask(one, EIGHT + [1])
    longer = ask(other, EIGHT + [1, 2, 3, 4, 5])
    assert longer.num_cached_tokens == 8
    assert ask(one, EIGHT + [1, 2, 3, 4, 5]).num_cached_tokens == 12  # 8 shared, 4 loaded


def test_tenants_and_models_do_not_share_the_disk(tmp_path):
    ask(on_disk(tmp_path), EIGHT, cache_salt="one")
    assert ask(on_disk(tmp_path), EIGHT, cache_salt="two").num_cached_tokens == 0
    assert ask(on_disk(tmp_path, FakeLM(fingerprint="b")), EIGHT).num_cached_tokens == 0
    assert ask(on_disk(tmp_path, block_size=2), EIGHT).num_cached_tokens == 0
    assert ask(on_disk(tmp_path), EIGHT, cache_salt="one").num_cached_tokens == 4


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_block_ends_the_hit_before_it(tmp_path, at):
    prompt = EIGHT + [1, 2, 3, 4, 5]
    e = on_disk(tmp_path)
    ask(e, prompt)
    name = e.prefix_cache.names(prompt)[at]
    (file,) = tmp_path.rglob(f"*{name.hex()}*")
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    assert ask(on_disk(tmp_path), prompt).num_cached_tokens == 4 * at
    assert ask(on_disk(tmp_path), prompt).num_cached_tokens == 12  # written anew


@pytest.mark.parametrize("extra", [-1, 1, -8, 8, 10_000])
def test_a_block_of_another_length_harms_nobody_though_its_checksum_is_right(tmp_path, extra):
    """Forged, or written by a program with another layout: dropped, computed again, and kept."""
    prompt = EIGHT + [1, 2, 3, 4, 5]
    e = on_disk(tmp_path)
    ask(e, prompt)
    name, files = e.prefix_cache.names(prompt)[1], BlockFiles(tmp_path / "v1")
    whole = files.read(name, 10**6)
    files.write_part(name, "0f", memoryview((whole + bytes(10_000))[: len(whole) + extra]))
    assert files.publish(name, "0f")
    other = on_disk(tmp_path)
    assert ask(other, prompt).num_cached_tokens == 4
    assert files.read(name, 10**6) == whole, "written anew"
    assert ask(on_disk(tmp_path), prompt).num_cached_tokens == 12


@pytest.mark.parametrize("cache_bytes", [0, 10])
def test_a_capacity_below_one_block_leaves_the_engine_without_the_tier(tmp_path, cache_bytes):
    e = on_disk(tmp_path, cache_bytes=cache_bytes)
    ask(e, EIGHT)
    assert "cache_bytes" in e.prefix_cache.disk.problem
    assert ask(on_disk(tmp_path, cache_bytes=cache_bytes), EIGHT).num_cached_tokens == 0


def test_a_folder_that_cannot_be_made_leaves_the_engine_without_the_tier(tmp_path):
    (tmp_path / "file").write_text("in the way")
    e = on_disk(tmp_path / "file" / "cache")
    assert ask(e, EIGHT).num_cached_tokens == 0
    assert str(tmp_path / "file") in e.prefix_cache.disk.problem
    assert ask(e, EIGHT).num_cached_tokens == 4  # the device goes on


@pytest.mark.parametrize("seed", range(12))
def test_tiers_and_eviction_do_not_change_a_token(tmp_path, seed):
    """Float64, a small real model, sampled: three engines over one folder that is too small."""
    rng = random.Random(seed)
    lm = random_lm(seed=seed)
    block = 4 * 2 * 2 * 32 * 8  # tokens, keys and values, layers, width, bytes
    engines = [
        g.Engine(
            lm,
            g.EngineConfig(
                num_blocks=rng.choice([24, 40]),
                block_size=4,
                dtype="float64",
                enable_prefix_caching=True,
                cache_dir=tmp_path,
                cache_bytes=rng.choice([5, 20]) * (block + 200),
            ),
        )
        for _ in range(3)
    ]
    plain = g.Engine(lm, g.EngineConfig(block_size=4, dtype="float64"))
    turns = [[rng.randrange(300) for _ in range(12)]]
    for _ in range(12):
        e = rng.choice(engines)
        prompts = [rng.choice(turns) + [rng.randrange(300)] for _ in range(rng.randint(1, 3))]
        params = g.SamplingParams(seed=rng.randrange(99), n=rng.choice([1, 2]), max_tokens=5)
        found = e.generate(prompts, params, traffic=rng.choice(["agent", "chat"]))
        expected = plain.generate(prompts, params)
        assert [o.token_ids for o in found] == [o.token_ids for o in expected]
        e.block_manager.check()
        turns += [(o.prompt_token_ids + o.token_ids)[:40] for o in found]
    assert sum(e.stats.cached_tokens for e in engines) > 0
    assert all(e.prefix_cache.disk.problem is None for e in engines)


# a model with window layers


def windowed(folder, lm, **config) -> g.Engine:
    return g.Engine(
        lm,
        g.EngineConfig(
            block_size=4,
            dtype="float64",
            enable_prefix_caching=True,
            cache_dir=folder,
            cache_bytes=1 << 24,
            **config,
        ),
    )


@pytest.fixture
def window_lm():
    return random_lm(layers=3, window=WINDOW, window_layers=(0, 1))


PROMPT = [(7 * i) % 300 for i in range(30)]
TURN = [11, 12, 13]
FEW = g.SamplingParams(temperature=0, max_tokens=6)


def computed(e: g.Engine) -> int:
    return e.stats.prefill_tokens


def two_turns(e: g.Engine, other: g.Engine) -> tuple[list[int], list[int], g.RequestOutput]:
    """A conversation whose second turn goes to `other`; what a run without a cache says to it."""
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    plain = g.Engine(e.lm, g.EngineConfig(block_size=4, dtype="float64"))
    expected = plain.generate([second], FEW)[0].token_ids
    return second, expected, other.generate([second], FEW)[0]


def test_a_hit_on_the_device_is_exact_and_needs_no_state(tmp_path, window_lm):
    e = windowed(tmp_path, window_lm)
    second, expected, output = two_turns(e, e)
    assert output.token_ids == expected
    assert output.num_cached_tokens == hit(len(second), 4, WINDOW, 1).reused == 32


def test_with_its_window_state_a_hit_from_disk_is_exact(tmp_path, window_lm):
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    other.prefix_cache.windows = e.prefix_cache.windows  # one machine's directory
    second, expected, output = two_turns(e, other)
    assert output.token_ids == expected
    assert output.num_cached_tokens == 32 and computed(other) == len(second) - 32
    third = second + output.token_ids + TURN
    assert other.generate([third], FEW)[0].num_cached_tokens == 40  # and its own blocks are kept


def test_without_its_window_state_the_hit_backs_off_a_block_and_replays(tmp_path, window_lm):
    """Brief, section 2: one block less, and the last `window` tokens of the hit again."""
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    second, _, output = two_turns(e, other)
    rule = hit(len(second), 4, WINDOW, 1, state_held=False)
    assert (rule.reused, rule.replayed) == (28, WINDOW)
    assert output.num_cached_tokens == 28
    assert computed(other) == rule.computed == WINDOW + len(second) - 28
    other.block_manager.check()


def test_what_follows_a_replay_enters_no_tier(tmp_path, window_lm):
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    second, _, _ = two_turns(e, other)
    before = other.prefix_cache.disk.info().blocks
    assert before == e.prefix_cache.disk.info().blocks == (len(PROMPT) + 5) // 4
    assert not other.block_manager.hash_of and not other.prefix_cache.windows.num_bytes
    # asked again it is found as it was, so the global layers' blocks were not touched
    again = windowed(tmp_path, window_lm)
    again.prefix_cache.windows = e.prefix_cache.windows
    plain = g.Engine(window_lm, g.EngineConfig(block_size=4, dtype="float64"))
    exact = plain.generate([second], FEW)[0].token_ids
    assert again.generate([second], FEW)[0].token_ids == exact


def test_a_short_turn_still_finds_its_window_state(tmp_path, window_lm):
    """The window and the slack cut the hit below the last block that the first turn left."""
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    other.prefix_cache.windows = e.prefix_cache.windows
    (first,) = e.generate([PROMPT], FEW)
    for extra in range(12):
        second = (PROMPT + first.token_ids)[:35] + [100 + extra] * extra
        (output,) = other.generate([second], g.SamplingParams(temperature=0, max_tokens=1))
        rule = hit(len(second), 4, WINDOW, 1, cached=(len(PROMPT) + 5) // 4 * 4)
        assert output.num_cached_tokens == rule.reused
        assert other.stats.prefill_tokens == rule.computed
        other.stats.prefill_tokens = 0


def test_forks_and_preemption_after_a_replay(tmp_path, window_lm):
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm, num_blocks=24)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    outputs = other.generate([second] * 4, g.SamplingParams(temperature=0, n=3, max_tokens=12))
    other.block_manager.check()
    assert other.stats.preemptions > 0
    assert all(len(o.token_ids) == 12 for o in outputs)


def test_host_memory_holds_the_states_used_last():
    states = WindowStates(capacity_bytes=3 * 40)
    for i in range(3):
        states.put(bytes([i]), torch.full((10,), float(i)))
    assert states.get(bytes([0]))[0] == 0
    states.put(bytes([3]), torch.full((10,), 3.0))
    assert [bytes([i]) in states for i in range(4)] == [True, False, True, True]
    assert states.num_bytes == 120


def test_a_replay_leaves_the_loaded_blocks_of_the_global_layers_as_they_were(tmp_path, window_lm):
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    other.add(second, FEW)
    other.step()
    (table,) = other.block_manager.tables.values()
    loaded = other.prefix_cache.disk.read(other.prefix_cache.names(second)[:7])
    assert other.cache.export_blocks(table[:7], other.prefix_cache.global_layers) == loaded


@pytest.mark.parametrize("tokens_a_step", [2, 4, 5])
def test_a_fork_in_the_middle_of_a_replay_reads_no_empty_block(tmp_path, window_lm, tokens_a_step):
    """The child would share the blocks up to where its parent is, and the replay has not written
    the global layers of those behind: it begins anew."""
    e = windowed(tmp_path, window_lm)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    plain = g.Engine(window_lm, g.EngineConfig(block_size=4, dtype="float64"))
    expected = plain.generate([second], FEW)[0].token_ids
    other = windowed(tmp_path, window_lm, max_num_batched_tokens=tokens_a_step)
    parent = other.add(second, FEW)
    other.step()
    child = other.fork(parent)
    assert child not in [r.request_id for r in other.scheduler.running]
    other.prefix_cache.disk, other.prefix_cache.enabled = None, False  # the child computes it all
    outputs = run(other)
    assert outputs[child].token_ids == expected
    assert other.block_manager.num_free == other.config.num_blocks


def test_a_preempted_request_forgets_its_replay(tmp_path, window_lm):
    """After it the whole context is computed again, and exact."""
    e = windowed(tmp_path, window_lm)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    other = windowed(tmp_path, window_lm)
    other.add(second, FEW)
    other.step()
    (request,) = other.scheduler.running
    assert not request.is_exact and request.window_start == 22
    other.prefix_cache.disk = None
    other.scheduler._preempt(request)
    assert request.is_exact and request.window_start == request.num_computed_tokens == 0
    generated = list(request.token_ids)
    other.step()
    plain = g.Engine(window_lm, g.EngineConfig(block_size=4, dtype="float64"))
    (output,) = plain.generate([generated], g.SamplingParams(temperature=0, max_tokens=1))
    assert request.token_ids == generated + output.token_ids


def test_a_window_state_is_kept_only_where_all_of_it_is_there(tmp_path, window_lm):
    """A request that was restored at one block end knows nothing of the window before it."""
    e, other = windowed(tmp_path, window_lm), windowed(tmp_path, window_lm)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    name = e.prefix_cache.names(second)[7]
    other.prefix_cache.windows.put(name, e.prefix_cache.windows.get(name))  # this one alone
    other.generate([second], g.SamplingParams(temperature=0, max_tokens=1))
    exact = windowed(tmp_path / "another", window_lm)
    exact.generate([second], FEW)
    kept, names = other.prefix_cache.windows, other.prefix_cache.names(second)
    assert [n in kept for n in names] == [False] * 7 + [True, True]
    expected = exact.prefix_cache.windows.get(names[8])
    torch.testing.assert_close(kept.get(names[8]), expected, rtol=0, atol=1e-10)


def test_blocks_of_the_device_are_taken_where_those_of_the_disk_find_no_room(tmp_path, window_lm):
    """A longer hit on disk needs blocks of the request's own; here only shared ones make room."""
    e = windowed(tmp_path, window_lm)
    (first,) = e.generate([PROMPT], FEW)
    second = PROMPT + first.token_ids + TURN
    other = windowed(tmp_path, window_lm, num_blocks=14)
    other.prefix_cache.windows = e.prefix_cache.windows
    disk, other.prefix_cache.disk = other.prefix_cache.disk, None
    running = other.add([*PROMPT[:24], 9], g.SamplingParams(temperature=0, max_tokens=20))
    other.step()
    other.prefix_cache.disk = disk
    late = other.add(second, FEW)
    outputs = run(other)
    plain = g.Engine(window_lm, g.EngineConfig(block_size=4, dtype="float64"))
    assert outputs[late].token_ids == plain.generate([second], FEW)[0].token_ids
    assert outputs[late].num_cached_tokens == 24
    assert len(outputs[running].token_ids) == 20


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_load_that_fails_once_is_done_again(tmp_path, error):
    """At once; after an interrupt, in the next step."""
    first = ask(on_disk(tmp_path), EIGHT)
    e = on_disk(tmp_path)
    load, prompt = e.cache.import_blocks, [*EIGHT, *first.token_ids, 7]

    def fail(*args):
        e.cache.import_blocks = load
        raise error("no room for the pages")

    e.cache.import_blocks = fail
    request_id = e.add(prompt, GREEDY)
    with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
        e.step()
    output = run(e)[request_id]
    assert output.num_cached_tokens == 12 and output.token_ids == continuation(prompt, 8)


def test_a_request_that_is_aborted_before_its_load_is_done_again(tmp_path):
    ask(on_disk(tmp_path), EIGHT)
    e = on_disk(tmp_path)
    load = e.cache.import_blocks

    def fail(*args):
        e.cache.import_blocks = load
        raise KeyboardInterrupt

    e.cache.import_blocks = fail
    request_id = e.add([*EIGHT, 7], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        e.step()
    e.abort(request_id)
    e.block_manager.check()
    assert ask(e, [*EIGHT, 7]).num_cached_tokens == 8


def test_a_model_of_windows_alone_needs_no_disk(tmp_path):
    lm = random_lm(layers=2, window=4, window_layers=(0, 1))
    with pytest.raises(ValueError, match="cache_dir.*window only"):
        windowed(tmp_path, lm)
    config = g.EngineConfig(block_size=4, dtype="float64", enable_prefix_caching=True)
    e, plain = g.Engine(lm, config), g.Engine(lm, g.EngineConfig(block_size=4, dtype="float64"))
    expected = plain.generate([PROMPT], FEW)[0].token_ids
    assert [e.generate([PROMPT], FEW)[0].token_ids for _ in range(2)] == [expected] * 2
    assert e.stats.cached_tokens > 0


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    ask(on_disk("~/kv"), EIGHT)
    assert list((tmp_path / "kv").rglob("*.kv"))
    with pytest.raises(ValueError, match="cache_dir"):
        g.EngineConfig(enable_prefix_caching=True, cache_dir="")
