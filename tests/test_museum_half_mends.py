"""Mends that a learner may well try, and that make the symptom go without making the engine right:
none of them turns the museum's check green. And what a verdict says of a part that is none.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import torch

from g2c_serving.forward.model import Transformer
from g2c_serving.lab.museum import exhibit
from g2c_serving.lab.museum_view import shown
from g2c_serving.request import FINISHED, WAITING
from g2c_serving.sample.sampler import batch_of

compute = Transformer.forward


def gives_back_what_is_not_finished(self, request):
    if request.state != FINISHED:
        self._take_blocks(request)
    if request.state == WAITING:
        self.waiting.remove(request)
    elif request in self.running:
        self.running.remove(request)
    self.arrivals.forget(request, has_ended=True)


def names_a_block_without_what_is_before(parent, token_ids, salt, fingerprint):
    return sha256(repr((list(token_ids), salt, fingerprint)).encode()).digest()


def draws_by_one_number(requests, vocab_size):
    batch = batch_of(requests, vocab_size)
    return replace(batch, positions=0 * batch.positions)


def stands_still(self, batch, cache):
    return compute(self, replace(batch, positions=0 * batch.positions), cache)


def looks_at_the_last_id(self, token_id):
    if self._matcher is None:
        if token_id == self._trigger[-1]:
            self._matcher = self._new_matcher()
    elif not self._matcher.accept_token(token_id):
        self.is_broken = True
    elif self._matcher.is_terminated():
        self._matcher = None
    self._follows = self._compiled.follows.get(token_id)


def holds_all(self, text):
    self.held += text
    for stop in self.stops:
        if stop in self.held:
            return self.held[: self.held.index(stop)], stop
    return "", None


def reads_an_a(batch, scheduled, draws):
    return replace(batch, token_ids=batch.token_ids.where(batch.token_ids < 266, ord("a")))


HALF: list[tuple[str, Any, str]] = [
    ("closed_tabs", gives_back_what_is_not_finished, "5 blocks are held still"),
    ("full_hit", lambda self, r: len(r.token_ids) // self.block_size - 1, "24 are found"),
    ("two_of_one_name", names_a_block_without_what_is_before, "after another text"),
    ("forgetful_draws", draws_by_one_number, "no two draws may share a number"),
    ("company_in_the_sum", lambda seen, weight: torch.zeros_like(seen[:, 0]), "not rounding"),
    ("company_in_the_sum", lambda seen, weight: seen.mean(1), "not rounding"),
    ("second_story", stands_still, "'Once upon a time' goes on with"),
    ("trigger_missed", looks_at_the_last_id, "before its trigger was whole"),
    ("second_call", lambda self, grammar, compiled: None, "was right"),
    ("half_characters", lambda self, data, *_, **__: data.decode(errors="ignore"), "'I  tea'"),
    ("prompt_again", lambda ids, tokenizer: b"", "is warned"),
    ("stop_missed", holds_all, "nothing is shown until all is written"),
    ("stop_shown", holds_all, "nothing is shown until all is written"),
    ("placeholder", lambda batch, scheduled, draws: batch, "what comes is 'error: "),
    ("placeholder", reads_an_a, "'bcdefghi', and what comes is"),
    ("late_token", lambda self: True, "Ann should be told 'Bye!'"),
]


@pytest.mark.parametrize("name, part, words", HALF, ids=[f"{n}-{w[:9]}" for n, _, w in HALF])
def test_a_half_mend_is_told_what_is_wrong_still(name: str, part: Any, words: str):
    verdict = exhibit(name).check(part)
    assert verdict.right is False and words in verdict.text, verdict.text


def test_where_in_the_learners_own_code_it_raised():
    """And not where in a library that the engine calls."""
    text = exhibit("one_first_token").check(lambda self, s, sampled: sampled.clear()).text
    assert text.startswith("Not yet: it raised") and "of the cell" not in text


def leaves(parent, token_ids, salt, fingerprint):
    raise SystemExit("The end.")


def test_a_part_that_would_end_the_kernel_does_not():
    text = exhibit("quick_guess").check(leaves).text
    assert text.startswith("Not yet: it raised SystemExit: The end (line ")
    assert not text.endswith("..")


def test_a_class_in_place_of_a_function_and_the_other_way_round():
    assert "the function itself; this is a class" in exhibit("quick_guess").check(int).text
    assert "the class itself; this is none" in exhibit("in_and_out").check(leaves).text


def test_yes_and_no_are_shown_as_such():
    assert [shown(value) for value in (True, False, 1200, None)] == [
        "True",
        "False",
        "1,200",
        "None",
    ]
