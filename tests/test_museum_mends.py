"""What learners try in the museum. Another way to mend a fault is right too; half a mend, that
makes the symptom go without making the engine right, is not, and the verdict says what is wrong.
And what a verdict says of a part that is none.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch

from g2c_serving.drafting import Drafter
from g2c_serving.forward.model import Transformer
from g2c_serving.lab import museum_drafts, museum_sampler
from g2c_serving.lab.museum import exhibit
from g2c_serving.lab.museum_view import shown
from g2c_serving.request import FINISHED, WAITING
from g2c_serving.sample.sampler import TOP_P_UNIT, batch_of, integer_weights, weigh

compute = Transformer.forward


# ---- mended ----


def by_position(requests, vocab_size):
    batch = batch_of(requests, vocab_size)
    return replace(batch, positions=np.array([r.num_tokens for r in requests]))


def one_seed_each(requests, vocab_size):
    batch = batch_of(requests, vocab_size)
    return replace(batch, seeds=np.array([r.seed for r in requests], dtype=np.uint64))


def below_not_at(ordered, count, top_p):
    sums = ordered.cumsum(-1)
    shares = sums / sums.gather(1, count - 1)
    short = shares < torch.from_numpy(top_p)[:, None] / TOP_P_UNIT
    return torch.minimum(short.sum(-1, keepdim=True) + 1, count)


def one_stays(ordered, count, top_p):
    return museum_sampler.from_the_tail(ordered, count, top_p).clamp(min=1)


def best_row_by_row(scores, batch, best=None):
    weights = museum_sampler.nearly_greedy(scores, batch, best)
    first = torch.zeros_like(weights).scatter(1, scores.argmax(-1, keepdim=True), 1)
    greedy = torch.from_numpy(batch.temperature == 0)[:, None]
    return torch.where(greedy, first, weights)


def from_a_copy(weights, *others):
    return museum_drafts.refuse_for_good(weights.clone(), *others)


class SameWeights(Drafter):
    def _draw(self, logits, settings, i, mask):
        return super()._draw(logits.bfloat16().float(), settings, i, mask)


class OwnGenerator(Drafter):
    def _draw(self, logits, settings, i, mask):
        weights, _ = weigh(logits, settings, mask)
        tokens = []
        for row, seed, position in zip(weights, settings.seeds, settings.positions, strict=True):
            generator = torch.Generator().manual_seed(int(seed) + int(position))
            tokens.append(torch.multinomial(row.double(), 1, generator=generator))
        return torch.cat(tokens), weights


class WritesOnly(Drafter):
    def _advance(self, tokens, positions, tables, i):
        return super()._advance(tokens, positions, tables, i)


MENDED = {
    "seedless_neighbour": one_seed_each,
    "forgetful_draws": by_position,
    "one_too_many": below_not_at,
    "nothing_left": one_stays,
    "nearly_greedy": best_row_by_row,
    "rounded_drafts": SameWeights,
    "zeroed_in_place": from_a_copy,
    "missing_last_draft": WritesOnly,
    "unkeyed_drafts": OwnGenerator,
}


@pytest.mark.parametrize("name", MENDED)
def test_another_way_to_mend_it_is_right_too(name: str):
    verdict = exhibit(name).check(MENDED[name])
    assert verdict.right, verdict.text


# ---- half mended ----


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


class ExactDraws(Drafter):
    """Now the draws are exact, and the weights are rounded."""

    def _draw(self, logits, settings, i, mask):
        tokens, _ = super()._draw(logits, settings, i, mask)
        weights, _ = weigh(logits.bfloat16(), settings, mask)
        return tokens, weights


class OneGenerator(Drafter):
    """A generator of its own, seeded once, that goes on from request to request."""

    generator = torch.Generator().manual_seed(0)

    def _draw(self, logits, settings, i, mask):
        weights, _ = weigh(logits, settings, mask)
        return torch.multinomial(weights.double(), 1, generator=self.generator)[:, 0], weights


def none_too_many(ordered, count, top_p):
    """The one that crosses is cut off as well."""
    return (museum_sampler.crossing(ordered, count, top_p) - 2).clamp(min=1)


def one_for_all_ties(scores, batch, best=None):
    """Greedy wherever anybody is."""
    greedy = (batch.temperature == 0).any()
    temperature = np.zeros_like(batch.temperature) if greedy else batch.temperature
    return integer_weights(scores, replace(batch, temperature=temperature + 1e-5), best)


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
    ("rounded_drafts", ExactDraws, "where 180 are right"),
    ("unkeyed_drafts", OneGenerator, "one request had 12 texts"),
    ("one_too_many", none_too_many, "top_p=0.5 keeps 12; rolled were"),
    ("nearly_greedy", one_for_all_ties, "of two equal logits the lower id"),
]


@pytest.mark.parametrize("name, part, words", HALF, ids=[f"{n}-{w[:9]}" for n, _, w in HALF])
def test_a_half_mend_is_told_what_is_wrong_still(name: str, part: Any, words: str):
    verdict = exhibit(name).check(part)
    assert verdict.right is False and words in verdict.text, verdict.text


# ---- what a verdict says ----


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
