"""The ledger of draws: each line from its own numbers, and the same lines in any company."""

import fakes
import numpy as np
import torch

import g2c_serving as g
from g2c_serving.lab import draws
from g2c_serving.sample import rng, sampler
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.sampler import SamplingBatch, integer_weights, sample


def test_a_ledger_notes_what_each_token_was_drawn_with():
    """Each line is checked from its own numbers: the counter gives the target, and the target lies
    within the token's part of the running sum. The tokens are those without a ledger."""
    logits = torch.randn(20, 60, generator=torch.Generator().manual_seed(8)) * 2
    batch = settings(20)
    batch.temperature[::4], batch.positions[:] = 0, np.arange(20) * 7
    ledger = Ledger()
    tokens = sample(logits, batch, ledger=ledger)
    assert tokens.tolist() == sample(logits, batch).tolist()
    weights = integer_weights(logits, batch).tolist()
    for i, token in enumerate(tokens.tolist()):
        (draw,) = ledger.of(i)
        assert (draw.position, draw.use, draw.seed, draw.token) == (i * 7, "sample", i, token)
        assert draw.counter == (i * 21, 0, 0, 0)
        first, second, *_ = rng.philox(batch.seeds[i : i + 1], np.array([draw.counter]))[0].tolist()
        assert draw.target == ((first << 32) + second) // 4 * draw.total // 2**62
        assert (draw.total, draw.weight) == (sum(weights[i]), weights[i][token])
        assert 0 <= draw.target - sum(weights[i][:token]) < draw.weight
    assert ledger.of(99) == []


def settings(rows: int) -> SamplingBatch:
    seeds, ones = np.arange(rows, dtype=np.uint64), np.ones(rows)
    return SamplingBatch(seeds, np.arange(rows), ones, np.zeros(rows, int), 0.9 * ones)


def test_other_uses_and_lanes_are_named():
    ledger = Ledger()
    seeds, positions = np.array([5], dtype=np.uint64), np.array([2**32])
    drawn = sampler.draw(torch.ones(1, 3).long(), rng.target_words(seeds, positions, rng.RESAMPLE))
    ledger.record(seeds, positions, drawn, drawn.tokens, rng.RESAMPLE)
    coin = (torch.tensor([7]), torch.tensor([0.25]).double(), torch.tensor([2]))
    ledger.record_coins(seeds, positions, *coin, counts=torch.tensor([True]))
    ledger.record_coins(seeds, positions, *coin, counts=torch.tensor([False]))
    coin, resample = ledger.of(5)
    assert resample.use == "resample" and resample.counter == (1, 3, 0, 0)
    assert coin == (2**32, "accept", 5, (2, 3, 0, 0), 7, 2**53, 2, 2**51)


def test_a_row_with_a_fault_is_noted_with_its_number():
    """Not numbers, nothing left to draw, and a good row."""
    ledger = Ledger()
    logits = torch.tensor([[torch.nan, 1.0], [-torch.inf, -torch.inf], [1.0, 1.0]])
    tokens = sample(logits, settings(3), ledger=ledger).tolist()
    assert [ledger.of(i)[0].token for i in range(3)] == tokens and min(tokens) < 0 <= tokens[2]


PROMPT = [5, 17, 3, 99, 4]
PARAMS = g.SamplingParams(temperature=3, top_p=0.95, seed=2**64 - 3, max_tokens=9)


def draws_among(others: int, **config) -> tuple[list, g.RequestOutput]:
    """The request's ledger in an engine that it shares with `others` requests."""
    e = fakes.engine(**config)
    e.ledger = Ledger()
    for i in range(others):
        e.add([i + 1] * (3 + i), g.SamplingParams(temperature=2, top_k=i, max_tokens=6 + i))
    request = e.add(PROMPT, PARAMS)
    out = fakes.run(e)[request]
    assert (e.stats.preemptions > 0) == ("num_blocks" in config)
    return e.ledger.of(out.seed), out


def test_the_same_ledger_alone_and_in_any_company():
    """A request alone; among strangers; in chunks and preempted: line for line the same, one line a
    token. The scripted model's logits are exact, so the totals are equal too."""
    alone, out = draws_among(0)
    assert [draw.token for draw in alone] == out.token_ids and out.seed == PARAMS.seed
    assert [draw.position for draw in alone] == list(range(5, 14))
    assert [draw.counter[0] for draw in alone] == [3 * position for position in range(5, 14)]
    assert draws_among(5)[0] == alone
    assert draws_among(5, num_blocks=9, max_num_batched_tokens=7)[0] == alone


def test_without_a_ledger_nothing_is_noted():
    e = fakes.engine()
    assert e.ledger is None
    e.generate([PROMPT], PARAMS)
    e.ledger = Ledger()
    assert e.ledger.of(PARAMS.seed) == []


def test_the_table_has_a_line_a_draw_and_is_the_same_in_company():
    alone, out = draws_among(0)
    shown = repr(draws.table(alone, fakes.FakeLM().tokenizer))
    assert shown == repr(draws.table(draws_among(5)[0], fakes.FakeLM().tokenizer))
    head, *lines = shown.splitlines()
    assert head.split()[:4] == ["position", "use", "key", "counter"] and len(lines) == 9
    for line, draw, token in zip(lines, alone, out.token_ids, strict=True):
        assert line.split()[2] == "fffffffffffffffd"
        assert f"{draw.target:,}  " in line and f"  {token}  " in line


def test_the_table_shows_a_fault_without_a_text():
    ledger = Ledger()
    sample(torch.full((1, 3), torch.nan), settings(1), ledger=ledger)
    (row,) = draws.table(ledger.of(0), fakes.FakeLM().tokenizer).rows
    assert row[-3:] == ("-1", "''", "")
