"""Drafting with another artifact of the same tokenizer, as the course's StoryLM ladder has them.

None has a confidence head. A drafter may know fewer ids than the target, or more, and have a
shorter context. Right values: what the target writes alone, greedily.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import course_files
import pytest
import torch
from course_files import Shape
from small_models import random_ids

import g2c_serving as g

STORY = Shape(400, 32, 2, 2, 64, 64, tokenizer_size=600)
GREEDY = g.SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
SEEDED = g.SamplingParams(temperature=0.8, seed=11, max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A target, artifacts around it, and one of the same sizes with another tokenizer."""
    root = tmp_path_factory.mktemp("artifacts")
    course_files.write(root, "StoryLM-30M-base", STORY)
    others = {"fewer-ids": {"vocab_size": 300}, "more-ids": {"vocab_size": 500}}
    others |= {"short": {"max_seq_len": 24}, "bytes": {"vocab_size": 264, "max_seq_len": 32}}
    for name, sizes in others.items():
        course_files.write(root, f"StoryLM-{name}", dataclasses.replace(STORY, **sizes))
    other = dataclasses.replace(STORY, tokenizer="OtherTokenizer")
    course_files.write(root, "OtherLM-1M-base", other)
    course_files.write_tokenizer(root, "OtherTokenizer", 600, seed=1)
    return root


DRAFTERS = ["StoryLM-30M-base", "StoryLM-fewer-ids", "StoryLM-more-ids", "StoryLM-short"]
DRAFTERS += ["StoryLM-bytes"]


def loaded(root: Path, name: str) -> g.LanguageModel:
    """One whose drafts are often right: the target's weights as far as it has them."""
    lm, target = g.load(root / "models" / name), g.load(root / "models" / "StoryLM-30M-base")
    weights = dict(lm.weights)
    for key, mine in weights.items():
        theirs = target.weights[key]
        rows = slice(0, min(len(mine), len(theirs)))
        weights[key] = torch.cat([theirs[rows], mine[len(theirs) :]])
    return dataclasses.replace(lm, weights=weights)


def engine(root: Path, drafter: str | None = None, mode: str = "fixed", **config) -> g.Engine:
    lm, speculation = g.load(root / "models" / "StoryLM-30M-base"), None
    if drafter is not None:
        times = [float(5 + rows) for rows in range(300)] if mode == "budgeted" else None
        speculation = g.Speculation(mode, 3, loaded(root, drafter), step_time=times)
    sizes = {"num_blocks": 64, "block_size": 4, "batch_invariant": True} | config
    return g.Engine(lm, g.EngineConfig(speculation=speculation, **sizes))


def prompts(root: Path) -> list[list[int]]:
    lm = g.load(root / "models" / "StoryLM-30M-base")
    return [random_ids(lm, count, count) for count in (3, 9, 21, 40)]


def tokens(outputs: list[g.RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_the_text_is_the_targets(root, drafter, mode):
    """And drafts are made, checked and accepted, as far as the drafter's context goes."""
    expected = tokens(engine(root).generate(prompts(root), GREEDY))
    one = engine(root, drafter, mode)
    assert tokens(one.generate(prompts(root), GREEDY)) == expected
    assert one.stats.accepted > 0
    shape = loaded(root, drafter).config
    limit, size = min(64, shape.max_seq_len), min(400, shape.vocab_size)
    for drafted in (d for step in one.history for d in step.drafts):
        assert drafted.position + len(drafted.tokens) <= limit
        assert all(0 <= token < size for token in drafted.tokens)
        assert all(0 <= confidence <= 1 for confidence in drafted.confidences)


@pytest.mark.parametrize("drafter", ["StoryLM-short", "StoryLM-bytes"])
def test_fixed_tokens_belong_to_the_request_alone(root, drafter):
    """Also past the drafter's context, with a prefix cache and blocks so few that requests are
    preempted. Right values: each request alone."""
    asked = prompts(root)
    asked += [asked[2] + asked[1], asked[3][:20]]
    alone = [tokens(engine(root, drafter).generate([ids], SEEDED))[0] for ids in asked]
    for config in ({}, {"enable_prefix_caching": True}, {"num_blocks": 34}):
        company = engine(root, drafter, max_num_batched_tokens=32, **config)
        for _ in range(2):
            assert tokens(company.generate(asked, SEEDED)) == alone
            company.block_manager.check()
    assert company.stats.preemptions > 0


def test_the_overlapped_engine_keeps_to_it(root):
    """Right values: the engine that ends a step before it begins the next."""
    one = engine(root, "StoryLM-short", enable_prefix_caching=True)
    expected = tokens(one.generate(prompts(root), SEEDED))
    overlapped = g.AsyncEngine(one.lm, one.config)
    assert tokens(overlapped.generate(prompts(root), SEEDED)) == expected
    assert overlapped.stats.accepted == one.stats.accepted > 0


def test_in_a_half_and_in_double_precision(root):
    for dtype in ("bfloat16", "float64"):
        one = engine(root, "StoryLM-fewer-ids", dtype=dtype, batch_invariant=False)
        assert len(one.generate(prompts(root), GREEDY)[0].token_ids) == 61
        assert one.stats.accepted > 0


@pytest.mark.parametrize("mode", ["fixed", "budgeted"])
def test_another_tokenizer_is_refused(root, mode):
    """Sizes that agree do not help. `tiny` has two reserved tokens more than the course's models,
    so that its merges begin later."""
    said = (
        "'OtherLM-1M-base' has another tokenizer than 'StoryLM-30M-base': token 2.*same family, or"
    )
    with pytest.raises(ValueError, match=said):
        engine(root, "OtherLM-1M-base", mode)
    lm = g.load(root / "models" / "StoryLM-30M-base")
    speculation = g.Speculation(mode, drafter=g.load("tiny-drafter"))
    with pytest.raises(ValueError, match="'tiny-drafter' has another tokenizer.*token 264 is"):
        g.Engine(lm, g.EngineConfig(speculation=speculation))
