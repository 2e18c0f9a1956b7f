"""The model that we serve, as transformers and other engines have it: a second opinion.

One that was loaded from a folder of Hugging Face is that folder. Ours are written as a GPT-2
(`export_command.py`), or made one in memory; what GPT-2 cannot hold has no other form, and is
refused (forward/gpt2_shape.py). The tests compare logits with it, the benchmark compares speed with
transformers' two ways of serving many prompts. Of the lab only this file imports transformers, and
only when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from g2c_serving.export_command import export_gpt2
from g2c_serving.forward.gpt2_shape import gpt2_config, gpt2_weights
from g2c_serving.forward.hugging_face import is_hugging_face
from g2c_serving.forward.language_model import LanguageModel


def own_folder(lm: LanguageModel) -> Path | None:
    """The folder of Hugging Face whose weights `lm` reads, None where they are from elsewhere."""
    folders = [f for f in getattr(lm.weights, "folders", ()) if is_hugging_face(f)]
    return folders[0] if len(folders) == 1 else None


def folder_for_others(lm: LanguageModel, scratch: Path) -> Path:
    """A folder that other engines load: the model's own, else one written below `scratch`, without
    a tokenizer. ValueError for what GPT-2 cannot hold."""
    folder = own_folder(lm)
    if folder is None:
        folder = scratch / lm.name
        export_gpt2(lm, folder, with_tokenizer=False)
    return folder


def transformers_model(lm: LanguageModel, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers with the weights of `lm`, in eval mode, that writes greedily and to
    the full length, whatever its folder says of sampling. ImportError without transformers;
    ValueError for weights that it has no place for."""
    folder = own_folder(lm)
    if folder is None:
        return to_gpt2(lm, dtype)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config = transformers.GenerationConfig()
    return model.eval()


def to_gpt2(lm: LanguageModel, dtype: torch.dtype = torch.float32) -> Any:
    """A `GPT2LMHeadModel` with the weights of `lm`, in eval mode, with no end-of-text id.

    ImportError without transformers; ValueError for weights that GPT-2 has no place for.
    """
    import transformers

    weights = {name: weight.to(dtype) for name, weight in gpt2_weights(lm).items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]  # tied
    config = transformers.GPT2Config(**gpt2_config(lm) | {"eos_token_id": None})
    model: Any = transformers.GPT2LMHeadModel(config)
    model.to(dtype)
    model.load_state_dict(weights, strict=True)
    return model.eval()


def padded_generate(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """Greedy new ids from `model.generate`: one batch, padded on the left to the longest prompt."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])  # (R, T)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])  # (R, T)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0
    )
    return out[:, longest:].tolist()


def continuous_generate(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, max_batch_tokens: int
) -> list[list[int]]:
    """Greedy new ids from transformers' continuous batching, over pages, with torch's attention.

    Its cache is made at the first call and kept with the model, so the 384 blocks (of 128 tokens,
    the fastest size here) must do for all calls. ImportError where this transformers lacks it in
    the form of 5.17 and later.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    outputs = model.generate_batch(
        inputs=[list(p) for p in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=128,
            num_blocks=384,
            max_batch_tokens=max_batch_tokens,
            max_requests_per_batch=256,  # else the first call's number is the limit for all
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        ),
        persistent_manager=True,
        warmup=False,  # for CUDA graphs
    )
    return [output.generated_tokens for output in outputs.values()]
