"""The measured budget: what it learns of a step's times, when it asks for drafts, whose, and how it
reads a drafter's scores. The times are made up, so nothing here depends on a machine."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import random_lm

import g2c_serving as g
from g2c_serving import budget
from g2c_serving.budget import PROBED, RAREST_PROBE, VerifyBudget
from g2c_serving.history import Row, StepRecord
from g2c_serving.schedule.step_curve import StepCurve

LM = random_lm(vocab_size=270, dim=16, hidden=32)


def budget_of(**spec) -> VerifyBudget:
    how = {"mode": "budgeted", "num_drafts": 5, "drafter": LM, **spec}
    config = g.EngineConfig(num_blocks=32, block_size=4, speculation=g.Speculation(**how))
    return g.Engine(LM, config).speculator.budget


class Times:
    """Steps of so many ms by rows, and so many more where drafts are made."""

    def __init__(self, row_ms: float, draft_ms: float) -> None:
        self.row_ms, self.draft_ms = row_ms, draft_ms

    def step_ms(self, requests: int, max_rows: int, drafted: bool) -> np.ndarray:
        return 10 + self.row_ms * np.arange(max_rows + 1) + self.draft_ms * drafted


def requests_of(count: int, confidence: float = 0.8) -> list:
    engine = g.Engine(LM, g.EngineConfig(num_blocks=32, block_size=4))
    for _ in range(count):
        engine.add([5, 6, 7])
    requests = [samples[0] for samples in engine._requests.values()]
    for i, request in enumerate(requests):
        request.confidences = np.full(5, confidence)
        request.drafter_lag = (7 * i) % 11
    return requests


# ---- the times of a step ----


def record(requests: int, rows: int, drafted: bool) -> StepRecord:
    """A step of 8 + rows ms in the target's pass, 2 ms a drafting request, 1 ms a request else."""
    one = StepRecord(start_ms=0.0)
    kind, extra = ("verify", rows // requests) if drafted else ("decode", 1)
    one.rows = [Row(i, 0, kind, extra, 0) for i in range(requests)]
    one.drafts = [None] * requests if drafted else []  # only their number counts here
    one.draft_ms = 2.0 * requests * drafted
    one.forward_ms = one.draft_ms + 8 + rows
    one.sample_ms = 1.0 * requests
    return one


def test_a_steps_time_is_told_apart_by_what_it_grows_with(monkeypatch):
    """Whatever the profile said (here 3 ms and 0.1 ms a row)."""
    line = StepCurve([1, 1000], [3.1, 103.0])
    monkeypatch.setattr(budget, "profile", lambda *_, **__: StepCurve(line.rows, line.ms))
    times = budget_of().times
    for _ in range(5):
        for requests in (1, 4, 16):
            times.record(record(requests, requests, drafted=False))
            times.record(record(requests, 4 * requests, drafted=True))
    for requests in (1, 4, 16):
        without = times.step_ms(requests, requests, drafted=False)
        drafting = times.step_ms(requests, 4 * requests, drafted=True)
        assert without[-1] == pytest.approx(8 + requests + requests)
        assert drafting[-1] == pytest.approx(8 + 4 * requests + requests + 2 * requests)


def test_a_step_without_rows_teaches_nothing():
    times = budget_of().times
    before = times.step_ms(4, 16, drafted=True).tolist()
    for _ in range(5):
        times.record(StepRecord(start_ms=0.0, forward_ms=1e6))
    assert times.step_ms(4, 16, drafted=True).tolist() == before


# ---- whether to draft at all ----


def test_where_drafting_pays_all_draft_and_the_best_total_is_taken():
    """Two requests, confidence 0.8, 10 ms and 1 ms a row: by hand, 2 + 2 * (0.8 + ... + 0.8^k)
    tokens in 12 + 2k (+ 1 for the drafts) ms is best at k = 5."""
    mine, requests = budget_of(), requests_of(2)
    mine.times = Times(row_ms=1.0, draft_ms=1.0)
    survival = [0.8**k for k in range(1, 6)]
    rates = [(2 + 2 * sum(survival[:k])) / (13 + 2 * k) for k in range(6)]
    total, who = mine.total(requests, room=100)
    assert list(who) == requests and total == 2 * int(np.argmax(rates)) == 10
    assert mine.total(requests, room=3)[0] == 3


@pytest.mark.parametrize("gain, drafts", [(1.02, False), (1.04, True)])
def test_drafting_must_promise_three_percent(gain, drafts):
    """With free rows and certain drafts a step of R requests brings 6 R tokens; so much dearer that
    only `gain` is left of it."""
    mine, requests = budget_of(), requests_of(8, confidence=1.0)
    mine.times = Times(row_ms=0.0, draft_ms=10 * 6 / gain - 10)
    total, who = mine.total(requests, room=100)
    assert (total == 40 and len(who) == 8) == drafts


def test_where_it_does_not_pay_a_few_draft_now_and_then():
    mine, requests = budget_of(), requests_of(8)
    mine.times = Times(row_ms=0.0, draft_ms=1000.0)
    waits, last = [], 0
    for step in range(1, 300):
        total, who = mine.total(requests, room=100)
        if total:
            assert total == 5 * PROBED and len(who) == PROBED
            assert {r.drafter_lag for r in who} == set(sorted(r.drafter_lag for r in requests)[:4])
            waits.append(step - last - 1)
            last = step
    assert waits == [0, 1, 3, 7, 15, 31, 63, RAREST_PROBE, RAREST_PROBE]


def test_another_load_is_another_question():
    """It does not wait for the next probe when so many more or fewer run."""
    mine, requests = budget_of(), requests_of(12)
    mine.times = Times(row_ms=0.0, draft_ms=1000.0)
    while mine._wait < 15:
        mine.total(requests[:8], room=100)
    assert mine.total(requests[:9], room=100) == (0, [])
    mine.times = Times(row_ms=0.0, draft_ms=1.0)
    assert mine.total(requests[:8], room=100) == (0, [])
    total, who = mine.total(requests, room=100)
    assert len(who) == 12 and total == 60


# ---- how scores are read ----


def test_a_head_is_believed_and_a_headless_drafter_is_learnt():
    drafter = g.load("tiny-drafter")
    config = g.EngineConfig(speculation=g.Speculation("budgeted", drafter=drafter))
    head = g.Engine(g.load("tiny"), config).speculator.budget
    scores = np.full((1, 5), 0.925)
    for mine, moves in ((head, False), (budget_of(), True)):
        for _ in range(300):
            mine.learn(scores, np.array([5]), np.array([0]))  # the first falls each time
        assert (mine.confidences(scores)[0, 0] < 0.1) == moves
        assert (mine.confidences(scores)[0, 0] == 0.925) == (not moves)


def test_only_drafts_whose_forerunners_stand_are_judged():
    """Of five verified drafts two stand: the first two are right, the third is wrong, and nobody
    knows of the others."""
    mine = budget_of()
    scores = np.array([[0.025, 0.225, 0.425, 0.625, 0.825]])
    before = mine.confidences(scores)[0]
    for _ in range(200):
        mine.learn(scores, np.array([5]), np.array([2]))
    after = mine.confidences(scores)[0]
    assert after[0] > 0.9 and after[1] > 0.9 and after[2] < 0.1
    assert after[4] == pytest.approx(before[4])


def test_what_is_usual_follows_the_steps():
    mine = budget_of(step_time=[1.0] * 300)
    assert mine.usual.tolist() == [0.75] * 5
    mine.learn(np.full((2, 5), 0.4), np.zeros(2, int), np.zeros(2, int))
    first = mine.usual.copy()
    assert first == pytest.approx(mine.confidences(np.full((1, 5), 0.4))[0])
    for _ in range(200):
        mine.learn(np.full((1, 5), 0.9), np.zeros(1, int), np.zeros(1, int))
    assert mine.usual == pytest.approx(mine.confidences(np.full((1, 5), 0.9))[0], abs=1e-3)


def test_a_target_that_drafts_for_itself_learns_that_it_is_right():
    """Without a head: the raw score says that a draft may fall, where the drafter itself is in two
    minds. All stand."""
    spec = {"drafter": LM, "step_time": lambda rows: 10.0 + 0.01 * rows}
    config = g.EngineConfig(
        num_blocks=256, block_size=4, batch_invariant=True,
        speculation=g.Speculation("budgeted", **spec),
    )  # fmt: skip
    engine = g.Engine(LM, config)
    scores = np.linspace(0.3, 0.7, 9)
    assert engine.speculator.budget.table.read(scores) == pytest.approx(scores, abs=0.03)
    params = g.SamplingParams(max_tokens=50, temperature=1.5, seed=1, ignore_eos=True)
    engine.generate([[i, 6, 7] for i in range(20)], params)
    assert engine.stats.acceptance_rate == 1
    assert (engine.speculator.budget.table.read(scores) > scores + 0.1).all()
