"""The museum's rooms of blocks and preemption: who may write into a block, and who gets it back.

Brief, sections 1 and 2. The parts are those of `schedule/`. The prefix cache has a file of its own,
`museum_prefix.py`.
"""

from __future__ import annotations

from typing import Any

from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_model import GREEDY, drive, engine, is_told, said
from g2c_serving.request import FINISHED, WAITING, SamplingParams
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.queues import Queues

Seen = dict[str, Any]
PETS = "Here are a cat, a dog, a fox, a pig, "
KINDS = {"cat", "dog", "fox", "pig"}

# ---- two copies of a request write into one block ----


def must_copy(self, table, num_computed):
    index, offset = divmod(num_computed, self.block_size)
    if offset == 0 or index >= len(table) - 1:
        return False
    return self.ref_counts[table[index]] > 1 or table[index] in self.hash_of


def _three_lists() -> Seen:
    e = engine()
    first = e.add(PETS, SamplingParams(max_tokens=18, seed=1))
    e.step()
    e.step()
    requests = [first, e.fork(first, seed=2), e.fork(first, seed=3)]
    outputs = drive(e)
    names = ("the request writes", "its first copy writes", "its second copy writes")
    return {name: said(outputs, r) for name, r in zip(names, requests, strict=True)}


def _three_lists_wrong(seen: Seen) -> str:
    for who, text in seen.items():
        animals = [item.strip().removeprefix("a ") for item in text.split(",")]
        if odd := [animal for animal in animals[:-1] if animal not in KINDS]:
            return f"{who} {odd[0]!r}: half of one text, half of another"
    if len({text.split(",")[0] for text in seen.values()}) == 1:
        return "all three go on with the same animal, though each has a seed of its own"
    return ""


register(
    Exhibit(
        name="shared_tail",
        title="Two answers in one",
        reports=("vLLM 417", "xLLM 1984"),
        room="blocks",
        place="g2c_serving.schedule.block_manager.BlockManager._must_copy",
        fault=must_copy,
        scene=_three_lists,
        wrong=_three_lists_wrong,
        story="Somebody asked for several answers to one prompt, and got some that no one answer "
        "could have been: each was fluent for a while, then went on in the middle of a word of "
        "another one. A single answer was always fine, and so were several whose prompt happened "
        "to fill its last block.",
        hint="A table of one block has its last block at index 0. Which block is the one that two "
        "copies are both about to write into?",
        solution=BlockManager._must_copy,
    )
)

# ---- who hangs up does not give back ----


def remove(self, request):
    if request.state == FINISHED:
        self._take_blocks(request)
    if request.state == WAITING:
        self.waiting.remove(request)
    elif request in self.running:
        self.running.remove(request)
    self.arrivals.forget(request, has_ended=True)


VISITORS = 4


def _closed_tabs() -> Seen:
    e = engine(num_blocks=16)
    seen: Seen = {"free blocks at the start": e.block_manager.num_free}
    for _ in range(VISITORS):
        visitor = e.add("I am Ann. My PIN is 4711. My PIN is ", GREEDY)
        e.step()
        e.step()
        e.abort(visitor)
    seen[f"free when {VISITORS} visitors have closed the page"] = e.block_manager.num_free
    bob = e.add("I am Bob. My PIN is 9042. My PIN is ", SamplingParams(temperature=0, max_tokens=4))
    seen["Bob, the next visitor, is told"] = said(drive(e), bob)
    seen["free blocks in the end"] = e.block_manager.num_free
    return seen


def _closed_tabs_wrong(seen: Seen) -> str:
    before, after, told, end = seen.values()
    if told != "9042":
        return (
            f"nobody is served any more, {before - after} of {before} blocks are held, and Bob "
            f"{is_told(told)}"
        )
    if before != after:
        return f"{before - after} blocks are held, and nobody is there"
    return "" if before == end else f"Bob has his answer, and {before - end} blocks are held still"


register(
    Exhibit(
        name="closed_tabs",
        title="An engine that fills up though nobody is there",
        reports=("SGLang 18701", "vLLM 46283"),
        room="blocks",
        place="g2c_serving.schedule.queues.Queues.remove",
        fault=remove,
        scene=_closed_tabs,
        wrong=_closed_tabs_wrong,
        story="A server was fine in every test and full after some hours of real traffic: the "
        "gauge of its cache stood at the top with not one request running, and only a restart "
        "helped. Benchmarks let every request run to its end; people close the page in the middle.",
        hint="In which state is a request that somebody aborts, at the moment when it is removed?",
        solution=Queues.remove,
    )
)
