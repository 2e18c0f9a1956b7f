"""The grammar of the stories, read in both directions: `tell` writes one, `parse` reads one.

A story is a plot: a row of sections, some of which may be missing. A section is one of several
templates. In a template `{obj}` is a slot, filled from a word list, and `(ran|walked)` a choice.
`parse` is context-free: each slot may hold any word of its list. Whether the words agree with each
other, the hero's name at the end with that at the start, is what `facts` tells.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

from g2c_serving.train.words import AGREEMENT, BOYS, FACTS, WORDS

SECTIONS: dict[str, list[str]] = {
    "open": [
        "Once upon a time there was a {trait} {kind} named {hero} who lived by the {place}.",
        "Once upon a time there lived a {kind} called {hero} in a (small|big|tall) house near the "
        "{place}.",
        "Once upon a time a {trait} {kind} named {hero} lived by the {place} with {poss} {family}.",
        "There once was a {kind} named {hero}. {Pron} lived near the {place} and was very {trait}.",
        "Long ago, a {trait} {kind} called {hero} lived near the {place}.",
        "In a (small|big|tall) house by the {place} lived a {trait} {kind} named {hero}.",
        "This is the story of {hero}, a {trait} {kind} from the {place}.",
        "One {weather} {time} a {kind} named {hero} came to the {place}.",
    ],
    "have": [
        "{hero} had a {color} {obj}.",
        "{hero} had a {color} {obj} and loved it more than (gold|cake|anything).",
        "{Poss} {family} gave {hero} a {color} {obj} on {poss} birthday.",
        "At the market {hero} bought a {color} {obj} for {count} coins.",
        "{hero} made a {color} {obj} out of {stuff}.",
        "{Pron} owned a {color} {obj}, and the {obj} was very (old|pretty|fine).",
        "One {time} {hero} found a {color} {obj} on the road.",
    ],
    "like": [
        "Every {time} {pron} (played with|looked at|cleaned) the {obj}.",
        "{hero} took the {obj} everywhere.",
        "Nobody else had such a {color} {obj}.",
        "{hero} kept the {obj} in (a safe place|{poss} room|{poss} pocket).",
        "The {obj} was {poss} best treasure.",
    ],
    "friend": [
        "{hero} had a good friend, a {trait} {animal}.",
        "{Poss} best friend was a {trait} {animal}.",
        "A {trait} {animal} lived there too, and the {animal} liked {hero}.",
        "One {weather} {time} {hero} met a {trait} {animal}.",
        "{hero} often (talked|played|sang) with a {animal}.",
        "Near the {place} {hero} met a {animal} that could (talk|sing|dance).",
    ],
    "lost": [
        "One {weather} {time} {hero} left the {obj} {prep} the {spot} and forgot it.",
        "But one {time} {hero} dropped the {obj} {prep} the {spot}.",
        "Then {hero} fell asleep {prep} the {spot}, and when {pron} woke up the {obj} was gone.",
        "One {time} {hero} went home from the {spot} without the {obj}.",
    ],
    "stuck": [
        "One {weather} {time} the {obj} got stuck {prep} the {spot}.",
        "But the wind (took|blew) the {obj} away, and it got stuck {prep} the {spot}.",
        "One {time} the {obj} rolled {prep} the {spot}, and {hero} could not reach it.",
    ],
    "taken": [
        "One {time} a {thief} took the {obj} and hid it {prep} the {spot}.",
        "But a {thief} wanted the {color} {obj} and ran with it to the {spot}.",
        "That night a {thief} came and carried the {obj} to the {spot}.",
    ],
    "feel": [
        "{hero} was very {sad}.",
        '"Oh no!" said {hero}. "Where is my {obj}?"',
        "{hero} sat down and (cried|sighed).",
        '"My {color} {obj} is gone!" cried {hero}.',
        "{hero} felt {sad} without the {obj}.",
    ],
    "ask": [
        '"Can you help me?" {hero} asked the {animal}.',
        "{hero} told the {animal} about the {color} {obj}.",
        '"Please help me find my {obj}," {hero} said to the {animal}.',
        "The {animal} saw {hero} and asked what was wrong.",
        "So {hero} ran to the {animal} and asked for help.",
    ],
    "reply": [
        '"Do not worry, {hero}," said the {animal}. "I will help you."',
        '"I know what to do," said the {animal}.',
        '"Let us go to the {spot}," said the {animal}.',
        '"A {obj} cannot (walk|fly|swim)," said the {animal}. "We will find it."',
        'The {animal} (smiled|nodded) and said, "Follow me, {hero}!"',
    ],
    "search": [
        "Together they (walked|ran|went) to the {spot}.",
        "{hero} and the {animal} (walked|ran|went) to the {spot} together.",
        "They (walked|ran) past the {place} and came to the {spot}.",
        "The {animal} (ran|went) ahead, and {hero} followed to the {spot}.",
    ],
    "found": [
        "There, {prep} the {spot}, they saw the {color} {obj}!",
        "The {animal} looked {prep} the {spot} and found the {obj}.",
        "{hero} looked {prep} the {spot}, and there was the {color} {obj}.",
        "At the {spot} the {animal} (saw|smelled) something. It was the {obj}!",
    ],
    "freed": [
        "The {animal} pulled hard at the {spot}, and the {obj} came (free|loose).",
        "{hero} held the {spot} and the {animal} (pushed|pulled) until the {color} {obj} came "
        "free.",
        "With a long stick they got the {obj} down from the {spot}.",
        "At the {spot} the {animal} jumped {count} times and caught the {obj}.",
    ],
    "won": [
        "At the {spot} the {animal} made a loud noise, and the {thief} ran away without the {obj}.",
        '"Give it back!" said {hero}, and the {thief} put the {color} {obj} down by the {spot}.',
        "The {thief} was asleep by the {spot}, so the {animal} quietly took the {obj}.",
        "At the {spot} they told the {thief} a joke, and the {thief} gave them the {obj}.",
    ],
    "gift": [
        "The {animal} had no {obj}, so {hero} gave the {color} {obj} to the {animal}.",
        'One {time} {hero} said to the {animal}, "Let us share my {obj}."',
        "The {animal} liked the {color} {obj} so much that {hero} made another {obj}.",
        "{hero} let the {animal} play with the {obj} every {time}.",
    ],
    "thanks": [
        '"Thank you!" said {hero}, and gave the {animal} a {treat}.',
        "{hero} thanked the {animal} with a {treat}.",
        '"You are a true friend," {hero} said to the {animal}.',
        '"Now I have my {obj} again," said {hero}. "Thank you, dear {animal}!"',
    ],
    "end": [
        "Then {hero} went home to the {place} with the {color} {obj}, and {pron} was {glad}.",
        "From that day on {hero} and the {animal} were always together by the {place}.",
        "{hero} was {glad}, and so was the {animal}.",
        "Back at the {place} {hero} told everyone about the {animal} and the {obj}.",
        "And {hero}, the {animal} and the {color} {obj} lived happily by the {place}.",
        "That night {hero} slept well by the {place}, with the {obj} in {poss} arms.",
    ],
}
PLOTS: dict[str, str] = {
    "lost": "open have like? friend lost feel? ask reply? search? found thanks? end",
    "stuck": "open have like? friend stuck feel? ask reply? search? freed thanks? end",
    "taken": "open have like? friend taken feel? ask reply? search? won thanks? end",
    "gift": "open have like? friend gift end",
}


@dataclass(frozen=True)
class Story:
    """A story that was read: its plot, and for each slot the words in the order of mention."""

    plot: str
    mentions: dict[str, list[str]]


def tell(rng: random.Random, **given: str) -> str:
    """A new story. `given` fixes facts, for example hero="Mia", obj="kite"."""
    known = draw_facts(rng, **given)
    plot = rng.choice(list(PLOTS))
    sentences = []
    for section in PLOTS[plot].split():
        if section.endswith("?") and rng.random() < 0.5:
            continue
        sentences.append(fill(rng.choice(SECTIONS[section.rstrip("?")]), known, rng))
    return " ".join(sentences)


def draw_facts(rng: random.Random, **given: str) -> dict[str, str]:
    """One word for each fact, and the pronouns that go with the hero."""
    known = {slot: rng.choice(WORDS[slot]) for slot in FACTS} | given
    male = known["hero"] in BOYS
    known |= {slot: WORDS[slot][male] for slot in AGREEMENT}
    return known | {slot: rng.choice(WORDS[slot]) for slot in ("prep", "thief")}


def fill(template: str, known: dict[str, str], rng: random.Random) -> str:
    """Draw the choices of a template and fill its slots: from `known`, else from the word list."""
    text = re.sub(r"\(([^)]*)\)", lambda m: rng.choice(m[1].split("|")), template)
    return re.sub(r"\{(\w+)\}", lambda m: known.get(m[1]) or rng.choice(WORDS[m[1]]), text)


def parse(text: str) -> Story | None:
    """The story that `text` is, or None when the grammar cannot make it. Reserved names such as
    `<|endoftext|>` are not part of a story: cut them off before."""
    for plot, sections in PLOTS.items():
        found = _match(tuple(sections.split()), text, 0)
        if found is not None:
            mentions: dict[str, list[str]] = {}
            for slot, word in found:
                mentions.setdefault(slot, []).append(word)
            return Story(plot, mentions)
    return None


def facts(text: str) -> dict[str, bool | None]:
    """For each fact: do all later mentions equal the first? None where it is named only once.
    `kind` says whether pronouns and name agree. Empty when the text does not parse."""
    story = parse(text)
    if story is None:
        return {}
    words = {slot: story.mentions.get(slot, []) for slot in (*FACTS, "prep", "thief")}
    kept = {s: len(set(w)) == 1 if len(w) > 1 else None for s, w in words.items()}
    male = {h in BOYS for h in words["hero"]} | {
        WORDS[slot].index(word) == 1 for slot in AGREEMENT for word in story.mentions.get(slot, [])
    }
    return kept | {"kind": len(male) == 1}


Mentions = list[tuple[str, str]]


def _match(sections: tuple[str, ...], text: str, at: int) -> Mentions | None:
    """Match `sections` from character `at` to the end, trying each template and each omission."""
    if not sections:
        return [] if at == len(text) else None
    name, rest = sections[0].rstrip("?"), sections[1:]
    start = at if at == 0 else at + 1
    if at == 0 or text[at : at + 1] == " ":
        for pattern, slots in _patterns(name):
            here = pattern.match(text, start)
            found = _match(rest, text, here.end()) if here else None
            if here and found is not None:
                named = zip(slots, here.groups(), strict=True)
                return [(slot, word) for slot, word in named if word] + found
    return _match(rest, text, at) if sections[0].endswith("?") else None


@cache
def _patterns(section: str) -> list[tuple[re.Pattern[str], list[str]]]:
    """The templates of a section as regular expressions with one group a slot, and their slots."""
    return [(re.compile(_to_regex(t)), re.findall(r"\{(\w+)\}", t)) for t in SECTIONS[section]]


def _to_regex(template: str) -> str:
    pieces = re.split(r"(\{\w+\}|[(|)])", template)
    marks = {"(": "(?:", "|": "|", ")": ")"}
    return "".join(
        "(" + "|".join(map(re.escape, WORDS[p[1:-1]])) + ")"
        if p.startswith("{")
        else marks.get(p, re.escape(p))
        for p in pieces
    )
