"""One user's loop and 64 users: what is written, who waits; and the source of a function."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
from small_models import random_lm

from g2c_serving.forward.language_model import eos_ids
from g2c_serving.lab import cold_open
from g2c_serving.lab.one_user import OneUserModel, generate_cached
from g2c_serving.lab.source import show_source


@pytest.fixture(scope="module")
def lm():
    return random_lm(vocab_size=266, context=512, layers=1)


def test_a_story_begins_with_its_prompt_and_follows_its_seed(lm):
    one, same, other = [cold_open.story(lm, "Once", seed) for seed in (1, 1, 2)]
    assert one == same != other
    assert one.startswith("Once")


def test_a_story_ends_with_any_of_several_ends(lm):
    """Right value: the story that nothing ends, up to the first of them."""
    whole, at = written(lm), 40
    unused = next(i for i in range(lm.vocab_size) if i not in whole)
    ends = dataclasses.replace(lm, eos_id=unused, other_eos_ids=(whole[at],))
    cut = written(ends)
    assert cut == whole[: whole.index(whole[at]) + 1] and len(cut) < len(whole)
    assert cold_open.story(lm, "Once", 1).startswith(cold_open.story(ends, "Once", 1))


def written(lm) -> list[int]:
    draws = iter(range(7, 10**6, 13))
    pick = lambda logits: next(draws) % len(logits)  # noqa: E731
    return generate_cached(OneUserModel(lm), [65, 66], 60, eos_ids(lm), pick)


def test_one_by_one_the_last_waits_for_all_the_others(lm):
    run = cold_open.one_by_one(lm, cold_open.prompts(lm, 3), 4)
    assert [len(life.tokens) for life in run.lives] == [4, 4, 4]
    first, second, third = run.lives
    assert first.finished <= second.started < second.tokens[0]
    assert third.first_token >= second.finished > first.finished > first.first_token


def test_together_everybody_gets_tokens_at_once(lm):
    run = cold_open.together(lm, cold_open.prompts(lm, 3), 4)
    assert len({life.finished for life in run.lives}) == 1


def test_the_loop_and_the_engine_write_the_same(lm):
    asked = cold_open.prompts(lm, 3)
    loop, engine = cold_open.one_by_one(lm, asked, 6), cold_open.together(lm, asked, 6)
    assert [life.ids for life in loop.lives] == [life.ids for life in engine.lives]


def test_the_pictures_say_what_they_show(lm):
    said = cold_open.compare(lm, users=3, new_tokens=3).text
    assert said.startswith("3 users, 3 tokens each.") and "times the tokens per second" in said
    said = cold_open.prefill_race(lm, (4, 8), repeats=1).text
    assert said.startswith("A prompt of 8 tokens takes") and "one of 4 tokens" in said


def test_the_source_is_that_of_the_file():
    found = show_source(generate_cached)
    assert found.where == "g2c_serving/lab/one_user.py"
    assert found.code.startswith("def generate_cached(") and found.code.endswith("return new_ids")
    assert f"```python\n{found.code}\n```" in found._repr_markdown_()
    assert repr(found).startswith("# g2c_serving/lab/one_user.py\ndef ")
    method = show_source(type("A", (), {"f": Sample.f}).f)
    assert method.code == "def f(self):\n    return 1"


class Sample:
    def f(self):
        return 1


def test_what_has_no_source_is_refused():
    with pytest.raises(TypeError):
        show_source(3)


def test_a_function_is_found_by_name_in_a_file_that_has_changed(tmp_path, monkeypatch):
    """Lines added above it after the import: the line number that Python knows is another one's."""
    file = tmp_path / "changing.py"
    file.write_text(
        "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("changing")
    file.write_text("# one\n" * 3 + file.read_text())
    assert show_source(module.A.g).code == "def g(self):\n    return 2"
    assert show_source(module.A).code.startswith("class A:")
