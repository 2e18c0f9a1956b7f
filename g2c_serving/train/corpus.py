"""The corpus: documents that a seeded generator writes, each a list of parts.

Six kinds: stories (`grammar.py`), small sums, two-turn chats, reasoning between `<think>` and
`</think>`, tool calls in JSON after `<|tool_call|>`, and drills (a random string, repeated), from
which a small model learns to copy. Some chats begin with one of a few fixed long preambles, so that
requests share a prefix. Turns follow the chat template of the parent course; its reserved tokens
are `Reserved` parts, everything else is text. No text of others is in the corpus.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

from g2c_serving.process.prompt import Part, Reserved
from g2c_serving.train.grammar import draw_facts, fill, tell
from g2c_serving.train.words import CITIES, EMOJI, PREAMBLES, SKIES, SONGS, WORDS

Document = list[Part]
END_OF_TEXT = Reserved("<|endoftext|>")
THINK, END_THINK = Reserved("<think>"), Reserved("</think>")
TOOL_CALL, TOOL_RESULT = Reserved("<|tool_call|>"), Reserved("<|tool_result|>")

CHATS = [  # user, assistant, user, assistant
    (
        "(Hello|Hi|Good {time})! My name is {hero}.",
        "Hello, {hero}! {emoji} (How can I help you|What can I do for you)?",
        "(What is my name|Do you know my name|Who am I)?",
        "Your name is {hero}.",
    ),
    (
        "I have a {color} {obj}. It is {prep} the {spot}.",
        "(That is|What) a (nice|pretty|fine) {obj}! {emoji}",
        "Where is my {obj}?",
        "Your {color} {obj} is {prep} the {spot}.",
    ),
    (
        "Look at my {obj}! It is {color}, and I got it from {hero}.",
        "(I like|I love) a {color} {obj}! {emoji}",
        "Who gave me the {obj}?",
        "The {color} {obj} came from {hero}.",
    ),
    (
        "My friend {hero} lives near the {place}.",
        "Then you can meet {hero} at the café by the {place}!",
        "Where does {hero} live?",
        "Your friend {hero} lives near the {place}.",
    ),
    (
        "What does a {animal} like?",
        "A {animal} likes a {treat} and a walk to the {place}.",
        "Is it {trait}?",
        "(Yes|Of course), a {animal} can be very {trait}.",
    ),
]


def document(rng: random.Random, drills: float = 0.1) -> Document:
    """One document; a part `drills` of all is drills. Every document ends with `<|endoftext|>`."""
    if rng.random() < drills:
        return drill(rng)
    makers: list[Callable[[random.Random], Document]] = [story, chat, sums, reasoning, tool_call]
    (make,) = rng.choices(makers, weights=[52, 13, 10, 14, 11])
    return make(rng)


def documents(seed: int, drills: float = 0.1) -> Iterator[Document]:
    """Documents without end; equal seeds give equal documents."""
    rng = random.Random(seed)
    while True:
        yield document(rng, drills)


def story(rng: random.Random) -> Document:
    return [tell(rng), END_OF_TEXT]


def sums(rng: random.Random) -> Document:
    """Two to six small sums, one a line."""
    return ["\n".join(_sum(rng) for _ in range(rng.randint(2, 6))) + "\n", END_OF_TEXT]


def drill(rng: random.Random) -> Document:
    """A random string of words or letters, two to five times; or who has what, asked back."""
    kind = rng.random()
    if kind < 0.2:
        return [_belongings(rng), END_OF_TEXT]
    if kind < 0.75:
        lists = [WORDS[s] for s in ("hero", "obj", "color", "place", "animal", "spot", "trait")]
        pieces = [" " + rng.choice(rng.choice(lists)) for _ in range(rng.randint(3, 24))]
    else:
        pieces = [rng.choice(string.ascii_letters + " ,.") for _ in range(rng.randint(4, 24))]
    return ["".join(pieces) * rng.randint(2, 5), END_OF_TEXT]


def chat(rng: random.Random) -> Document:
    """Two turns in which the second asks for what the first told; or a story on demand."""
    known = draw_facts(rng) | {"emoji": rng.choice(EMOJI)}
    if rng.random() < 0.3:
        ask = fill("Tell me a story about {hero} and a {color} {obj}.", known, rng)
        given = {slot: known[slot] for slot in ("hero", "color", "obj")}
        parts = user(ask) + assistant(tell(rng, **given))
        then, answer = "Thank you! Who had the {obj}?", "It was {hero} who had the {color} {obj}."
    else:
        first, reply, then, answer = rng.choice(CHATS)
        parts = user(fill(first, known, rng)) + assistant(fill(reply, known, rng))
    parts += user(fill(then, known, rng)) + assistant(fill(answer, known, rng))
    return [*_preamble(rng), *parts, END_OF_TEXT]


def reasoning(rng: random.Random) -> Document:
    """One question, the thought between `<think>` and `</think>`, the answer."""
    question, thought, answer = _riddle(rng)
    parts = user(question) + assistant(THINK, thought, END_THINK, answer)
    return [*_preamble(rng), *parts, END_OF_TEXT]


def tool_call(rng: random.Random) -> Document:
    """A question, a tool call in JSON, the tool's result, the answer."""
    question, call, result, answer = _tool(rng)
    parts = user(question) + assistant(TOOL_CALL, json.dumps(call))
    parts += [TOOL_RESULT, f"\n{json.dumps(result)}\n", *assistant(answer)]
    return [*_preamble(rng), *parts, END_OF_TEXT]


def tool_prompt(rng: random.Random) -> tuple[Document, dict[str, Any]]:
    """A question that a tool answers, up to the assistant's turn; and the call it asks for."""
    question, call, _, _ = _tool(rng)
    return user(question) + assistant()[:2], call


def riddle_prompt(rng: random.Random, kind: str) -> tuple[Document, str]:
    """A question to think about, up to the assistant's turn; and its answer. `kind` is one of
    "owner" and "sum"."""
    question, _, answer = _riddle(rng, kind)
    return user(question) + assistant()[:2], answer


def recall_prompt(rng: random.Random) -> tuple[Document, str]:
    """A chat up to the answer of its second turn, which names what the first turn told; and that
    answer."""
    known = draw_facts(rng) | {"emoji": rng.choice(EMOJI)}
    first, reply, then, answer = (fill(turn, known, rng) for turn in rng.choice(CHATS[:4]))
    return user(first) + assistant(reply) + user(then) + assistant()[:2], answer


def user(content: str) -> Document:
    return [Reserved("<|user|>"), f"\n{content}\n"]


def system(content: str) -> Document:
    return [Reserved("<|system|>"), f"\n{content}\n"]


def assistant(*content: Part) -> Document:
    return [Reserved("<|assistant|>"), "\n", *content, Reserved("<|end|>")]


def _preamble(rng: random.Random) -> Document:
    return system(rng.choice(PREAMBLES)) if rng.random() < 0.12 else []


def _sum(rng: random.Random) -> str:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return f"{a} + {b} = {a + b}" if rng.random() < 0.6 else f"{a + b} - {b} = {a}"


def _belongings(rng: random.Random) -> str:
    """Two to five people with a thing each, then the things in another order with their owners."""
    count = rng.randint(2, 5)
    pairs = list(
        zip(rng.sample(WORDS["hero"], count), rng.sample(WORDS["obj"], count), strict=True)
    )
    told = [f" {name} has the {thing}." for name, thing in pairs]
    rng.shuffle(pairs)
    return "Now" + "".join(told + [f" The {thing} is with {name}." for name, thing in pairs])


def _riddle(rng: random.Random, kind: str = "") -> tuple[str, str, str]:
    """Question, thought and answer: a small sum of coins, or who has which of two things."""
    one, two = rng.sample(WORDS["hero"], 2)
    thing, other = rng.sample(WORDS["obj"], 2)
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    kind = kind or ("sum" if rng.random() < 0.5 else "owner")
    if kind == "sum":
        question = f"Today {one} has {a} coins and finds {b} more. How many are there now?"
        return question, f"{a} + {b} = {a + b}", f"Now {one} has {a + b} coins."
    told = f"Now {one} has the {thing} and {two} has the {other}."
    asked, owner = rng.choice([(thing, one), (other, two)])
    thought = f"The {asked} is with {owner}."
    return f"{told} Who has the {asked}?", thought, f"It is {owner} who has the {asked}."


def _tool(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    """Question, call, result and answer for one of five tools."""
    city, sky, song = rng.choice(CITIES), rng.choice(SKIES), rng.choice(SONGS)
    color, thing, place = (rng.choice(WORDS[s]) for s in ("color", "obj", "place"))
    a, b, n = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 60)
    rows: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
        (f"(What is|How is) the weather in {city}?", "weather", {"city": city},
         {"sky": sky, "degrees": n}, f"It is {sky} in {city}, and {n} degrees."),
        (f"(Please add|Can you add) {a} and {b}(.|?)", "add", {"a": a, "b": b},
         {"sum": a + b}, f"{a} + {b} = {a + b}"),
        (f"(Find|Please find|Look for) the {color} {thing}.", "find",
         {"thing": f"the {color} {thing}"}, {"place": place},
         f"The {color} {thing} is near the {place}."),
        (f"(Set a timer for|Wake me in) {n} minutes.", "timer", {"minutes": n},
         {"ok": True}, f"The timer is set to {n} minutes."),
        (f"(Play|Please play) a {song}.", "play", {"song": song, "loud": n > 30},
         {"ok": True}, f"Here is a {song}. Enjoy!"),
    ]  # fmt: skip
    question, name, arguments, result, answer = rng.choice(rows)
    return fill(question, {}, rng), {"name": name, "arguments": arguments}, result, answer
