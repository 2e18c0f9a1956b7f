"""The benchmark with every kind of model that is served: who can compute its shape takes part, who
cannot is a line that says why. Right values: transformers, which reads the same folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hugging_faces import CONTEXT, saved
from small_models import random_lm
from test_hf_tokenizer import llama2

import g2c_serving as g
from g2c_serving.lab import bench, bench_command, bench_peers, peer_process, theirs
from g2c_serving.lab.bench_report import Line, Sizes, table
from g2c_serving.lab.contestants import CONTINUOUS, PADDED
from g2c_serving.lab.openai_server import running

SMALL = Sizes(3, 6, 4, 1, 1, 2, 1, 1.0, (1, 2), 3, (5, 9000), 2, (1, 3))
PEERS = bench_peers.PeerSizes(3, 6, 4, 1, (1, 2), 3)
# What chat models bring along, and what would change what is written.
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 9.0}


def llama(folder: Path, **fields) -> Path:
    """Its commonest tokens are ends, so that a text that may end does."""
    model = saved(folder, "llama", **fields, eos_token_id=list(range(0, 131, 2)))
    for name, value in SAMPLING.items():
        setattr(model.generation_config, name, value)
    model.generation_config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def lines(folder) -> dict[str, Line]:
    report = bench.measure(g.load(folder), SMALL)
    assert [row["requests"] for row in report.by_requests] == [1, 2]
    assert all("dense ms" not in row and row["step ms"] > 0 for row in report.by_requests)
    assert {CONTINUOUS, PADDED, "ours"} <= report.by_requests[0].keys()
    assert [row["prompt"] for row in report.by_context] == [5, CONTEXT - 3]  # all that fits
    assert "tokens equal" in table(report) and json.loads(report.as_json())["model"] == "llama"
    return {line.name: line for line in report.lines}


def test_transformers_races_on_a_llamas_own_folder(lines):
    """To the full length and greedily, whatever the folder says of ends and sampling."""
    for name in (CONTINUOUS, PADDED):
        line = lines[f"llama: ours / {name}"]
        assert line.measured > 0 and "100.0% of tokens equal" in line.note


def test_who_computes_the_courses_shape_alone_says_so(lines):
    for name in (
        "llama: ours / one-user loop",
        "llama: ours, max_num_seqs=1 / one-user loop",
        "llama inflated to 1 MB: ours / one-user loop",
        "llama: step of 3 requests / dense forward",
    ):
        line = lines[name]
        assert line.measured is None and "computes the course's GPT alone" in line.note
    assert lines["llama: ours / one-user loop"].verdict == "not measured"
    assert lines["llama: Python outside forward and sampler / step"].measured > 0
    floors = [line for name, line in lines.items() if "one read of the KV" in name]
    assert len(floors) == 2 and all(line.measured > 0 for line in floors)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("gpt2", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("mistral", {"sliding_window": None}),
        ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ],
)
def test_other_shapes_of_hugging_face(kind, fields, tmp_path):
    saved(tmp_path / kind, kind, **fields)
    lm = g.load(tmp_path / kind)
    pair = bench.contestants.transformers_pair(lm)
    for line in bench.race_lines(lm, pair, SMALL)[2:]:
        assert "100.0% of tokens equal" in line.note


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_of_transformers_has_the_stored_weights(folder, dtype):
    model = theirs.transformers_model(g.load(folder), getattr(torch, dtype))
    assert model.dtype == getattr(torch, dtype) and not model.training
    ours = g.load(folder).weights["blocks.1.attn.k_proj.W"].to(model.dtype)
    assert torch.equal(model.model.layers[1].self_attn.k_proj.weight.T, ours)


def test_weights_that_are_no_longer_the_folders_are_not_taken_from_there(folder):
    lm = g.load(folder)
    changed = dataclasses.replace(lm, weights={name: 2 * w for name, w in lm.weights.items()})
    assert theirs.own_folder(lm) == folder and theirs.own_folder(changed) is None
    with pytest.raises(ValueError, match="rms"):
        theirs.transformers_model(changed)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"window": 4, "window_layers": (1,)}, "window layers"),
        ({"head_bias": True}, "head_bias of random is not zero"),
    ],
)
def test_what_neither_transformers_nor_the_loop_can_hold(change, why):
    """They are lines that say so."""
    if change.pop("head_bias", False):
        lm = random_lm()
        lm = dataclasses.replace(
            lm, weights=dict(lm.weights) | {"head_bias": torch.ones(lm.vocab_size)}
        )
    else:
        lm = random_lm(**change)
    pair = bench.race_lines(lm, bench.contestants.transformers_pair(lm), SMALL)[2:]
    assert len(pair) == 2 and all(line.measured is None and why in line.note for line in pair)
    with pytest.raises(ValueError, match=why):
        bench_peers.measure(lm, [], PEERS)


@pytest.mark.parametrize("context", [4, 64, 100, 128, 10**6])
def test_texts_fit_any_context(context):
    for sizes in (Sizes(), bench_peers.PeerSizes()):
        fitted = sizes.fitted(context)
        assert fitted.prompt + fitted.new <= context and min(fitted.prompt, fitted.new) > 0
        assert fitted.prompt + fitted.growth_new <= context
    assert all(0 < n <= context - Sizes().fitted(context).growth_new
               for n in Sizes().fitted(context).contexts)  # fmt: skip
    assert Sizes().fitted(512) == Sizes() and bench_peers.PeerSizes().fitted(128).new == 64


# peers


def test_peers_read_the_models_own_folder_and_write_elsewhere(folder, monkeypatch, tmp_path):
    """Right values: the folder, its files as they were, and a scratch folder that is gone later."""
    note, before = tmp_path / "note", {p: p.read_bytes() for p in folder.iterdir()}
    runner = tmp_path / "runner.py"
    runner.write_text(
        "import json, os, sys\n"
        "scratch = os.environ['PEER_SCRATCH']\n"
        "open(os.path.join(scratch, 'converted'), 'w').close()\n"
        f"open({str(note)!r}, 'w').write(sys.argv[2] + '\\n' + scratch)\n"
        'print(json.dumps({"name": "peer"}), flush=True)\n'
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        '    ids = [[1] * job["new"] for _ in job["prompts"]]\n'
        '    print(json.dumps({"ids": ids, "cpu": 0.5}), flush=True)\n'
    )
    monkeypatch.setattr(peer_process, "RUNNER", runner)
    report = bench_peers.measure(g.load(folder), ["vllm"], PEERS)
    read, scratch = note.read_text().splitlines()
    assert Path(read) == folder and not Path(scratch).exists()
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    names = {line.name: line for line in report.lines}
    assert names["llama: ours / peer"].measured > 0
    for name in (CONTINUOUS, PADDED):
        assert "100.0% of tokens equal" in names[f"llama: ours / {name}"].note
    assert "llama, the same weights for all" in bench_peers.table(report)


# the command


def test_the_command_takes_a_llama_that_is_large_already(folder, capsys, monkeypatch):
    """Its weights take about 0.4 MB, and are to be inflated to less than that: they are not."""
    sizes = dataclasses.replace(SMALL, megabytes=0.1, growth=(1,), contexts=(5,), floors=(1,))
    monkeypatch.setattr(bench, "QUICK", sizes)
    assert bench_command.main(["--quick", "--json", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = {line["name"]: line for line in found["lines"]}
    assert lines["llama: ours / transformers continuous batching"]["measured"] > 0
    assert "course's GPT alone" in lines["llama: ours / one-user loop"]["note"]
    (big,) = [line for name, line in lines.items() if "inflated" in name]
    assert big["measured"] is None and "weights take 0 MB as they are" in big["note"]
    assert found["by_requests_inflated"] == []


def test_the_command_says_what_is_wrong_with_a_folder(folder, tmp_path, capsys):
    for peer in ([], ["--peer", "vllm"], ["--peer", "http://127.0.0.1:9/v1"]):
        assert bench_command.main(["--quick", "--model", str(tmp_path / "no"), *peer]) == 1
        assert "not measured: no model" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert bench_command.main(["--quick", "--model", str(tmp_path)]) == 1
    assert "not measured" in (said := capsys.readouterr().err) and "mamba" in said


def test_a_day_against_a_server_with_a_llama(tmp_path, capsys):
    """Its own tokenizer: the same answers as the peer's, which is ours too. Nobody fails, but whom
    a random answer, encoded again, makes too long."""
    words = llama2()
    model = llama(tmp_path / "llama", vocab_size=words.get_vocab_size())
    words.save(str(model / "tokenizer.json"))
    with running(g.load(model), markers=True) as address:
        command = ["--quick", "--json", "--model", str(model), "--peer", address]
        assert bench_command.main(command) == 0
    servers = json.loads(capsys.readouterr().out)["servers"]
    for one in servers.values():
        asked, failed = map(int, one["requests, failed"].split(", "))
        assert asked > 2 * failed and all("context limit" in why for why in one["failures"])
        assert one["answers as in the first"] == f"{(asked - failed) / asked:.0%}"


def test_a_day_without_a_tokenizer_is_refused(folder, capsys):
    command = ["--quick", "--model", str(folder), "--peer", "http://127.0.0.1:9/v1"]
    assert bench_command.main(command) == 1
    assert "not measured" in (said := capsys.readouterr().err) and "no tokenizer" in said
