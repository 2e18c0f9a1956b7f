"""Engines that stop, die, or are two pools: every request ends once, with the tokens of a run
alone, and what a user was told never changes."""

from __future__ import annotations

import pytest
from small_models import random_ids
from test_handover import LM, WINDOW, alone, engine, told, unlike

import g2c_serving as g
from g2c_serving.cluster.failover import GRACE_S, Failover
from g2c_serving.cluster.fleet import Fleet
from g2c_serving.cluster.two_pools import TwoPools
from g2c_serving.lab.published import value

ASKED = [
    (
        tuple(random_ids(LM, 5 + 3 * i, i)),
        g.SamplingParams(max_tokens=8 + 2 * i, temperature=0.9, seed=i, n=1 + (i == 2), logprobs=1),
    )
    for i in range(6)
]


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def add_all(fleet: Fleet) -> dict[int, tuple]:
    return {fleet.add(prompt, params): (prompt, params) for prompt, params in ASKED}


def run(fleet: Fleet, asked, lm=LM, mode="off", at=lambda step: None) -> None:
    """Step to the end; `at(step)` happens before each. Checks what must hold of every run."""
    engines = dict(fleet.engines)
    last: dict[tuple[int, int], g.RequestOutput] = {}
    ended: dict[tuple[int, int], tuple] = {}
    for step in range(300):
        if not fleet.has_unfinished:
            break
        at(step)
        for out in fleet.step():
            key = out.request_id, out.sample_index
            assert key not in ended, "told of after its end"
            if key in last:  # what was told stays
                before = last[key].token_ids
                assert out.token_ids[: len(before)] == before
            last[key] = out
            if out.finish_reason is not None:
                ended[key] = told(out)
        for name, e in fleet.engines.items():
            engines[name] = e
            e.block_manager.check()
    assert not fleet.has_unfinished
    expected = {
        (i, k): found
        for i, (prompt, params) in asked.items()
        for k, found in enumerate(alone(prompt, params, lm, mode))
    }
    assert ended == expected
    for name, e in engines.items():
        if name in fleet.engines or not any(
            n.what == "dies" and n.engine == name for n in fleet.log
        ):
            assert not e.has_unfinished and e.block_manager.num_free == e.config.num_blocks


def what(fleet: Fleet) -> list[str]:
    return [note.what for note in fleet.log if note.what != "begins"]


# ---- asked to stop ----


@pytest.mark.parametrize("mode", ["off", "fixed"])
@pytest.mark.parametrize("lm", [LM, WINDOW], ids=["plain", "window"])
def test_after_its_grace_an_engine_forwards_all_it_has(lm, mode):
    clock = Clock()
    fleet = Failover({name: engine(lm, mode, num_blocks=90) for name in "abc"}, clock)
    asked = add_all(fleet)
    assert [len(fleet.on(name)) for name in "abc"] == [2, 2, 2]

    def at(step: int) -> None:
        clock.now = float(step)
        if step == 1:
            fleet.stop("a", 1.0)
        if step > 2:
            assert "a" not in fleet.engines

    run(fleet, asked, lm, mode, at)
    moves = [note for note in fleet.log if note.what == "moves"]
    assert moves and all(note.step == 2 and note.num_bytes > 0 for note in moves)
    # the tokens that the prompts have, and not one more: nothing was computed again
    others = sum(e.stats.prefill_tokens for e in fleet.engines.values())
    on_a = len(ASKED[0][0]) + len(ASKED[3][0])
    assert others == sum(len(prompt) for prompt, _ in ASKED) - on_a


def test_what_ends_within_the_grace_is_not_moved():
    """And nothing new comes; the engine leaves as soon as it is idle."""
    clock = Clock()
    fleet = Failover({"a": engine(), "b": engine()}, clock)
    asked = add_all(fleet)
    mine = fleet.on("a")
    fleet.stop("a")
    assert fleet.stopping["a"] == GRACE_S == 60 * value("fault.grace")
    prompt, params = ASKED[0]
    late = fleet.add(prompt, params)
    asked[late] = ASKED[0]
    assert fleet.tickets[late].engine == "b"
    run(fleet, asked)
    assert what(fleet) == ["stops", "leaves"] and len(mine) == 3


def test_a_full_target_queues_them_with_their_caches():
    clock = Clock()
    fleet = Failover({"a": engine(), "b": engine(max_num_seqs=1)}, clock)
    asked = add_all(fleet)

    def at(step: int) -> None:
        if step == 3:
            fleet.stop("a", 0.0)
        if step == 4:
            assert fleet.engines["b"].history[-1].num_running == 1

    run(fleet, asked, at=at)
    assert what(fleet)[0] == "stops" and "leaves" in what(fleet)
    assert fleet.engines["b"].stats.preemptions == 0


def test_what_nobody_could_ever_run_stays_until_it_has_ended():
    fleet = Failover({"a": engine(), "b": engine(num_blocks=4)}, Clock())
    prompt = tuple(random_ids(LM, 20, 1))
    params = g.SamplingParams(max_tokens=8, seed=1, logprobs=1)
    asked = {fleet.add(prompt, params): (prompt, params)}
    fleet.stop("a", 0.0)
    run(fleet, asked)
    assert what(fleet) == ["stops", "stays", "leaves"]
    assert list(fleet.engines) == ["b"]


def test_the_last_engine_that_stops_keeps_what_it_has():
    fleet = Failover({"a": engine()}, Clock())
    asked = add_all(fleet)
    fleet.stop("a", 0.0)
    with pytest.raises(RuntimeError, match="no engine takes requests: attach one"):
        fleet.add([1], g.SamplingParams(max_tokens=1))
    run(fleet, asked)
    assert not fleet.engines


# ---- dead ----


def kill(e: g.Engine, monkeypatch) -> None:
    def die(*_: object) -> None:
        raise ConnectionError("the machine is gone")

    for name in ("step", "settle", "let_go", "take_on", "unfinished"):
        monkeypatch.setattr(e, name, die)


@pytest.mark.parametrize("mode", ["off", "fixed"])
@pytest.mark.parametrize("step", [0, 1, 3, 5])
def test_an_engine_that_dies_loses_its_cache_and_no_token(mode, step, monkeypatch):
    fleet = Failover({name: engine(LM, mode, num_blocks=90) for name in "ab"}, Clock())
    asked = add_all(fleet)
    lost: list[int] = []

    def at(now: int) -> None:
        if now == step:
            lost.extend(fleet.on("a"))
            kill(fleet.engines["a"], monkeypatch)

    run(fleet, asked, LM, mode, at)
    assert what(fleet) == ["waits"] * len(lost) + ["dies"] + ["restarts"] * len(lost)
    assert len(lost) >= 1 and list(fleet.engines) == ["b"]


def test_a_target_that_dies_as_it_is_handed_a_request(monkeypatch):
    """The source tries the next one, and what the dead one had goes on from the tickets."""
    fleet = Failover({name: engine(num_blocks=90) for name in "abc"}, Clock())
    asked = add_all(fleet)

    def at(step: int) -> None:
        if step == 3:
            fleet.stop("a", 0.0)
            target = fleet.engines[fleet._candidates()[0]]
            monkeypatch.setattr(target, "take_on", lambda *_: 1 / 0)

    run(fleet, asked, at=at)
    assert {"dies", "moves", "restarts", "leaves"} <= set(what(fleet))
    assert len(fleet.engines) == 1


def test_an_engine_that_dies_in_its_grace(monkeypatch):
    """In the middle of forwarding: what it has handed over is at the target once."""
    for name in ("let_go", "unfinished"):
        fleet = Failover({name: engine(num_blocks=90) for name in "ab"}, Clock())
        asked = add_all(fleet)
        source = fleet.engines["a"]

        def at(step: int, fleet=fleet, source=source, name=name) -> None:
            if step == 3:
                fleet.stop("a", 0.0)
                monkeypatch.setattr(source, name, lambda *_: 1 / 0)

        run(fleet, asked, at=at)
        assert "dies" in what(fleet) and "restarts" in what(fleet)


def test_with_no_engine_left_they_wait_for_one(monkeypatch):
    fleet = Failover({"a": engine()}, Clock())
    asked = add_all(fleet)
    for _ in range(3):
        fleet.step()
    kill(fleet.engines["a"], monkeypatch)
    with pytest.raises(RuntimeError, match="6 requests wait and no engine is left: attach one"):
        fleet.step()
    fleet.attach("b", engine(block_size=8))
    run(fleet, asked)


def test_an_engine_that_overlaps_its_steps_stops_and_another_dies(monkeypatch):
    clock = Clock()
    with engine(kind=g.AsyncEngine) as a, engine(kind=g.AsyncEngine) as b:
        fleet = Failover({"a": a, "b": b, "c": engine(num_blocks=90)}, clock)
        asked = add_all(fleet)

        def at(step: int) -> None:
            if step == 4:
                fleet.stop("a", 0.0)
            if step == 8:
                monkeypatch.setattr(b, "step", lambda: 1 / 0)

        run(fleet, asked, at=at)
        assert list(fleet.engines) == ["c"] and "moves" in what(fleet)


# ---- nothing that was said is lost ----

SHORT, LONG = ([1, 2, 3], g.SamplingParams(max_tokens=1)), ([4, 5], g.SamplingParams(max_tokens=9))


def gone(*_: object, **__: object) -> None:
    raise ConnectionError("the machine is gone")


def rest(fleet: Fleet) -> list[int]:
    """Step to the end: who ended, in order."""
    ended = []
    for _ in range(100):
        if not fleet.has_unfinished:
            return ended
        ended += [out.request_id for out in fleet.step() if out.finish_reason is not None]
    raise AssertionError("it never ends")


def test_an_answer_that_ends_as_the_last_engine_dies(monkeypatch):
    fleet = Failover({"a": engine(), "b": engine()}, Clock())
    short, long = fleet.add(*SHORT), fleet.add(*LONG)
    fleet.stop("a")
    monkeypatch.setattr(fleet.engines["b"], "step", gone)
    assert [out.request_id for out in fleet.step()] == [short]
    with pytest.raises(RuntimeError, match="1 requests wait and no engine is left"):
        fleet.step()
    fleet.attach("c", engine())
    assert rest(fleet) == [long]


def test_an_answer_that_ends_as_its_engine_settles_and_dies(monkeypatch):
    """It overlaps its steps: the end comes to light as the others are about to be forwarded."""
    with engine(kind=g.AsyncEngine) as a:
        fleet = Failover({"a": a, "b": engine()}, Clock())
        first = fleet.add([1, 2], g.SamplingParams(max_tokens=4, seed=1, ignore_eos=True))
        others = [fleet.add([i] * 9, LONG[1]) for i in (3, 4)]
        while fleet.tickets[first].num_tokens < 3:
            fleet.step()
        fleet.stop("a", 0.0)
        monkeypatch.setattr(a.pages, "export_slots", gone)
        assert sorted(rest(fleet)) == [first, *others]
        assert list(fleet.engines) == ["b"] and "restarts" in what(fleet)


@pytest.mark.parametrize("make", [lambda a, b: Fleet({"a": a, "b": b}), TwoPools])
def test_an_engine_that_raises_delays_what_another_said(make, monkeypatch):
    a, b = engine(), engine()
    fleet = make(a, b)
    short, long = fleet.add(*SHORT), fleet.add(*LONG)
    fails = b if fleet.tickets[long].engine == "b" else a
    with monkeypatch.context() as patch:
        patch.setattr(*((b, "step") if fails is b else (a.pages, "export_slots")), gone)
        with pytest.raises(ConnectionError):
            fleet.step()
    assert rest(fleet) == [short, long]


def test_what_no_engine_that_is_left_can_run_ends_with_an_error(monkeypatch):
    """And says what would help."""
    fleet = Failover({"a": engine(), "b": engine(num_blocks=4)}, Clock())
    mine = fleet.add([5] * 20, g.SamplingParams(max_tokens=8, seed=1, n=2, ignore_eos=True))
    outputs = [*fleet.step(), *fleet.step()]
    told_of = {out.sample_index: out.token_ids for out in outputs}
    monkeypatch.setattr(fleet.engines["a"], "step", gone)
    (one, two) = fleet.step()
    assert (one.request_id, one.finish_reason, two.finish_reason) == (mine, "error", "error")
    assert {out.sample_index: out.token_ids for out in (one, two)} == told_of
    assert "may need 28 tokens: b holds 16" in one.message and "num_blocks" in one.message
    assert not fleet.has_unfinished and what(fleet) == ["waits", "dies", "fails"]


def test_a_prompt_goes_where_it_has_room():
    """Also if its pool is not the emptiest; and if none is large enough, to the largest."""
    fleet = Fleet({"small": engine(num_blocks=6), "big": engine()})
    fits = fleet.add([5] * 16, g.SamplingParams(max_tokens=8))
    for prompt, tokens in (([5] * 40, 8), ([5] * 16, 9), ([5] * 16, 80)):
        one = fleet.add(prompt, g.SamplingParams(max_tokens=tokens))
        assert fleet.tickets[one].engine == "big"
    assert fleet.tickets[fits].engine == "small"
    tiny = Fleet({"less": engine(num_blocks=2), "more": engine(num_blocks=5)})
    one = tiny.add([5] * 16, g.SamplingParams(max_tokens=8))
    assert tiny.tickets[one].engine == "more"


def test_the_pages_of_a_request_that_stays_are_not_copied(monkeypatch):
    fleet = Failover({"a": engine(), "b": engine(num_blocks=4)}, Clock())
    fleet.add([5] * 20, g.SamplingParams(max_tokens=8, ignore_eos=True))
    fleet.step()
    monkeypatch.setattr(fleet.engines["a"].pages, "export_slots", gone)
    fleet.stop("a", 0.0)
    assert len(rest(fleet)) == 1 and what(fleet) == ["stops", "stays", "leaves"]


def test_who_is_asked_to_stop_twice_stops_at_the_earlier_time():
    clock = Clock()
    fleet = Failover({"a": engine(), "b": engine()}, clock)
    fleet.stop("a", 10.0)
    clock.now = 9.0
    fleet.stop("a", 10.0)
    assert fleet.stopping["a"] == 10.0
    fleet.stop("a", 0.5)
    assert fleet.stopping["a"] == 9.5


def test_engines_of_a_fleet_are_alike():
    """In all that decides a draw: else an answer would hang on the engine that writes it."""
    one = engine(mode="fixed")
    fleet = Fleet({"a": one})
    for name, other in unlike().items():
        with pytest.raises(ValueError, match="answers would hang on the engine"):
            fleet.attach(name, other)
    with pytest.raises(ValueError, match="other weights than the fleet"):
        fleet.attach("b", engine(WINDOW))
    with pytest.raises(ValueError, match="engine 'b' is 'a' already"):
        fleet.attach("b", one)
    with pytest.raises(ValueError, match="engine 'b' is 'a' already"):
        Fleet({"a": one, "b": one})
    with pytest.raises(ValueError, match="answers would hang on the engine"):
        Fleet({"a": one, "b": engine()})
    with pytest.raises(TypeError, match="engine 'c' is 3: pass an Engine"):
        fleet.attach("c", 3)
    assert list(fleet.engines) == ["a"]


def test_bad_input():
    with pytest.raises(ValueError, match="engines={} is empty"):
        Failover({})
    fleet = Failover({"a": engine()})
    with pytest.raises(KeyError, match="'b' is no engine here: a"):
        fleet.stop("b")
    with pytest.raises(ValueError, match=r"grace_s=-1.0 must be 0 seconds or more"):
        fleet.stop("a", -1)
    with pytest.raises(ValueError, match="name='a' is taken"):
        fleet.attach("a", engine())
    with pytest.raises(ValueError, match="prompt is empty"):
        fleet.add([])
    assert not fleet.has_unfinished


# ---- two pools ----


@pytest.mark.parametrize("mode", ["off", "fixed"])
@pytest.mark.parametrize("lm", [LM, WINDOW], ids=["plain", "window"])
def test_prefill_here_and_decode_there(lm, mode):
    """Each prompt is computed once, in the one engine; all but the first token in the other."""
    pools = TwoPools(engine(lm, mode, num_blocks=90), engine(lm, mode, num_blocks=90, block_size=6))
    asked = add_all(pools)
    run(pools, asked, lm, mode)
    prefill, decode = pools.engines.values()
    assert prefill.stats.prefill_tokens == sum(len(prompt) for prompt, _ in ASKED)
    assert prefill.stats.decode_tokens == decode.stats.prefill_tokens == 0
    assert pools.shipped_bytes == sum(note.num_bytes for note in pools.log) > 0
    assert sum(note.what == "moves" for note in pools.log) == len(ASKED)
    if lm is LM and mode == "off":
        per_token = prefill.cache.bytes_per_token
        tokens = sum(len(prompt) * params.n for prompt, params in ASKED)
        assert pools.shipped_bytes == tokens * per_token


def test_a_decode_pool_that_is_too_small_leaves_them_with_prefill():
    """Also those that would outgrow it only later."""
    pools = TwoPools(engine(), engine(num_blocks=8))
    run(pools, add_all(pools))
    fit = [i for i, (prompt, params) in enumerate(ASKED) if len(prompt) + params.max_tokens <= 32]
    assert [note.request_id for note in pools.log if note.what == "moves"] == fit
    assert len(fit) == 4 and pools.engines["prefill"].stats.decode_tokens > 0
