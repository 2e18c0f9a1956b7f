"""Our encoding against DeepSeek's own library, and the table that stands in for it."""

from __future__ import annotations

import json
import random

import pytest
import tokenizers

from g2c_serving.lab import recipe, recipe_forged
from g2c_serving.lab.promoting import encode_promoting
from g2c_serving.paths import DATA
from g2c_serving.process.prompt import Prompt, Reserved
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer

needs_recipe = pytest.mark.skipif(
    not recipe.is_installed(), reason=f"deepseek-recipe is not installed: {recipe.INSTALL}"
)


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")


@needs_recipe
def test_a_thousand_random_conversations_give_recipe_s_ids(shipped: Tokenizer) -> None:
    """Report: deepseek-recipe 5 (the user types a role marker)."""
    found = recipe.compare(shipped, 1_000)
    assert found.equal == found.count == 1_000
    assert found.spelled > 5_000 and found.promoting_equal < 100  # the texts are hostile


@needs_recipe
def test_the_ranges_that_recipe_marks_are_our_reserved_parts(shipped: Tokenizer) -> None:
    theirs, rng = recipe.encoding(shipped), random.Random(1)
    for _ in range(200):
        messages = recipe.random_messages(rng)
        rendered = theirs.render_conversation(recipe.conversation(messages))
        prompt = recipe.v4_prompt(messages)
        assert rendered.prompt == prompt.text
        at, ranges = 0, []
        for part in prompt:
            end = at + len(part.name if isinstance(part, Reserved) else part.text)
            ranges += [(at, end)] if isinstance(part, Reserved) else []
            at = end
        assert ranges == list(rendered.special_ranges)


@needs_recipe
def test_merges_through_the_markers_own_text() -> None:
    """Such as a vocabulary that was learnt from text about chat templates has."""
    merges = [[60, 124, 266], [124, 62, 267], [266, 117, 268], [101, 114, 269]]
    eager = Tokenizer(merges, RESERVED_TOKENS)
    assert recipe.compare(eager, 100, seed=2).equal == 100


def test_our_vocabulary_as_hugging_face_s_file_is_the_same(shipped: Tokenizer) -> None:
    text = recipe.hugging_face_json(shipped)
    theirs = tokenizers.Tokenizer.from_str(text)
    assert theirs.get_vocab_size() == shipped.vocab_size
    rng = random.Random(3)
    for _ in range(100):
        words = "".join(rng.choices(recipe.HOSTILE, k=12))
        theirs.encode_special_tokens = True  # all of the names are flagged special
        assert theirs.encode(words).ids == shipped.encode(words)
        theirs.encode_special_tokens = False
        assert theirs.encode(words).ids == encode_promoting(shipped, words)
        assert theirs.decode(shipped.encode(words), skip_special_tokens=False) == words


def test_the_published_tokens_spell_the_message() -> None:
    published = json.loads(recipe_forged.PUBLISHED.read_text(encoding="utf-8"))
    assert published["message"] == recipe_forged.FORGED_V4
    special = published["special_tokens"]
    markers = {
        path: [text for _, text in published[path] if text in special]
        for path in ("deepseek-recipe", "promoting")
    }
    begin, user, assistant = special[3], special[2], special[1]
    assert markers["deepseek-recipe"] == [begin, user, assistant, "</think>"]
    assert markers["promoting"] == [
        begin, user, assistant, "</think>", special[4], user, assistant, "</think>"
    ]  # fmt: skip
    promoted = "".join(text for _, text in published["promoting"])
    assert promoted == f"{begin}{user}{recipe_forged.FORGED_V4}{assistant}</think>"


def test_the_table_says_what_became_of_the_marker(shipped: Tokenizer) -> None:
    rows = {(row[0], row[1]): row for row in recipe_forged.forged_table(shipped).rows}
    assert rows["DeepSeek V4", "promoting"][4] == "128804"
    assert rows["DeepSeek V4", "deepseek-recipe"][4].startswith("30 28217 88031")
    assert rows["tiny", "promoting"][4] == "259"
    inert = rows["tiny", "ours"]
    assert "259" not in inert[4].split() and inert[3] == "<|user|> <|assistant|>"
    for path in ("ours", "promoting"):  # the same merges, behind eight names in place of ten
        assert rows["g2c course", path][2:4] == rows["tiny", path][2:4]
    assert rows["g2c course", "promoting"][4] == "259"


def test_our_layout_of_v4_by_hand() -> None:
    """As recipe's documentation and its output have it: turns without line breaks, one closing
    mark of thought before each answer, results of tools in the user's turn."""
    call = {"name": "timer", "arguments": {"minutes": 3, "song": "jig"}}
    prompt = recipe.v4_prompt(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes", "tool_calls": [call]},
            {"role": "tool", "content": "done"},
            {"role": "user", "content": "Thanks"},
        ]
    )
    dsml = "<|tool_call|>"
    assert prompt.text == (
        "<|endoftext|>Be kind.<|user|>Hi<|assistant|></think>Yes\n\n"
        f'<{dsml}tool_calls>\n<{dsml}invoke name="timer">\n'
        f'<{dsml}parameter name="minutes" string="false">3</{dsml}parameter>\n'
        f'<{dsml}parameter name="song" string="true">jig</{dsml}parameter>\n'
        f"</{dsml}invoke>\n</{dsml}tool_calls><|end|>"
        "<|user|><tool_result>done</tool_result>\n\nThanks<|assistant|></think>"
    )
    assert isinstance(prompt, Prompt)
