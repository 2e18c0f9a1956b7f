"""The model that we serve, as transformers and other engines have it.

One that was loaded from a folder of Hugging Face is that folder. Ours are written as a GPT-2
(`export_command.py`), or made one in memory (`gpt2.py`); what GPT-2 cannot hold has no other form,
and is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from g2c_serving.export_command import export_gpt2
from g2c_serving.forward.hugging_face import is_hugging_face
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import gpt2


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
        return gpt2.to_gpt2(lm, dtype)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config = transformers.GenerationConfig()
    return model.eval()
