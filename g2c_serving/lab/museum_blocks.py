"""Exhibits of the museum: blocks and preemption, and the prefix cache, where a fault shows as a
wrong text, a wait without end, or work done again and again."""

from __future__ import annotations

from typing import Any

from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_model import drive, engine, said
from g2c_serving.request import SamplingParams
from g2c_serving.schedule.block_manager import BlockManager

Seen = dict[str, Any]
FOUR = SamplingParams(temperature=0, max_tokens=4)

# ---- a block keeps its name when it is handed out again ----


def take(self):
    if self.free_blocks:
        block = self.free_blocks.pop()
    else:
        block, _ = self.cached_blocks.popitem(last=False)
    self.ref_counts[block] = 1
    self.fresh.add(block)
    return block


def _asks(who: str, pin: str) -> str:
    return f"I am {who}. My PIN is {pin}. My PIN is "


def _four_visits() -> Seen:
    e = engine(num_blocks=5, enable_prefix_caching=True)
    seen: Seen = {}
    for visit, who, pin in (
        ("Ann", "Ann", "4711"),
        ("Ann, once more,", "Ann", "4711"),
        ("Bob", "Bob", "9042"),
        ("Ann, after Bob,", "Ann", "4711"),
    ):
        request = e.add(_asks(who, pin), FOUR)
        outputs = drive(e)
        seen[f"{visit} is told"] = said(outputs, request)
        seen[f"{visit} found in the cache (tokens)"] = outputs[request].num_cached_tokens
    return seen


def _four_visits_wrong(seen: Seen) -> str:
    told = seen["Ann, after Bob, is told"]
    if told != "4711":
        return f"Ann's PIN is 4711; after Bob's visit she is told {told}, and Bob's is 9042"
    if seen["Ann, once more, found in the cache (tokens)"] != 32:
        return "Ann asks the same twice in a row, and nothing of it is found again"
    return ""


register(
    Exhibit(
        name="stale_hash",
        title="Another user's text",
        reports=("nano-vllm 163", "vLLM 4764"),
        room="prefix cache",
        place="g2c_serving.schedule.block_manager.BlockManager._take",
        fault=take,
        scene=_four_visits,
        wrong=_four_visits_wrong,
        story="A question that had been answered well was asked again an hour later, and the "
        "answer went on from somebody else's conversation. Nothing had crashed, no log had a line "
        "about it, and with a larger cache it took longer to happen.",
        hint="Where can Ann's blocks be found, once Bob's tokens are in them? Who could say that "
        "they are not hers any more?",
        solution=BlockManager._take,
    )
)
