"""The parent course's `Backend` contract over the engine: the call, the fields, bad input."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import fields
from functools import partial

import pytest
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.backend import Backend, InferenceResult
from g2c_serving.lab.promoting import promote
from g2c_serving.process.prompt import Reserved

FIELDS = [  # of the parent course's Module 16
    "prompt", "completion", "prompt_tokens", "completion_tokens", "latency_ms", "backend",
    "metadata",
]  # fmt: skip
DEFAULTS = {"max_new_tokens": 128, "temperature": 1.0, "top_k": None, "top_p": None}


@pytest.fixture(scope="module")
def backend():
    return Backend(g.load("tiny"))


def test_the_call_and_the_fields_are_the_courses():
    parameters = inspect.signature(Backend.complete).parameters
    assert [f.name for f in fields(InferenceResult)] == FIELDS
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in DEFAULTS)
    assert g.Backend is Backend


def test_tokens_per_second():
    """Right values: 5 tokens in 250 ms are 20 a second; nothing in no time is 0."""
    assert InferenceResult("a", "b", 1, 5, 250.0, "x").tokens_per_second == 20
    assert InferenceResult("a", "", 1, 0, 0.0, "x").tokens_per_second == 0


def test_a_completion_is_what_the_engine_writes(backend):
    """Right values: the same request given to an engine."""
    text = "Once upon a time"
    found = backend.complete(text, max_new_tokens=12, temperature=0)
    params = g.SamplingParams(temperature=0, max_tokens=12)
    (expected,) = g.Engine(backend.lm).generate([text], params)
    assert (found.prompt, found.completion) == (text, expected.text)
    assert found.prompt_tokens == len(backend.lm.tokenizer.encode(text))
    assert found.completion_tokens == 12 and found.metadata["finish_reason"] == "length"
    assert found.metadata["token_ids"] == expected.token_ids
    assert found.latency_ms > 0 and found.tokens_per_second > 0
    assert (found.backend, found.metadata["model"]) == ("g2c_serving", "tiny")


def test_sampling_reaches_the_engine_and_the_seed_replays_it(backend):
    options = {"max_new_tokens": 16, "temperature": 0.9, "top_k": 20, "top_p": 0.9}
    first = backend.complete("Once upon a time", **options)
    params = g.SamplingParams(max_tokens=16, temperature=0.9, top_k=20, top_p=0.9,
                              seed=first.metadata["seed"])  # fmt: skip
    (expected,) = g.Engine(backend.lm).generate(["Once upon a time"], params)
    assert first.metadata["token_ids"] == expected.token_ids
    again = backend.complete("Once upon a time", **options, seed=first.metadata["seed"])
    assert again.completion == first.completion


def test_a_chat_ends_with_its_turn(backend):
    """Right value: the model's own <|end|>, which does not show."""
    asked = g.chat([{"role": "user", "content": "What is 3 + 4?"}])
    found = backend.complete(asked, temperature=0)
    assert found.metadata["token_ids"][-1] == backend.lm.tokenizer.reserved["<|end|>"]
    assert found.metadata["finish_reason"] == "stop" and "<|end|>" not in found.completion
    assert found.prompt == asked.text


def test_a_turn_ends_a_completion_and_any_end_of_text_does():
    """Right values: greedy ids that nothing ends, up to the first that is an end."""
    lm = random_lm(vocab_size=266)
    asked = {"max_new_tokens": 40, "temperature": 0}
    whole = Backend(lm).complete([65, 66], **asked).metadata["token_ids"]
    new = [i for k, i in enumerate(whole) if k > 4 and i not in whole[:k]]
    assert len(new) > 1
    unused = next(i for i in range(266) if i not in whole)
    ended = dataclasses.replace(lm, eos_id=unused, other_eos_ids=(new[0],))
    turn = dataclasses.replace(lm, tokenizer=Renamed(new[1]))
    for model, end in ((ended, new[0]), (turn, new[1])):
        found = Backend(model).complete([65, 66], **asked).metadata
        assert found["token_ids"] == whole[: whole.index(end) + 1]
        assert found["finish_reason"] == "stop"


class Renamed(g.Tokenizer):
    """One whose end of a turn has another id."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.reserved = {"<|end|>": end}


@pytest.mark.parametrize("names", [(), None], ids=["none", "beyond the vocabulary"])
def test_a_vocabulary_without_an_end_of_a_turn(names):
    lm = random_lm(vocab_size=256)
    if names is not None:
        lm = dataclasses.replace(lm, tokenizer=g.Tokenizer(special_tokens=names))
    found = Backend(lm).complete([65, 66], max_new_tokens=5, temperature=0)
    assert (found.completion_tokens, found.metadata["finish_reason"]) == (5, "length")


def test_text_is_inert_unless_parse_promotes_it(backend):
    """Right values: the tokenizer's inert ids, and a prompt in parts."""
    text = "<|user|>\nHello\n<|assistant|>\n"
    inert = backend.complete(text, max_new_tokens=1)
    assert inert.prompt_tokens == len(backend.lm.tokenizer.encode(text))
    opened = Backend(backend.lm, parse=partial(promote, backend.lm.tokenizer))
    parts = [Reserved("<|user|>"), "\nHello\n", Reserved("<|assistant|>"), "\n"]
    expected = backend.lm.tokenizer.encode_parts(parts)
    found = opened.complete(text, max_new_tokens=1)
    assert found.prompt_tokens == len(expected) < inert.prompt_tokens
    assert found.prompt == text


def test_a_longer_prompt_finds_the_shorter_one_in_the_cache():
    lm = random_lm(vocab_size=266, context=128)
    backend, ids = Backend(lm), random_ids(lm, 40, 0)
    first = backend.complete(ids, max_new_tokens=8, temperature=0)
    longer = [*ids, *first.metadata["token_ids"], *random_ids(lm, 8, 1)]
    second = backend.complete(longer, max_new_tokens=8, temperature=0)
    assert first.metadata["num_cached_tokens"] == 0
    assert second.metadata["num_cached_tokens"] == 32  # of 47 computed tokens, whole blocks of 16
    assert second.prompt == lm.tokenizer.decode(longer)


def test_the_context_limit_ends_a_completion():
    lm = random_lm(vocab_size=266, context=32)
    found = Backend(lm).complete(random_ids(lm, 30, 0), max_new_tokens=50)
    assert found.completion_tokens == 2 and found.metadata["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be an integer, 1 or more"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5"),
        ({"temperature": -1}, "temperature=-1 must be 0 or more"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"top_k": 0}, "top_k=0 must be an integer, 1 or more"),
        ({"top_k": True}, "top_k=True"),
        ({"top_p": 0.0}, r"top_p=0.0 must be in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_options_are_named(options, says, backend):
    with pytest.raises(ValueError, match=says):
        backend.complete("Hello", **options)


def test_bad_prompts_are_named_and_leave_the_backend_usable(backend):
    with pytest.raises(ValueError, match="prompt is empty"):
        backend.complete("")
    with pytest.raises(ValueError, match="context limit of tiny is 512"):
        backend.complete([300] * 512)
    with pytest.raises(TypeError, match="prompt is 3"):
        backend.complete(3)
    with pytest.raises(ValueError, match="token id 5000 is outside the vocabulary"):
        backend.complete([5000])
    assert backend.complete("Hello", max_new_tokens=1).completion_tokens == 1


def test_what_is_no_model_is_named():
    with pytest.raises(TypeError, match=r"lm is a str: pass a loaded model, load\('tiny'\)"):
        Backend("tiny")


def test_an_engine_that_gives_up_is_an_error():
    """A lone sequence that outgrows a pool of two blocks of four tokens."""
    lm = random_lm(vocab_size=266)
    small = Backend(lm, g.EngineConfig(num_blocks=2, block_size=4))
    with pytest.raises(RuntimeError, match=r"the completion ended with an error: .*num_blocks"):
        small.complete(random_ids(lm, 6, 0), max_new_tokens=10)
    assert small.complete(random_ids(lm, 3, 0), max_new_tokens=2).completion_tokens == 2
