"""Other engines beside ours: the process that they live in, what goes wrong there, and the table.

No engine is needed but for the last test, which takes a Python with vLLM from the environment
variable G2C_PEER_PYTHON, or this one where it has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from hugging_faces import saved
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab import bench_command, bench_peers, peer_process
from g2c_serving.lab.bench_peers import PeerSizes, measure, table
from g2c_serving.lab.contestants import CONTINUOUS, PADDED, timed
from g2c_serving.lab.peer_process import PeerError, PeerProcess

SMALL = PeerSizes(3, 6, 4, 1, (1, 2), 3)
PEER_PYTHON = os.environ.get("G2C_PEER_PYTHON", sys.executable)
HAS_VLLM = importlib.util.find_spec("vllm") is not None


@pytest.fixture
def echo(monkeypatch):
    """Peers run the test's script instead of ours."""
    monkeypatch.setattr(peer_process, "RUNNER", Path(__file__).with_name("echo_runner.py"))


def test_a_peer_answers_over_its_own_pipe(echo):
    """Right values: the echo of each prompt's last id. What the engine prints is no answer."""
    with PeerProcess("echo", "somewhere", dtype="bfloat16") as peer:
        assert peer.name == "echo in bfloat16"
        assert peer.run([[1, 2], [3]], 3) == [[2, 2, 2], [3, 3, 3]]
        assert peer.run([[7]], 1) == [[7]]


def test_its_own_cpu_seconds_count(echo):
    """Right value: 4 tokens, by the CPU-seconds that the peer told."""
    with PeerProcess("echo", "x") as peer:
        peer.cpu_seconds = 5.0
        contestant = peer.contestant()
        rate, ids = timed(contestant, [[1, 2, 3]], 1)
        assert ids == [[3]]
        assert rate == pytest.approx(4 / (peer.cpu_seconds - 5))


def test_a_peer_that_does_not_start_says_why(echo):
    with pytest.raises(PeerError, match="echo does not run here: RuntimeError: this engine does"):
        PeerProcess("echo", "x", mode="broken")


def test_a_peer_that_dies_on_the_way_says_what_it_printed(echo):
    with PeerProcess("echo", "x") as peer:
        with pytest.raises(PeerError, match="echo ended with status 3: .*out of luck"):
            peer.run([[1]], 13)
        with pytest.raises(PeerError, match="echo ended with status 3"):
            peer.run([[1]], 2)


def test_an_error_of_its_engine_comes_across(echo):
    with PeerProcess("echo", "x") as peer:
        with pytest.raises(PeerError, match="ValueError: 14 is too many"):
            peer.run([[1]], 14)


@pytest.mark.skipif(HAS_VLLM, reason="this Python has vLLM")
def test_an_engine_that_is_not_installed_names_the_remedy(tmp_path):
    with pytest.raises(PeerError, match=r"No module named 'vllm'.*--peer-python PATH"):
        PeerProcess("vllm", tmp_path)


def test_a_python_that_is_none(tmp_path):
    with pytest.raises(PeerError, match="nowhere cannot be run .*: name a Python that has vllm"):
        PeerProcess("vllm", tmp_path, python=tmp_path / "nowhere")


def test_one_thread_whatever_the_users_environment_says(echo, monkeypatch):
    """Right values: ours for what the comparison rests on, the user's for the rest."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING")
    for name in names:
        monkeypatch.setenv(name, "8")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(PeerError, match="OMP 1, MKL 1, MULTI 0, LOG DEBUG, HF 1"):
        PeerProcess("echo", "x", mode="environment")


def test_closing_twice_is_fine(echo):
    peer = PeerProcess("echo", "x")
    peer.close()
    peer.close()
    assert peer._process.is_over


# the report


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_process, "RUNNER", Path(__file__).with_name("echo_runner.py"))
        patch.setitem(bench_peers.BARS, "echo", 1.0)
        return measure(random_lm(), ["echo", "nobody"], SMALL)


def test_a_line_for_each_peer_and_transformers_always(report):
    """Right values: the bars that ours is held to; transformers' tokens, which ours equal."""
    names = {line.name.split(" / ")[1]: line for line in report.lines}
    assert list(names) == ["echo in float32", "nobody", CONTINUOUS, PADDED]
    assert names["echo in float32"].bar == 1 and names[CONTINUOUS].bar == 4
    assert names[PADDED].verdict == "shown"
    for name in (CONTINUOUS, PADDED):
        assert "100.0% of tokens equal" in names[name].note
    assert "100.0% of tokens equal" not in names["echo in float32"].note


def test_a_peer_that_cannot_run_is_a_line_and_the_others_are_measured(report):
    nobody = report.lines[1]
    assert nobody.verdict == "shown" and nobody.measured is None
    assert "KeyError" in nobody.note
    assert [row["requests"] for row in report.by_requests] == [1, 2]
    assert set(report.by_requests[0]) == {
        "requests", "ours", "echo in float32", CONTINUOUS, PADDED,
    }  # fmt: skip


def test_the_table_says_what_was_done(report):
    text = table(report)
    assert "3 requests of 6 + 4 tokens, greedy, float32" in text
    assert "echo in float32" in text and "CPU-second" in text
    content = json.loads(report.as_json())
    assert [line["verdict"] for line in content["lines"]][1:2] == ["shown"]


def test_what_gpt2_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="window layers"):
        measure(random_lm(window=8, window_layers=(1,)), [], SMALL)


# the command


def test_an_unknown_peer_is_named(capsys):
    assert bench_command.main(["--peer", "vlllm"]) == 2
    assert "--peer vlllm: name one of openvino, vllm, or an address" in capsys.readouterr().err


def test_a_model_that_cannot_be_exported_is_one_line(capsys):
    assert bench_command.main(["--model", "tiny-window", "--peer", "vllm", "--quick"]) == 1
    assert "not measured: tiny-window has window layers" in capsys.readouterr().err


def test_pythons_for_all_or_for_one():
    for given in (["/a/python", "vllm=/b/python"], ["vllm=/b/python", "/a/python"]):
        found = bench_command._pythons(given)
        assert found == {"vllm": "/b/python", "openvino": "/a/python"}


WIDE = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 64}  # as vLLM's kernels want it


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_vllm_writes_our_tokens(kind, tmp_path):
    """Right values: vLLM's, on the exported tiny, and on the folder of a random Llama. Random
    prompts: rounding may decide a few."""
    if not HAS_VLLM and PEER_PYTHON == sys.executable:
        pytest.skip("no vLLM: name a Python that has it in G2C_PEER_PYTHON")
    if kind == "llama":
        saved(tmp_path / "llama", "llama", **WIDE, vocab_size=512)
    lm = g.load(kind if kind == "tiny" else tmp_path / "llama")
    sizes = PeerSizes(4, 16, 16, 1, (1,), 4)
    (line, *_) = measure(lm, ["vllm"], sizes, {"vllm": PEER_PYTHON}).lines
    assert line.measured is not None, line.note
    share = float(line.note.split("; ")[1].split("%")[0])
    assert share >= 95
