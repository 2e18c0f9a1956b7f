"""Our weights as a GPT-2 of Hugging Face transformers: an independent second opinion.

The tests compare logits with it, the benchmark compares speed with its two ways of serving many
prompts. Only this file imports transformers, and only when it is called. GPT-2 has no bias on its
head, no block without attention, no window layers, and one hidden width: what it cannot hold is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.one_user import refuse_windows

OURS_TO_GPT2 = {
    "ln1.gamma": "ln_1.weight",
    "ln1.beta": "ln_1.bias",
    "attn.out_proj.W": "attn.c_proj.weight",
    "attn.out_proj.b": "attn.c_proj.bias",
    "ln2.gamma": "ln_2.weight",
    "ln2.beta": "ln_2.bias",
    "ffn.fc1.W": "mlp.c_fc.weight",
    "ffn.fc1.b": "mlp.c_fc.bias",
    "ffn.fc2.W": "mlp.c_proj.weight",
    "ffn.fc2.b": "mlp.c_proj.bias",
}


def to_gpt2(lm: LanguageModel, dtype: torch.dtype = torch.float32) -> Any:
    """A `GPT2LMHeadModel` with the weights of `lm`, in eval mode, with no end-of-text id.

    ImportError without transformers; ValueError for weights that GPT-2 has no place for.
    """
    import transformers

    _check(lm)
    config = transformers.GPT2Config(
        vocab_size=lm.config.vocab_size,
        n_positions=lm.config.max_seq_len,
        n_embd=lm.config.embedding_dim,
        n_layer=lm.config.num_layers,
        n_head=lm.config.num_heads,
        n_inner=lm.config.hidden_dim,
        activation_function="gelu",  # the exact one; GPT-2's own is the tanh approximation
        layer_norm_epsilon=1e-5,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = transformers.GPT2LMHeadModel(config)
    model.to(dtype)
    model.load_state_dict({n: w.to(dtype) for n, w in _gpt2_weights(lm).items()}, strict=True)
    return model.eval()


def padded_generate(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """Greedy new ids from `model.generate`: one batch, padded on the left to the longest prompt."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])  # (R, T)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])  # (R, T)
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return out[:, longest:].tolist()


def continuous_generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    num_blocks: int = 384,
    max_batch_tokens: int = 1024,
) -> list[list[int]]:
    """Greedy new ids from transformers' continuous batching, over pages, with torch's attention.

    Its cache is made at the first call and kept with the model, so `num_blocks` (of 128 tokens, the
    fastest size here) must do for all calls. ImportError where this transformers lacks it in the
    form of 5.17 and later.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    outputs = model.generate_batch(
        inputs=[list(p) for p in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=128,
            num_blocks=num_blocks,
            max_batch_tokens=max_batch_tokens,
            max_requests_per_batch=256,  # else the first call's number is the limit for all
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        ),
        persistent_manager=True,
        warmup=False,  # for CUDA graphs
    )
    return [output.generated_tokens for output in outputs.values()]


def _check(lm: LanguageModel) -> None:
    """ValueError for what `lm` has and a GPT-2 has no place for."""
    refuse_windows(lm, "GPT-2")
    if lm.weights["head_bias"].any():
        raise ValueError(f"head_bias of {lm.name} is not zero: GPT-2 has no bias on its head")
    for i in range(lm.config.num_layers):
        if f"blocks.{i}.attn.q_proj.W" not in lm.weights:
            raise ValueError(f"block {i} of {lm.name} has no attention: GPT-2 has no such block")


def _gpt2_weights(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """Weights under GPT-2's names. Its linear layers store (in, out), as ours do."""
    ours = lm.weights
    gpt2 = {
        "transformer.wte.weight": ours["token_embed.weight"],
        "transformer.wpe.weight": ours["pos_embed.weight"],
        "transformer.ln_f.weight": ours["ln_final.gamma"],
        "transformer.ln_f.bias": ours["ln_final.beta"],
        "lm_head.weight": ours["token_embed.weight"],  # tied
    }
    for i in range(lm.config.num_layers):
        block, target = f"blocks.{i}", f"transformer.h.{i}"
        for kind, name in (("W", "weight"), ("b", "bias")):
            parts = [ours[f"{block}.attn.{p}_proj.{kind}"] for p in "qkv"]
            gpt2[f"{target}.attn.c_attn.{name}"] = torch.cat(parts, dim=-1)
        for here, there in OURS_TO_GPT2.items():
            gpt2[f"{target}.{there}"] = ours[f"{block}.{here}"]
    return gpt2
