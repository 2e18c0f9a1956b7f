"""The shipped models do what `data/README.md` says, on a smaller sample; the counting is right."""

from __future__ import annotations

import pytest

import g2c_serving as g
from g2c_serving.train import grammar, quality
from g2c_serving.train.quality import Quality, Score


@pytest.fixture(scope="module")
def engine() -> g.Engine:
    return g.Engine(g.load("tiny"), g.EngineConfig(num_blocks=1024))


@pytest.mark.parametrize("name", ["tiny", "tiny-window"])
def test_stories_of_the_shipped_models_parse_and_keep_their_facts(name: str) -> None:
    engine = g.Engine(g.load(name), g.EngineConfig(num_blocks=1024))
    found = [grammar.facts(text) for text in quality.sample_stories(engine, 40)]
    assert sum(map(bool, found)) >= 36
    assert sum(story.get("hero") is True for story in found) >= 34
    assert sum(story.get("obj") is True for story in found) >= 34
    assert len({str(story) for story in quality.sample_stories(engine, 12)}) == 12  # all different


def test_the_same_seeds_give_the_same_stories(engine: g.Engine) -> None:
    assert quality.sample_stories(engine, 4) == quality.sample_stories(engine, 4)


@pytest.mark.parametrize("name", ["tiny", "tiny-window"])
def test_tool_calls_and_answers_of_the_shipped_models(name: str) -> None:
    scores = {s.name: s for s in quality.measure(name, stories=4, calls=20).scores}
    assert scores["tool prompt: marker, then valid JSON"].share >= 0.9
    assert scores["second turn of a chat: what the first told"].share >= 0.7


def test_scores_are_counted_and_compared_with_their_target() -> None:
    assert Score("a", 19, 20, 0.95).share == 0.95
    assert Quality([Score("a", 19, 20, 0.95), Score("b", 0, 7)]).reached
    assert not Quality([Score("a", 18, 20, 0.95)]).reached
    assert "| a | 18 of 20 | 90.0% | 95% |" in Quality([Score("a", 18, 20, 0.95)]).table()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>3 + 4 = 7</think>Now Mia has 7 coins.<|end|>", "Now Mia has 7 coins."),
        ("Your name is Tom.<|end|>", "Your name is Tom."),
        ("Your name is", "Your name is"),
    ],
)
def test_the_answer_is_what_follows_the_thought(text: str, answer: str) -> None:
    assert quality._answer(text) == answer


def test_calls_are_compared_but_for_what_the_question_leaves_open() -> None:
    asked = {"name": "play", "arguments": {"song": "waltz", "loud": True}}
    assert quality._same_call({"name": "play", "arguments": {"song": "waltz"}}, asked)
    assert not quality._same_call({"name": "play", "arguments": {"song": "polka"}}, asked)
    assert not quality._same_call({"name": "add", "arguments": {"song": "waltz"}}, asked)
    for broken in (None, 3, [], {}, {"name": "play"}, {"name": "play", "arguments": 1}):
        assert not quality._same_call(broken, asked)


def test_a_call_is_read_only_between_marker_and_end(engine: g.Engine) -> None:
    tokenizer = engine.lm.tokenizer
    marker, end = tokenizer.reserved_id("<|tool_call|>"), tokenizer.reserved_id("<|end|>")
    inside = tokenizer.encode('{"name": "timer"}')
    assert quality._read_call(engine, [marker, *inside, end]) == {"name": "timer"}
    assert quality._read_call(engine, [*inside, end]) is None  # no marker
    assert quality._read_call(engine, [marker, *inside]) is None  # cut off
    assert quality._read_call(engine, [marker, *inside[:-1], end]) is None  # not JSON
    spelled = tokenizer.encode("<|tool_call|>")  # the marker as text is not the marker
    assert quality._read_call(engine, [*spelled, *inside, end]) is None
