"""What notebook 04 shows: fates, readings, the accept rule, budgets, paths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import g2c_serving as g
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import Drafted, EngineStats
from g2c_serving.lab import (
    accept_rule,
    acceptance,
    draft_strip,
    exact_picture,
    naive_accept,
    neighbour,
    own_budget,
)
from g2c_serving.lab.exercises import check
from g2c_serving.schedule.step_curve import StepCurve


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    torch.set_num_threads(1)
    return g.load("tiny")


@pytest.fixture(scope="module")
def drafter() -> LanguageModel:
    return g.load("tiny-drafter")


# ---- the cold open ----


def test_the_naive_rule_by_hand():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    found = naive_accept.keep_the_likeliest(p, q, 1)
    assert found.tolist() == pytest.approx([0.2 + 0.8 * 0.5, 0.8 * 0.3, 0.8 * 0.2])
    everything = naive_accept.keep_the_likeliest(p, q, 3)
    assert everything.tolist() == pytest.approx(q.tolist())


def test_the_naive_rule_says_wise_too_often(lm, drafter):
    panel = naive_accept.panel(lm, drafter)
    assert "'wise' comes in 194 of 1,000" in panel.text and "writes it in 106" in panel.text


# ---- drafts by their fate ----


def drafted(verified: int, accepted: int) -> Drafted:
    return Drafted(0, 0, 9, (1, 2, 3, 4, 5), (0.9,) * 5, verified, accepted, 6, accepted + 1)


@pytest.mark.parametrize(
    "verified, accepted, wanted",
    [
        (5, 5, ["accepted"] * 5 + ["ordinary"]),
        (5, 0, ["rejected"] + ["void"] * 4 + ["resampled"]),
        (3, 1, ["accepted", "rejected", "void", "not verified", "not verified", "resampled"]),
        (3, 3, ["accepted"] * 3 + ["not verified"] * 2 + ["ordinary"]),
        (0, 0, ["not verified"] * 5 + ["ordinary"]),
    ],
)
def test_every_draft_has_its_fate(verified, accepted, wanted):
    assert draft_strip.fates(drafted(verified, accepted)) == wanted


def test_the_strip_tells_what_the_engine_wrote(lm, drafter):
    story = draft_strip.run(lm, drafter, "Once upon a time", 1.0, False, 3)
    assert len(story.token_ids) == len(lm.tokenizer.encode("Once upon a time")) + 60
    for one in story.steps:
        written = (*one.tokens[: one.accepted], one.token)
        here = story.token_ids[one.position : one.position + len(written)]
        assert here == written[: len(here)]


def test_every_run_of_the_strip_is_long_enough_and_fits(lm, drafter):
    panel = draft_strip.panel(lm, drafter)
    for temperature in panel.controls["temperature"].ends:
        for budgeted in (False, True):
            story = draft_strip.run(lm, drafter, draft_strip.PROMPTS[1], temperature, budgeted, 0)
            assert 10 <= len(story.steps) <= draft_strip.MOST_STEPS
    panel.controls["verification"].value = draft_strip.BUDGETED
    assert "a pass of 4 rows" in panel.text  # three drafts pay: four rows for the price of one


def test_the_strips_slider_ends_with_the_run(lm, drafter):
    panel = draft_strip.panel(lm, drafter)
    step, lasts = panel.controls["step"], set()
    for temperature in panel.controls["temperature"].ends:
        panel.controls["temperature"].value = temperature
        step.value = last = step.ends[1]
        assert panel.error is None and f"step {last} of {last}:" in panel.text
        lasts.add(last)
    prompt = len(lm.tokenizer.encode(draft_strip.PROMPTS[0]))
    story = draft_strip.run(lm, drafter, draft_strip.PROMPTS[0], 1.3, False, 0)
    kept = story.token_ids[story.steps[-1].position :]  # no token that nobody got
    assert f"Written: {lm.tokenizer.decode(list(kept))!r}, {len(kept)} token" in panel.text
    assert len(story.token_ids) == prompt + draft_strip.TOKENS
    step.value = max(lasts) + 1
    assert len(lasts) == 2 and step.value == last  # another run, another end


# ---- readings ----


def test_the_two_readings_of_the_brief():
    assert acceptance.as_a_share(0.75, 3) == 3.25
    assert acceptance.as_a_chain(0.75, 3) == pytest.approx(2.734375)
    assert acceptance.as_a_chain(1.0, 5) == 6
    assert "3.25" in acceptance.panel().text and "2.73" in acceptance.panel().text


def test_statistics_divide_as_their_names_say():
    table = acceptance.statistics({"run": EngineStats(passes=10, drafted=50, verified=40,
                                                      accepted=36, kept=44)})  # fmt: skip
    values = {row[0]: row[2] for row in table.rows}
    assert values["acceptance_rate"] == "90.0%" and values["accepted_per_drafted"] == "72.0%"
    assert values["accepted_length"] == "3.60" and values["tokens_per_pass"] == "4.40"


# ---- the accept rule ----


@pytest.mark.parametrize(
    "q", [(1, 1, 1, 1, 1), (0, 0, 0, 0, 1), (0, 1, 0, 0, 0), (40, 25, 20, 10, 5), (1, 6, 2, 1, 2)]
)
def test_what_comes_out_is_p_whatever_q(q):
    share = np.array(q) / sum(q)
    found = accept_rule.output(accept_rule.TARGET, share.tolist(), guard=0.0)
    assert found.written.tolist() == pytest.approx(list(accept_rule.TARGET), abs=1e-9)
    wanted = np.minimum(accept_rule.TARGET, share).sum()
    assert found.accepted.sum().item() == pytest.approx(wanted, abs=1e-9)


def test_the_guard_moves_it_by_less_than_itself():
    found = accept_rule.output(accept_rule.TARGET, [0.1, 0.5, 0.2, 0.1, 0.1])
    assert 1e-6 < found.off < 5e-5


# ---- budgets on a machine ----


def test_the_machine_plans_with_and_without_the_drafters_time():
    flat = StepCurve([1, 100], [10.0, 10.0])
    machine = own_budget.Machine(
        {"flat": flat, "same": flat}, StepCurve([1, 64], [2.0, 2.0]), np.full((8, 5), 0.5)
    )
    assert machine.step_ms("flat", 4, False)[24] == 10
    assert machine.step_ms("flat", 4, True)[24] == 10 + 6 * 2
    assert machine.best("flat", 4, True).drafts.tolist() == [5] * 4  # rows cost nothing
    panel = own_budget.panel(machine)
    panel.controls["with_drafting"].value = False
    assert "1.97 times the tokens per ms" in panel.text  # 1 + 1/2 + ... + 1/32


def test_by_load_asks_the_learners_planner():
    curve = StepCurve([1, 384], [1.0, 384.0])
    machine = own_budget.Machine({"a": curve}, curve, np.full((64, 5), 0.5))
    table = own_budget.by_load(machine, lambda confidences, step_ms: [1] * len(confidences))
    assert {row[1] for row in table.rows} == {"1.00; none is better"}  # every row costs 1 ms
    free = own_budget.Machine({"a": StepCurve([1], [1.0])}, StepCurve([1], [0.01]),
                              machine.confidences)  # fmt: skip
    table = own_budget.by_load(free, lambda confidences, step_ms: [1] * len(confidences))
    assert {row[1] for row in table.rows} == {"1.00"}
    panel = own_budget.panel(
        own_budget.Machine({"a": curve, "b": curve}, curve, machine.confidences)
    )
    assert "times the tokens per ms of no speculation; not speculating is better;" in panel.text


def test_prices_begin_at_one(lm):
    (row,) = own_budget.row_prices([lm], (1, 2)).rows
    assert row[:3] == ("tiny", "14 MB", "1.00")


# ---- exact or not ----


def test_the_briefs_smallest_case_is_off_by_a_twentieth():
    panel = exact_picture.panel()
    assert "token 0 with 0.9;" in panel.text
    assert 'write token 0 with 0.9, except "total by the fresh": 0.95.' in panel.text
    words = [text.get_text() for text in panel.artists["words"]]
    assert words == ["0.9 = 0.9", "0.9 = 0.9", "0.95 \u2260 0.9", "0.9 = 0.9"]
    for name, value in {"total": 2, "p": 3, "sure": 7, "ms": 13}.items():
        panel.controls[name].value = value
        assert '"total settled before"' not in panel.text


def test_only_the_fresh_total_fails_in_the_table():
    rows = {row[0]: row[2:] for row in exact_picture.table(steps=20_000).rows}
    assert rows["total by the fresh"][0] == "5.00%" and float(rows["total by the fresh"][1]) > 4.75
    for name in set(rows) - {"total by the fresh"}:
        assert rows[name][0] == "0, exactly" and float(rows[name][1]) < 4.75


# ---- the path ----


@pytest.mark.parametrize("seed", [3, 5])
def test_a_neighbour_moves_the_budgeted_path_and_not_the_fixed_one(lm, drafter, seed):
    company = neighbour.NEIGHBOURS["an odd text"]
    alone, beside = (neighbour.run(lm, drafter, "budgeted", who, seed) for who in ((), company))
    assert alone.tokens != beside.tokens and alone.verified[0] != beside.verified[0]
    alone, beside = (neighbour.run(lm, drafter, "fixed", who, seed) for who in ((), company))
    assert alone == beside and set(alone.verified) == {5}


def test_a_path_has_a_way_for_every_token(lm, drafter):
    for mode in ("fixed", "budgeted"):
        path = neighbour.run(lm, drafter, mode, neighbour.NEIGHBOURS["seven odd texts"], 3)
        assert len(path.tokens) == len(path.ways) == neighbour.TOKENS


# ---- the planner exercise ----


def by_confidence_alone(confidences, step_ms):
    """As somebody may write it: the likeliest drafts first, and no product."""
    drafts = [(c, request) for request, row in enumerate(confidences) for c in row]
    drafts.sort(key=lambda draft: draft[0], reverse=True)
    totals = []
    for count in range(len(drafts) + 1):
        tokens = len(confidences) + sum(c for c, _ in drafts[:count])
        totals.append(tokens / step_ms[len(confidences) + count])
    taken = [request for _, request in drafts[: totals.index(max(totals))]]
    return [taken.count(request) for request in range(len(confidences))]


def impatient(confidences, step_ms):
    """Row after row, as long as the next one pays."""
    drafts = [0] * len(confidences)

    def rate(drafts):
        pairs = zip(confidences, drafts, strict=True)
        stand = sum(float(np.prod(row[: i + 1])) for row, n in pairs for i in range(n))
        tokens = len(drafts) + stand
        return tokens / step_ms[len(drafts) + sum(drafts)]

    while True:
        more = [
            drafts[:k] + [n + 1] + drafts[k + 1 :]
            for k, n in enumerate(drafts)
            if n < len(confidences[k])
        ]
        if not more or rate(max(more, key=rate)) <= rate(drafts):
            return drafts
        drafts = max(more, key=rate)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (by_confidence_alone, "take each confidence for itself"),
        (impatient, "stop at the first row that does not pay"),
        (lambda c, ms: [n + 1 for n in g.plan(c, ms).drafts.tolist()], "without the ordinary row"),
        (lambda c, ms: [0] * len(c), "number 1 of the list: 0 is much too small."),
    ],
)
def test_a_planner_with_a_typical_mistake_is_told_which(wrong, words):
    verdict = check("04.planner", wrong)
    assert verdict.right is False and words in verdict.text


# ---- axes ----


def ticks(panel) -> list[tuple[float, str]]:
    """The numbers along the upright axes of a panel's picture, and how they are written."""
    figure = panel.figure
    figure.canvas.draw()
    return [
        (place, label.get_text().strip("\u2007"))
        for axes in figure.axes
        for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    ]


@pytest.mark.parametrize("ms", [0.7, 3.0, 90.0])
def test_the_ticks_of_one_s_own_budget_are_written_as_they_stand(ms):
    """A tick at 0.25 that reads 0.2 is wrong by a fifth."""
    curve, drafting = StepCurve([1, 384], [ms, 40 * ms]), StepCurve([1, 64], [ms, ms])
    machine = own_budget.Machine({"tiny": curve, "big": curve}, drafting, np.full((64, 5), 0.9))
    panel = own_budget.panel(machine)
    for requests in (1, 8, 64):
        panel.controls["requests"].value = requests
        assert panel.error is None
        for place, text in ticks(panel):
            assert float(text) == pytest.approx(place), text
