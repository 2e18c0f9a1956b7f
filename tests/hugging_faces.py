"""Small random models of transformers, saved as Hugging Face folders: oracles for the loader."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

CONTEXT = 64
SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
HERE_AND_THERE = ["sliding_attention", "full_attention", "sliding_attention"]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {  # kind and fields
    "gpt2": ("gpt2", {}),
    "gpt2, exact gelu": ("gpt2", {"activation_function": "gelu", "n_inner": 72}),
    "gpt2, another epsilon": ("gpt2", {"layer_norm_epsilon": 1e-2}),
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, a key head each": ("llama", {"num_key_value_heads": 6}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "llama, biases, wide heads": (
        "llama",
        {"head_dim": 10, "attention_bias": True, "mlp_bias": True, "rope_theta": 500.0},
    ),
    "llama, linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama, yarn": ("llama", {"rope_scaling": YARN}),
    "llama, dynamic": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen2, windows here and there": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": HERE_AND_THERE},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, windows": ("mistral", {"sliding_window": 9}),
}
CLASSES: dict[str, Any] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
}


def random_model(kind: str, seed: int = 0, **fields: Any) -> Any:
    """In eval mode, with weights wide enough that the next token depends on the whole context."""
    if kind == "gpt2":
        sizes = {"vocab_size": 131, "n_positions": CONTEXT, "n_embd": 48, "n_layer": 3, "n_head": 4}
        ends = {"bos_token_id": None, "eos_token_id": None}
        config = transformers.GPT2Config(**(sizes | ends | fields))
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        make_config, make_model = CLASSES[kind]
        model = make_model(make_config(**(SIZES | fields)))
    return filled(model, seed)


def filled(model: Any, seed: int) -> Any:
    """A model of transformers with those random weights, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            random = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_(float("bias" not in name) + 0.3 * random)
            else:
                table = any(part in name for part in ("embed", "wte", "wpe"))
                weight.copy_(random * (1.0 if table else 1.5 * weight.shape[1] ** -0.5))
    return model.eval()


def saved(
    folder: Path, kind: str, seed: int = 0, *, shard: str | None = None, **fields: Any
) -> Any:
    """A random model, written to `folder`; `shard` is the largest size of a file, "40KB" say."""
    model = random_model(kind, seed, **fields)
    model.save_pretrained(folder, **({} if shard is None else {"max_shard_size": shard}))
    return model


def logits(model: Any, ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits (T, V) of transformers at `dtype`. Its RMS norm computes in float32, whatever the
    model's type; in a float64 model it is replaced by its definition. `to` would round the speeds
    of its rotary positions, which loading a model at a type does not."""
    model = copy.deepcopy(model).to(dtype)
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = type(module)(module.config).inv_freq
        if dtype == torch.float64 and type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_exact_norm, module)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def _exact_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    size = x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon
    return module.weight * x * size.rsqrt()
