"""The museum's exhibits on chance: what is right in them is worked out here without the engine, and
what is wrong is wrong by what the story says, no more. That each fault shows in its own exhibit
alone is in test_museum.py."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from chi_square import fits

import g2c_serving as g
from g2c_serving.lab import (
    museum_dice,
    museum_drafters,
    museum_drafts,
    museum_numerics,
    museum_sampler,
    museum_seeds,
)
from g2c_serving.lab.museum import EXHIBITS, exhibit
from g2c_serving.sample import rng, sampler

FAMILIES = museum_drafters, museum_drafts, museum_numerics, museum_sampler, museum_seeds
NAMES = [
    name
    for name, one in EXHIBITS.items()
    if one.scene.__module__ in {family.__name__ for family in FAMILIES}
]


def seen(name: str, part: object = None) -> dict:
    found = exhibit(name).look(part)
    assert not found.problem, found.problem
    return found.values


def fault_seen(name: str) -> dict:
    return seen(name, exhibit(name).fault)


# ---- the models ----


def test_a_die_has_the_chances_that_it_says():
    chances = {"a": 0.6, "b": 0.3, "c": 0.1}
    e = museum_dice.engine(museum_dice.die(chances), 512)
    (first, *_) = rolled = museum_dice.texts(e, g.SamplingParams(max_tokens=10, n=100, seed=3))
    counts = np.array([sum(text.count(letter) for text in rolled) for letter in "abc"])
    assert counts.sum() == 1000 and len(first) == 10
    assert fits(counts, 1000 * np.array(list(chances.values())))


def test_what_all_share_goes_on_as_if_nothing_had_been_drawn():
    """Also where the scene fails."""
    before = random.getstate(), torch.get_rng_state(), torch.get_num_threads()
    drawn = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), museum_dice.steady():
            drawn.append((random.random(), torch.rand(1).item(), torch.get_num_threads()))
            raise ZeroDivisionError
    assert drawn[0] == drawn[1] and drawn[0][2] == 1
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_num_threads() == before[2]


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_is_the_same_each_time(name):
    """With the fault too: what a learner reads is what the page says."""
    for part in (None, exhibit(name).fault):
        random.random(), torch.rand(1)  # whatever went before
        assert exhibit(name).look(part) == exhibit(name).look(part)


# ---- what is right ----


def roll(seed: int, position: int) -> str:
    """A fair die's face from Philox alone, in whole numbers: all six weigh the same."""
    words = rng.philox(np.array([seed], dtype=np.uint64), np.array([[3 * position, 0, 0, 0]]))[0]
    word = int(words[0]) << 30 | int(words[1]) >> 2
    return "123456"[word * 6 >> 62]


def test_what_ann_rolls_alone_and_in_company():
    """vLLM 51226, 19940: her seed and the positions, and nothing else."""
    prompt = len(museum_dice.PROMPT)
    right = "".join(roll(7, prompt + i) for i in range(10))
    assert set(seen("seedless_neighbour").values()) == {right}
    crowded = seen("forgetful_draws")
    assert (
        crowded["Ann, seed 7, blocks for both"] == crowded["Ann, seed 7, too few blocks"] == right
    )
    assert crowded["preemptions, too few blocks"] > 0


def test_first_rolls_of_the_samples():
    """nanochat 38, 201: each by the seed of its own sample."""
    position = len(museum_dice.PROMPT)
    right = "".join(roll(rng.sample_seed(7, i), position) for i in range(8))
    assert seen("one_first_token")["first rolls of the 8"] == right
    assert fault_seen("one_first_token")["first rolls of the 8"] == right[0] * 8


def test_what_stands_in_for_a_refused_draft():
    """vllm-ascend 2881, in fractions: max(p - q, 0), and what it becomes where p has lost the
    refused draft before it is divided by its sum."""
    p = dict(a=Fraction(6, 10), b=Fraction(2, 10), c=Fraction(2, 10))
    q = dict(a=Fraction(8, 10), b=Fraction(2, 10), c=Fraction(0))
    assert remainder(p, q) == {"a": 0, "b": 0, "c": 1}
    zeroed = {**p, "a": Fraction(0)}
    total = sum(zeroed.values())
    wrong = remainder({letter: weight / total for letter, weight in zeroed.items()}, q)
    assert wrong == {"a": 0, "b": Fraction(3, 8), "c": Fraction(5, 8)}
    label = "written in place of a refused a"
    assert seen("zeroed_in_place")[label].startswith("c ")
    got = dict(part.split() for part in fault_seen("zeroed_in_place")[label].split(", "))
    counts = np.array([int(got["b"]), int(got["c"])])
    assert fits(counts, counts.sum() * np.array([3 / 8, 5 / 8]))


def remainder(p: dict[str, Fraction], q: dict[str, Fraction]) -> dict[str, Fraction]:
    left = {letter: max(p[letter] - q[letter], Fraction(0)) for letter in p}
    return {letter: weight / sum(left.values()) for letter, weight in left.items()}


def test_the_bent_coin():
    """DeepSpec 31: of 12 samples of 20 tosses, 16 are drafts each; those fall to either side alike
    where both logits are rounded to one."""
    sides = torch.tensor([301.2]) + torch.tensor([0.75, 0.25]).log()
    assert sides.bfloat16().tolist() == [300, 300]
    label = "heads in 240 tosses, with speculation"
    right, wrong = 240 * 0.75, 12 * (16 * 0.5 + 4 * 0.75)
    assert abs(seen("rounded_drafts")[label] - right) < 4 * (240 * 0.75 * 0.25) ** 0.5
    assert abs(fault_seen("rounded_drafts")[label] - wrong) < 4 * (240 * 0.25) ** 0.5


def test_a_hole_in_the_drafters_pages():
    """vLLM 3951: with target and drafter alike their pages are alike, but for the last draft of a
    step in which all stood."""
    for part, holes in ((None, []), (museum_drafters.ThriftyDrafter, [10])):
        lm = museum_dice.network()
        e = museum_dice.speculating(lm, lm)
        assert e.speculator is not None
        if part is not None:
            e.speculator.drafter.__class__ = part
        request_id = e.add(museum_dice.PROMPT, g.SamplingParams(temperature=0, max_tokens=26))
        for _ in range(2):  # the prompt (0 to 5) and a token, then four drafts (7 to 10) and one
            e.step()
        (request,) = e.unfinished(request_id)
        assert len(request.token_ids) == 12
        slots = e.cache.slots(e.block_manager.tables[request.sequence_id], 0, 11)
        pages = [
            cache.export_slots(slots, range(2)) for cache in (e.cache, e.speculator.pages.drafter)
        ]
        far = (pages[0] - pages[1]).abs().flatten(1).amax(1)
        assert (far > 1e-3).nonzero().flatten().tolist() == holes


def test_a_share_of_next_to_nothing():
    """mlx-lm 1912: 1 - 1e-8 is 1 in float32, so all are cut off."""
    assert 1 - torch.tensor(1e-8) == 1
    weights = torch.tensor([[5, 3, 2]])
    args = weights, torch.tensor([[3]]), np.array([10])  # in units of 1e-9
    assert museum_sampler.from_the_tail(*args).item() == 0
    assert sampler._reaching(weights.clone(), *args[1:]).item() == 1


def test_company_changes_the_last_digits_alone():
    seen = fault_seen("company_in_the_sum").values()
    alone, beside, ordinary = ([float(digits) for digits in one] for one in seen)
    assert alone != beside and alone == pytest.approx(beside, rel=1e-4)
    assert alone == pytest.approx(ordinary, abs=1e-3)
