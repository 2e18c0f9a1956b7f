"""Peers that hang, die, or talk nonsense, at the start and on the way: a reason, and nobody else
is held up.

Right values: what the scripts below do, by hand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from small_models import random_lm

from g2c_serving.lab import bench_peers, bench_servers, contestants, peer_process
from g2c_serving.lab.bench_peers import PeerSizes, measure, table
from g2c_serving.lab.child_process import ChildProcess
from g2c_serving.lab.contestants import CONTINUOUS, PADDED, Contestant, race, timed
from g2c_serving.lab.openai_client import ServerError
from g2c_serving.lab.peer_process import PeerError, PeerProcess

GOOD = (
    'print(json.dumps({"ids": [[1] * job["new"] for _ in job["prompts"]], "cpu": 0.5}), flush=True)'
)
SMALL = PeerSizes(3, 6, 4, 1, (1, 2), 3)


@pytest.fixture
def rogue(monkeypatch, tmp_path):
    """Makes the runner of all peers one that does `act` with each job, after it did `first`."""

    def make(act: str, first: str = "") -> None:
        lines = [
            "import json, os, sys, time",
            first or 'print(json.dumps({"name": "rogue"}), flush=True)',
            "for count, line in enumerate(sys.stdin):",
            "    job = json.loads(line)",
            f"    {act}",
        ]
        path = tmp_path / "runner.py"
        path.write_text("\n".join(lines), encoding="utf-8")
        monkeypatch.setattr(peer_process, "RUNNER", path)

    return make


def test_a_peer_that_hangs_at_its_start_is_given_up(rogue):
    rogue("pass", first="time.sleep(600)")
    start = time.perf_counter()
    with pytest.raises(PeerError, match=r"x: nothing came for 0.5 s.*--peer-seconds"):
        PeerProcess("x", "nowhere", seconds=0.5)
    assert time.perf_counter() - start < 8


def test_a_peer_that_hangs_in_a_round_is_given_up(rogue):
    """Also where it reads nothing, and the job is larger than a pipe holds."""
    rogue("pass", first='print(json.dumps({"name": "x"}), flush=True); time.sleep(600)')
    start = time.perf_counter()
    with PeerProcess("x", "nowhere", seconds=5) as peer:
        peer.seconds = 0.5
        with pytest.raises(PeerError, match=r"nothing came for 0.5 s"):
            peer.run([[1] * 100_000], 1)
    assert time.perf_counter() - start < 8


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_what_a_peer_has_started_ends_with_it(rogue, tmp_path):
    note = tmp_path / "child"
    rogue("pass", first=(
        "import subprocess\n"
        'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])\n'
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    ))  # fmt: skip
    with pytest.raises(PeerError, match="nothing came"):
        PeerProcess("x", "nowhere", seconds=2)
    pid = int(note.read_text(encoding="utf-8"))
    end = time.perf_counter() + 5
    while _runs(pid) and time.perf_counter() < end:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A process that is over but that nobody has asked about does not run."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return status.exists() and status.read_text().rsplit(")")[-1].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_peer_that_closes_its_output_and_stays_is_ended(rogue, monkeypatch):
    monkeypatch.setattr("g2c_serving.lab.child_process.PATIENCE", 0.3)
    rogue("pass", first="os.close(1); time.sleep(600)")
    with pytest.raises(PeerError, match="x ended with status"):
        PeerProcess("x", "nowhere", seconds=30)


def test_a_peer_that_takes_its_time_to_end_is_asked_for_its_status(rogue):
    """It has closed its output, and is not killed before it says 4."""
    rogue("pass", first="os.close(1); time.sleep(0.7); sys.exit(4)")
    with pytest.raises(PeerError, match="x ended with status 4"):
        PeerProcess("x", "nowhere", seconds=30)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
@pytest.mark.parametrize("said", ["hello", "{}", '{"error": "no"}'])
def test_a_peer_that_is_refused_at_its_start_is_ended(said, rogue, tmp_path):
    """Nothing is left of it, neither the process nor what it has written."""
    note = tmp_path / "note"
    rogue("pass", first=(
        f"open({str(note)!r}, 'w').write(str(os.getpid()) + '\\n' + os.environ['PEER_SCRATCH'])\n"
        f"print({said!r}, flush=True)\n"
        "time.sleep(600)"
    ))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("g2c_serving.lab.child_process.PATIENCE", 0.3)
        with pytest.raises(PeerError) as caught:  # which holds on to the peer
            PeerProcess("x", "nowhere", seconds=30)
    pid, scratch = note.read_text(encoding="utf-8").splitlines()
    assert caught.value and not _runs(int(pid)) and not Path(scratch).exists()


NONSENSE = {
    "no JSON": "hello",
    "a list": "[1]",
    "deep": "[" * 20_000,
    "nothing in it": "{}",
    "no cpu": '{"ids": [[1, 1], [1, 1]]}',
    "words as cpu": '{"ids": [[1, 1], [1, 1]], "cpu": "2"}',
    "cpu below 0": '{"ids": [[1, 1], [1, 1]], "cpu": -1}',
    "cpu that is none": '{"ids": [[1, 1], [1, 1]], "cpu": NaN}',
    "fewer ids": '{"ids": [[1], [1, 1]], "cpu": 1}',
    "fewer prompts": '{"ids": [[1, 1]], "cpu": 1}',
    "other ids": '{"ids": [["a", "b"], [1, 1]], "cpu": 1}',
    "no lists": '{"ids": [1, 1], "cpu": 1}',
}


@pytest.mark.parametrize("line", list(NONSENSE.values()), ids=list(NONSENSE))
def test_nonsense_is_an_error_of_the_peer(line, rogue):
    rogue(f"print({line!r}, flush=True)")
    with PeerProcess("x", "nowhere") as peer, pytest.raises(PeerError, match="^x "):
        peer.run([[1], [2]], 2)


@pytest.mark.parametrize("line", ["hello", "[1]", "{}", '{"name": 3}'])
def test_nonsense_at_the_start_is_too(line, rogue):
    rogue("pass", first=f"print({line!r}, flush=True)")
    with pytest.raises(PeerError, match="^x "):
        PeerProcess("x", "nowhere")


def test_bytes_that_are_no_text_are_nonsense(rogue):
    rogue("pass", first=r"sys.stdout.buffer.write(b'\xff\xfe\n'); sys.stdout.flush()")
    with pytest.raises(PeerError, match="which is no answer"):
        PeerProcess("x", "nowhere")


def test_a_peers_words_cannot_move_the_cursor(rogue):
    rogue("pass", first="print('\\x1b[2Jgone', file=sys.stderr); sys.exit(4)")
    with pytest.raises(PeerError, match="ended with status 4: .*2Jgone") as caught:
        PeerProcess("x", "nowhere")
    assert str(caught.value).isprintable()


# the race goes on


def raced(monkeypatch):
    monkeypatch.setitem(bench_peers.BARS, "rogue", 1.0)
    return measure(random_lm(), ["rogue"], SMALL, seconds=20)


@pytest.mark.parametrize("act", ["sys.exit(4)", "print('hello', flush=True)", "time.sleep(600)"])
def test_a_peer_that_fails_in_its_first_round_is_a_line(act, rogue, monkeypatch):
    rogue(act)
    monkeypatch.setattr(bench_peers, "PeerProcess", _impatient)
    report = raced(monkeypatch)
    line, *others = report.lines
    assert line.verdict == "not measured" and line.note.startswith("rogue")
    assert [one.name.split(" / ")[1] for one in others] == [CONTINUOUS, PADDED]
    assert all(one.measured for one in others)
    assert set(report.by_requests[0]) == {"requests", "ours", CONTINUOUS, PADDED}


def _impatient(*args, **options):
    peer = PeerProcess(*args, **options)
    peer.seconds = 1.0
    return peer


def test_one_that_fails_as_requests_grow_keeps_what_it_had(rogue, monkeypatch):
    """It dies in its fourth round: one for the ratio, two of one request, then the first of two."""
    rogue(f"sys.exit(4) if count == 3 else {GOOD}")
    report = raced(monkeypatch)
    assert report.lines[0].measured and "; later: rogue ended with status 4" in report.lines[0].note
    first, second = report.by_requests
    assert "rogue" in first and "rogue" not in second and second["ours"] > 0
    assert json.loads(report.as_json()) and "rogue ended" in table(report)


def test_transformers_may_fail_on_the_way_too(monkeypatch):
    def later(model, prompts, new_tokens, **options):
        if len(prompts) > 1:
            raise ValueError("too many for this version")
        return [[0] * new_tokens for _ in prompts]

    monkeypatch.setattr(contestants.theirs, "continuous_generate", later)
    report = measure(random_lm(), [], SMALL)
    assert report.lines[0].measured is None and "too many for" in report.lines[0].note
    assert report.lines[1].measured


def test_our_own_failure_is_not_hidden():
    def broken(prompts, new_tokens):
        raise RuntimeError("ours is broken")

    with pytest.raises(RuntimeError, match="ours is broken"):
        race([(Contestant("ours", broken), [[1]])], 1, 1)


def test_a_clock_that_stands_still_is_named():
    one = Contestant("x", lambda prompts, n: [[1]], clock=lambda: 5.0)
    with pytest.raises(RuntimeError, match="x took no time that its CPU clock shows"):
        timed(one, [[1]], 1)


def test_our_own_server_that_hangs_is_given_up(monkeypatch):
    class Hangs(ChildProcess):
        def __init__(self, command, printed, env=None):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], printed, env)

    monkeypatch.setattr(bench_servers, "ChildProcess", Hangs)
    monkeypatch.setattr(bench_servers, "START", 0.3)
    with (
        pytest.raises(ServerError, match="did not start: nothing came for 0.3 s"),
        bench_servers.our_server("tiny"),
    ):
        pass
