"""Writes a trained model as the folder that `g.load` reads, in the layout of a g2c artifact.

`model.safetensors` holds float16 tensors under the g2c names, `config.json` the shape, and
`manifest.json` where the model comes from. Every file is written aside and then moved into place.
"""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def save_artifact(
    folder: str | Path,
    tensors: dict[str, Tensor],
    model_config: dict[str, Any],
    training_config: dict[str, Any],
    results: dict[str, Any],
) -> None:
    """Write the three files into `folder` (made if it lacks). `tensors` come from
    `gpt.state_tensors`; `results` are the manifest's `steps_completed` and losses.

    ValueError when a weight is not finite or leaves the range of float16."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: _to_half(name, t) for name, t in tensors.items()}
    vocab_size = half["token_embed.weight"].shape[0]
    config = {
        "vocab_size": vocab_size,
        "model_config": model_config,
        "training_config": training_config,
    }
    manifest = {
        "name": folder.name,
        "module": "g2c_serving.train",
        "source": "trained from scratch on the corpus that g2c_serving/train/corpus.py writes",
        "tokenizer_artifact": "tiny",
        **config,
        "seed": training_config["seed"],
        "git_commit": None,
        "created_at": date.today().isoformat(),
        **results,
        "notes": _notes(model_config),
    }
    aside = folder / "model.safetensors.new"
    save_file(half, aside, metadata={"format": "pt"})
    os.replace(aside, folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    _write_json(folder / "manifest.json", manifest)


def _notes(model_config: dict[str, Any]) -> str:
    if not model_config.get("window"):
        return "head_bias is fixed at zero, so these weights are also a GPT-2 checkpoint"
    layers, window = model_config["window_layers"], model_config["window"]
    return f"layers {layers} see the last {window} tokens, the others all; head_bias is zero"


def _to_half(name: str, tensor: Tensor) -> Tensor:
    half = tensor.to(torch.float16).contiguous()
    if not torch.isfinite(half).all():
        raise ValueError(f"{name} has values that float16 cannot hold; train with a lower rate")
    return half


def _write_json(path: Path, content: dict[str, Any]) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
    os.replace(aside, path)
