"""The benchmark: it has its rows, all who take part write the same tokens, its verdicts follow the
bars. No time is asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from inspect import signature

import pytest
import torch
from small_models import random_lm

from g2c_serving.lab import (
    bench,
    bench_command,
    bench_peers,
    contestants,
    step_floor,
    step_times,
)
from g2c_serving.lab.bench_report import Line, Report, Sizes, table
from g2c_serving.lab.contestants import Contestant, made_up_prompts, race, share_equal
from g2c_serving.lab.dense import DenseModel, PlainLinear
from g2c_serving.lab.machine import num_threads
from g2c_serving.lab.one_user import OneUserModel

SMALL = Sizes(3, 6, 4, 1, 1, 2, 1, 1.0, (1, 2), 3, (5,), 2, (1, 3))
BARS = {  # what the engine is held to, in the table's order
    "random: ours / one-user loop": 4,
    "random: ours, max_num_seqs=1 / one-user loop": None,
    "random: ours / transformers continuous batching": 3,
    "random: ours / transformers padded generate": 1.5,
    "random inflated to 1 MB: ours / one-user loop": 8,
    "random inflated to 1 MB: ours, max_num_seqs=1 / one-user loop": None,
    "random: step of 3 requests / dense forward": 1.25,
    "random: step of 3 requests / dense packed forward": None,
    "random: Python outside forward and sampler / step": 0.15,
    "random: step of 1 requests / linear layers and one read of the KV": None,
    "random: step of 3 requests / linear layers and one read of the KV": None,
}


@pytest.fixture(scope="module")
def report() -> Report:
    config = getattr(pytest.importorskip("transformers"), "ContinuousBatchingConfig", object)
    if "page_size" not in signature(config).parameters:
        pytest.skip("this transformers batches continuously by another interface")
    return bench.measure(random_lm(), SMALL)


def test_the_table_has_every_row(report):
    """Right values: the ratios that the engine is held to, and their bars."""
    assert {line.name: line.bar for line in report.lines} == BARS
    assert all(line.measured is not None and line.measured > 0 for line in report.lines)
    assert [row["requests"] for row in report.by_requests] == [1, 2]
    assert [row["prompt"] for row in report.by_context] == [5]
    assert [row["requests"] for row in report.by_requests_inflated] == [1, 2]
    assert [row["requests"] for row in report.by_floor] == [1, 3]
    text = table(report)
    assert all(name in text for name in BARS)
    assert "CPU-second" in text and report.machine in text


def test_a_floor_counts_what_it_says():
    """Right values: the parts' own sums; the read is of all keys and values of the tokens."""
    lm = random_lm()
    floor = step_floor.measure(lm, 3, 6)
    assert floor.linear_ms > 0 and floor.read_ms > 0 and floor.step_ms > 0
    assert floor.ratio == floor.step_ms / (floor.linear_ms + floor.read_ms)
    row = floor.as_row()
    of_step = [row[name] for name in floor.shares]
    assert sum(of_step) == pytest.approx(floor.step_ms, rel=0.5)
    assert floor.shares["linear layers"] > 0 and floor.shares["attention"] > 0
    at_64 = replace(floor, requests=64)
    assert step_floor.line("m", at_64).bar == 1.5 and step_floor.line("m", floor).bar is None


def test_all_who_take_part_write_the_same_tokens(report):
    """Right values: each other's; float32 differences do not decide a token of this model."""
    compared = [line.note for line in report.lines if "tokens equal" in line.note]
    assert len(compared) == 6
    assert all("100.0% of tokens equal" in note for note in compared)


def test_json_says_the_same(report):
    content = json.loads(report.as_json())
    assert [line["name"] for line in content["lines"]] == list(BARS)
    assert {line["verdict"] for line in content["lines"]} <= {"meets", "falls short", "shown"}
    assert content["versions"]["torch"] == torch.__version__
    assert content["sizes"]["requests"] == 3


def test_threads_are_given_back(report):
    """The benchmark runs on one thread and leaves the number as it found it."""
    torch.set_num_threads(2)
    try:
        with num_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("bar", "measured", "at_most", "verdict"),
    [
        (4, 4.0, False, "meets"),
        (4, 3.9, False, "falls short"),
        (1.25, 1.25, True, "meets"),
        (1.25, 1.3, True, "falls short"),
        (None, 2.0, False, "shown"),
        (3, None, False, "not measured"),
    ],
)
def test_verdicts(bar, measured, at_most, verdict):
    assert Line("x", bar, measured, "", at_most).verdict == verdict


@pytest.mark.parametrize("peers", [[], ["--peer", "vllm"]])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_quick_run_judges_nothing(peers, as_json, monkeypatch, capsys):
    """Right values: at the bar, below it, without one, and one that could not be measured."""
    found = [Line("a", 4, 9.0, ""), Line("b", 4, 1.0, ""), Line("c", None, 1.0, ""),
             Line("d", 4, None, "gone")]  # fmt: skip
    rows = [{"requests": 1.0}]
    sizes, peer_sizes = Sizes(), bench_peers.PeerSizes()
    own = Report("here", {}, "tiny", sizes, found, rows, rows, rows, rows)
    monkeypatch.setattr(bench, "measure", lambda *_: own)
    other = bench_peers.PeerReport("here", "tiny", "float32", peer_sizes, found, rows, rows)
    monkeypatch.setattr(bench_peers, "measure", lambda *_, **__: other)
    assert bench_command.main(["--quick", *peers, *as_json]) == 0
    quick = capsys.readouterr().out
    assert quick.count("too small to judge") == 2 and "not measured" in quick
    assert "meets" not in quick and "falls short" not in quick
    own.lines = other.lines = found
    assert bench_command.main([*peers, *as_json]) == 0
    full = capsys.readouterr().out
    assert "meets" in full and "falls short" in full and "too small" not in full


def test_without_transformers_the_rows_say_so(monkeypatch):
    monkeypatch.setattr(contestants, "version", lambda package: "not installed")
    lm = random_lm()
    lines = bench.race_lines(lm, contestants.transformers_pair(lm), SMALL)
    absent = [line for line in lines if "transformers" in line.name]
    assert [line.note for line in absent] == ["transformers is not installed"] * 2
    assert {line.verdict for line in absent} == {"not measured"}


def test_a_transformers_with_another_interface_is_named(monkeypatch):
    def broken(model, prompts, new_tokens, **options):
        raise ImportError("no ContinuousBatchingConfig")

    monkeypatch.setattr(contestants.theirs, "continuous_generate", broken)
    continuous, padded = contestants.transformers_pair(random_lm())
    assert "no ContinuousBatchingConfig" in str(continuous.absent)
    assert padded.absent is None


def test_contestants_take_turns_and_the_best_counts():
    """Right values: the order A B A B, and a rate that only the fastest round gives."""
    order = []

    def named(name):
        def run(prompts, new_tokens):
            order.append(name)
            return [[0] * new_tokens for _ in prompts]

        return Contestant(name, run)

    results = race([(named("A"), [[1]]), (named("B"), [[1], [2]])], 3, repetitions=2)
    assert order == ["A", "B", "A", "B"]
    assert results["B"].requests == 2 and results["B"].ids == [[0, 0, 0]] * 2


def test_share_equal():
    """Right values: 5 of 6 tokens by hand; what only one of the two served does not count."""
    assert share_equal([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [4, 0, 6]]) == 5 / 6


def test_the_dense_yardstick_is_the_same_model():
    """Right values: the one-user loop's forward, after a first pass and after two more tokens."""
    lm = random_lm()
    ids = torch.tensor(made_up_prompts(lm, 3, 12))
    dense = DenseModel(lm, 3, 12)
    found = [dense.step(part) for part in ids.split([10, 1, 1], dim=1)]
    for row, text in enumerate(ids.tolist()):
        expected = OneUserModel(lm).forward(text)[[9, 10, 11]]
        actual = torch.stack([logits[row] for logits in found])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_steps_that_are_compared_have_equal_work():
    """Right values: 3 requests of 6 + 4 tokens, added at once, decode at contexts 7, 8 and 9; the
    dense model is asked for the same contexts."""
    lm = random_lm()
    steps = step_times.engine_steps(step_times.filled(lm, 3, 6, 4), 3)
    assert [step.context for step in steps] == [7, 8, 9]
    assert all(0 <= step.python_ms <= step.ms for step in steps)
    assert len(step_times.dense_steps(lm, 3, [7, 8, 9], PlainLinear)) == 3


@pytest.mark.parametrize(("requests", "prompt_len"), [(1, 64), (64, 64), (128, 8), (8, 448)])
def test_the_lead_in_lets_all_requests_decode_together(requests, prompt_len):
    """With fewer new tokens the first request would be gone before the last one starts."""
    lm = random_lm(layers=1, dim=4, heads=1, hidden=4, context=512)
    new_tokens = 3 + step_times.lead_in(requests, prompt_len)
    engine = step_times.filled(lm, requests, prompt_len, new_tokens)
    assert len(step_times.engine_steps(engine, requests, most=3)) == 3
