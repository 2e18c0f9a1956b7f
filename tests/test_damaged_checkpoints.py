"""A training checkpoint that is damaged: refused in one sentence, or loaded whole to the last bit.

Right values: the bytes that were saved, cut and flipped here, and the state that went into them.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train import train_command
from g2c_serving.train.trainer import Run, TrainingConfig, load_checkpoint, save_checkpoint

SHAPE = {"embedding_dim": 16, "num_layers": 1, "num_heads": 2, "max_seq_len": 32, "hidden_dim": 16}
SMALL = TrainingConfig(steps=4, tokens_per_step=64, model=SHAPE)
REFUSED = r"run\.pt is no checkpoint of ours, or is damaged; start without --resume"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(train_command.TOKENIZER)


@pytest.fixture(scope="module")
def whole(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A checkpoint after one step, so that its optimizers hold tensors too."""
    path = tmp_path_factory.mktemp("whole") / "run.pt"
    run = Run(SMALL, tokenizer)
    run.train_step()
    save_checkpoint(run, path)
    return path.read_bytes()


def tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    inside = state.values() if isinstance(state, dict) else state
    return sum(map(tensors, inside), []) if isinstance(state, dict | list | tuple) else []


def refused(run: Run, path: Path, content: bytes) -> bool:
    """True where it is refused as it should be, False where it loads."""
    path.write_bytes(content)
    try:
        load_checkpoint(run, path)
    except ValueError as err:
        assert f"{path} is no checkpoint of ours, or is damaged" in str(err)
        return True
    return False


def test_one_that_is_cut_anywhere_is_refused(whole, tokenizer, tmp_path) -> None:
    """At every length near both ends, where the parts of a zip begin, and at many between."""
    run, size = Run(SMALL, tokenizer), len(whole)
    lengths = [*range(100), *range(0, size, size // 100), *range(size - 100, size)]
    assert all(refused(run, tmp_path / "run.pt", whole[:n]) for n in lengths)


@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("near", ["anywhere", "pickle", "directory"])
def test_flipped_bits_are_refused_or_were_of_no_meaning(
    count: int, near: str, whole, tokenizer, tmp_path
) -> None:
    """What loads all the same (a bit between the parts) loads every tensor as it was saved."""
    rng, run = random.Random(f"{near} {count}"), Run(SMALL, tokenizer)
    saved = tensors(torch.load(io.BytesIO(whole), weights_only=True))
    begin = {"anywhere": 0, "pickle": whole.find(b"data.pkl"), "directory": whole.find(b"PK\1\2")}
    end = {"pickle": begin["pickle"] + 4000}.get(near, len(whole))
    for _ in range(15):
        content = bytearray(whole)
        for _ in range(count):
            content[rng.randrange(begin[near], end)] ^= 1 << rng.randrange(8)
        if not refused(run, tmp_path / "run.pt", bytes(content)):
            loaded = tensors(run.state())
            assert all(map(torch.equal, saved, loaded)) and len(saved) == len(loaded) > 20
            assert run.step == 1


DAMAGE: dict[str, Callable[[dict], object]] = {
    "step a word": lambda s: s.update(step="abc"),
    "step none": lambda s: s.update(step=None),
    "step below 0": lambda s: s.update(step=-5),
    "step no whole number": lambda s: s.update(step=1.5),
    "seconds none": lambda s: s.update(seconds=None),
    "loss a word": lambda s: s.update(loss="abc"),
    "settings none": lambda s: s.update(config=None),
    "settings a word": lambda s: s.update(config="abc"),
    "an optimizer less": lambda s: s["optimizers"].pop(),
    "no group": lambda s: s["optimizers"][0].update(param_groups=[]),
    "a parameter less": lambda s: s["optimizers"][0]["param_groups"][0]["params"].pop(),
    "optimizers of tensors": lambda s: s.update(optimizers=[torch.ones(2)] * 2),
    "weights of another shape": lambda s: s["model"].update(dict.fromkeys(s["model"], s["model"])),
    "weights in a list": lambda s: s.update(model=[1]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_one_with_wrong_content_is_refused(kind: str, whole, tokenizer, tmp_path) -> None:
    state = torch.load(io.BytesIO(whole), weights_only=True)
    DAMAGE[kind](state)
    torch.save(state, tmp_path / "run.pt")
    with pytest.raises(ValueError, match=REFUSED):
        load_checkpoint(Run(SMALL, tokenizer), tmp_path / "run.pt")


def test_the_command_says_it_in_one_line(whole, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(train_command, "checkpoint_path", lambda *_: tmp_path / "run.pt")
    (tmp_path / "run.pt").write_bytes(whole[:-7])
    assert train_command.main(["tiny", "--resume", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "start without --resume" in said
    assert said.count("\n") == 1
