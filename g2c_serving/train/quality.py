"""What a trained model can do, counted on samples that the engine draws at temperature 0.8.

Stories are parsed by the grammar that wrote the corpus, so "a good story" is not a matter of taste:
it parses or it does not, and its hero keeps the name or does not. Seeds are fixed, so a second
measurement on the same machine gives the same counts. What is not counted: how varied stories are.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import g2c_serving as g
from g2c_serving.train import grammar
from g2c_serving.train.corpus import recall_prompt, riddle_prompt, tool_prompt
from g2c_serving.train.words import FACTS

TEMPERATURE = 0.8
OPENINGS = [
    "Once upon a time",
    "There once was",
    "Long ago,",
    "In a",
    "This is the story of",
    "One",
]


@dataclass(frozen=True)
class Score:
    """`good` of `total` samples; `target` is the least share that we ship, if there is one."""

    name: str
    good: int
    total: int
    target: float | None = None

    @property
    def share(self) -> float:
        return self.good / self.total if self.total else float("nan")

    def row(self) -> str:
        target = "" if self.target is None else f"{self.target:.0%}"
        return f"| {self.name} | {self.good} of {self.total} | {self.share:.1%} | {target} |"


@dataclass(frozen=True)
class Quality:
    """All scores of one model."""

    scores: Sequence[Score]

    def table(self) -> str:
        head = ["| what | samples | share | at least |", "|---|---|---|---|"]
        return "\n".join(head + [score.row() for score in self.scores])

    @property
    def reached(self) -> bool:
        return all(s.target is None or s.share >= s.target for s in self.scores)


def measure(source: str | Path = "tiny", stories: int = 200, calls: int = 100) -> Quality:
    """Draw and count: `stories` stories, `calls` tool calls and `calls` questions of each kind.

    `source` is what `g.load` takes. Errors are those of `g.load`."""
    engine = g.Engine(g.load(source), g.EngineConfig(num_blocks=2048))
    scores = [*_stories(engine, stories), *_tool_calls(engine, calls), *_answers(engine, calls)]
    return Quality(scores)


def sample_stories(engine: g.Engine, count: int) -> list[str]:
    """`count` texts, half of them from "Once upon a time", the others from other openings. A text
    that the model does not end by itself gets no final period, so that it cannot parse."""
    prompts = [OPENINGS[0] if i % 2 else OPENINGS[i // 2 % len(OPENINGS)] for i in range(count)]
    outputs = _sample(engine, prompts, max_tokens=256)
    return [
        prompt + (out.text if out.finish_reason == "stop" else "...")
        for prompt, out in zip(prompts, outputs, strict=True)
    ]


def _stories(engine: g.Engine, count: int) -> list[Score]:
    """Hero and object count over all stories; other facts where a story names them again."""
    found = [grammar.facts(text) for text in sample_stories(engine, count)]
    kept = Counter((fact, value) for story in found for fact, value in story.items())
    scores = [Score("story parses", sum(map(bool, found)), count, 0.95)]
    for fact in ("hero", "obj"):
        scores.append(Score(f"story keeps {fact}", kept[fact, True], count, 0.90))
    others = [f for f in (*FACTS, "prep", "thief", "kind") if f not in ("hero", "obj")]
    for fact in others:
        named_again = kept[fact, True] + kept[fact, False]
        scores.append(
            Score(f"story keeps {fact}, where named again", kept[fact, True], named_again)
        )
    return scores


def _tool_calls(engine: g.Engine, count: int) -> list[Score]:
    """Marker, then JSON that ends with the turn; beyond the target, the right call."""
    rng = random.Random(1)
    prompts, expected = zip(*(tool_prompt(rng) for _ in range(count)), strict=True)
    found = [_read_call(engine, out.token_ids) for out in _sample(engine, prompts, max_tokens=80)]
    right = sum(_same_call(a, b) for a, b in zip(found, expected, strict=True))
    return [
        Score(
            "tool prompt: marker, then valid JSON", sum(c is not None for c in found), count, 0.9
        ),
        Score("tool prompt: the right tool and arguments", right, count),
    ]


def _read_call(engine: g.Engine, ids: Sequence[int]) -> object | None:
    """The JSON value between `<|tool_call|>` and `<|end|>`; None where `ids` is something else."""
    reserved = engine.lm.tokenizer.reserved
    if len(ids) < 3 or (ids[0], ids[-1]) != (reserved["<|tool_call|>"], reserved["<|end|>"]):
        return None
    try:
        return json.loads(engine.lm.tokenizer.decode(ids[1:-1]))
    except ValueError:
        return None


def _same_call(found: object, expected: dict) -> bool:
    """Equal but for `loud`, which the question leaves open."""
    if not isinstance(found, dict) or not isinstance(found.get("arguments"), dict):
        return False
    arguments = {k: v for k, v in found["arguments"].items() if k != "loud"}
    wanted = {k: v for k, v in expected["arguments"].items() if k != "loud"}
    return found.get("name") == expected["name"] and arguments == wanted


def _answers(engine: g.Engine, count: int) -> list[Score]:
    """Questions with one right answer: two kinds of riddle, and the second turn of a chat."""
    kinds = {
        "riddle, who has it: a thought and the right answer": lambda r: riddle_prompt(r, "owner"),
        "riddle, small sum: a thought and the right answer": lambda r: riddle_prompt(r, "sum"),
        "second turn of a chat: what the first told": recall_prompt,
    }
    scores = []
    for name, make in kinds.items():
        rng = random.Random(2)
        prompts, answers = zip(*(make(rng) for _ in range(count)), strict=True)
        outputs = _sample(engine, prompts, max_tokens=64)
        texts = [engine.lm.tokenizer.decode(out.token_ids) for out in outputs]
        right = sum(_answer(text) == want for text, want in zip(texts, answers, strict=True))
        scores.append(Score(name, right, count))
    return scores


def _answer(text: str) -> str:
    """What stands between the thought, if there is one, and the end of the turn."""
    return re.sub(r"^<think>.*</think>|<\|end\|>$", "", text, flags=re.DOTALL)


def _sample(engine: g.Engine, prompts: Sequence, max_tokens: int) -> list[g.RequestOutput]:
    """One sample a prompt, seeds 0, 1, 2, ...; `<|end|>` ends a turn."""
    end = (engine.lm.tokenizer.reserved_id("<|end|>"),)
    params = [
        g.SamplingParams(temperature=TEMPERATURE, max_tokens=max_tokens, seed=i, stop_token_ids=end)
        for i in range(len(prompts))
    ]
    return engine.generate(prompts, params)
