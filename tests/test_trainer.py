"""The trainer, on a very small model: it learns, resumes as if nothing had happened, and writes
what the engine reads. Right values: torch's own AdamW, SVD, and the resumed run's own twin."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file

import g2c_serving as g
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train import train_command, trainer
from g2c_serving.train.artifact import save_artifact
from g2c_serving.train.batches import batch, drill_share
from g2c_serving.train.gpt import GPT, sliding_window, state_tensors
from g2c_serving.train.optimizer import make_optimizers, orthogonalize, set_learning_rate
from g2c_serving.train.trainer import Run, TrainingConfig, load_checkpoint, save_checkpoint, train
from g2c_serving.train.vocabulary import learn_tokenizer

SHAPE = {"embedding_dim": 32, "num_layers": 2, "num_heads": 2, "max_seq_len": 64, "hidden_dim": 64}
SMALL = TrainingConfig(steps=40, tokens_per_step=256, model=SHAPE)
WINDOWED = dataclasses.replace(SMALL, model=SHAPE | {"window": 8, "window_layers": [0]})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(train_command.TOKENIZER)


def stopped_at(config: TrainingConfig, tokenizer: Tokenizer, step: int) -> Run:
    run = Run(config, tokenizer)
    while run.step < step:
        run.train_step()
    return run


@pytest.mark.parametrize("config", [SMALL, WINDOWED], ids=["tiny", "tiny-window"])
def test_a_short_run_lowers_the_loss(config: TrainingConfig, tokenizer: Tokenizer) -> None:
    run = Run(config, tokenizer)
    before = run.held_out_loss(batches=2)
    losses = [run.train_step() for _ in range(config.steps)]
    assert before == pytest.approx(math.log(1024), abs=0.1)  # a model that knows nothing
    assert run.held_out_loss(batches=2) < before - 0.8
    assert sum(losses[-5:]) < sum(losses[:5])


def test_resume_equals_an_uninterrupted_run(tmp_path, tokenizer: Tokenizer) -> None:
    whole = stopped_at(SMALL, tokenizer, 12)
    save_checkpoint(stopped_at(SMALL, tokenizer, 7), tmp_path / "run.pt")
    resumed = Run(SMALL, tokenizer)
    load_checkpoint(resumed, tmp_path / "run.pt")
    assert resumed.step == 7
    while resumed.step < 12:
        resumed.train_step()
    assert resumed.loss == whole.loss
    pairs = zip(
        state_tensors(whole.model).items(), state_tensors(resumed.model).items(), strict=True
    )
    for (name, a), (other, b) in pairs:
        assert name == other and torch.equal(a, b), name


def test_a_checkpoint_that_is_damaged_is_refused(tmp_path, tokenizer: Tokenizer) -> None:
    """Cut off, empty, no file of torch's, or of something else."""
    run, path = Run(SMALL, tokenizer), tmp_path / "run.pt"
    save_checkpoint(run, path)
    whole = path.read_bytes()
    torch.save([1, 2], path)
    for content in (whole[: len(whole) // 2], b"", b"hello", path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.pt is no checkpoint of ours, or is damaged"):
            load_checkpoint(run, path)


def test_an_interrupt_leaves_a_checkpoint(tmp_path, tokenizer: Tokenizer) -> None:
    def interrupt(run: Run) -> None:
        if run.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Run(SMALL, tokenizer), tmp_path / "run.pt", interrupt)
    resumed = Run(SMALL, tokenizer)
    load_checkpoint(resumed, tmp_path / "run.pt")
    assert resumed.step == 3


def test_other_settings_do_not_resume(tmp_path, tokenizer: Tokenizer) -> None:
    save_checkpoint(Run(SMALL, tokenizer), tmp_path / "run.pt")
    other = Run(dataclasses.replace(SMALL, seed=1, steps=50), tokenizer)
    with pytest.raises(ValueError, match="steps, seed.*without --resume"):
        load_checkpoint(other, tmp_path / "run.pt")


def test_a_window_layer_sees_the_last_tokens_alone() -> None:
    """Right value: by hand, for a window of 3. And with every layer a window layer, a token moves
    the logits of as many tokens as the windows chained reach: two layers of 3 reach 4 back."""
    assert sliding_window(5, 3).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    model = GPT(1024, SHAPE | {"window": 3, "window_layers": [0, 1]})
    ids = torch.arange(100, 120)[None]
    changed = ids.clone()
    changed[0, 5] = 7
    with torch.no_grad():
        differs = (model(ids) - model(changed)).abs().amax(-1)[0] > 0
    assert differs.nonzero().flatten().tolist() == [5, 6, 7, 8, 9]


def test_the_artifact_gives_the_engine_the_same_model(tmp_path, tokenizer: Tokenizer) -> None:
    """Greedy tokens of the engine are those of the training model run densely."""
    run = stopped_at(SMALL, tokenizer, 25)
    trainer.export(run, tmp_path)
    lm = g.load(tmp_path / "models" / "tiny")
    (out,) = g.Engine(lm).generate(["Once"], g.SamplingParams(temperature=0, max_tokens=12))
    half = {k: v.half().float() for k, v in run.model.state_dict().items()}
    run.model.load_state_dict(half)
    ids = tokenizer.encode("Once")
    for token in out.token_ids:
        with torch.no_grad():
            logits = run.model(torch.tensor([ids]))[0, -1]
        assert logits[token] >= logits.max() - 1e-4
        ids.append(token)


def test_the_artifact_of_a_window_model_says_so(tmp_path, tokenizer: Tokenizer) -> None:
    trainer.export(Run(WINDOWED, tokenizer), tmp_path, "tiny-window")
    folder = tmp_path / "models" / "tiny-window"
    assert json.loads((folder / "config.json").read_text())["model_config"]["window_layers"] == [0]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["name"] == "tiny-window" and "layers [0] see the last 8" in manifest["notes"]


def test_files_of_the_artifact(tmp_path, tokenizer: Tokenizer) -> None:
    trainer.export(Run(SMALL, tokenizer), tmp_path)
    folder = tmp_path / "models" / "tiny"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "manifest.json", "model.safetensors",
    ]  # fmt: skip
    tensors = load_file(folder / "model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.float16}
    assert not tensors["head_bias"].any()
    assert tensors["blocks.1.ffn.fc1.W"].shape == (32, 64)  # (in, out)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == 1024 and config["model_config"] == SHAPE
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["tokenizer_artifact"] == "tiny"
    again = Tokenizer.load(tmp_path / "tokenizers" / "tiny" / "tokenizer.json")
    assert again.merges == tokenizer.merges


def test_weights_that_float16_cannot_hold_are_refused(tmp_path) -> None:
    model = GPT(1024, SHAPE)
    tensors = state_tensors(model) | {"ln_final.gamma": torch.full((32,), 1e6)}
    with pytest.raises(ValueError, match="ln_final.gamma"):
        save_artifact(tmp_path / "tiny", tensors, SHAPE, {"seed": 0}, {})


def test_batches_follow_from_seed_and_step(tokenizer: Tokenizer) -> None:
    one, same, other = (batch(tokenizer, 0, s, 4, 64, 0.1) for s in (5, 5, 6))
    assert one.shape == (4, 65) and torch.equal(one, same) and not torch.equal(one, other)


def test_rows_begin_with_a_document(tokenizer: Tokenizer) -> None:
    """The first token of a row never continues a sentence."""
    begins = {tokenizer.reserved_id(n) for n in ("<|user|>", "<|system|>")}
    for row in batch(tokenizer, 0, 1, 40, 256, 0.0).tolist():
        text = tokenizer.decode(row[:1])
        assert row[0] in begins or text[0].isupper() or text[0].isdigit()


def test_drills_are_half_at_first_and_a_tenth_later() -> None:
    assert [drill_share(p) for p in (0, 0.25, 0.5, 1)] == pytest.approx([0.5, 0.5, 0.1, 0.1])


def test_orthogonalize_keeps_the_singular_vectors() -> None:
    """The exact answer of an SVD is U V^T; the quintic comes near it."""
    torch.manual_seed(0)
    for shape in ((32, 32), (16, 48), (48, 16)):
        matrix = torch.randn(shape)
        u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
        inside = u.T @ orthogonalize(matrix) @ vh.T
        values = inside.diagonal()
        assert 0.4 < values.min() and values.max() < 1.3
        assert (inside - torch.diag(values)).abs().max() < 1e-4


def test_every_parameter_is_in_one_group() -> None:
    model = GPT(1024, SHAPE)
    muon, adam = make_optimizers(model, 0.02, 0.003)
    counts = [sum(len(g["params"]) for g in o.param_groups) for o in (muon, adam)]
    assert counts[0] == 4 * SHAPE["num_layers"] and sum(counts) == len(list(model.parameters()))


def test_learning_rate_warms_up_holds_and_decays() -> None:
    optimizers = make_optimizers(GPT(1024, SHAPE), 0.02, 0.003)
    rates = []
    for step in (0, 1, 50, 75, 99):
        set_learning_rate(optimizers, step, 100)
        rates.append(optimizers[0].param_groups[0]["lr"] / 0.02)
    assert rates == pytest.approx([0.5, 1, 1, 0.5, 0.02])


def test_the_tokenizer_that_we_ship_is_learned_from_the_corpus() -> None:
    small = learn_tokenizer(seed=0, num_documents=3000)
    assert small.vocab_size == 1024 and len(small.merges) == 758
    assert small.encode(" the") == small.encode(" the") and len(small.encode(" the")) == 1
    with pytest.raises(ValueError, match="num_documents 1 "):
        learn_tokenizer(seed=0, num_documents=1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tiny", "--steps", "0"], "steps is 0"),
        (["tiny", "--seed", "-1"], "seed is -1"),
        (["tiny", "--resume"], "without --resume"),
        (["tiny", "--measure"], "no model"),
    ],
)
def test_errors_of_the_command(tmp_path, capsys, argv: list[str], message: str) -> None:
    assert train_command.main([*argv, "--out", str(tmp_path / "none")]) == 2
    assert message in capsys.readouterr().err


def test_unknown_model_name(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        train_command.main(["huge"])
    assert stop.value.code == 2 and "tiny" in capsys.readouterr().err


@pytest.mark.parametrize("name", train_command.MODELS)
def test_the_command_trains_and_writes(name: str, tmp_path, capsys, monkeypatch) -> None:
    small = {"num_layers": 1, "embedding_dim": 32, "num_heads": 2}
    small |= {"window_layers": [0]} if "window" in train_command.MODELS[name] else {}
    monkeypatch.setitem(train_command.MODELS, name, train_command.MODELS[name] | small)
    assert train_command.main([name, "--steps", "2", "--out", str(tmp_path)]) == 0
    assert "2 steps" in capsys.readouterr().out
    assert g.load(tmp_path / "models" / name).config.embedding_dim == 32
