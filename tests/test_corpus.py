"""The corpus: what the grammar writes it can read, and a change that it could not write, it cannot.

The counterexamples are stories written by hand here, not output of the generator.
"""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from g2c_serving.process.prompt import Reserved
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer
from g2c_serving.train import corpus, grammar, words
from g2c_serving.train.train_command import TOKENIZER

BY_HAND = (
    "Once upon a time there was a kind girl named Mia who lived by the river. "
    "Mia had a red kite. "
    "Her best friend was a wise fox. "
    "But one day Mia dropped the kite under the bridge. "
    "So Mia ran to the fox and asked for help. "
    "The fox looked under the bridge and found the kite. "
    "Then Mia went home to the river with the red kite, and she was happy."
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TOKENIZER)


def test_every_story_told_parses_and_keeps_its_facts() -> None:
    rng = random.Random(5)
    for _ in range(500):
        found = grammar.facts(grammar.tell(rng))
        assert found and all(value is not False for value in found.values())


def test_a_story_by_hand_is_read_with_its_facts() -> None:
    story = grammar.parse(BY_HAND)
    assert story is not None and story.plot == "lost"
    assert story.mentions["hero"] == ["Mia"] * 5
    assert story.mentions["obj"] == ["kite"] * 4
    assert story.mentions["color"] == ["red", "red"]
    assert grammar.facts(BY_HAND) == {
        "hero": True, "obj": True, "color": True, "place": True, "animal": True, "spot": True,
        "prep": True, "thief": None, "kind": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("Then Mia", "Then Anna", "hero"),
        ("found the kite", "found the lamp", "obj"),
        ("the red kite,", "the blue kite,", "color"),
        ("home to the river", "home to the beach", "place"),
        ("ran to the fox", "ran to the bear", "animal"),
        ("under the bridge and", "under the tree and", "spot"),
        ("she was happy", "he was happy", "kind"),
        ("kind girl", "kind boy", "kind"),
    ],
)
def test_a_fact_that_changes_is_seen(old: str, new: str, lost: str) -> None:
    text = BY_HAND.replace(old, new)
    assert text != BY_HAND
    assert [k for k, v in grammar.facts(text).items() if v is False] == [lost]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-1],  # no end
        lambda s: s + " ",
        lambda s: s + " Mia had a red kite.",
        lambda s: s.replace("kind girl", "kind  girl"),
        lambda s: s.replace("red kite", "red sword"),  # not in the lists
        lambda s: s.replace("So Mia ran to the fox and asked for help. ", ""),  # a needed section
        lambda s: s.replace("found the kite", "found found the kite"),
        lambda s: "",
    ],
)
def test_what_the_grammar_cannot_make_does_not_parse(change) -> None:
    assert grammar.parse(BY_HAND) is not None
    assert grammar.parse(change(BY_HAND)) is None
    assert grammar.facts(change(BY_HAND)) == {}


def test_sections_of_two_plots_do_not_mix() -> None:
    text = BY_HAND.replace(
        "The fox looked under the bridge and found the kite.",
        "With a long stick they got the kite down from the bridge.",
    )
    assert grammar.parse(text) is None


def test_given_facts_are_used() -> None:
    story = grammar.parse(grammar.tell(random.Random(1), hero="Tom", obj="lamp"))
    assert story is not None
    assert set(story.mentions["hero"]) == {"Tom"} and set(story.mentions["obj"]) == {"lamp"}


def test_equal_seeds_give_equal_documents() -> None:
    first, again, other = (list(itertools.islice(corpus.documents(seed), 50)) for seed in (3, 3, 4))
    assert first == again != other


def test_facts_are_one_token_each(tokenizer: Tokenizer) -> None:
    assert len(words.WORDS["hero"]) >= 40 and len(words.WORDS["obj"]) >= 35
    for slot in words.FACTS:
        for word in words.WORDS[slot]:
            assert len(tokenizer.encode(f" {word}")) == 1, word


def test_sizes(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    lengths = sorted(len(tokenizer.encode_parts(corpus.story(rng))) for _ in range(500))
    assert 50 <= lengths[25] and lengths[-25] <= 180  # nine of ten stories are in 50 to 180
    for text in words.PREAMBLES:
        assert 100 <= len(tokenizer.encode_parts(corpus.system(text))) <= 250
    longest = max(len(tokenizer.encode_parts(corpus.document(rng))) for _ in range(2000))
    assert longest <= 512


def test_turns_follow_the_chat_template() -> None:
    """The parent course: user turn `<|user|>\\n{content}\\n`, assistant turn
    `<|assistant|>\\n{content}<|end|>`."""
    parts = corpus.user("Hello!") + corpus.assistant("Hi.")
    text = "".join(p.name if isinstance(p, Reserved) else p for p in parts)
    assert text == "<|user|>\nHello!\n<|assistant|>\nHi.<|end|>"


def test_no_text_part_spells_a_reserved_token() -> None:
    for parts in itertools.islice(corpus.documents(0), 1000):
        assert parts[-1] == corpus.END_OF_TEXT
        for part in parts:
            if isinstance(part, str):
                assert part and not any(name in part for name in RESERVED_TOKENS)


def test_tool_calls_are_json_with_the_arguments_of_the_question() -> None:
    rng = random.Random(2)
    for _ in range(200):
        parts = corpus.tool_call(rng)
        start = parts.index(corpus.TOOL_CALL)
        call, question = json.loads(parts[start + 1]), parts[parts.index(Reserved("<|user|>")) + 1]
        assert parts[start + 2] == Reserved("<|end|>")
        named = [v for k, v in call["arguments"].items() if k != "loud"]
        assert named and all(str(value) in question for value in named)
        json.loads(parts[parts.index(corpus.TOOL_RESULT) + 1])


def test_sums_are_right() -> None:
    rng = random.Random(3)
    for _ in range(100):
        for line in corpus.sums(rng)[0].splitlines():
            left, right = line.split(" = ")
            a, sign, b = left.split()
            assert int(right) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


def test_riddles_think_before_they_answer() -> None:
    rng = random.Random(4)
    for _ in range(100):
        parts = corpus.reasoning(rng)
        think, end = parts.index(corpus.THINK), parts.index(corpus.END_THINK)
        assert end == think + 2 and parts[end + 2] == Reserved("<|end|>")
    prompt, answer = corpus.riddle_prompt(random.Random(0), "sum")
    a, b, total = map(int, re.findall(r"\d+", prompt[1] + answer))
    assert a + b == total
    prompt, answer = corpus.riddle_prompt(random.Random(0), "owner")
    name, thing = answer.removeprefix("It is ").removesuffix(".").split(" who has the ")
    assert f"{name} has the {thing}" in prompt[1]


def test_a_chat_asks_for_what_was_told() -> None:
    """The answer's name or object was said earlier in the same chat."""
    rng = random.Random(6)
    for _ in range(200):
        texts = [p for p in corpus.chat(rng) if isinstance(p, str)]
        asked = [w for w in texts[-1].rstrip(".").split() if w in words.WORDS["hero"]]
        assert all(name in " ".join(texts[:-1]) for name in asked)


def test_the_answer_of_a_recall_prompt_was_told_before() -> None:
    rng = random.Random(8)
    for _ in range(50):
        parts, answer = corpus.recall_prompt(rng)
        told = " ".join(p for p in parts if isinstance(p, str))
        named = set(re.findall(r"\w+", answer)) & set(
            sum((words.WORDS[f] for f in words.FACTS), [])
        )
        assert named and all(re.search(rf"\b{word}\b", told) for word in named)
        assert parts[-2:] == [Reserved("<|assistant|>"), "\n"]


def test_emoji_and_accents_are_spread_over_tokens(tokenizer: Tokenizer) -> None:
    texts = "".join(
        p for d in itertools.islice(corpus.documents(0), 2000) for p in d if isinstance(p, str)
    )
    assert all(emoji in texts for emoji in words.EMOJI) and "é" in texts and "ö" in texts
    for emoji in words.EMOJI:
        assert [tokenizer.token_bytes(i) for i in tokenizer.encode(emoji)] == [
            bytes([b]) for b in emoji.encode("utf-8")
        ]


def test_drills_repeat_or_ask_back() -> None:
    rng = random.Random(7)
    for _ in range(50):
        text = corpus.drill(rng)[0]
        told = re.findall(r"(\w+) has the (\w+)\.", text)
        asked = re.findall(r"The (\w+) is with (\w+)\.", text)
        periods = [n for n in range(1, len(text) // 2 + 1) if text[:-n] == text[n:]]
        assert periods or (told and sorted(told) == sorted((name, it) for it, name in asked))
