"""Verification alone: what comes out follows the target, whatever the drafter says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from chi_square import fits

from g2c_serving.lab.guard import guard_effect
from g2c_serving.sample import rng
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.sampler import NOT_NUMBERS, SamplingBatch, draw, weigh
from g2c_serving.sample.speculation import GUARD, Drafts, Verdict, chances, residual, verify

V = 8  # tokens
DRAWS = 200_000
FIRST = 11  # position of the first draft


@dataclass
class Chain:
    """Target and drafter whose next token depends on the last one: logits (n + 1, V, V) and
    (n, V, V), by draft and by last token. The text so far ends with token 0."""

    target: torch.Tensor
    drafter: torch.Tensor
    mask: torch.Tensor | None = None  # of the target, (n + 1, V, V)

    @property
    def n(self) -> int:
        return len(self.drafter)


def chain(kind: str, n: int = 1, seed: int = 0) -> Chain:
    generator = torch.Generator().manual_seed(seed)
    target = 1.2 * torch.randn(n + 1, V, V, generator=generator)
    drafter = 1.2 * torch.randn(n, V, V, generator=generator)
    half = torch.arange(V) < V // 2
    if kind == "equal":
        drafter = target[:n].clone()
    elif kind == "near":
        drafter = target[:n] + 0.1 * drafter
    elif kind == "disjoint":
        target, drafter = (
            target.masked_fill(half, -torch.inf),
            drafter.masked_fill(~half, -torch.inf),
        )
    elif kind == "one-hot":
        drafter = torch.full_like(drafter, -torch.inf)
        drafter[:, :, 3] = 0.0
    elif kind == "masked":
        mask = torch.rand(n + 1, V, V, generator=generator) < 0.6
        mask[:, :, 1] = True
        return Chain(target, drafter, mask)
    return Chain(target, drafter)


def settings(size: int, temperature=1.0, top_k=0, top_p=1.0) -> SamplingBatch:
    seeds = np.arange(size, dtype=np.uint64) * np.uint64(7919) + np.uint64(5)
    whole = np.full(size, FIRST), np.full(size, temperature, float), np.full(size, top_k)
    return SamplingBatch(seeds, *whole, np.full(size, top_p, float))


def drafted(c: Chain, batch: SamplingBatch) -> Drafts:
    """Drafts as the engine draws them: on the drafter's lane, by the filtered weights."""
    last = torch.zeros(len(batch.seeds), dtype=torch.int64)
    tokens, weights = [], []
    for i in range(c.n):
        ahead = batch.take(np.arange(len(batch.seeds)), i)
        w, _ = weigh(c.drafter[i][last], ahead)
        words = rng.target_words(ahead.seeds, ahead.positions, lane=rng.DRAFTER_LANE, draft=i)
        last = draw(w.clone(), words).tokens
        tokens.append(last)
        weights.append(w)
    scores = torch.ones(len(batch.seeds), c.n)
    return Drafts(torch.stack(tokens, 1), torch.stack(weights, 1), scores)


def rows(c: Chain, drafts: Drafts, verified: int, which: torch.Tensor) -> torch.Tensor:
    """Rows (S * (verified + 1), V) of `which`, by the last token of each."""
    last = torch.cat((torch.zeros_like(drafts.tokens[:, :1]), drafts.tokens), 1)
    picked = [which[i][last[:, i]] for i in range(verified + 1)]
    return torch.stack(picked, 1).flatten(0, 1)


def speculate(
    c: Chain, batch: SamplingBatch, verified: int | None = None, guard: float = GUARD, **more
) -> tuple[Drafts, Verdict]:
    verified = c.n if verified is None else verified
    drafts = drafted(c, batch)
    mask = None if c.mask is None else rows(c, drafts, verified, c.mask)
    logits = rows(c, drafts, verified, c.target)
    counts = np.full(len(batch.seeds), verified)
    return drafts, verify(logits, batch, drafts, counts, guard, mask, **more)


def filtered(logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, mask=None) -> np.ndarray:
    """The distribution (V,) of one row by the textbook: softmax of the logits over the
    temperature, the k likeliest, of those the fewest that reach top_p."""
    scores = logits.double().numpy().copy()
    if mask is not None:
        scores[~mask.numpy()] = -np.inf
    p = np.exp((scores - scores.max()) / temperature)
    order = np.argsort(-p, kind="stable")
    p[order[top_k or V :]] = 0
    p /= p.sum()
    reached = np.cumsum(p[order])
    p[order[np.searchsorted(reached, top_p - 1e-6) + 1 :]] = 0
    return p / p.sum()


CASES = [
    ("equal", 1, GUARD, {}),
    ("disjoint", 1, GUARD, {}),
    ("one-hot", 1, GUARD, {}),
    ("near", 1, GUARD, {}),
    ("near", 1, 0.0, {}),
    ("other", 1, GUARD, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}),
    ("masked", 1, GUARD, {"temperature": 1.4, "top_p": 0.95}),
    ("other", 2, 0.0, {"temperature": 1.5}),
    ("near", 3, GUARD, {"top_k": 6}),
]


@pytest.mark.parametrize("kind, n, guard, filters", CASES)
def test_what_comes_out_follows_the_target(kind, n, guard, filters):
    """vllm-ascend 2881, DeepSpec 31. The first token by the target's distribution; each later one
    by it too, given the token before. And as many drafts stand as min(p, q) says."""
    c, batch = chain(kind, n), settings(DRAWS, **filters)
    drafts, verdict = speculate(c, batch, guard=guard)
    tokens, length = verdict.tokens.numpy(), verdict.accepted.numpy() + 1
    p, q = (
        [[filtered(row, **filters, mask=m) for row, m in zip(*pair, strict=True)] for pair in both]
        for both in (
            zip(c.target, c.mask if c.mask is not None else [[None] * V] * (n + 1), strict=True),
            zip(c.drafter, [[None] * V] * n, strict=True),
        )
    )
    assert fits(np.bincount(tokens[:, 0], minlength=V), DRAWS * p[0][0])
    for i in range(1, n + 1):
        for last in range(V):
            here = (length > i) & (tokens[:, i - 1] == last)
            if here.sum() * p[i][last][p[i][last] > 0].min(initial=1) >= 5:
                found = np.bincount(tokens[here, i], minlength=V)
                assert fits(found, here.sum() * p[i][last]), (i, last)
    stands = np.minimum(p[0][0], q[0][0]).sum()
    spread = math.sqrt(stands * (1 - stands) / DRAWS)
    assert abs((length > 1).mean() - stands) <= 4.753 * spread + 1e-9


@pytest.mark.parametrize("kind, accepted", [("equal", 1.0), ("disjoint", 0.0)])
def test_equal_drafts_all_stand_and_impossible_ones_never(kind, accepted):
    _, verdict = speculate(chain(kind, 3), settings(2000))
    assert (verdict.accepted == 3 * accepted).all()


def test_greedy_takes_the_argmax_of_every_row():
    c = chain("near", 3)
    _, verdict = speculate(c, settings(4, temperature=0.0))
    last, greedy = 0, []
    for i in range(4):
        last = int(c.target[i][last].argmax())
        greedy.append(last)
    for tokens, count in zip(verdict.tokens.tolist(), verdict.accepted.tolist(), strict=True):
        assert tokens[: count + 1] == greedy[: count + 1]


def test_the_inputs_are_not_changed():
    """vllm-ascend 2881."""
    c, batch = chain("masked", 2), settings(500, top_k=5)
    drafts = drafted(c, batch)
    mask, logits = rows(c, drafts, 2, c.mask), rows(c, drafts, 2, c.target)
    before = [x.clone() for x in (logits, mask, drafts.tokens, drafts.weights, drafts.scores)]
    verify(logits, batch, drafts, np.full(500, 2), mask=mask, ledger=Ledger())
    after = logits, mask, drafts.tokens, drafts.weights, drafts.scores
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_q_that_the_drafts_were_not_drawn_by_would_show():
    """DeepSpec 31, the mistake itself: drafts drawn by a rounded q, the ratio by the exact one.
    The test above would see it: with 200,000 draws the output is not the target's."""
    c, batch = chain("near"), settings(DRAWS)
    rounded = Chain(c.target, (c.drafter * 2).round() / 2)
    drafts, exact = drafted(rounded, batch), drafted(c, batch)
    wrong = Drafts(drafts.tokens, exact.weights, drafts.scores)
    logits, counts = rows(c, drafts, 1, c.target), np.ones(DRAWS, int)
    expected = DRAWS * filtered(c.target[0][0])
    for one, right in ((wrong, False), (drafts, True)):
        first = verify(logits, batch, one, counts).tokens[:, 0].numpy()
        assert fits(np.bincount(first, minlength=V), expected) == right


def test_each_request_has_its_own_number_of_checked_drafts():
    """A ragged batch, 0 to 3: each request as it is alone."""
    c, size = chain("near", 3), 64
    batch = settings(size)
    drafts, verified = drafted(c, batch), np.arange(size) % 4
    grid = rows(c, drafts, 3, c.target).view(size, 4, V)
    logits = torch.cat([grid[i, : k + 1] for i, k in enumerate(verified)])
    whole = verify(logits, batch, drafts, verified)
    for i, k in enumerate(verified.tolist()):
        one = verify(grid[i, : k + 1], batch.take(np.array([i])), drafts.take([i]), verified[[i]])
        count = int(whole.accepted[i])
        assert count == int(one.accepted[0]) <= k
        assert whole.tokens[i, : count + 1].tolist() == one.tokens[0, : count + 1].tolist()


def test_without_a_checked_draft_it_is_an_ordinary_draw():
    from g2c_serving.sample.sampler import sample

    c, batch = chain("other", 2), settings(300)
    _, verdict = speculate(c, batch, verified=0)
    ordinary = sample(c.target[0][:1].expand(300, -1), batch)
    assert (verdict.accepted == 0).all() and torch.equal(verdict.tokens[:, 0], ordinary)


# ---- faults ----


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_target_row_of_no_numbers_is_the_fault_of_that_request_alone(bad, row):
    """Row 0, 1 or 2 of request 1 of three, all of whose drafts would be accepted."""
    c, batch = chain("equal", 2), settings(3)
    drafts = drafted(c, batch)
    good = rows(c, drafts, 2, c.target)
    logits = good.clone()
    logits[3 + row, 4] = bad
    counts = np.full(3, 2)
    clean, hurt = (verify(x, batch, drafts, counts) for x in (good, logits))
    assert hurt.accepted.tolist() == [2, row, 2]
    assert hurt.tokens[1, row] < 0
    assert hurt.tokens[1, :row].tolist() == clean.tokens[1, :row].tolist()
    assert torch.equal(hurt.tokens[[0, 2]], clean.tokens[[0, 2]])


def test_a_row_behind_a_rejection_does_not_matter():
    c, batch = chain("disjoint", 2), settings(2)
    drafts = drafted(c, batch)
    logits = rows(c, drafts, 2, c.target)
    logits[1], logits[2] = torch.nan, torch.inf
    verdict = verify(logits, batch, drafts, np.full(2, 2))
    assert verdict.accepted.tolist() == [0, 0] and (verdict.tokens[:, 0] >= V // 2).all()


def test_a_drafter_without_numbers_is_never_followed():
    """Its weights are all zero. What comes out is still the target's."""
    c, batch = chain("other"), settings(DRAWS)
    drafts = drafted(c, batch)
    drafts.weights.zero_()
    logits = rows(c, drafts, 1, c.target)
    verdict = verify(logits, batch, drafts, np.ones(DRAWS, int))
    assert not verdict.accepted.any()
    found = np.bincount(verdict.tokens[:, 0].numpy(), minlength=V)
    assert fits(found, DRAWS * filtered(c.target[0][0]))


def test_all_tokens_masked_is_a_fault():
    c = chain("masked")
    c.mask[0, 0] = False
    _, verdict = speculate(c, settings(2))
    assert (verdict.tokens[:, 0] < 0).all() and (verdict.tokens[:, 0] != NOT_NUMBERS).all()


# ---- exact numbers ----


def weights_of(fractions: list[Fraction]) -> torch.Tensor:
    """Integer weights in exactly that ratio."""
    common = math.lcm(*(f.denominator for f in fractions))
    return torch.tensor([[int(f * common) for f in fractions]])


P = [Fraction(n, 60) for n in (30, 15, 10, 4, 1, 0)]
Q = [Fraction(n, 42) for n in (7, 21, 7, 0, 3, 4)]


def test_the_chance_to_be_accepted_is_min_1_p_over_q():
    p, q = weights_of(P)[0], weights_of(Q)[0]
    total = [torch.full_like(x, int(x.sum())) for x in (p, q)]
    found = chances(p, total[0], q, total[1]).tolist()
    for chance, a, b in zip(found, P, Q, strict=True):
        exact = min(Fraction(1), a / b) if b else Fraction(0)  # never drawn: never accepted
        assert abs(Fraction(chance) - exact) < Fraction(1, 2**51)


@pytest.mark.parametrize("guard", [0.0, GUARD])
def test_the_remainder_is_max_p_minus_q_0(guard):
    p, q = (torch.tensor([[float(f) for f in x]], dtype=torch.float64) for x in (P, Q))
    (found,) = residual(p, q, guard).tolist()
    shrink = Fraction(math.exp(-guard))
    left = [max(a - b * shrink, Fraction(0)) for a, b in zip(P, Q, strict=True)]
    for weight, exact in zip(found, left, strict=True):
        assert abs(weight - exact / max(left) * 2**32) <= 1
    assert max(found) == 2**32 and [w == 0 for w in found] == [x == 0 for x in left]


def test_where_nothing_is_left_the_remainder_is_empty():
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert residual(p, p, 0.0).tolist() == [[0, 0]]
    assert residual(p, p, GUARD).tolist() == [[2**32, 2**32]]  # what the guard is for


# ---- the guard ----


def test_without_the_guard_the_output_is_exactly_the_target():
    effect = guard_effect(P, Q, 0)
    assert effect.exact == effect.guarded == tuple(P) and effect.total_variation == 0


def test_what_the_guard_moves():
    """By hand: p = (3/4, 1/4), q = (1/2, 1/2). A quarter is rejected; then token 0 is due, and with
    a factor of 1/4 (guard = log 4) 5/8 of it against 1/8 of token 1."""
    effect = guard_effect((0.75, 0.25), (0.5, 0.5), math.log(4))
    assert [float(x) for x in effect.guarded] == pytest.approx([17 / 24, 7 / 24])
    assert float(effect.total_variation) == pytest.approx(1 / 24)
    assert effect.exact == (Fraction(3, 4), Fraction(1, 4))


def test_deepinfers_guard_moves_less_than_it_is_large():
    """At most 1 - exp(-5e-5), by the docstring's argument; and it is not zero."""
    generator = np.random.default_rng(4)
    bound = 1 - Fraction(math.exp(-GUARD))
    largest = Fraction(0)
    for _ in range(200):
        p, q = generator.dirichlet(np.ones(5)), generator.dirichlet(np.ones(5))
        effect = guard_effect(p.tolist(), q.tolist())
        assert sum(effect.guarded) == 1 and effect.total_variation <= bound
        largest = max(largest, effect.total_variation)
    assert largest > 0
    assert guard_effect(P, P).total_variation == 0  # nothing is ever rejected
    assert guard_effect((1, 0), (0, 1)).total_variation == 0  # p has none of what q has


def test_a_large_guard_is_seen_in_what_verify_gives_and_guard_effect_says_how_much():
    """A guard of 8, so that a chi-square test can see it: not the target, but as predicted."""
    c, batch = chain("near"), settings(DRAWS)
    _, verdict = speculate(c, batch, guard=8.0)
    p, q = filtered(c.target[0][0]), filtered(c.drafter[0][0])
    found = np.bincount(verdict.tokens[:, 0].numpy(), minlength=V)
    predicted = np.array(guard_effect(p.tolist(), q.tolist(), 8.0).guarded, dtype=float)
    assert fits(found, DRAWS * predicted) and not fits(found, DRAWS * p)


@pytest.mark.parametrize(
    "p, q, guard, said",
    [
        ((1, 0), (1, 0), -1, "guard=-1"),
        ((1, 0), (1, 0), math.nan, "guard=nan"),
        ((1, 0), (1,), 0, "same vocabulary"),
        ((0, 0), (1, 0), 0, "p="),
        ((1, 0), (2, -1), 0, "q="),
        ((1, math.nan), (1, 0), 0, "p="),
        ((), (), 0, "p="),
    ],
)
def test_guard_effect_refuses_what_is_no_distribution(p, q, guard, said):
    with pytest.raises(ValueError, match=said):
        guard_effect(p, q, guard)


# ---- the ledger ----


def test_the_ledger_has_the_coins_that_counted_and_the_draw_after_them():
    """Coins (use 2) up to the first rejection, then use 1 at the same position after one, or use 0
    behind the last draft."""
    c, batch = chain("other", 3), settings(200)
    ledger = Ledger()
    drafts, verdict = speculate(c, batch, ledger=ledger)
    _, plain = speculate(c, batch)
    assert torch.equal(plain.accepted, verdict.accepted) and torch.equal(
        plain.tokens, verdict.tokens
    )
    assert set(verdict.accepted.tolist()) == {0, 1, 2, 3}
    for i, count in enumerate(verdict.accepted.tolist()):
        *coins, last = ledger.of(int(batch.seeds[i]))
        assert [d.use for d in coins] == ["accept"] * min(count + 1, 3)
        assert [d.position for d in coins] == [FIRST + k for k in range(len(coins))]
        assert [d.token for d in coins] == drafts.tokens[i, : len(coins)].tolist()
        assert [d.target < d.weight for d in coins] == [k < count for k in range(len(coins))]
        assert all(d.total == 2**53 for d in coins)
        assert last.use == ("sample" if count == 3 else "resample")
        use = 0 if count == 3 else 1
        assert last.counter == ((FIRST + count) * 3 + use, 0, 0, 0)
        assert (last.position, last.token) == (FIRST + count, int(verdict.tokens[i, count]))
