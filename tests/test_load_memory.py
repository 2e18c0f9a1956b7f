"""What loading a checkpoint takes: at most 1.2 times its weights at the type that they are served
at, everything of the engine included, at the worst moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

DIM, VOCAB, HIDDEN, PAIRS = 768, 16_000, 2048, 256
LAYERS = {4: 6, 2: 16}  # by the bytes of a number in the file: 200 MB of weights either way
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

pytestmark = pytest.mark.skipif(
    not (STATUS.exists() and RESET.exists()), reason="the measure is Linux's VmHWM"
)


def write(folder: Path, dtype: torch.dtype, tied: bool) -> int:
    """A Llama of 200 MB of random weights; how many there are."""
    layers = LAYERS[dtype.itemsize]

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.5).to(dtype)

    tensors = {"model.embed_tokens.weight": random(VOCAB, DIM), "model.norm.weight": random(DIM)}
    if not tied:
        tensors["lm_head.weight"] = random(VOCAB, DIM)
    shapes = {
        **{f"self_attn.{p}_proj": (DIM, DIM) for p in "qo"},
        **{f"self_attn.{p}_proj": (PAIRS, DIM) for p in "kv"},
        **{f"mlp.{p}_proj": (HIDDEN, DIM) for p in ("gate", "up")},
        "mlp.down_proj": (DIM, HIDDEN),
        "input_layernorm": (DIM,),
        "post_attention_layernorm": (DIM,),
    }
    for i in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{i}.{name}.weight"] = random(*shape)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": DIM,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return sum(t.numel() for t in tensors.values())


def share(
    folder: Path, stored: torch.dtype, served: str, tied: bool = True, how: str = ""
) -> float:
    """Largest resident memory that loading and serving added, over the bytes of the weights."""
    count = write(folder, stored, tied)
    script = Path(__file__).with_name("load_memory.py")
    command = [sys.executable, str(script), str(folder), served, *([how] if how else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=script.parents[1], check=False
    )
    if "clear_refs" in done.stderr:
        pytest.skip("VmHWM cannot be set back here")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["peak"] / (count * getattr(torch, served).itemsize)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_takes_the_room_of_its_weights(dtype, tmp_path):
    """The head is tied: the token embedding counts once."""
    assert share(tmp_path, getattr(torch, dtype), dtype) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
def test_from_one_type_to_another(stored, tied, tmp_path):
    assert share(tmp_path, stored, "float32", tied) < 1.2


@pytest.mark.slow
def test_the_measure_sees_a_file_that_is_read_whole(tmp_path):
    """Or it would prove nothing. Right value: the weights as they are, and packed."""
    assert share(tmp_path, torch.float32, "float32", how="whole") > 1.8
