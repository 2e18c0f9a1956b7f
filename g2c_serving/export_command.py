"""`python -m g2c_serving export NAME --to gpt2 FOLDER`: the weights for other engines.

FOLDER gets the layout of Hugging Face: model.safetensors, config.json, generation_config.json,
tokenizer.json, tokenizer_config.json. transformers, vLLM and SGLang load it and write the same
greedy tokens, as far as rounding lets them. GPT-2 is the one shape: what it cannot hold is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch

from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.gpt2_shape import eos_token_id, gpt2_config, gpt2_weights
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.process.tokenizer_export import PAD, to_hugging_face, tokenizer_config


def export_gpt2(
    lm: LanguageModel, folder: str | Path, *, force: bool = False, with_tokenizer: bool = True
) -> list[Path]:
    """Write `lm` as a GPT-2 of Hugging Face and return the files, in the order of writing.

    force  write into a folder that is not empty: our files replace those of the same names, but
           never those of the model itself or of an artifact of the course

    Nothing is written before everything is known to fit. ValueError for what GPT-2 cannot hold,
    FileExistsError for a folder that is in use. config.json comes last: a folder that was not
    finished is not taken for a model.
    """
    folder = Path(folder)
    tensors = {name: tensor.contiguous() for name, tensor in gpt2_weights(lm).items()}
    theirs = to_hugging_face(lm.tokenizer) if with_tokenizer else None
    _check_folder(folder, force, getattr(lm.weights, "folders", ()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    written = [folder / "model.safetensors"]
    safetensors.torch.save_file(tensors, written[0], metadata={"format": "pt"})
    if theirs is not None:
        written.append(folder / "tokenizer.json")
        theirs.save(str(written[-1]))
        settings = tokenizer_config(lm.tokenizer, lm.eos_id, lm.config.max_seq_len)
        written.append(_write_json(folder / "tokenizer_config.json", settings))
    pad = lm.tokenizer.reserved.get(PAD, lm.eos_id)
    ends = {"eos_token_id": eos_token_id(lm), "pad_token_id": pad}
    written.append(_write_json(folder / "generation_config.json", ends))
    head = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    kind = {"torch_dtype": str(tensors["transformer.wte.weight"].dtype).removeprefix("torch.")}
    written.append(_write_json(folder / "config.json", head | gpt2_config(lm) | kind))
    return written


def main(argv: list[str] | None = None) -> int:
    """Print what was written and how to load it; 1, and the reason, where nothing was."""
    parser = argparse.ArgumentParser("python -m g2c_serving export", description=__doc__)
    parser.add_argument("model", help="a shipped model or an artifact folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write")
    parser.add_argument("--to", choices=("gpt2",), default="gpt2", help="the shape (gpt2)")
    parser.add_argument("--force", action="store_true", help="write into a folder that is in use")
    parser.add_argument("--no-tokenizer", action="store_true", help="weights only: prompts are ids")
    choice = parser.parse_args(argv)
    try:
        lm = load(choice.model)
        written = export_gpt2(
            lm, choice.folder, force=choice.force, with_tokenizer=not choice.no_tokenizer
        )
    except (OSError, TypeError, ValueError) as err:
        print(f"not exported: {err}", file=sys.stderr)
        return 1
    print(f"{lm.name}, {lm.num_parameters:,} parameters, as a GPT-2 in {choice.folder}:")
    for path in written:
        print(f"  {path.name:24} {path.stat().st_size:12,} bytes")
    print("Load it with transformers' AutoModelForCausalLM.from_pretrained, or serve it:")
    print(f"  vllm serve {choice.folder}")
    return 0


def _check_folder(folder: Path, force: bool, own: Iterable[Path]) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: name a folder")
    if any(folder.exists() and one.exists() and folder.samefile(one) for one in own):
        raise FileExistsError(f"{folder} holds the model itself, which is read as it is written: "
                              "name another folder")  # fmt: skip
    if (folder / "manifest.json").exists():
        raise FileExistsError(f"{folder} holds an artifact (manifest.json), which our files would "
                              "damage: name another folder")  # fmt: skip
    if not force and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} is not empty: name another folder, or --force replaces the files in it "
            "that have our names"
        )


def _write_json(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
    return path
