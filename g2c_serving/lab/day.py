"""A day of traffic on a laptop: who comes when, with what, and who comes back. Made up, and seeded.

Four kinds of visitors, as the Brief's engine meets them (sections 2 and 5):

    chat      opens with a preamble that all chats of its tenant share, and takes two to four turns;
              a turn's prompt is what stood before it, as ids, and what the user adds. Some users
              want a second answer while the first is being written: a fork
    agent     calls a tool, held to a grammar, gets the result, calls again, and says what it found
    long      a long document and a short answer
    samples   four answers to one prompt

Two tenants: their requests share no cached block, whatever they spell. Hours count from midnight;
`day_replay.py` says how many ms an hour takes. Lengths are shares of the context, so that a model
of 128 tokens gets the same day as one of 512. Answers have their length given, as in a benchmark:
the end of text ends none of them.

Left out: who gives up waiting, and the other days of the week.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from g2c_serving.forward.language_model import LanguageModel, eos_ids
from g2c_serving.lab.conversation import QUESTIONS
from g2c_serving.lab.table import Table
from g2c_serving.process.prompt import Reserved
from g2c_serving.request import SamplingParams
from g2c_serving.sample.grammar import Grammar
from g2c_serving.train.corpus import story, tool_prompt
from g2c_serving.train.words import PREAMBLES

CHAT, AGENT, LONG, SAMPLES = "chat", "agent", "long", "samples"
KINDS = (CHAT, AGENT, LONG, SAMPLES)
SESSIONS = {CHAT: 10, AGENT: 4, LONG: 5, SAMPLES: 3}
TENANTS = ("north", "south")
MOST_CONTEXT = 512  # tokens: a model that reads more gets the day of one that reads these
TOOLS = ("weather", "add", "find", "timer", "play")
ROOMY = 40  # tokens: with fewer, a call has a name and no arguments
RESULT = '\n{"ok": true}\n'
PEAKS = {CHAT: (11, 20), AGENT: (2, 14), LONG: (10, 15), SAMPLES: (16, 21)}  # busy hours


@dataclass(frozen=True)
class Visit:
    """One request of the day.

    time      hours: from midnight, or from the end of the visit that it follows
    asks      ids that it adds to the prompt and the answer of `follows`; else its whole prompt
    answer    tokens to answer, with `calls` at most
    fork_at   so many tokens into its answer, a second one forks off
    calls     its answer is a tool call, held to a grammar
    """

    kind: str
    tenant: str
    time: float
    asks: tuple[int, ...]
    answer: int
    seed: int
    follows: int | None = None
    n: int = 1
    fork_at: int | None = None
    calls: bool = False

    @property
    def traffic(self) -> str:
        """How the disk tier files its blocks."""
        return AGENT if self.kind == AGENT else CHAT


def made_up(
    lm: LanguageModel, seed: int = 0, share: float = 1.0, context: int = MOST_CONTEXT
) -> list[Visit]:
    """The day of one model, each visit after the one that it follows. `share` of its sessions,
    at least one of each kind; lengths as for a model that reads `context` tokens, if it can."""
    writer, visits = _Writer(lm, random.Random(seed), context), list[Visit]()
    for kind, count in SESSIONS.items():
        for k in range(max(1, round(share * count))):
            visits += writer.session(kind, TENANTS[k % 2], len(visits))
    return visits


class _Writer:
    """Writes sessions in the vocabulary of one model, to its size."""

    def __init__(self, lm: LanguageModel, draw: random.Random, context: int) -> None:
        self.lm, self.draw = lm, draw
        self.context = min(lm.config.max_seq_len, context)
        self.can_call = end_of_call(lm) is not None or bool(eos_ids(lm))

    def session(self, kind: str, tenant: str, first: int) -> list[Visit]:
        """The visits of one session, numbered from `first`, as far as the context reaches."""
        time, length, made = self._hour(kind), 0, list[Visit]()
        for number, (asks, answer, more) in enumerate(getattr(self, f"_{kind}")()):
            length += len(asks) + answer
            if length > self.context - 2:
                break
            follows = first + number - 1 if number else None
            time = (
                self.draw.uniform(*((0.02, 0.1) if kind == AGENT else (0.2, 3))) if made else time
            )
            seed = self.draw.getrandbits(32)
            made.append(Visit(kind, tenant, time, tuple(asks), answer, seed, follows, **more))
        return made

    def _hour(self, kind: str) -> float:
        return self.draw.gauss(self.draw.choice(PEAKS[kind]), 1.5) % 24

    # what each kind says: what it adds, the length of the answer, and how else it is served

    def _chat(self) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
        opening = self._preamble()
        for _ in range(self.draw.randint(2, 4)):
            answer = self._answer()
            forks = {"fork_at": answer // 2} if self.draw.random() < 0.2 else {}
            yield opening + self._turn(self.draw.choice(QUESTIONS)), answer, forks
            opening = []

    def _agent(self) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
        question = str(tool_prompt(self.draw)[0][1]).strip()
        asks = self._preamble() + self._turn(question)
        for _ in range(self.draw.randint(2, 3)):
            marker = self._marker("<|tool_call|>")
            yield asks + marker, max(20, self.context // 8), {"calls": self.can_call}
            result = self.lm.tokenizer.encode(RESULT)
            asks = self._marker("<|tool_result|>") + result + self._opening()
        yield asks, self._answer(), {}

    def _long(self) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
        length, ids = int(self.draw.uniform(0.55, 0.85) * self.context), list[int]()
        ids += self._first()
        while len(ids) < length:
            ids += self.lm.tokenizer.encode(str(story(self.draw)[0]) + " ")
        yield ids[:length], self.context // 16, {}

    def _samples(self) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
        yield self._preamble() + self._turn("Tell me a story."), self._answer(), {"n": 4}

    # pieces

    def _answer(self) -> int:
        return self.draw.randint(self.context // 32, self.context // 10)

    def _preamble(self) -> list[int]:
        """One of two, cut to a quarter of the context: the first stands in two chats of three."""
        text = PREAMBLES[self.draw.random() > 2 / 3]
        return (
            self._first()
            + self._marker("<|system|>")
            + self.lm.tokenizer.encode(text)[: self.context // 4]
        )

    def _turn(self, text: str) -> list[int]:
        ids = self.lm.tokenizer.encode(f"\n{text}\n")[: self.context // 8]
        return self._marker("<|user|>") + ids + self._opening()

    def _first(self) -> list[int]:
        """What the tokenizer puts before a text: a <s> with some, with most nothing."""
        return self.lm.tokenizer.encode_parts(getattr(self.lm.tokenizer, "opening", ()))

    def _opening(self) -> list[int]:
        return self._marker("<|assistant|>") + self.lm.tokenizer.encode("\n")

    def _marker(self, name: str) -> list[int]:
        """The reserved token where the vocabulary has it, else nothing."""
        known = self.lm.tokenizer.reserved
        return self.lm.tokenizer.encode_parts([Reserved(name)]) if name in known else []


def end_of_call(lm: LanguageModel) -> int | None:
    """The reserved id that ends a tool call, the chat's own, where the model knows it."""
    end = lm.tokenizer.reserved.get("<|end|>")
    return end if end is not None and end < lm.vocab_size else None


def call_grammar(lm: LanguageModel, tokens: int) -> Grammar:
    """A tool call as JSON that fits into so many tokens. Where there is no end of a call, the
    model's ends of text end it."""
    properties: dict[str, Any] = {"name": {"enum": list(TOOLS)}}
    if tokens >= ROOMY:
        number = {"type": "integer", "minimum": 0, "maximum": 99}
        properties["arguments"] = {
            "type": "object", "properties": {"a": number}, "required": ["a"],
        }  # fmt: skip
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Grammar.json_schema(schema, end_token_id=end_of_call(lm))


def params(lm: LanguageModel, visit: Visit) -> SamplingParams:
    """How a visit is sampled: chats and samples by chance, with a seed of their own, agents and
    documents greedily."""
    return SamplingParams(
        max_tokens=visit.answer,
        temperature=0.8 if visit.kind in (CHAT, SAMPLES) else 0,
        seed=visit.seed,
        n=visit.n,
        ignore_eos=True,
        grammar=call_grammar(lm, visit.answer) if visit.calls else None,
    )


def new_tokens(visits: Sequence[Visit]) -> int:
    """Tokens that have to be computed once, if nothing is ever computed again: what every visit
    adds, a beginning that several of a tenant share counted once."""
    first = [visit for visit in visits if visit.follows is None]
    tries: dict[Any, dict] = {}
    shared = 0
    for visit in first:
        here = tries.setdefault(visit.tenant, {})
        for token in visit.asks:
            shared += token in here
            here = here.setdefault(token, {})
    return sum(len(visit.asks) for visit in visits) - shared


def starts(visits: Sequence[Visit]) -> list[tuple[float, int]]:
    """Hour and number of those who follow nobody, in order."""
    return sorted((v.time, k) for k, v in enumerate(visits) if v.follows is None)


def recorded(
    visits: Sequence[Visit], hours: Sequence[float], prompts: Sequence[Sequence[int]]
) -> list[Visit]:
    """The same visits as one saw them come, each at an hour of its own with its whole prompt:
    nobody waits for an answer any more before they come back."""
    return [
        replace(visit, time=hour, asks=tuple(prompt), follows=None)
        for visit, hour, prompt in zip(visits, hours, prompts, strict=True)
    ]


def table(visits: Sequence[Visit]) -> Table:
    """A line for each kind: sessions, visits, tokens that they bring and ask for."""
    rows = []
    for kind, group in itertools.groupby(visits, key=lambda visit: visit.kind):
        of = list(group)
        extras = [
            ("forks", sum(v.fork_at is not None for v in of)),
            ("tool calls", sum(v.calls for v in of)),
            ("samples", sum(v.n for v in of if v.n > 1)),
        ]
        said = ", ".join(f"{count} {what}" for what, count in extras if count)
        sessions = sum(v.follows is None for v in of)
        brings, answers = (sum(len(v.asks) for v in of), sum(v.answer * v.n for v in of))
        rows.append((kind, str(sessions), str(len(of)), f"{brings:,}", f"{answers:,}", said))
    return Table(("kind", "sessions", "visits", "new tokens", "tokens to answer", "with"), rows)
