"""The overlapped engine over a disk: what was found there is on its way to the pages at first."""

from __future__ import annotations

import threading

import pytest
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.forbid_sync import ForbiddenSync

LM = random_lm()
PROMPT = random_ids(LM, 17, 1)
GREEDY = g.SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def engine(kind: type[g.Engine], folder=None) -> g.Engine:
    config = {"num_blocks": 32, "block_size": 4, "batch_invariant": True}
    if folder is not None:
        config |= {"enable_prefix_caching": True, "cache_dir": folder, "cache_bytes": 1 << 20}
    return kind(LM, g.EngineConfig(**config))


def test_what_is_still_on_its_way_from_disk_is_not_kept_there_again(tmp_path):
    """The request is aborted before the device has come to its blocks, and the disk has lost them
    meanwhile: to write what the pages hold now would give wrong tokens under good names."""
    expected = engine(g.Engine).generate([PROMPT], GREEDY)[0].token_ids
    engine(g.Engine, tmp_path).generate([PROMPT], GREEDY)
    late, gate = engine(g.AsyncEngine, tmp_path), threading.Event()
    real = late.model.forward
    late.model.forward = lambda *batch: gate.wait() and real(*batch)
    late.add(random_ids(LM, 3, 9), GREEDY)
    late.step()  # the device is at it
    aborted = late.add(PROMPT, GREEDY)
    late._launch()
    assert late._requests[aborted][0].num_cached_tokens == 16
    late.prefix_cache.disk.clear()
    late.abort(aborted)
    gate.set()
    late.close()
    output = engine(g.Engine, tmp_path).generate([PROMPT], GREEDY)[0]
    assert output.token_ids == expected and output.num_cached_tokens == 0


@pytest.mark.parametrize("kind", [g.Engine, g.AsyncEngine])
def test_a_hit_on_disk_gives_the_same_tokens(kind, tmp_path):
    expected = engine(g.Engine).generate([PROMPT], GREEDY)[0].token_ids
    engine(kind, tmp_path).generate([PROMPT], GREEDY)
    output = engine(kind, tmp_path).generate([PROMPT], GREEDY)[0]
    assert output.token_ids == expected and output.num_cached_tokens == 16


@pytest.mark.parametrize("kind", [g.Engine, g.AsyncEngine])
@pytest.mark.parametrize("phase", ["_forward", "_draw", "_batch"])
def test_a_wait_in_a_phase_that_was_overridden_is_found(kind, phase):
    def stray(self, *args):
        result = getattr(kind, phase)(self, *args)
        if phase == "_forward":
            result.max().item()
        elif phase == "_batch":
            bool(result.token_ids.max() > 0)
        else:
            result.pieces[0].tokens.tolist()
        return result

    odd = type("Odd", (kind,), {phase: stray})
    made = odd(LM, g.EngineConfig(num_blocks=32, block_size=4, forbid_sync=True))
    (output,) = made.generate([PROMPT], GREEDY)
    assert output.finish_reason == "error" and ForbiddenSync.__name__ in output.message
    assert "tests/test_async_disk.py" in output.message
