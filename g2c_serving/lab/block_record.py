"""A run of a real batch in a small pool, with the state of every block after every step.

Requests come to the engine at given steps; after each step the block manager's own tables and
cached blocks are noted. The picture of it is block_grid.py. Sequences have letters in the order of
their coming.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_uppercase

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams

BLOCK, POOL = 8, 40
START = "Once upon a time there was a brave girl named Mia who lived in a tall house by the sea."
OTHER = "This is the story of Tom, a kind boy from the farm near the lake."


@dataclass(frozen=True)
class Moment:
    """The pool after one step.

    tables    letter -> its blocks, in the order of its tokens
    tokens    letter -> its tokens that are in the cache
    cached    blocks that nobody uses and whose content is known
    copied    blocks that this step copied for a writer
    events    what happened in the step, in words
    """

    tables: dict[str, list[int]]
    tokens: dict[str, int]
    cached: list[int]
    copied: list[int]
    num_waiting: int
    events: list[str]

    @property
    def users(self) -> dict[int, str]:
        """Block -> the letters of those who use it."""
        found: dict[int, str] = {}
        for letter, table in self.tables.items():
            for block in table:
                found[block] = found.get(block, "") + letter
        return found

    @property
    def filled(self) -> dict[int, int]:
        """Used block -> its slots that hold a token."""
        return {
            block: max(0, min(BLOCK, self.tokens[letter] - BLOCK * k))
            for letter, table in self.tables.items()
            for k, block in enumerate(table)
        }


class Recorder:
    """An engine whose pool is noted after each of its steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.moments: list[Moment] = []
        self.events: list[str] = []  # of the step to come
        self.letters: dict[tuple[int, int], str] = {}  # request and sample, as they came
        self.done: dict[str, RequestOutput] = {}

    def add(self, ids: list[int], max_tokens: int, n: int = 1) -> None:
        params = SamplingParams(max_tokens=max_tokens, n=n, seed=1, ignore_eos=True)
        who = self._name(self.engine.add(ids, params), n)
        self.events.append(f"{who} {'comes' if n == 1 else 'come'} with {len(ids)} tokens")

    def fork(self, letter: str) -> None:
        parent = next(key for key, name in self.letters.items() if name == letter)
        child = self._name(self.engine.fork(parent[0]))
        self.events.append(f"{child} is forked from {letter}")

    def _name(self, request_id: int, n: int = 1) -> str:
        """Give the next letters of the alphabet to the samples of a request."""
        new = [ascii_uppercase[len(self.letters) + i] for i in range(n)]
        self.letters |= {(request_id, i): letter for i, letter in enumerate(new)}
        return new[0] if n == 1 else f"{new[0]} to {new[-1]}"

    def step(self) -> None:
        before, found = self._tables(), self.engine.stats.cached_tokens
        names = set(self.engine.block_manager.block_of)
        for out in self.engine.step():
            if out.finish_reason is not None:
                letter = self.letters[out.request_id, out.sample_index]
                self.done[letter] = out
                self.events.append(f"{letter} ends")
        found = self.engine.stats.cached_tokens - found
        self.events += [f"{found} tokens of it were cached"] if found else []
        gone = len(names - set(self.engine.block_manager.block_of))
        self.events += [f"Kept blocks given away: {gone}"] if gone else []
        self.moments.append(self._moment(before))
        self.events = []

    def _tables(self) -> dict[str, list[int]]:
        """Letter -> block table, the first to come first: sequences are numbered likewise."""
        letters, tables = list(self.letters.values()), self.engine.block_manager.tables
        return {letters[sequence]: list(tables[sequence]) for sequence in sorted(tables)}

    def _moment(self, before: dict[str, list[int]]) -> Moment:
        tables, scheduler = self._tables(), self.engine.scheduler
        letters = list(self.letters.values())
        tokens = {letters[r.sequence_id]: r.num_computed_tokens for r in scheduler.running}
        copied = [
            new
            for letter, table in tables.items()
            for old, new in zip(before.get(letter, ()), table, strict=False)
            if old != new
        ]
        cached = list(self.engine.block_manager.cached_blocks)
        return Moment(tables, tokens, cached, copied, len(scheduler.waiting), self.events)


def record(lm: LanguageModel) -> list[Moment]:
    """The run of the panel: a shared beginning, three samples, a fork, a second turn, and a long
    prompt that needs the blocks of those who have gone."""
    config = EngineConfig(num_blocks=POOL, block_size=BLOCK, enable_prefix_caching=True)
    recorder, encode = Recorder(Engine(lm, config)), lm.tokenizer.encode

    def second_turn() -> None:
        first = recorder.done["A"]
        recorder.add(first.prompt_token_ids + first.token_ids + encode(" One sunny day"), 10)

    comes: dict[int, Callable[[], None]] = {
        1: lambda: recorder.add(encode(START + " Mia had a red kite."), 14),
        3: lambda: recorder.add(encode(START + " One day Mia met a shy fox."), 26),
        6: lambda: recorder.add(encode(OTHER), 12, n=3),
        16: lambda: recorder.fork("B"),
        22: second_turn,
        31: lambda: recorder.add([32 + i % 90 for i in range(200)], 4),
    }
    for step in range(1, 100):
        comes.get(step, lambda: None)()
        recorder.step()
        recorder.engine.block_manager.check()
        if step > max(comes) and not recorder.engine.has_unfinished:
            break
    return recorder.moments
