"""A training run: its settings, its steps, its checkpoints, and the artifact that comes of it.

A plain loop: a batch of documents, the loss of the next token, one step of the optimizer. A
checkpoint every hundred steps lets a run go on as if nothing had happened. On a processor with
bfloat16 instructions the matrix products run in bfloat16; the weights stay in float32. Left out:
data on disk, several devices, gradient accumulation.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from g2c_serving.checks import as_int
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train.artifact import save_artifact
from g2c_serving.train.batches import batch, drill_share
from g2c_serving.train.gpt import DEFAULT_CONFIG, GPT, state_tensors
from g2c_serving.train.optimizer import make_optimizers, set_learning_rate

CHECKPOINT_EVERY = 100


@dataclass(frozen=True)
class TrainingConfig:
    """What decides a run. `tokens_per_step` is cut into rows of half the context in most steps of
    the first half (short rows are faster, and most documents are short), else of all of it."""

    steps: int = 1600
    seed: int = 0
    tokens_per_step: int = 4096
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    model: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_CONFIG))

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}: at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}: at least 0")
        if self.tokens_per_step % self.model["max_seq_len"]:
            raise ValueError(
                f"tokens_per_step {self.tokens_per_step} is not a multiple of max_seq_len "
                f"{self.model['max_seq_len']}"
            )

    def row_length(self, step: int) -> int:
        short = step < self.steps // 2 and step % 4 != 3
        return self.model["max_seq_len"] // (2 if short else 1)


class OtherSettings(ValueError):
    """The checkpoint is whole, but of a run with other settings."""


class Run:
    """A training run: `step` says how many steps are done, `seconds` how long they took."""

    network = GPT

    def __init__(self, config: TrainingConfig, tokenizer: Tokenizer) -> None:
        torch.manual_seed(config.seed)
        self.config, self.tokenizer = config, tokenizer
        self.model = self.network(tokenizer.vocab_size, config.model)
        self.optimizers = make_optimizers(self.model, config.muon_lr, config.adam_lr)
        self.step, self.seconds, self.loss = 0, 0.0, float("nan")

    def train_step(self) -> float:
        """One step; the loss in nats a token, smoothed over about 20 steps in `self.loss`."""
        start = time.perf_counter()
        loss = self._loss(self._batch(self.config.seed, self.step))
        loss.backward()
        set_learning_rate(self.optimizers, self.step, self.config.steps)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        value = loss.item()
        self.loss = value if self.step == 0 else 0.95 * self.loss + 0.05 * value
        self.step += 1
        self.seconds += time.perf_counter() - start
        return value

    @torch.no_grad()
    def held_out_loss(self, batches: int = 8) -> float:
        """Loss on documents of another seed, the mix and the rows of the end of training."""
        seed, last = self.config.seed + 1_000_000, self.config.steps
        return sum(self._loss(self._batch(seed, last + i)).item() for i in range(batches)) / batches

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs. Batches need nothing: they follow from seed and step."""
        return {
            "config": asdict(self.config),
            "step": self.step,
            "seconds": self.seconds,
            "loss": self.loss,
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`. OtherSettings names the settings that differ from this run's."""
        mine = asdict(self.config)
        if differ := [k for k in mine if mine[k] != state["config"].get(k)]:
            raise OtherSettings(
                f"the checkpoint was made with another {', '.join(differ)}: resume with the same "
                "settings, or start anew without --resume"
            )
        self.step = as_int("step", state["step"], 0)
        self.seconds, self.loss = float(state["seconds"]), float(state["loss"])
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _batch(self, seed: int, step: int) -> Tensor:
        length = self.config.row_length(step)
        rows = self.config.tokens_per_step // length
        return batch(
            self.tokenizer, seed, step, rows, length, drill_share(step / self.config.steps)
        )

    def _loss(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            logits = self.model(ids[:, :-1])  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def has_bfloat16() -> bool:
    """Has this processor instructions for bfloat16 products? (AVX512_BF16 on x86)"""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def train(run: Run, checkpoint: Path, report: Callable[[Run], None] = lambda run: None) -> None:
    """Train `run` to its end, with a checkpoint every hundred steps and when interrupted."""
    try:
        while run.step < run.config.steps:
            run.train_step()
            report(run)
            if run.step % CHECKPOINT_EVERY == 0:
                save_checkpoint(run, checkpoint)
    except KeyboardInterrupt:
        save_checkpoint(run, checkpoint)
        raise


def save_checkpoint(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    torch.save(run.state(), aside)
    os.replace(aside, path)


def load_checkpoint(run: Run, path: Path) -> None:
    """Go on from the checkpoint in `path`, which has to be whole to the last bit.

    FileNotFoundError where there is none, ValueError where it is damaged or not ours,
    OtherSettings where it is another run's.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}: start without --resume")
    content = io.BytesIO(path.read_bytes())
    try:
        _check_sums(content)
        run.restore(torch.load(content, weights_only=True))
    except OtherSettings:
        raise
    except Exception as err:  # zipfile, torch and its unpickler have many for bytes that are wrong
        raise ValueError(
            f"{path} is no checkpoint of ours, or is damaged; start without --resume"
        ) from err


def _check_sums(content: io.BytesIO) -> None:
    """torch writes a check sum for every tensor, and reads without looking at it."""
    with zipfile.ZipFile(content) as parts:
        if damaged := parts.testzip():
            raise ValueError(f"the check sum of {damaged} is wrong")
    content.seek(0)


def export(run: Run, out: Path, name: str = "tiny") -> dict[str, Any]:
    """Write `out`/models/`name` and `out`/tokenizers/tiny; the results that the manifest states."""
    results = {
        "steps_completed": run.step,
        "final_train_loss": round(run.loss, 4),
        "final_val_loss": round(run.held_out_loss(), 4),
        "training_seconds": round(run.seconds),
    }
    settings = {k: v for k, v in asdict(run.config).items() if k != "model"}
    settings |= {"optimizer": "Muon and AdamW", "bfloat16": has_bfloat16()}
    folder = out / "models" / name
    save_artifact(folder, state_tensors(run.model), run.config.model, settings, results)
    run.tokenizer.save(out / "tokenizers" / "tiny" / "tokenizer.json")
    return results
