"""A request changes engines: the tokens and numbers are those of a run that stayed, bit for bit in
invariant mode, wherever it stood when it was moved; nothing is computed again, and nothing is lost
when the target is full or refuses."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
import torch
from grammars import END, VOCAB, calm, regex
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.cluster.handover import admit, export, move
from g2c_serving.cluster.likeness import draws, numerics
from g2c_serving.engine import Engine

SIZES: dict[str, Any] = {"vocab_size": VOCAB, "dim": 16, "hidden": 32, "context": 96}
LM = calm(random_lm(seed=1, **SIZES), 0.5)
NEAR = calm(random_lm(seed=1, **SIZES), 0.45)  # drafts well
WINDOW = calm(random_lm(seed=3, layers=3, window=6, window_layers=(0, 2), **SIZES), 0.5)
PROMPT = random_ids(LM, 19, 3)
PARAMS = g.SamplingParams(max_tokens=24, temperature=0.8, top_p=0.95, seed=11, logprobs=2)


def engine(lm: g.LanguageModel = LM, mode: str = "off", kind=g.Engine, **config) -> Engine:
    sizes = {"num_blocks": 64, "block_size": 4, "batch_invariant": True, **config}
    if mode != "off":
        sizes["speculation"] = g.Speculation(mode, 3, NEAR)
    return kind(lm, g.EngineConfig(**sizes))


def finish(*engines: Engine) -> list[dict[tuple[int, int], g.RequestOutput]]:
    """Step all to their end; the final outputs of each by request and sample."""
    final: list[dict[tuple[int, int], g.RequestOutput]] = [{} for _ in engines]
    while any(e.has_unfinished for e in engines):
        for e, found in zip(engines, final, strict=True):
            for out in e.step():
                if out.finish_reason is not None:
                    found[out.request_id, out.sample_index] = out
            e.block_manager.check()
    for e in engines:
        assert e.block_manager.num_free == e.config.num_blocks
        assert not e.scheduler.arrivals._held and not e.scheduler._parked
    return final


def told(out: g.RequestOutput) -> tuple:
    """All that a user is told."""
    return out.token_ids, out.logprobs, out.text, out.finish_reason, out.message, out.seed


_alone: dict[tuple, list[tuple]] = {}


def alone(prompt=PROMPT, params=PARAMS, lm=LM, mode="off") -> list[tuple]:
    """What a run that stays says, of each sample."""
    key = tuple(prompt), params, id(lm), mode
    if key not in _alone:
        _alone[key] = [told(out) for out in engine(lm, mode).generate([prompt], params)]
    return _alone[key]


# ---- the same tokens, wherever it stood ----


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("mode", ["off", "fixed"])
@pytest.mark.parametrize("lm", [LM, WINDOW], ids=["plain", "window"])
def test_the_same_bits_from_wherever_it_is_moved(lm, mode, steps):
    """Before it was admitted, in the middle of its prompt (8 tokens a step), as it decodes. The
    target has blocks of another size and company, and computes only what the source had not."""
    source = engine(lm, mode, max_num_batched_tokens=8)
    target = engine(lm, mode, block_size=7, num_blocks=40)
    mine = source.add(PROMPT, PARAMS)
    for i in range(2):
        target.add(random_ids(lm, 9, i), g.SamplingParams(max_tokens=30, seed=i))
    target.step()
    for _ in range(steps):
        source.step()
        target.step()
    (request,) = source.unfinished(mine)
    left = len(request.token_ids) - request.num_computed_tokens
    moved = move(source, target, mine)
    before = target.stats.prefill_tokens
    assert not source.has_unfinished and source.block_manager.num_free == 64
    _, final = finish(source, target)
    assert told(final[moved, 0]) == alone(lm=lm, mode=mode)[0]
    assert target.stats.prefill_tokens - before == (left if left > 1 else 0)
    assert left == {0: 19, 1: 11, 2: 3}.get(steps, 1)


@pytest.mark.parametrize("mode", ["off", "fixed"])
@pytest.mark.parametrize("lm", [LM, WINDOW], ids=["plain", "window"])
def test_the_pages_are_the_same_bits(lm, mode):
    """Layer by layer; of window layers the last tokens, all that a next one looks at."""
    source, target = engine(lm, mode), engine(lm, mode, block_size=5)
    mine = source.add(PROMPT, PARAMS)
    for _ in range(6):
        source.step()
    handover = export(source, mine)
    moved = admit(target, handover)
    target._schedule()
    (one,), (other,) = source.unfinished(mine), target.unfinished(moved)
    count, start = one.num_computed_tokens, other.window_start
    assert other.num_computed_tokens == count and start == (count - 6 if lm is WINDOW else 0)
    pools = [(source.cache, target.cache)]
    if mode == "fixed":
        pools.append((source.speculator.drafter.cache, target.speculator.drafter.cache))
    for mine_, theirs in pools:
        for layer in range(mine_.num_layers):
            windowed = mine_ is source.cache and layer in lm.config.window_layers
            first = start if windowed else 0
            both = [
                cache.export_slots(cache.slots(table, first, count), [layer])
                for cache, table in (
                    (mine_, source.block_manager.tables[one.sequence_id]),
                    (theirs, target.block_manager.tables[other.sequence_id]),
                )
            ]
            assert torch.equal(*both) and both[0].abs().sum() > 0
    per_token = source.cache.bytes_per_token // source.cache.num_layers
    layers, few = source.cache.num_layers, len(lm.config.window_layers)
    size = per_token * (count * (layers - few) + 6 * few * (lm is WINDOW))
    if mode == "fixed":
        size += count * source.speculator.drafter.cache.bytes_per_token
    assert handover.num_bytes == size


def test_without_pages_the_tokens_are_computed_again_and_the_same():
    for mode in ("off", "fixed"):
        source, target = engine(mode=mode), engine(mode=mode)
        mine = source.add(PROMPT, PARAMS)
        for _ in range(6):
            source.step()
        known = len(source.unfinished(mine)[0].token_ids)
        moved = move(source, target, mine, pages=False)
        assert told(finish(target)[0][moved, 0]) == alone(mode=mode)[0]
        assert target.stats.prefill_tokens == known - (mode == "fixed")  # see `held_back`


def test_through_a_wire_there_and_back_and_on():
    """As bytes, from engine to engine at every second step."""
    engines = [engine(block_size=size, num_blocks=40) for size in (4, 8, 3)]
    at, mine, final = 0, engines[0].add(PROMPT, PARAMS), {}
    hops = 0
    while engines[at].has_unfinished:
        final = {o.request_id: o for o in engines[at].step()}
        if engines[at].has_unfinished and hops % 2:
            parcel = pickle.loads(pickle.dumps(export(engines[at], mine)))
            engines[at].let_go(mine)
            at = (at + 1) % 3
            mine = admit(engines[at], parcel)
        hops += 1
    assert told(final[mine]) == alone()[0] and hops > 20
    assert all(e.block_manager.num_free == 40 for e in engines)


# ---- what travels along ----


def test_all_samples_of_a_prompt_move_together():
    params = g.SamplingParams(max_tokens=10, n=3, seed=4, logprobs=1)
    for steps in (0, 1, 4):
        source, target = engine(max_num_batched_tokens=8), engine()
        mine = source.add(PROMPT, params)
        for _ in range(steps):
            source.step()
        moved = move(source, target, mine)
        (final,) = finish(target)
        found = [told(final[moved, i]) for i in range(3)]
        assert found == alone(params=params)
        assert len({tuple(f[0]) for f in found}) == 3


@pytest.mark.parametrize("trigger", [(), (ord("a"),)])
@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_a_grammar_is_read_again(mode, trigger):
    """It is in the middle of a word, or still free; its tokens say which."""
    grammar = regex(["abcabcabcabc", "abcabcabcabd", "abccc", "b" * 30], trigger, END)
    params = g.SamplingParams(max_tokens=26, temperature=1.5, seed=5, grammar=grammar, logprobs=0)
    (expected,) = alone(params=params, mode=mode)
    for steps in (0, 1, 3):
        source, target = engine(mode=mode), engine(mode=mode)
        mine = source.add(PROMPT, params)
        for _ in range(steps):
            source.step()
        if not source.has_unfinished:
            continue
        moved = move(source, target, mine)
        assert told(finish(target)[0][moved, 0]) == expected


def test_a_stop_string_that_is_begun_here_ends_there():
    text = alone()[0][2]
    stop = text[5:9]
    params = g.SamplingParams(
        max_tokens=24, temperature=0.8, top_p=0.95, seed=11, logprobs=2, stop=stop
    )
    (expected,) = alone(params=params)
    assert expected[4] == f"the stop string {stop!r}"
    source, target = engine(), engine()
    mine = source.add(PROMPT, params)
    while source.has_unfinished and len(source.unfinished(mine)[0].token_ids) < 19 + 7:
        source.step()
    moved = move(source, target, mine)
    assert told(finish(target)[0][moved, 0]) == expected


def test_a_fork_keeps_what_it_was_given():
    """With fixed speculation its path begins after those tokens."""
    outs = []
    for moves in (False, True):
        source, target = engine(mode="fixed"), engine(mode="fixed")
        parent = source.add(PROMPT, PARAMS)
        for _ in range(3):
            source.step()
        child = source.fork(parent, seed=99)
        source.step()
        if moves:
            child = move(source, target, child)
        outs.append(told(finish(source, target)[moves][child, 0]))
    assert outs[0] == outs[1]


def test_salt_traffic_hits_and_forks_are_remembered():
    source, target = engine(enable_prefix_caching=True), engine(enable_prefix_caching=True)
    source.generate([PROMPT], g.SamplingParams(max_tokens=1), "tenant")
    mine = source.add(PROMPT, PARAMS, "tenant", "agent")
    source.step()
    child = source.fork(mine)
    moved = move(source, target, mine)
    (there,) = target.unfinished(moved)
    assert (there.cache_salt, there.traffic) == ("tenant", "agent")
    assert target.fork(moved) is not None  # the second fork of the first engine's request
    final, others = finish(source, target)
    assert others[moved, 0].num_cached_tokens == 16
    assert final[child, 0].seed != others[moved + 1, 0].seed


def test_the_target_s_cache_finds_what_came_by_wire():
    """Blocks of its own size and names, full ones only."""
    source, target = engine(), engine(block_size=8, enable_prefix_caching=True)
    mine = source.add(PROMPT, PARAMS)
    for _ in range(4):
        source.step()
    move(source, target, mine)
    target.step()
    (out,) = [o for o in finish_one(target, PROMPT) if o.finish_reason]
    assert out.num_cached_tokens == 16
    assert out.token_ids == alone()[0][0]


def finish_one(e: Engine, prompt) -> list[g.RequestOutput]:
    mine, found = e.add(prompt, PARAMS), []
    while e.has_unfinished:
        found += [o for o in e.step() if o.request_id == mine]
    return found


# ---- nothing is lost ----


def test_a_full_target_lets_it_wait_with_its_pages():
    """No seat, or no block: it is queued, and goes on without recomputing once there is room."""
    for changes in ({"max_num_seqs": 1}, {"num_blocks": 15}):
        source, target = engine(), engine(**changes)
        other = target.add(random_ids(LM, 40, 8), g.SamplingParams(max_tokens=20, seed=3))
        mine = source.add(PROMPT, PARAMS)
        for _ in range(5):
            source.step()
            target.step()
        moved = move(source, target, mine)
        for _ in range(5):
            target.step()
        assert target.history[-1].num_waiting == 1 and target.history[-1].num_running == 1
        (final,) = finish(target)
        assert told(final[moved, 0]) == alone()[0] and final[other, 0].finish_reason == "length"
        assert target.stats.preemptions == 0 and target.stats.prefill_tokens == 40


def test_one_that_waits_with_its_pages_can_move_on():
    source, full, free = engine(), engine(max_num_seqs=1), engine()
    full.add(random_ids(LM, 20, 8), g.SamplingParams(max_tokens=30, seed=3))
    full.step()
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
    moved = move(source, full, mine)
    full.step()
    moved = move(full, free, moved)
    _, final = finish(full, free)
    assert told(final[moved, 0]) == alone()[0] and free.stats.prefill_tokens == 0


def test_preempted_at_the_target_it_is_computed_again_and_the_same():
    source, target = engine(), engine(num_blocks=13)
    target.add(random_ids(LM, 8, 8), g.SamplingParams(max_tokens=40, seed=3))
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
        target.step()
    moved = move(source, target, mine)
    (final,) = finish(target)
    assert target.stats.preemptions >= 1 and told(final[moved, 0]) == alone()[0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: engine(num_blocks=10), "may need 43 tokens, more than all 10 blocks of 4"),
        (lambda: engine(WINDOW), "begun by a model other than"),
    ],
)
def test_what_can_never_run_there_stays_here(target, message):
    source = engine()
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
    refuses = target()
    with pytest.raises(ValueError, match=message):
        move(source, refuses, mine)
    assert not refuses.has_unfinished
    assert told(finish(source)[0][mine, 0]) == alone()[0]


def test_a_target_that_dies_on_the_way_leaves_it_here(monkeypatch):
    source, target = engine(), engine()
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()

    def die(samples, pages):
        raise ConnectionError("the machine is gone")

    monkeypatch.setattr(target, "take_on", die)
    with pytest.raises(ConnectionError):
        move(source, target, mine)
    assert told(finish(source)[0][mine, 0]) == alone()[0]


def test_other_numerics_mean_other_bits_so_the_pages_are_left():
    """Exact tokens of a float64 engine do not go on from float32 pages."""
    source, target = engine(), engine(dtype="float64")
    assert numerics(source) != numerics(target)
    assert numerics(source) == numerics(engine(block_size=9, num_blocks=8, max_num_seqs=2))
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
    with pytest.raises(ValueError, match=r"float32, .* the engine with .*float64.* any_draws=True"):
        move(source, target, mine)
    assert not target.has_unfinished
    move(source, target, mine, any_draws=True)
    target.step()
    assert target.stats.prefill_tokens == 24


def unlike() -> dict[str, Engine]:
    """Engines that differ from `engine(mode="fixed")` in one thing that decides a draw."""
    one = {"num_blocks": 64, "block_size": 4, "batch_invariant": True}
    found = {
        name: g.Engine(LM, g.EngineConfig(**one, speculation=g.Speculation(*args)))
        for name, args in {
            "drafts": ("fixed", 1, NEAR),
            "guard": ("fixed", 3, NEAR, 0.0),
            "drafter": ("fixed", 3, LM),
            "mode": ("budgeted", 3, NEAR),
        }.items()
    }
    found["off"] = engine()
    found["ordinary"] = engine(mode="fixed", batch_invariant=False)
    return found


def test_engines_that_draw_otherwise_are_refused():
    """Else the answer would silently be another one."""
    source = engine(mode="fixed")
    mine = source.add(PROMPT, PARAMS)
    source.step()
    for name, target in unlike().items():
        assert draws(source) != draws(target), name
        for pages in (True, False):
            with pytest.raises(ValueError, match="its answer would change"):
                move(source, target, mine, pages)
        assert not target.has_unfinished
    assert draws(source) == draws(engine(mode="fixed", block_size=9, num_blocks=8, max_num_seqs=2))
    moved = move(source, unlike()["drafts"], mine, any_draws=True)
    assert moved == 0 and not source.has_unfinished


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_a_cache_of_four_bits_is_rounded_once(mode):
    """Numbers that were rounded as they were written are moved as they are."""
    lm = calm(random_lm(seed=1, **{**SIZES, "dim": 32}), 0.5)
    kinds = {"kv_cache_dtype": "nvfp4"} if mode == "off" else {}
    source, target, other = engine(lm, mode, **kinds), engine(lm, mode, **kinds), engine(lm, mode)
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
    child = source.fork(mine, seed=PARAMS.seed)
    moved = move(source, target, mine)
    final = finish(source, target)
    assert told(final[1][moved, 0]) == told(final[0][child, 0])
    assert target.stats.prefill_tokens == 0
    assert (numerics(source) == numerics(other)) == (mode == "fixed")


def test_nothing_is_told_of_a_request_that_was_let_go(monkeypatch):
    """An interrupt left an output untold; the engine that has the request now will tell it."""
    source, target = engine(), engine()
    mine = source.add(PROMPT, PARAMS)
    source.step()
    remember = source._remember

    def interrupted(record):
        remember(record)
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "_remember", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.step()
    moved = move(source, target, mine)
    assert not source.has_unfinished and source.step() == []
    assert told(finish(target)[0][moved, 0]) == alone()[0]


def test_who_has_ended_cannot_be_moved():
    source = engine()
    mine = source.add(PROMPT, g.SamplingParams(max_tokens=1))
    source.step()
    with pytest.raises(KeyError, match=f"request_id {mine}"):
        export(source, mine)


# ---- engines that overlap their steps ----


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_between_engines_that_overlap(mode):
    (expected,) = alone(mode=mode)
    with (
        engine(mode=mode, kind=g.AsyncEngine) as source,
        engine(mode=mode, kind=g.AsyncEngine, block_size=6) as target,
    ):
        mine = source.add(PROMPT, PARAMS)
        for _ in range(5):
            source.step()
        for pages in (True, False):
            with pytest.raises(RuntimeError, match=r"call its settle\(\) first"):
                export(source, mine, pages)
        shown = [out.token_ids for out in source.settle()]
        moved = move(source, target, mine)
        assert len(shown[-1]) >= 4 and expected[0][: len(shown[-1])] == shown[-1]
        (final,) = finish(target)
        assert told(final[moved, 0]) == expected
        assert not source.has_unfinished and target.stats.prefill_tokens == 0


# ---- any mix ----


@pytest.mark.parametrize("seed", range(8))
def test_any_mix_of_moves_forks_and_preemptions(seed):
    """Random requests on three engines of random sizes, some of which overlap their steps; the
    right value is each one's run alone."""
    rng = random.Random(seed)
    mode = rng.choice(["off", "fixed"])
    lm = rng.choice([LM, WINDOW])
    engines = [
        engine(
            lm,
            mode,
            rng.choice([g.Engine, g.AsyncEngine]),
            num_blocks=rng.randint(14, 40),
            block_size=rng.choice([3, 4, 5]),
            max_num_seqs=rng.randint(1, 4),
            max_num_batched_tokens=rng.randint(8, 40),
            enable_prefix_caching=rng.random() < 0.5,
        )
        for _ in range(3)
    ]
    asked: dict[tuple[int, int], tuple] = {}  # engine and request id there -> what was asked
    final: dict[tuple[int, int], dict[int, tuple]] = {}

    def take(k: int, outputs: list[g.RequestOutput]) -> None:
        for out in outputs:
            if out.finish_reason is not None:
                final.setdefault((k, out.request_id), {})[out.sample_index] = told(out)
        engines[k].block_manager.check()

    for turn in range(60):
        act = rng.random()
        where = rng.randrange(3)
        live = [key for key in asked if key[0] == where and key[1] in engines[where]._requests]
        if act < 0.2 and turn < 40:
            prompt = tuple(random_ids(lm, rng.randint(1, 24), rng.randint(0, 2)))
            params = g.SamplingParams(
                max_tokens=rng.randint(1, 14), seed=rng.randint(0, 9), n=rng.choice([1, 1, 2]),
                logprobs=0,
            )  # fmt: skip
            asked[where, engines[where].add(prompt, params)] = prompt, params
        elif act < 0.5 and live:
            key, to = rng.choice(live), rng.choice([k for k in range(3) if k != where])
            take(where, engines[where].settle())
            if key[1] not in engines[where]._requests:
                continue
            moved = move(engines[where], engines[to], key[1], pages=rng.random() < 0.8)
            asked[to, moved] = asked.pop(key)
            final[to, moved] = final.pop(key, {})
        else:
            for k, e in enumerate(engines):
                take(k, e.step())
    for k, (e, rest) in enumerate(zip(engines, finish(*engines), strict=True)):
        for (request_id, index), out in rest.items():
            final.setdefault((k, request_id), {})[index] = told(out)
        assert e.block_manager.num_free == e.config.num_blocks
        if isinstance(e, g.AsyncEngine):
            e.close()
    for key, (prompt, params) in asked.items():
        expected = alone(prompt, params, lm, mode)
        assert [final[key][i] for i in range(params.n)] == expected, (seed, key)
