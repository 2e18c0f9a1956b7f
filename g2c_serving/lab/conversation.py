"""A conversation whose later turns skip their prefill: each turn begins with all that came before.

Brief, section 2. The chat is real, written by `tiny` turn by turn. A turn appends ids to those of
the turns before; it never encodes the old text again, which could be cut otherwise and would then
find nothing. The same turns go to an engine with a prefix cache and to one without. Measured here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import plots
from g2c_serving.lab.own_model import share
from g2c_serving.lab.plots import Picture, fill, line, source_note
from g2c_serving.lab.table import Table
from g2c_serving.process.prompt import Part, Reserved
from g2c_serving.request import SamplingParams
from g2c_serving.train.words import PREAMBLES

QUESTIONS = (
    "Hello! My name is Mia.",
    "What is my name?",
    "My friend Hugo lives near the lake.",
    "Where does Hugo live?",
    "Look at my coin! It is golden, and I got it from Ella.",
    "Who gave me the coin?",
    "What does a fox like?",
    "Is it brave?",
    "I have a red kite. It is under the bridge.",
    "Where is my kite?",
)
REPEATS = 2


@dataclass(frozen=True)
class Turn:
    """One turn: the ids that the engine gets, what it answers, and from how much it starts."""

    ids: list[int]
    question: str
    answer: str
    cached: int  # tokens of `ids` that were found in the cache

    @property
    def computed(self) -> int:
        return len(self.ids) - self.cached


def opening(lm: LanguageModel) -> list[int]:
    """The ids of the system's words, with which the conversation begins."""
    words = f"\n{PREAMBLES[0]}\n"
    ids = lm.tokenizer.encode_parts([Reserved("<|system|>"), words])
    return ids[: share(lm, 128)]


def asked(lm: LanguageModel, question: str) -> list[int]:
    """The ids that a question adds, up to the answer."""
    parts: list[Part] = [Reserved("<|user|>"), f"\n{question}\n", Reserved("<|assistant|>"), "\n"]
    return lm.tokenizer.encode_parts(parts)


def params(lm: LanguageModel) -> SamplingParams:
    """Greedy, up to the end of the answer."""
    end = lm.tokenizer.reserved["<|end|>"]
    return SamplingParams(max_tokens=share(lm, 40), temperature=0, stop_token_ids=(end,))


def talk(engine: Engine) -> list[Turn]:
    """Hold the conversation, as far as the model's context goes."""
    lm, turns = engine.lm, []
    ids, how = opening(lm), params(lm)
    for question in QUESTIONS:
        ids = ids + asked(lm, question)
        if len(ids) + how.max_tokens > lm.config.max_seq_len:
            print(f"{lm.name} sees {lm.config.max_seq_len} tokens: the talk ends with that.")
            break
        (out,) = engine.generate([ids], how)
        turns.append(Turn(ids, question, out.text, out.num_cached_tokens))
        ids = ids + out.token_ids  # appended, not encoded again
    return turns


def table(turns: Sequence[Turn]) -> Table:
    """What was said, and how much of each turn was in the cache."""
    rows = [
        (f"{t.question} / {t.answer}", *map(str, (len(t.ids), t.cached, t.computed))) for t in turns
    ]
    return Table(("user / model", "tokens", "cached", "computed"), rows)


def config(caching: bool) -> EngineConfig:
    return EngineConfig(num_blocks=256, max_num_batched_tokens=512, enable_prefix_caching=caching)


def first_token_ms(lm: LanguageModel, turns: Sequence[Turn], caching: bool) -> list[float]:
    """ms from each turn to its first token, which is its first step: the fastest of a few times
    that the whole conversation is held. Without a cache nobody needs the answers for the turns to
    come, so they are cut short. (With one token, the step would hold the end of the request, too.)
    """
    how, runs = params(lm), []
    if not caching:
        how = dataclasses.replace(how, max_tokens=2)
    for _ in range(REPEATS):
        engine, times = Engine(lm, config(caching)), []
        for turn in turns:
            before = len(engine.history)
            engine.generate([turn.ids], how)
            times.append(engine.history[before].total_ms)
        runs.append(times)
    return [min(times) for times in zip(*runs, strict=True)]


def picture(lm: LanguageModel, turns: Sequence[Turn]) -> Picture:
    """For each turn: tokens from the cache and computed; time to first token, cold and with it."""
    cold, warm = (first_token_ms(lm, turns, caching) for caching in (False, True))
    x = range(1, len(turns) + 1)
    figure = plots.new_figure()
    with plots.style():
        left, right = figure.subplots(1, 2)
        cached, computed = [t.cached for t in turns], [t.computed for t in turns]
        left.bar(x, cached, 0.7, label="from the cache", **fill(0))
        left.bar(x, computed, 0.7, bottom=cached, label="computed", **fill(1))
        left.set(title="tokens of the turn", xlabel="turn", xticks=x)
        left.legend(loc="upper left", fontsize=9)
        left.set_ylim(0, 1.3 * len(turns[-1].ids))
        right.plot(x, cold, label="no cache", **line(1))
        right.plot(x, warm, label="prefix cache", **line(0))
        right.set(title="ms to the first token", xlabel="turn", xticks=x)
        right.set_ylim(0, 1.35 * max(cold))
        right.legend(loc="upper left", fontsize=9)
        source_note(right, "Measured here")
    last = turns[-1]
    return plots.picture(
        figure,
        f"Turn {len(turns)} has {len(last.ids)} tokens: {last.cached} come from the cache and "
        f"{last.computed} are computed. Its first token takes {cold[-1]:.1f} ms without a cache "
        f"and {warm[-1]:.1f} ms with it, {warm[-1] / cold[-1]:.2f} times as long.",
    )
