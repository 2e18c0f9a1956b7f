"""Fields that a config.json leaves out, one at a time, for each architecture: logits and ends of a
text are those of transformers, reading the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hugging_faces import filled, logits

import g2c_serving as g
from g2c_serving.forward.language_model import eos_ids
from g2c_serving.forward.model import Transformer
from g2c_serving.lab.scoring import logits_of

SHARED = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "eos_token_id": [5, 9],
    "rms_norm_eps": 0.03,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "rope_theta": 300.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16},
}
FIELDS: dict[str, dict[str, Any]] = {  # each with another value than where it is absent
    "gpt2": {
        "vocab_size": 50300,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "n_inner": 24,
        "activation_function": "silu",
        "layer_norm_epsilon": 0.03,
        "tie_word_embeddings": False,
        "eos_token_id": [5, 9],
    },
    "llama": SHARED
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6, "attention_bias": True}
    | {"mlp_bias": True},
    "mistral": SHARED
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 6, "sliding_window": 9},
    "qwen2": SHARED
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 4, "sliding_window": 9}
    | {"use_sliding_window": True, "max_window_layers": 1, "rope_scaling": None},
}
NEEDED = {  # without one of these it is refused: a size of transformers' own is another model's
    *("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"),
    *("max_position_embeddings", "num_attention_heads", "n_embd", "n_layer", "n_head"),
    "n_positions",
}
OPTIONAL = [(kind, name) for kind in FIELDS for name in FIELDS[kind] if name not in NEEDED]
MAY_BE_NULL = {"num_key_value_heads", "sliding_window", "rope_scaling", "eos_token_id", "n_inner"}
NULL = [one for one in OPTIONAL if one[1] in MAY_BE_NULL]
NULL.remove(("mistral", "num_key_value_heads"))  # transformers refuses it
BESIDE = {"max_window_layers", "rope_scaling"}  # of a kind that lacks what they are about
TEXT = torch.randint(0, 131, (64,), generator=torch.Generator().manual_seed(3)).tolist()


def both(folder: Path, kind: str, fields: dict[str, Any]) -> tuple[Any, g.LanguageModel]:
    """What transformers makes of a config.json, with random weights, and ours of that folder."""
    said = json.dumps(fields | {"model_type": kind})
    (folder / "config.json").write_text(said)
    config = transformers.AutoConfig.from_pretrained(folder)
    theirs = filled(transformers.AutoModelForCausalLM.from_config(config), 1)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(said)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return theirs, g.load(folder)


def agree(theirs: Any, lm: g.LanguageModel, text: list[int] = TEXT) -> None:
    """Logits in float64, and what ends a text."""
    found = logits_of(Transformer(lm.config, lm.weights, torch.float64), [text])[0]
    expected = logits(theirs, text, torch.float64)
    atol = 1e-6 * float(expected.abs().max()) + 1e-5  # cosines are float32 in both
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    said = theirs.config.eos_token_id
    assert eos_ids(lm) == tuple(said if isinstance(said, list) else [] if said is None else [said])


def meaning(lm: g.LanguageModel) -> tuple[Any, ...]:
    """The sizes, the ends of a text, and which weights there are."""
    return lm.config, eos_ids(lm), set(lm.weights)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, tuple[Any, ...]]:
    """By kind what is read where no field is left out."""
    found = {}
    for kind, fields in FIELDS.items():
        theirs, lm = both(tmp_path_factory.mktemp(kind), kind, fields)
        agree(theirs, lm)
        found[kind] = meaning(lm)
    return found


@pytest.mark.parametrize(("kind", "name"), OPTIONAL)
def test_a_field_that_is_absent(kind, name, whole, tmp_path):
    """It had another value than what it now has, or the test would say nothing."""
    theirs, lm = both(tmp_path, kind, {n: v for n, v in FIELDS[kind].items() if n != name})
    agree(theirs, lm)
    if name not in BESIDE:
        assert meaning(lm) != whole[kind]


@pytest.mark.parametrize(("kind", "name"), NULL)
def test_a_field_that_is_null(kind, name, whole, tmp_path):
    """Nothing at all, which for some is not what an absent one is."""
    theirs, lm = both(tmp_path, kind, FIELDS[kind] | {name: None})
    agree(theirs, lm)
    if name not in BESIDE:
        assert meaning(lm) != whole[kind]


@pytest.mark.parametrize("kind", FIELDS)
def test_only_sizes(kind, tmp_path):
    """Everything else is absent."""
    agree(*both(tmp_path, kind, {n: v for n, v in FIELDS[kind].items() if n in NEEDED}))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in FIELDS for name in FIELDS[kind] if name in NEEDED]
)
def test_a_size_that_is_absent_is_refused(kind, name, tmp_path):
    both(tmp_path, kind, FIELDS[kind])
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    del fields[name]
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"config.json.* has no {name}; copy config.json again"):
        g.load(tmp_path)


def test_a_mistral_that_says_nothing_has_a_window_of_4096(tmp_path):
    """In a text long enough that the last tokens do not see the first."""
    long = {"max_position_embeddings": 8192, "tie_word_embeddings": False}
    sizes = SHARED | {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 1}
    theirs, lm = both(tmp_path, "mistral", sizes | long)
    text = torch.randint(0, 131, (4112,), generator=torch.Generator().manual_seed(4)).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([text])).logits[0, -8:]
        theirs.config.sliding_window = None
        other = theirs(torch.tensor([text])).logits[0, -8:]
    found = logits_of(lm.model, [text])[0][-8:]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert lm.config.window == 4096 and (other - expected).abs().max() > 2e-3


def test_rotary_fields_in_two_places(tmp_path):
    """rope_scaling goes before rope_parameters, what stands beside them before what is inside."""
    fields = FIELDS["llama"] | {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0},
        "original_max_position_embeddings": 24,
    }
    theirs, lm = both(tmp_path, "llama", fields)
    agree(theirs, lm)
    assert lm.config.rotary.scaling == "yarn" and lm.config.rotary.original_max_seq_len == 24


def test_rotary_fields_by_kind_of_layer_are_refused(tmp_path):
    both(tmp_path, "llama", FIELDS["llama"])
    path = tmp_path / "config.json"
    apart = {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 7.0}}
    fields = json.loads(path.read_text()) | {"rope_scaling": apart}
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"rope_parameters for \['full_attention', .* for all"):
        g.load(tmp_path)
