"""Scheduling: decode rows first, chunks, admission, preemption; on a model that is exact.

Every run also proves the blocks after each step and that all are free at the end (`fakes.run`).
"""

import random

import fakes
import pytest
from fakes import GREEDY, continuation, engine, run

import g2c_serving as g


def rows(record, kind=None):
    return [r for r in record.rows if kind in (None, r.kind)]


def test_requests_join_and_leave_between_steps():
    """Continuous batching: a second request joins while the first decodes, and each ends alone."""
    e = engine()
    first = e.add([1, 2, 3], g.SamplingParams(temperature=0, max_tokens=6))
    e.step()
    second = e.add([4, 5], g.SamplingParams(temperature=0, max_tokens=2))
    final = run(e)
    assert final[first].token_ids == continuation([1, 2, 3], 6)
    assert final[second].token_ids == continuation([4, 5], 2)
    together = [{r.request_id for r in rows(record)} for record in e.history]
    assert together == [{0}, {0, 1}, {0, 1}, {0}, {0}, {0}]


def test_a_decoding_request_has_its_row_in_every_step():
    """nano-vllm (run at its head): a 40-token prompt under an 8-token budget while another request
    decodes; the decoding one is never held up, the prompt gets the other seven tokens."""
    e = engine(max_num_batched_tokens=8)
    short = e.add([9], g.SamplingParams(temperature=0, max_tokens=20))
    e.step()
    long = e.add(list(range(40)), GREEDY)
    final = run(e)
    assert final[long].token_ids == continuation(list(range(40)), 8)
    decoding = list(e.history)[1:20]
    assert all(any(r.request_id == short for r in rows(s, "decode")) for s in decoding)
    chunks = [r.num_tokens for s in e.history for r in rows(s, "prefill") if r.request_id == long]
    assert chunks == [7, 7, 7, 7, 7, 5]


def test_a_step_never_exceeds_its_token_budget():
    e = engine(max_num_batched_tokens=10, num_blocks=200)
    for i in range(12):
        e.add(list(range(i, i + 17)), GREEDY)
    final = run(e)
    assert len(final) == 12
    assert max(s.num_tokens for s in e.history) == 10


def test_a_token_budget_below_max_num_seqs_caps_the_running_rows():
    e = engine(max_num_batched_tokens=3, max_num_seqs=64)
    for i in range(8):
        e.add([i, i + 1, i + 2, i + 3], GREEDY)
    final = run(e)
    assert max(s.num_running for s in e.history) <= 3
    assert all(final[i].token_ids == continuation([i, i + 1, i + 2, i + 3], 8) for i in range(8))


def test_waiting_requests_start_in_the_order_of_their_arrival():
    """A request that does not fit keeps smaller ones behind it from passing: none starves."""
    e = engine(num_blocks=6, max_num_seqs=4)
    e.add([1] * 12, g.SamplingParams(temperature=0, max_tokens=8))
    e.step()
    e.add([2] * 16, GREEDY)
    e.add([3], GREEDY)
    run(e)
    first_step = {}
    for i, record in enumerate(e.history):
        for row in record.rows:
            first_step.setdefault(row.request_id, i)
    assert first_step[0] < first_step[1] <= first_step[2]


def test_preemption_loses_no_token():
    """A pool too small for all: the last to arrive gives its blocks up and comes back."""
    e = engine(num_blocks=7)
    prompts = [[i, i + 1, i + 2] for i in range(4)]
    for prompt in prompts:
        e.add(prompt, g.SamplingParams(temperature=0, max_tokens=17))
    final = run(e)
    assert e.stats.preemptions > 0
    for rid, prompt in enumerate(prompts):
        assert final[rid].token_ids == continuation(prompt, 17)
    assert not any(0 in record.preempted for record in e.history)


def test_a_preempted_request_waits_for_its_whole_context():
    """vLLM 21809 and 18115: readmitting a long request as soon as its next chunk fits makes it
    thrash. Ours comes back once: its whole context and room for the others to grow fit."""
    e = engine(num_blocks=12, max_num_batched_tokens=8, lm=fakes.FakeLM(max_seq_len=128))
    old = e.add([1] * 8, g.SamplingParams(temperature=0, max_tokens=30))
    late = e.add([2] * 20, g.SamplingParams(temperature=0, max_tokens=12))
    final = run(e)
    assert final[old].token_ids == continuation([1] * 8, 30)
    assert final[late].token_ids == continuation([2] * 20, 12)
    assert e.stats.preemptions == 1


def test_a_lone_request_that_outgrows_the_pool_ends_with_an_error():
    """nano-vllm (run at its head): it stops there; ours names the option, and the others go on."""
    e = engine(num_blocks=3)
    lone = e.add([1] * 9, g.SamplingParams(temperature=0, max_tokens=20))
    other = e.add([5], GREEDY)
    final = run(e)
    assert final[lone].finish_reason == "error"
    assert "EngineConfig.num_blocks" in final[lone].message
    assert final[lone].token_ids == continuation(
        [1] * 9, 4
    )  # 12 slots hold 9 + 3, the 4th is drawn
    assert final[other].finish_reason == "length"
    assert final[other].token_ids == continuation([5], 8)


@pytest.mark.parametrize("caching", [False, True])
def test_inputs_that_stop_an_engine_stop_nobody_here(caching):
    """nano-vllm (run at its head): an empty prompt, max_tokens = 0, temperature = 0, a prompt
    larger than the pool, a lone request that outgrows it. The one is refused, or ends with a
    reason, and leaves no trace; a request that is under way goes on, and a later one runs."""
    e = engine(num_blocks=8, enable_prefix_caching=caching, lm=fakes.FakeLM(max_seq_len=128))
    under_way = e.add([7] * 5, g.SamplingParams(temperature=0, max_tokens=9))
    e.step()
    for prompt, says in (([], "prompt is empty"), ([1] * 33, "EngineConfig.num_blocks")):
        with pytest.raises(ValueError, match=says):
            e.add(prompt, GREEDY)
    with pytest.raises(ValueError, match="max_tokens=0 must be an integer, 1 or more"):
        g.SamplingParams(max_tokens=0)
    too_long = e.add([1] * 32, g.SamplingParams(temperature=0, max_tokens=9))
    final = run(e)
    assert final[under_way].token_ids == continuation([7] * 5, 9)
    assert final[too_long].finish_reason == "error"
    assert "EngineConfig.num_blocks" in final[too_long].message
    later = e.add([2] * 9, GREEDY)
    assert run(e)[later].token_ids == continuation([2] * 9, 8)


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"block_size": 7}, {"enable_prefix_caching": True},
                                     {"max_num_seqs": 9}, {"block_size": 1}])  # fmt: skip
def test_a_chunk_limit_below_every_size_hangs_nothing(limit, options):
    """SGLang 36344: a chunk limit below the alignment that it must respect (there, pages) let the
    scheduler wait for ever. Ours has none to respect: one token a step is a chunk, whatever the
    block size."""
    e = engine(max_num_batched_tokens=limit, **options)
    ids = [e.add([i] * 11, GREEDY) for i in range(3)]
    final = run(e)
    assert [final[i].token_ids for i in ids] == [continuation([i] * 11, 8) for i in range(3)]
    assert len(e.history) <= 3 * (11 + 8)


def test_a_prompt_that_fills_the_pool_exactly_still_runs():
    e = engine(num_blocks=2)
    rid = e.add([1] * 8, g.SamplingParams(temperature=0, max_tokens=1))
    assert run(e)[rid].token_ids == continuation([1] * 8, 1)


@pytest.mark.parametrize("seed", range(30))
def test_any_load_gives_every_request_its_own_tokens(seed):
    """Random arrivals, lengths, budgets and pools against the continuation worked out alone."""
    rnd = random.Random(seed)
    e = engine(
        num_blocks=rnd.randrange(10, 40),
        max_num_batched_tokens=rnd.randrange(1, 40),
        max_num_seqs=rnd.randrange(1, 9),
    )
    expected, final = {}, {}
    for _ in range(25):
        prompt = [rnd.randrange(256) for _ in range(rnd.randrange(1, 25))]
        count = rnd.randrange(1, 15)
        rid = e.add(prompt, g.SamplingParams(temperature=0, max_tokens=count))
        expected[rid] = continuation(prompt, count)
        for _ in range(rnd.randrange(4)):
            final |= {o.request_id: o for o in e.step() if o.finish_reason}
            e.block_manager.check()
    final |= run(e)
    assert {rid: o.token_ids for rid, o in final.items()} == expected


# the time budget

COSTS = g.CostModel(
    base=1, per_row=0.5, per_context=0.01, per_token=0.1, per_pair=0.001, per_square=0.001
)


def test_chunks_fit_the_time_that_the_decode_rows_leave():
    """With 6 ms a step, every step with a chunk is predicted at 6 ms or less."""
    lm = fakes.FakeLM(max_seq_len=512)
    budgets = {"step_time_budget_ms": 6.0, "cost_model": COSTS}
    e = engine(lm, num_blocks=300, max_num_batched_tokens=256, **budgets)
    short = e.add([9], g.SamplingParams(temperature=0, max_tokens=30))
    e.step()
    long = e.add([3] * 200, GREEDY)
    final = run(e)
    assert final[long].token_ids == continuation([3] * 200, 8)
    assert final[short].finish_reason == "length"
    with_chunk = [s for s in e.history if rows(s, "prefill")]
    assert all(COSTS.predict(s.shape) <= 6.0 for s in with_chunk)
    chunks = [r.num_tokens for s in e.history for r in rows(s, "prefill") if r.request_id == long]
    assert sum(chunks) == 200 and chunks == sorted(chunks, reverse=True) and len(set(chunks)) > 1


def test_a_spent_time_budget_still_moves_prompts_on():
    """Decode rows alone cost more than the budget: a prompt then gets one token a step."""
    budgets = {"step_time_budget_ms": 0.5, "cost_model": COSTS}
    e = engine(**budgets)
    e.add([9], g.SamplingParams(temperature=0, max_tokens=30))
    e.step()
    long = e.add([3] * 21, GREEDY)
    assert run(e)[long].token_ids == continuation([3] * 21, 8)
    chunks = [r.num_tokens for s in e.history for r in rows(s, "prefill") if r.request_id == long]
    assert chunks == [1] * 21


def test_the_end_of_a_prompt_is_charged_as_a_chunk():
    """8 ms a step at 1 ms a token: prompts of 9 tokens leave rests of one token, which are chunks
    in the prediction and must be chunks in the budget too."""
    costs = g.CostModel(0, 0, 0, per_token=1, per_pair=0, per_square=0)
    e = engine(step_time_budget_ms=8.0, cost_model=costs)
    for i in range(6):
        e.add([i] * 9, g.SamplingParams(temperature=0, max_tokens=1))
    run(e)
    assert max(costs.predict(s.shape) for s in e.history) == 8


def test_rows_that_draw_no_token_are_not_called_decode():
    """A preempted request that is computed again can have a chunk of one token in the middle. A
    row called decode draws the token after its place, and each place is drawn once."""
    e = engine(num_blocks=9, max_num_batched_tokens=3, max_num_seqs=3)
    loads = [(7, 12), (10, 9), (4, 18), (4, 23), (4, 11)]
    for i, (length, count) in enumerate(loads):
        e.add([i] * length, g.SamplingParams(temperature=0, max_tokens=count))
    run(e)
    assert e.stats.preemptions > 0
    places = [(r.request_id, r.num_computed) for s in e.history for r in rows(s, "decode")]
    assert len(set(places)) == len(places)
    assert all(place >= loads[i][0] for i, place in places), "a place in the prompt is no decode"


def test_both_queues_stay_in_order_of_arrival():
    """Whoever runs arrived before all who wait, after preemptions too."""
    e = engine(num_blocks=7, max_num_seqs=4)
    for i in range(6):
        e.add([i] * 4, g.SamplingParams(temperature=0, max_tokens=12))
    while e.has_unfinished:
        e.step()
        queue = [r.sequence_id for r in (*e.scheduler.running, *e.scheduler.waiting)]
        assert queue == sorted(queue)
    assert e.stats.preemptions > 0


def test_readmission_leaves_the_running_room_to_grow():
    """32 blocks of 16 for 64 requests of 64 + 64 tokens: with a block to spare for each running
    request there are 32 preemptions, without 42 (counted with the rule switched off)."""
    e = engine(fakes.FakeLM(max_seq_len=128), num_blocks=32, block_size=16)
    for i in range(64):
        e.add([i] * 64, g.SamplingParams(temperature=0, max_tokens=64))
    run(e)
    assert e.stats.preemptions <= 32
