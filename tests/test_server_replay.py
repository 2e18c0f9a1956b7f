"""A trace replayed against servers: who is sent when, what follows what, and the numbers.

Right values: a scripted server's times and the definitions, by hand. And end to end: our own server
against our own engine.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
import time

import pytest
from scripted_server import piece, scripted, stream

import g2c_serving as g
from g2c_serving.lab import bench_command, bench_servers, day
from g2c_serving.lab.day_result import Target
from g2c_serving.lab.openai_client import Reply, Server, ServerError
from g2c_serving.lab.openai_server import running
from g2c_serving.lab.server_replay import (
    NOT_SENT,
    Call,
    Replayed,
    Sent,
    calls_of_day,
    replay,
    table,
)
from g2c_serving.paths import DATA


class Fake(Server):
    """Answers each prompt with "." after `pause` seconds; a prompt with an x fails."""

    pause = 0.0

    def complete(self, prompt: str, max_tokens: int) -> Reply:
        time.sleep(self.pause)
        with self.lock:
            self.prompts.append(prompt)
        if "x" in prompt:
            return Reply(error="no")
        return Reply(".", [0.01, 0.03], 0.03, 2, "length")

    prompts: list[str]
    lock: threading.Lock


@pytest.fixture
def fake():
    server = Fake("http://nowhere/v1", "none")
    object.__setattr__(server, "prompts", [])
    object.__setattr__(server, "lock", threading.Lock())
    return server


def test_each_is_sent_at_its_time_in_the_traces_order(fake):
    run = replay(fake, [Call(0.2, "b", 1), Call(0.0, "a", 1)])
    assert fake.prompts == ["a", "b"] and [s.prompt for s in run.sent] == ["b", "a"]
    assert run.sent[0].at >= 0.2 and run.sent[1].at < 0.2


def test_a_slow_server_does_not_hold_the_next_one_back(fake):
    """Two calls at once on a server that takes 0.3 s: both are out before the first is back."""
    object.__setattr__(fake, "pause", 0.3)
    run = replay(fake, [Call(0.0, "a", 1), Call(0.0, "b", 1)])
    assert all(one.at < 0.25 for one in run.sent)


def test_a_call_that_follows_brings_the_conversation(fake):
    calls = [Call(0.0, "a", 1), Call(0.05, "b", 1, follows=0), Call(0.0, "c", 1, follows=1)]
    run = replay(fake, calls)
    assert fake.prompts == ["a", "a.b", "a.b.c"]
    assert run.sent[1].at >= run.sent[0].at + 0.03 + 0.05 - 1e-3


def test_one_failure_stops_its_followers_alone(fake):
    calls = [
        Call(0.0, "x", 1), Call(0.0, "b", 1, follows=0), Call(0.0, "c", 1, follows=1),
        Call(0.0, "d", 1),
    ]  # fmt: skip
    run = replay(fake, calls)
    assert [one.reply.error for one in run.sent] == ["no", NOT_SENT, NOT_SENT, None]
    assert sorted(fake.prompts) == ["d", "x"]
    assert run.failures == {NOT_SENT: 2, "no": 1}
    assert [one.call.prompt for one in run.sent] == ["x", "b", "c", "d"]


@pytest.mark.parametrize("follows", [1, 2, -1])
def test_who_follows_nobody_before_it_is_refused(follows, fake):
    with pytest.raises(ValueError, match=f"call 1 follows {follows}: name one that is before it"):
        replay(fake, [Call(0.0, "a", 1), Call(0.0, "b", 1, follows=follows)])


def sent(at: float, times: list[float], tokens: int, error: str | None = None) -> Sent:
    ended = times[-1] if times else 0.5
    return Sent(Call(at, "a", 9), at, "a", Reply("t", times, ended, tokens, "length", error))


def test_the_numbers():
    """Two answers and a failure. By hand: 3 tokens from 1.0 to 1.4 s and 5 from 2.0 to 3.0 s are 8
    tokens in 2 s; the gaps are 100, 200 and 900 ms; the first alone has its first token in 150 ms
    and 150 ms for each further one."""
    run = Replayed([
        sent(1.0, [0.1, 0.2, 0.4], 3), sent(2.0, [0.1, 1.0], 5), sent(2.0, [0.1], 1, "cut"),
    ])  # fmt: skip
    assert (run.tokens, run.duration, run.per_s) == (8, pytest.approx(2.0), pytest.approx(4.0))
    assert run.first_token(50) == pytest.approx(0.1)
    assert run.gap(50) == pytest.approx(0.2) and run.gap(100) == pytest.approx(0.9)
    assert [one.per_token for one in run.sent[:2]] == [pytest.approx(0.15), pytest.approx(0.225)]
    target = Target(0.15, 0.2)
    assert run.goodput(target) == pytest.approx(1.5) and run.share_met(target) == pytest.approx(
        1 / 3
    )
    words = repr(table([("ours", run)], target))
    assert "3, 1" in words and "in time: 150 ms, then 200 a token" in words


def test_nothing_answered_is_nan_and_not_an_error():
    run = Replayed([sent(0.0, [], 0, "no")])
    assert (
        math.isnan(run.first_token(50))
        and math.isnan(run.per_s)
        and run.share_met(Target(1, 1)) == 0
    )
    assert "nan" in repr(table([("gone", run)], Target(1, 1)))


# traces


def test_a_day_as_calls():
    """Right values: the day itself. Each conversation keeps its order and its texts; four samples
    are four calls; the first call comes at once."""
    lm = g.load("tiny")
    visits = day.made_up(lm)
    calls = calls_of_day(lm, visits, hour=2.0)
    assert len(calls) == sum(visit.n for visit in visits)
    assert sum(call.max_tokens for call in calls) == sum(v.answer * v.n for v in visits)
    assert min(call.arrival for call in calls if call.follows is None) == 0
    back = [call for call in calls if call.follows is not None]
    returns = [visit for visit in visits if visit.follows is not None]
    for call, visit in zip(back, returns, strict=True):
        assert call.arrival == 2.0 * visit.time
        assert lm.tokenizer.decode(visit.asks) == call.prompt
        assert visit.follows is not None and call.follows is not None
        before = visits[visit.follows]
        assert calls[call.follows].prompt == lm.tokenizer.decode(before.asks)


# end to end


def test_our_server_writes_what_our_engine_writes():
    """Right values: the engine, asked for the same prompts greedily and alone."""
    lm = g.load("tiny")
    texts = ["Once upon a time", "3 + 4 =", "The boy took"]
    with running(lm) as address:
        run = replay(Server.at(address), [Call(0.02 * k, t, 12) for k, t in enumerate(texts)])
    params = g.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for one, output in zip(run.sent, g.Engine(lm).generate(texts, params), strict=True):
        assert one.reply.error is None and one.reply.tokens == 12
        assert one.reply.text == lm.tokenizer.visible_text(output.token_ids)
        assert len(one.reply.times) == 12


def test_the_command_replays_a_day_against_a_server(capsys):
    """Our server twice, once as the peer: the same answers, nobody fails."""
    lm = g.load("tiny")
    with running(lm, markers=True) as address:
        assert bench_command.main(["--quick", "--peer", address]) == 0
    printed = capsys.readouterr().out
    assert "Too small to judge by" in printed and address in printed
    rows = {name: cells for name, *cells in (re.split(" {2,}", x) for x in printed.splitlines())}
    assert rows["answers as in the first"] == ["100%", "100%"]
    assert rows["requests, failed"][1].endswith(", 0")


def test_the_command_says_why_not(capsys):
    assert bench_command.main(["--peer", "http://127.0.0.1:9/v1"]) == 1
    assert "not measured: nobody listens at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert bench_command.main(["--peer", "vllm", "--peer", "http://127.0.0.1:9/v1"]) == 2
    assert "one kind at a time" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench_command.main(["--hour", "0"])
    assert "0 must be a number above 0" in capsys.readouterr().err


def test_our_own_server_finds_a_folder_from_where_the_learner_is(monkeypatch, tmp_path):
    shutil.copytree(DATA / "models" / "tiny", tmp_path / "models" / "mine")
    shutil.copytree(DATA / "tokenizers" / "tiny", tmp_path / "tokenizers" / "tiny")
    monkeypatch.chdir(tmp_path)
    with bench_servers.our_server("models/mine") as address:
        assert Server.at(address).model == "mine"


def test_our_own_server_that_does_not_start():
    with (
        pytest.raises(ServerError, match="did not start: not served: no model 'nobody'"),
        bench_servers.our_server("nobody"),
    ):
        pass


def test_failures_are_listed_below_the_table():
    def script(path, body):
        return stream(piece("a"), whole=False)

    with scripted(script) as (url, _):
        run = replay(Server.at(url), [Call(0.0, "a", 2)])
    report = bench_servers.ServerReport("here", "tiny", [Call(0.0, "a", 2)], [(url, run)],
                                        Target(1, 1))  # fmt: skip
    assert f"{url}: 1 failed: the stream was cut after 1 pieces" in bench_servers.table(report)
    assert '"failures"' in report.as_json()


def test_an_answer_that_takes_too_long_is_a_failure_of_the_report():
    """A server that answers after 3 s, given 1."""

    def late(path, body):
        time.sleep(3)
        return stream(piece("a", "stop"))

    with scripted(late) as (url, _):
        report = bench_servers.measure(
            g.load("tiny"), "tiny", [url], bench_servers.Trial(0.05, 0.1), seconds=1.0
        )
    (_, theirs) = report.runs[1]
    assert not theirs.answered and "was not over after 1 s" in str(theirs.failures)
