"""What is done to a drafter so that it reads and writes the target's ids: weights and logits.

Right values: its own weights and logits, and means worked out by hand.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hugging_faces import saved
from small_models import random_lm

import g2c_serving as g
from g2c_serving.forward.draft_model import fit_drafter
from g2c_serving.lab.scoring import logits_of

A, B, C = b"abc"
MERGES = [(A, B, 266), (266, C, 267), (0xC3, 0xA9, 268)]
TEXT = [A, 7, 200, 257, B, 265, 0, C]


def with_ids(count: int, **sizes) -> g.LanguageModel:
    """A random model that knows the first `count` ids, with a head bias that counts."""
    lm = random_lm(vocab_size=count, **sizes)
    bias = torch.linspace(-3, 3, count)
    weights = dict(lm.weights) | {"head_bias": bias}
    return dataclasses.replace(lm, weights=weights, tokenizer=g.Tokenizer(MERGES[: count - 266]))


TARGET = with_ids(269)


def scores(lm: g.LanguageModel, text: list[int]) -> torch.Tensor:
    """Logits (T, V)."""
    return logits_of(lm.model, [text])[0]


def test_ids_that_a_drafter_lacks_are_read_as_the_mean_of_their_parts():
    """267 is made of one that it lacks too."""
    drafter = with_ids(266, seed=5)
    table = fit_drafter(drafter, TARGET).weights["token_embed.weight"]
    own = drafter.weights["token_embed.weight"]
    assert table.shape == (269, own.shape[1]) and torch.equal(table[:266], own)
    half = (own[A] + own[B]) / 2
    torch.testing.assert_close(table[266], half)
    torch.testing.assert_close(table[267], (half + own[C]) / 2)
    torch.testing.assert_close(table[268], (own[0xC3] + own[0xA9]) / 2)


def test_they_are_never_proposed_and_the_others_as_before():
    drafter = with_ids(266, seed=5)
    fitted = scores(fit_drafter(drafter, TARGET), TEXT)
    torch.testing.assert_close(fitted[:, :266], scores(drafter, TEXT))
    assert (fitted[:, 266:] < -5000).all()
    read = scores(fit_drafter(drafter, TARGET), [A, 266, 267, 268])
    assert read.isfinite().all() and (read[:, 266:] < -5000).all()


def test_one_that_knows_only_some_of_the_merges():
    """Its own row for the first, means for the rest."""
    drafter = with_ids(267, seed=5)
    table, own = (x.weights["token_embed.weight"] for x in (fit_drafter(drafter, TARGET), drafter))
    assert torch.equal(table[266], own[266])
    torch.testing.assert_close(table[267], (own[266] + own[C]) / 2)
    fitted = scores(fit_drafter(drafter, TARGET), TEXT)
    torch.testing.assert_close(fitted[:, :267], scores(drafter, TEXT))


def test_ids_that_the_target_lacks_are_left_out():
    drafter = with_ids(269, seed=5)
    fitted = fit_drafter(drafter, with_ids(266))
    assert fitted.vocab_size == 266
    torch.testing.assert_close(scores(fitted, TEXT), scores(drafter, TEXT)[:, :266])


@pytest.mark.parametrize("count", [100, 131, 266])
def test_a_head_of_its_own(count, tmp_path):
    """Of a Llama with 131 ids, for targets with fewer, as many and more."""
    saved(tmp_path, "llama")
    drafter = dataclasses.replace(g.load(tmp_path), tokenizer=g.Tokenizer())
    fitted, both = fit_drafter(drafter, random_lm(vocab_size=count)), min(count, 131)
    text = [3, 99, 41, 0]
    found = scores(fitted, text)
    assert found.shape == (4, count)
    torch.testing.assert_close(found[:, :both], scores(drafter, text)[:, :both])
    assert (found[:, both:] < -5000).all()


def test_one_with_the_same_ids_stays_as_it_is():
    drafter = with_ids(269, seed=5)
    assert fit_drafter(drafter, TARGET) is drafter


def test_one_with_window_layers_is_refused():
    with pytest.raises(ValueError, match="'random' has window layers: choose one whose layers"):
        fit_drafter(with_ids(266, window=4, window_layers=(0,)), TARGET)


def test_another_merge_is_refused_by_its_number():
    other = dataclasses.replace(TARGET, tokenizer=g.Tokenizer([MERGES[0], (A, C, 267), MERGES[2]]))
    with pytest.raises(
        ValueError, match="another tokenizer .* token 267 is b'ac' there and b'abc'"
    ):
        fit_drafter(other, TARGET)


def test_a_reserved_id_that_is_text_there_is_refused():
    """The same bytes, which in one are a marker and in the other are not."""
    names = ["<"]
    marked = dataclasses.replace(random_lm(vocab_size=257), tokenizer=Named(names, "<"))
    plain = dataclasses.replace(random_lm(vocab_size=257), tokenizer=Named([], "<"))
    for drafter, lm in ((marked, plain), (plain, marked)):
        with pytest.raises(ValueError, match="has another tokenizer"):
            fit_drafter(drafter, lm)
    assert fit_drafter(marked, marked) is marked


class Named(g.Tokenizer):
    """Bytes, and an id 256 with the bytes of `text`, reserved or not."""

    def __init__(self, names: list[str], text: str) -> None:
        super().__init__(special_tokens=names or ["<|x|>"])
        self.text = text
        self.reserved = {name: 256 for name in names}

    def token_bytes(self, token_id: int) -> bytes:
        return self.text.encode() if token_id == 256 else super().token_bytes(token_id)
