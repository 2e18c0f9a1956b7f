"""Requests whose pages are still to be written: what an interrupt or one failure leaves behind.

The model's tokens are checksums of what it reads from the pages (fakes.py), so that a fork over
pages that nobody has written yet would go on with another text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alone import Wish, new_lm, story
from fakes import new_engine

import g2c_serving as g

PROMPT = list(b"abcabdabca")
GREEDY = g.SamplingParams(max_tokens=8, temperature=0)


def right(prompt: list[int]) -> list[int]:
    return story(new_lm(), Wish(tuple(prompt), 8), 0)[0]


def engine(kind: type[g.Engine], folder: Path | None = None) -> g.Engine:
    disk: dict[str, Any] = {"cache_dir": folder, "cache_bytes": 1 << 20} if folder else {}
    sizes = {"num_blocks": 40, "block_size": 4, "enable_prefix_caching": folder is not None}
    return new_engine(kind, new_lm(), g.EngineConfig(**sizes, **disk, forbid_sync=False))


def run(e: g.Engine) -> dict[int, g.RequestOutput]:
    final = {}
    while e.has_unfinished:
        final |= {o.request_id: o for o in e.step() if o.finish_reason}
        e.block_manager.check()
    return final


@contextmanager
def raising_once(e: g.Engine, name: str, error: type[BaseException]) -> Iterator[list[int]]:
    real: Callable[..., None] = getattr(e.pages, name)
    met: list[int] = []

    def raises(what: Any, *more: Any) -> None:
        if what and not met:
            met.append(1)
            raise error("once")
        real(what, *more)

    setattr(e.pages, name, raises)
    yield met
    setattr(e.pages, name, real)


def test_forks_of_one_that_waits_for_its_copy():
    """Of it, and of the one that it shared its last block with."""
    e = engine(g.Engine)
    e.generate([list(b"z" * 30)], GREEDY)  # blocks that hold something else
    parent = e.add(PROMPT, GREEDY)
    e.step()
    forks = [e.fork(parent)]
    with raising_once(e, "copy", KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        e.step()
    assert e.block_manager.copies
    forks += [e.fork(parent), e.fork(forks[0])]
    final = run(e)
    assert [final[i].token_ids for i in (parent, *forks)] == [right(PROMPT)] * 4


@pytest.mark.parametrize("abort", [False, True])
def test_a_fork_of_one_whose_pages_are_to_come_from_disk(abort, tmp_path):
    first = engine(g.Engine, tmp_path)
    first.generate([PROMPT], GREEDY)
    e = engine(g.Engine, tmp_path)
    e.generate([list(b"z" * 30)], GREEDY)
    parent = e.add(PROMPT, GREEDY)
    with raising_once(e, "import_blocks", KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        e.step()
    assert e.prefix_cache.loads
    child = e.fork(parent)
    if abort:
        e.abort(parent)
    final = run(e)
    assert final[child].token_ids == right(PROMPT) and final[child].finish_reason == "length"
    assert abort or final[parent].token_ids == right(PROMPT)


@pytest.mark.parametrize("kind", [g.Engine, g.AsyncEngine])
@pytest.mark.parametrize("part", ["copy", "clear", "import_blocks"])
def test_what_fails_once_is_done_again_and_harms_nobody(kind, part, tmp_path):
    engine(g.Engine, tmp_path).generate([PROMPT], GREEDY)
    e = engine(kind, tmp_path)
    with raising_once(e, part, MemoryError) as met:
        ids = [e.add(PROMPT, GREEDY), e.add(list(b"ddddd"), GREEDY)]
        for _ in range(3):
            e.step()
        ids.append(e.fork(ids[1]))
        final = run(e)
    assert met
    assert final[ids[0]].token_ids == right(PROMPT)
    other = right(list(b"ddddd"))
    assert [final[i].token_ids for i in ids[1:]] == [other] * 2
    if isinstance(e, g.AsyncEngine):
        assert e.close() == []
