"""The matrix of contracts: its runs on the real engine, and where two runs part, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.lab import determinism, knife_edge
from g2c_serving.lab.determinism import (
    ALL,
    BITS,
    BUDGET,
    LAST,
    PART,
    PLAIN,
    SAME,
    Cell,
    determinism_matrix,
)
from g2c_serving.lab.disturbances import DISTURBANCES
from g2c_serving.lab.parting import Parting, Seen, compare
from g2c_serving.lab.watched_run import CROWD, Case, Contracts, run
from g2c_serving.sample import rng

ZEROS, ONES = torch.zeros(3), torch.ones(3)


def seen(tokens, logits, numbers) -> Seen:
    return Seen(tokens, logits, numbers)


# ---- where two runs part ----


def test_equal_runs():
    one = seen([1, 2], [ZEROS, ONES], [5, 6])
    part = compare(one, seen([1, 2], [ZEROS, ONES], [5, 6]))
    assert part == Parting(None, None, None, 0.0, 2) and part.same and part.reason == ""


def test_other_bits_and_the_same_tokens():
    part = compare(seen([1, 2], [ZEROS, ONES], [5, 6]), seen([1, 2], [ZEROS, ONES + 0.5], [5, 6]))
    assert (part.token, part.bit, part.draw, part.gap) == (None, 1, None, 0.5)
    assert not part.same and part.reason == ""


def test_bits_are_to_blame_where_the_numbers_are_equal():
    part = compare(seen([1, 2], [ZEROS, ONES], [5, 6]), seen([1, 3], [ZEROS, ONES + 1], [5, 6]))
    assert (part.token, part.bit, part.draw, part.reason) == (1, 1, None, "bit")


def test_draws_are_to_blame_where_the_numbers_differ():
    part = compare(seen([1, 2], [ZEROS, ONES], [5, 6]), seen([1, 3], [ZEROS, ONES + 1], [5, 7]))
    assert (part.token, part.bit, part.draw, part.reason) == (1, 1, 1, "draw")


def test_what_comes_after_another_token_is_not_looked_at():
    """The logits after it belong to another text."""
    one, other = seen([1, 2], [ZEROS, ZEROS], [5, 6]), seen([3, 2], [ZEROS, ONES], [7, 8])
    assert compare(one, other) == Parting(0, None, 0, 0.0, 2)


# ---- the runs ----


@pytest.fixture(autouse=True)
def nothing_remembered():
    """A test may change what the engines do."""
    run.cache_clear()
    yield
    run.cache_clear()


@pytest.fixture(scope="module")
def case() -> Case:
    """A random model is never certain of a token; every seed gives an answer of twelve."""
    lm = random_lm(vocab_size=266, context=128, dim=64, heads=4)
    prompts = [tuple(random_ids(lm, knife_edge.LENGTH, seed=i)) for i in range(CROWD + 1)]
    params = g.SamplingParams(max_tokens=6, seed=7, ignore_eos=True)
    return Case(lm, prompts[0], params, tuple(prompts[1:]))


@pytest.mark.parametrize("name", DISTURBANCES)
def test_with_both_contracts_nothing_changes_anything(case, name):
    """The right value is the one-user answer with the same seed: every run of every disturbance
    writes it, and their logits are equal to the last bit."""
    one, other = DISTURBANCES[name](case, Contracts(keyed=True, invariant=True))
    assert len(one.tokens) == 6 and compare(one, other).same
    (alone,) = g.Engine(case.lm, g.EngineConfig(batch_invariant=True)).generate(
        [case.prompt], case.params
    )
    assert one.tokens == alone.token_ids


@pytest.mark.parametrize("name", DISTURBANCES)
def test_with_all_three_contracts_nothing_changes_anything(name, tiny_case):
    """The right value is the answer of fixed speculation alone."""
    keeps = Contracts(keyed=True, invariant=True, path="fixed")
    one, other = DISTURBANCES[name](tiny_case, keeps)
    assert compare(one, other).same and "accept" in one.uses
    fixed = g.Speculation("fixed", drafter=g.load("tiny-drafter"))
    config = g.EngineConfig(batch_invariant=True, speculation=fixed)
    (alone,) = g.Engine(tiny_case.lm, config).generate([tiny_case.prompt], tiny_case.params)
    assert one.tokens == alone.token_ids


@pytest.mark.parametrize("name", DISTURBANCES)
def test_under_a_budget_everything_changes_the_path(name, tiny_case):
    """With equal bits: other company, or an engine that has seen other drafts, checks others of the
    request's drafts."""
    keeps = Contracts(keyed=True, invariant=True, path="budgeted")
    part = compare(*DISTURBANCES[name](tiny_case, keeps))
    assert part.path is not None and part.bit is None and part.draw is None
    assert part.reason in ("", "path")  # an accepted draft and a draw may be the same token


def test_another_use_is_another_path():
    one = Seen([5, 6], [ZEROS, ZEROS], [0.1, 0.2], ["sample", "accept"])
    other = Seen([5, 7], [ZEROS, ZEROS], [0.1, 0.4], ["sample", "sample"])
    part = compare(one, other)
    assert (part.path, part.draw, part.reason) == (1, None, "path")


@pytest.mark.parametrize("name", DISTURBANCES)
def test_with_shared_draws_the_numbers_change(case, name):
    part = compare(*DISTURBANCES[name](case, Contracts(keyed=False, invariant=True)))
    assert part.draw is not None and part.bit in (None, part.token)
    assert part.token is None or part.reason == "draw"


def test_keyed_draws_are_the_same_numbers_in_both_modes(case):
    for invariant in (False, True):
        for name in ("company", "preemption", "fork"):
            assert compare(*DISTURBANCES[name](case, Contracts(True, invariant))).draw is None


def test_draws_that_go_by_order_and_not_by_key_are_found_out(case, monkeypatch):
    """Numbers that go by the row in place of the seed: they are compared as they were drawn."""
    words = rng.target_words

    def by_row(seeds, positions, *use):
        return words(np.arange(len(seeds), dtype=np.uint64), positions, *use)

    monkeypatch.setattr(rng, "target_words", by_row)
    parting = compare(*DISTURBANCES["order"](case, Contracts(True, True)))
    assert parting.draw == 0 and parting.bit is None and parting.reason in ("draw", "")


def test_where_neither_numbers_nor_logits_differ_it_is_the_path():
    one = Seen(tokens=[5, 6], logits=[torch.ones(3)] * 2, numbers=[0.1, 0.2])
    other = Seen(tokens=[5, 7], logits=[torch.ones(3)] * 2, numbers=[0.1, 0.2])
    assert compare(one, other).reason == "path"


# ---- the knife's edge ----


@pytest.fixture(scope="module")
def tiny_case() -> Case:
    return knife_edge.plain_case(g.load("tiny"))


def test_the_prompt_ends_where_one_token_is_certain_and_the_next_is_not(tiny_case):
    model, prompt = tiny_case.lm.model, tiny_case.prompt
    assert len(prompt) == 41 and len(tiny_case.strangers) == CROWD
    assert {len(ids) for ids in tiny_case.strangers} == {41}
    first = torch.softmax(knife_edge.logits_of(model, [prompt])[0][-1], -1)
    assert first.max() >= 0.99
    second = knife_edge.logits_of(model, [(*prompt, int(first.argmax()))])[0][-1]
    assert torch.softmax(second, -1).max() < 0.5


def test_a_threshold_between_two_sums_keeps_one_token_more_of_one_row():
    """Two rows of logits that differ by 1e-6 in one token."""
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]))
    logits[1, 0] += 1e-6
    edges = knife_edge._between(logits)
    assert edges == sorted(edges, reverse=True) and len(edges) == 3
    for top_p, exact in zip(edges, (0.9, 0.7, 0.4), strict=True):
        assert top_p == pytest.approx(exact, abs=2e-6)


def test_equal_logits_have_no_edge(tiny_case):
    one, _ = DISTURBANCES["fork"](tiny_case, Contracts(keyed=True, invariant=False))
    assert knife_edge.on_the_edge(tiny_case, one, one) is tiny_case


def test_the_matrix_on_tiny(tiny_case):
    lines: list[str] = []
    matrix = determinism_matrix(tiny_case.lm, ("prefix hit", "fork"), say=lines.append)
    assert [line[:16].strip() for line in lines] == ["prefix hit", "fork"]
    assert all(line.endswith("\u2713") for line in lines)  # the last row
    assert matrix.count(LAST, SAME) == matrix.count(ALL, SAME) == 2
    assert matrix.count(PLAIN, PART) == 0  # a flip of its own is one in a million
    for (row, column), cell in matrix.cells.items():
        if "shared" in row:
            assert cell.parting.draw is not None, (row, column)
        elif row == BUDGET:
            assert cell.parting.reason in ("", "path") and cell.parting.bit is None
        elif cell.state == PART:  # where this machine's bits differ at all
            assert "edge" in row and cell.parting.reason == "bit"
    panel = determinism.panel(matrix, BUDGET, "fork")
    assert panel.text.startswith(f"{BUDGET}; fork: the runs part at token ")
    assert "; why: path. " in panel.text
    for row in determinism.ROWS:
        panel.controls["row"].value = row
        assert panel.text.startswith(f"{row}; ") and panel.error is None


def test_the_rows_about_the_path_alone(tiny_case):
    """Notebook 04: the same cells as in the whole matrix, and a panel of three rows."""
    lines: list[str] = []
    matrix = determinism_matrix(
        tiny_case.lm, ("company", "fork"), determinism.PATHS, say=lines.append
    )
    assert [row for row, name in matrix.cells if name == "fork"] == [LAST, BUDGET, ALL]
    assert [matrix.count(row, SAME) for row in (LAST, BUDGET, ALL)] == [2, 0, 2]
    ticks = [line.split()[1 :: len(line.split()) - 2] for line in lines]
    assert ticks == [["\u2713", "\u2713"]] * 2  # a cross with its token stands between them
    panel = determinism.panel(matrix, BUDGET, "fork")
    (axes,) = panel.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [LAST, BUDGET, ALL]
    assert panel.text.startswith(f"{BUDGET}; fork: the runs part at token ")
    for row in (LAST, ALL):
        panel.controls["row"].value = row
        assert panel.text.startswith(f"{row}; fork: all 10 tokens") and panel.error is None
    with pytest.raises(Exception, match="not found"):
        panel.controls["row"].value = PLAIN


def test_a_run_that_several_disturbances_compare_with_is_made_once(case):
    """The company of eight of `order`, `company` and `chunking`, the lone run of four others."""
    keeps = Contracts(keyed=True, invariant=True)
    lone = [DISTURBANCES[name](case, keeps)[0] for name in ("batch size", "fork", "migration")]
    assert lone[0] is lone[1] is lone[2] is DISTURBANCES["another engine"](case, keeps)[0]
    _, company = DISTURBANCES["order"](case, keeps)
    assert all(DISTURBANCES[name](case, keeps)[0] is company for name in ("company", "chunking"))
    ordinary, _ = DISTURBANCES["fork"](case, Contracts(keyed=True, invariant=False))
    assert ordinary is not lone[0]


def test_a_new_matrix_runs_everything_anew(tiny_case):
    """A learner who has changed the engine sees what it does now."""
    before = run(tiny_case, Contracts(True, True))
    determinism_matrix(tiny_case.lm, ("fork",), (LAST,))
    assert run(tiny_case, Contracts(True, True)) is not before


def test_the_headings_of_the_matrix_stand_apart(case):
    """All columns; by at least a letter's width between two headings, line by line."""
    cell = Cell(case, Parting(None, None, None, 0.0, 12))
    cells = {(row, name): cell for row in determinism.ROWS for name in DISTURBANCES}
    panel = determinism.panel(determinism.Matrix(cells))
    (axes,) = panel.figure.axes
    renderer = panel.figure.canvas.get_renderer()
    heads = [label for label in axes.get_xticklabels(which="major") if label.get_text()]
    assert len(heads) == len(DISTURBANCES)
    boxes = [label.get_window_extent(renderer) for label in heads]
    gaps = [after.x0 - before.x1 for before, after in zip(boxes, boxes[1:], strict=False)]
    assert min(gaps) >= 8 * panel.figure.dpi / 100, list(zip(gaps, heads, strict=False))


def test_what_a_cell_says(case):
    params = dataclasses.replace(case.params, top_p=0.9)
    case = dataclasses.replace(case, params=params)
    flipped = Cell(case, Parting(1, 0, None, 2.5e-6, 12), (" a", " b"))
    assert flipped.state == PART
    assert determinism.explain(flipped) == (
        "the runs part at token 2, ' a' or ' b'; why: bit. The logits differ from token 1 on, "
        "there by up to 2.5e-06 (top_p 0.9, seed 7)."
    )
    lucky = Cell(case, Parting(None, None, 0, 0.0, 12))
    assert lucky.state == BITS and "all 12 tokens are equal, but the random" in determinism.explain(
        lucky
    )
    assert determinism.explain(Cell(case, Parting(None, None, None, 0.0, 12))).startswith(
        "all 12 tokens, their logits and their numbers are equal"
    )
