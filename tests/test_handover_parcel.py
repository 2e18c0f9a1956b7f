"""What a parcel holds and what it does not: pages that are whole or none, the room that a request
may need, and all that a request remembers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from grammars import calm
from small_models import random_ids, random_lm
from test_failover import Clock, gone
from test_handover import PARAMS, PROMPT, SIZES, WINDOW, alone, engine, finish, told

import g2c_serving as g
from g2c_serving.cluster.failover import Failover
from g2c_serving.cluster.handover import admit, export, move

# ---- pages ----


def decoding(**options) -> tuple[g.Engine, int]:
    """An engine whose request decodes."""
    source = engine(**options)
    mine = source.add(PROMPT, PARAMS)
    for _ in range(5):
        source.step()
    return source, mine


def test_four_bit_pages_are_not_rounded_again():
    """Small numbers that no second rounding would leave as they are."""
    lm = calm(random_lm(seed=1, **{**SIZES, "dim": 32}), 0.5)
    one, other = engine(lm, kv_cache_dtype="nvfp4").cache, engine(lm, kv_cache_dtype="nvfp4").cache
    layers = list(range(one.num_layers))
    slots = torch.arange(8)
    shape = (8, 2, len(layers), *one.keys.shape[-2:])
    pages = 1e-3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    one.import_slots(slots, layers, pages)
    sent = one.export_slots(slots, layers)
    other.import_slots(slots + 3, layers, sent)
    assert torch.equal(other.export_slots(slots + 3, layers), pages)


def test_pages_with_something_still_to_be_written_are_left():
    """A copy or a load that an error has kept from being done; the tokens go on alone."""
    source, mine = decoding()
    (request,) = source.unfinished(mine)
    table = source.block_manager.tables[request.sequence_id]
    assert export(source, mine).num_bytes > 0
    source.block_manager.copies[table[-1]] = table[0]
    assert export(source, mine).samples[0].pages is None
    source.block_manager.copies.clear()
    source.prefix_cache.loads.append(SimpleNamespace(request=request))
    assert export(source, mine).samples[0].pages is None
    source.prefix_cache.loads.clear()
    assert export(source, mine).num_bytes > 0


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def not_yet_written(monkeypatch) -> tuple[g.Engine, int]:
    """A target that has admitted a request, and was interrupted before it wrote the pages."""
    source, mine = decoding()
    target = engine()
    moved = move(source, target, mine)
    with monkeypatch.context() as patch:
        patch.setattr(target.scheduler.arrivals, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target._schedule()
    (request,) = target.unfinished(moved)
    assert request.num_computed_tokens > 0
    return target, moved


def test_pages_that_were_not_written_are_not_sent_on(monkeypatch):
    target, moved = not_yet_written(monkeypatch)
    assert export(target, moved).samples[0].pages is None
    last = engine()
    there = move(target, last, moved)
    assert told(finish(last)[0][there, 0]) == alone()[0]


def test_one_that_goes_before_its_pages_are_written_is_forgotten(monkeypatch):
    target, moved = not_yet_written(monkeypatch)
    target.abort(moved)
    assert told(target.generate([PROMPT], PARAMS)[0]) == alone()[0]


def test_what_the_drafter_lacks_is_known_at_the_target():
    source, mine = decoding(mode="fixed")
    pages = replace(export(source, mine).samples[0].pages, num_ready=7)
    (request,) = source.unfinished(mine)
    pages.promise(request)
    assert request.drafter_lag == pages.num_computed - 7 > 0


def test_windows_that_are_not_whole_are_not_sent(tmp_path):
    """The disk keeps the other layers; those of the windows are being computed again."""
    options = {"batch_invariant": False, "enable_prefix_caching": True, "cache_dir": tmp_path,
               "cache_bytes": 1 << 22}  # fmt: skip
    prompt = random_ids(WINDOW, 41, 5)
    with_disk = engine(WINDOW, **options)
    with_disk.generate([prompt], g.SamplingParams(max_tokens=2, seed=1))
    source = engine(WINDOW, max_num_batched_tokens=3, **options)
    mine = source.add(prompt, PARAMS)
    (request,) = source.unfinished(mine)
    replayed = 0
    for _ in range(30):
        source.step()
        if request.is_replaying and request.num_computed_tokens:
            replayed += 1
            assert export(source, mine).num_bytes == 0
    assert replayed


# ---- room ----


def test_a_request_that_may_outgrow_both_pools_alike_is_taken():
    source, target = engine(num_blocks=8), engine(num_blocks=8)
    mine = source.add(PROMPT, g.SamplingParams(max_tokens=90))
    assert export(source, mine).room == 32
    move(source, target, mine)
    assert target.has_unfinished


def test_its_drafts_need_room_too():
    source = engine(mode="fixed")
    mine = source.add(PROMPT, PARAMS)
    with pytest.raises(ValueError, match="may need 46 tokens"):
        move(source, engine(mode="fixed", num_blocks=43, block_size=1), mine)
    move(source, engine(mode="fixed", num_blocks=46, block_size=1), mine)


# ---- memory ----


def test_the_confidences_of_its_last_drafts_are_sent():
    source, mine = decoding(mode="budgeted")
    (request,) = source.unfinished(mine)
    assert request.confidences is not None
    target = engine(mode="budgeted")
    (there,) = target.unfinished(admit(target, export(source, mine)))
    assert np.array_equal(there.confidences, request.confidences)


def test_after_a_crash_it_is_still_known_what_was_found_in_the_cache(monkeypatch):
    fleet = Failover({"a": engine(enable_prefix_caching=True), "b": engine()}, Clock())
    fleet.engines["a"].generate([PROMPT], g.SamplingParams(max_tokens=1))
    fleet.add(PROMPT, PARAMS)
    fleet.step()
    monkeypatch.setattr(fleet.engines["a"], "step", gone)
    outputs = []
    while fleet.has_unfinished:
        outputs += fleet.step()
    assert outputs[-1].num_cached_tokens == 16 and outputs[-1].finish_reason == "length"


def test_an_engine_under_the_name_of_a_dead_one_is_another(monkeypatch):
    """What it is given behind the fleet's back is not told as if it were the dead one's."""
    fleet = Failover({"a": engine(), "b": engine()}, Clock())
    mine = fleet.add(PROMPT, PARAMS)
    fleet.step()
    monkeypatch.setattr(fleet.engines["a"], "step", gone)
    fleet.step()
    another = engine()
    assert another.add([1, 2], g.SamplingParams(max_tokens=3)) == 0
    fleet.attach("a", another)
    final = [out for _ in range(60) for out in fleet.step() if out.finish_reason is not None]
    assert [out.request_id for out in final] == [mine] and told(final[0]) == alone()[0]


def test_a_homeless_request_is_offered_to_all_engines(monkeypatch):
    """The emptiest is too small for it."""
    fleet = Failover({"a": engine(), "b": engine(num_blocks=4), "c": engine()}, Clock())
    mine = fleet.add(PROMPT, PARAMS)
    for _ in range(3):
        fleet.add([1, 2], g.SamplingParams(max_tokens=2))
    fleet.step()
    monkeypatch.setattr(fleet.engines[fleet.tickets[mine].engine], "step", gone)
    fleet.step()
    assert fleet.tickets[mine].engine == "c"
