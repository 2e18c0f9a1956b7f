"""A made-up day and its replay: who comes, what is written, and that nothing is lost."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import day
from g2c_serving.lab.day import AGENT, CHAT, LONG, SAMPLES, Visit
from g2c_serving.lab.day_replay import replay
from g2c_serving.lab.day_result import Served, Stream, Target


@pytest.fixture(scope="module")
def small():
    """A model that reads 128 tokens, bytes and reserved ones: what a first course model is."""
    return random_lm(vocab_size=266, context=128)


@pytest.fixture(scope="module")
def visits(small):
    return day.made_up(small, seed=3)


def engine(lm, **config):
    sizes = {"num_blocks": 40, "block_size": 16, "max_num_batched_tokens": 64}
    return g.Engine(lm, g.EngineConfig(**{**sizes, **config}))


# ---- the day ----


def test_a_day_is_seeded_and_has_every_kind(small, visits):
    assert visits == day.made_up(small, seed=3) != day.made_up(small, seed=4)
    kinds = Counter(visit.kind for visit in visits if visit.follows is None)
    assert kinds == day.SESSIONS
    assert {visit.tenant for visit in visits} == {"north", "south"}
    assert any(visit.fork_at for visit in visits) and any(visit.n > 1 for visit in visits)
    assert {visit.kind for visit in visits if visit.calls} == {AGENT}


@pytest.mark.parametrize("context", [128, 256, 512, 4096])
def test_every_session_fits_the_context_and_uses_it(context):
    lm = random_lm(vocab_size=266, context=context)
    lengths: dict[int, int] = {}
    for k, visit in enumerate(made := day.made_up(lm)):
        before = 0 if visit.follows is None else lengths[visit.follows]
        lengths[k] = before + len(visit.asks) + visit.answer
        assert visit.answer >= 1 and visit.asks and max(visit.asks) < lm.vocab_size
    limit = min(context, 512)
    assert limit * 0.5 < max(lengths.values()) < limit
    assert {visit.kind for visit in made} == {CHAT, AGENT, LONG, SAMPLES}


def test_a_day_for_a_shorter_context_has_the_same_people():
    lm = random_lm(vocab_size=266, context=512)
    long, short = day.made_up(lm), day.made_up(lm, context=256)
    assert Counter(v.kind for v in long if v.follows is None) == day.SESSIONS
    assert Counter(v.kind for v in short if v.follows is None) == day.SESSIONS
    longest = [max(len(v.asks) + v.answer for v in made) for made in (long, short)]
    assert 256 * 0.5 < longest[1] < 256 < longest[0]
    assert day.made_up(lm, context=4096) == day.made_up(lm, context=512)


def test_every_text_begins_as_the_tokenizer_wants():
    lm = random_lm(vocab_size=266, context=256)
    bare = g.Tokenizer(special_tokens=["<s>"])
    lm = dataclasses.replace(lm, tokenizer=bare)
    without = day.made_up(lm)
    bare.opening = (g.Reserved("<s>"),)
    for visit in day.made_up(lm):
        assert [k for k, token in enumerate(visit.asks) if token == 256] == (
            [0] if visit.follows is None else []
        )
    assert not any(256 in visit.asks for visit in without)


def test_a_vocabulary_without_reserved_tokens_gets_its_day_too():
    lm = random_lm(vocab_size=256, context=128)
    lm = dataclasses.replace(lm, tokenizer=g.Tokenizer(special_tokens=()))
    made = day.made_up(lm, share=0.1)
    assert not any(visit.calls for visit in made)  # nothing could end a call
    served = replay(engine(lm), made, 1, clock="steps")
    assert all(len(s.streams[0].ids) == s.visit.answer for s in served.served)


def test_new_tokens_counts_a_shared_beginning_once_for_each_tenant():
    def visit(tenant, *asks, follows=None):
        return Visit(CHAT, tenant, 0.0, asks, 1, 0, follows)

    made = [visit("n", 1, 2, 3), visit("n", 1, 2, 4, 5), visit("s", 1, 2), visit("n", 7, follows=0)]
    assert day.new_tokens(made) == 3 + 2 + 2 + 1


def test_recorded_visits_come_with_their_whole_prompt_and_wait_for_nobody(small, visits):
    calm = replay(engine(small), visits, 10, clock="steps")
    hours = [one.arrived / 10 for one in calm.served]
    trace = day.recorded(visits, hours, [one.prompt for one in calm.served])
    assert [len(v.asks) for v in trace] == [len(one.prompt) for one in calm.served]
    assert all(visit.follows is None for visit in trace)
    again = replay(engine(small), trace, 10, clock="steps")
    assert [one.arrived for one in again.served] == pytest.approx([10 * h for h in hours])
    assert again.num_tokens == calm.num_tokens


# ---- the replay ----


def test_a_visit_that_follows_brings_what_was_written(small, visits):
    served = replay(engine(small), visits, 2, clock="steps").served
    for one in served:
        if one.visit.follows is not None:
            former = served[one.visit.follows]
            assert one.prompt == [*former.prompt, *former.streams[0].ids, *one.visit.asks]
            thinks = one.arrived - former.finished
            assert thinks == pytest.approx(2 * one.visit.time)
        else:
            assert one.arrived == pytest.approx(2 * one.visit.time)


def test_everybody_gets_the_whole_answer_and_calls_are_calls(small, visits):
    for one in replay(engine(small), visits, 2, clock="steps").served:
        for stream in one.streams:
            if one.visit.calls:
                call = bytes(i for i in stream.ids if i < 256).decode()
                assert stream.reason == "stop" and call.startswith('{"name": "'), call
            else:
                assert len(stream.ids) == one.visit.answer and stream.reason == "length"
        forks = one.visit.fork_at is not None
        assert len(one.streams) == (2 if forks else one.visit.n)


def test_calls_end_with_any_end_of_a_model_that_has_no_end_of_a_call():
    """As a Llama's chat does, with one id for the end of a turn and one for that of everything."""
    lm = random_lm(vocab_size=266, context=256)
    bare = g.Tokenizer(special_tokens=["<|one|>", "<|two|>"])
    lm = dataclasses.replace(lm, tokenizer=bare, eos_id=256, other_eos_ids=(257,))
    calls = [visit for visit in day.made_up(lm, seed=3) if visit.calls]
    asked = [day.params(lm, dataclasses.replace(v, kind=CHAT, answer=100)) for v in calls]
    outputs = engine(lm).generate([list(visit.asks) for visit in calls], asked)
    assert {output.token_ids[-1] for output in outputs} == {256, 257}
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert not any(v.calls for v in day.made_up(dataclasses.replace(lm, eos_id=None), seed=3))


def test_a_fork_has_what_it_was_forked_with_and_goes_its_own_way(small):
    visit = Visit(CHAT, "n", 0.0, tuple(range(40)), 30, seed=5, fork_at=10)
    (one,) = replay(engine(small), [visit], 1, clock="steps").served
    parent, child = one.streams
    assert child.given == 10 and child.ids[:10] == parent.ids[:10]
    assert child.ids[10:] != parent.ids[10:] and len(child.ids) == 30
    assert one.num_tokens == 30 + 20


def test_times_on_the_clock_of_steps_counted_by_hand(small):
    """Two seats. The first two have a token in each of steps 1 to 4 and 1 to 2, the third comes at
    1 and gets the free seat in step 3; the follower comes 5 after step 4."""
    made = [Visit(LONG, "n", t, (1, 2, 3), n, 0) for t, n in ((0, 4), (0, 2), (1, 3))]
    made.append(Visit(LONG, "n", 5, (4,), 1, 0, follows=0))
    served = replay(engine(small, max_num_seqs=2), made, 1, clock="steps")
    assert [one.streams[0].times for one in served.served] == [
        [1, 2, 3, 4],
        [1, 2],
        [3, 4, 5],
        [10],
    ]
    assert [one.first_token for one in served.served] == [1, 1, 2, 1]
    assert [one.per_token for one in served.served] == [1, 1, 1, 0]
    assert (served.duration, served.busy, served.steps) == (10, 6, 6)
    assert (
        served.gap(99) == 1 and served.per_s == 1e3 and served.per_busy_s == pytest.approx(10e3 / 6)
    )
    assert max(mark.running for mark in served.marks) <= 2


def test_static_batching_lets_nobody_in_until_all_have_left(small):
    made = [Visit(LONG, "n", 0, (1, 2, 3), n, 0) for n in (4, 2, 3)]
    served = replay(engine(small, max_num_seqs=2), made, 1, clock="steps", static=True)
    assert [one.streams[0].times[0] for one in served.served] == [1, 1, 5]


def test_a_batch_counts_samples_as_seats(small):
    made = [Visit(SAMPLES, "n", 0, (1, 2, 3), 2, 0, n=2) for _ in range(2)]
    served = replay(engine(small, max_num_seqs=2), made, 1, clock="steps", static=True)
    assert [one.streams[1].times[-1] for one in served.served] == [2, 4]


def test_who_follows_waits_for_the_fork_as_well(small):
    """One seat: the copy is served when the first answer has ended."""
    made = [Visit(CHAT, "n", 0, tuple(range(20)), 6, 0, fork_at=3)]
    made.append(Visit(CHAT, "n", 7, (1,), 1, 0, follows=0))
    first, then = replay(engine(small, max_num_seqs=1), made, 1, clock="steps").served
    assert [stream.times[-1] for stream in first.streams] == [6, 9]
    assert then.arrived == 9 + 7 and then.prompt[20:-1] == first.streams[0].ids


def test_what_is_computed_again_counted_by_hand(small):
    """Without a cache the follower computes 40 + 4 + 5 tokens: the 40 and three of the answer for
    the second time; its last token was drawn, and not computed before."""
    made = [Visit(CHAT, "n", 0, tuple(range(40)), 4, 0), Visit(CHAT, "n", 1, (7,) * 5, 1, 0, 0)]
    found = replay(engine(small), made, 1, clock="steps")
    assert (found.prefill_tokens, found.rebuilt) == (40 + 49, 43)


def test_how_each_kind_is_sampled_and_filed(small, visits):
    for visit in visits:
        how = day.params(small, visit)
        assert (how.temperature > 0) == (visit.kind in (CHAT, SAMPLES))
        assert how.seed == visit.seed and how.n == visit.n and how.ignore_eos
        assert visit.traffic == ("agent" if visit.kind == AGENT else "chat")


def test_a_target_asks_for_both_times():
    visit = Visit(LONG, "n", 0, (1,), 3, 0)
    one = Served(visit, 10.0, [1], [Stream([15.0, 18.0, 19.0], [1, 2, 3])])
    assert (one.first_token, one.per_token, one.gaps) == (5, 2, [3, 1])
    slower = Served(visit, 10.0, [1], [*one.streams, Stream([15.0, 21.0], [1, 2, 3])])
    assert slower.per_token == 3  # of the slowest stream
    assert Target(5, 2).is_met(one)
    assert not Target(4.9, 2).is_met(one) and not Target(5, 1.9).is_met(one)


def test_nothing_is_computed_again_where_everything_is_found(small):
    """Blocks of one token: whatever was computed for the tenant before is found; but the last token
    of a prompt is always computed, and those who share it may come at once."""
    made = [v for v in day.made_up(small, seed=3) if v.n == 1]
    visits = [dataclasses.replace(v, fork_at=None) for v in made]
    size = {"num_blocks": 2000, "block_size": 1}
    found = replay(engine(small, enable_prefix_caching=True, **size), visits, 100, clock="steps")
    without = replay(engine(small, **size), visits, 100, clock="steps")
    assert 0 <= found.rebuilt <= len(visits)
    prompts = sum(len(one.prompt) for one in without.served)
    assert without.prefill_tokens == prompts
    assert without.rebuilt == found.rebuilt + found.cached_tokens


def test_another_tenant_finds_nothing(small):
    same = tuple(range(64))
    made = [Visit(LONG, tenant, 10 * k, same, 2, 0) for k, tenant in enumerate("nsn")]
    served = replay(engine(small, enable_prefix_caching=True), made, 1, clock="steps").served
    assert [one.num_cached for one in served] == [0, 0, 48]


def test_an_error_and_an_unknown_clock_are_not_passed_over(small, visits):
    with pytest.raises(RuntimeError, match="raise EngineConfig.num_blocks"):
        replay(engine(small, num_blocks=3), [Visit(LONG, "n", 0, (1,) * 40, 20, 0)], 1)
    with pytest.raises(ValueError, match="clock='hours' must be one of cpu, wall, steps"):
        replay(engine(small), visits, 1, clock="hours")


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_on_the_clock_of_ms_a_step_takes_time_and_idle_time_none(small, clock):
    made = [Visit(LONG, "n", t, (1, 2, 3), 2, 0) for t in (0, 1)]
    served = replay(engine(small), made, 60_000, clock=clock)
    assert 60_000 <= served.duration < 60_500 and 0 <= served.busy < 500


def test_the_table_names_every_kind(visits):
    text = repr(day.table(visits))
    assert all(kind in text for kind in day.KINDS) and "tool calls" in text and "forks" in text


def test_the_overlapped_engine_serves_the_day_too(small, visits):
    config = g.EngineConfig(num_blocks=40, max_num_batched_tokens=64, enable_prefix_caching=True)
    with g.AsyncEngine(small, config) as overlapped:
        found = replay(overlapped, visits, 5, clock="steps")
        overlapped.block_manager.check()
    assert all(len(s.ids) == one.visit.answer for one in found.served for s in one.streams
               if not one.visit.calls)  # fmt: skip
