"""A Hugging Face config.json as our `ModelConfig`.

What it asks for and the decoder does not do is refused, by the field's name: a model that runs with
one rule left out writes nonsense, or worse, nearly sense. A field that is absent has the value that
transformers gives it; a size that is absent is refused, since transformers' own is another model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from g2c_serving.checks import as_int
from g2c_serving.forward.model_config import MOST, MOST_LAYERS, ModelConfig
from g2c_serving.forward.rotary import SCALINGS, Rotary

Fields = Mapping[str, Any]

KINDS = ("gpt2", "llama", "mistral", "qwen2")  # values of model_type
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
ONLY = {  # fields that change what is computed, and the one value that is
    "quantization_config": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "partial_rotary_factor": 1.0,
    "mscale": None,
    "mscale_all_dim": None,
}
SHARED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
DEFAULTS: dict[str, dict[str, Any]] = {  # what a field is that config.json leaves out
    "gpt2": {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 50256,
    },
    "llama": SHARED | {"eos_token_id": 2},
    "mistral": SHARED | {"eos_token_id": 2, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": SHARED | {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
}
FLAGS = "tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"
NEEDED = {  # fields of Rotary, under the same names in rope_parameters
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
OPTIONAL = {"yarn": ("beta_fast", "beta_slow", "attention_factor", "truncate")}


def model_config(path: Path, fields: Fields) -> tuple[ModelConfig, Fields]:
    """The model that config.json, at `path` with these `fields`, describes; and the fields with
    those that it leaves out.

    ValueError names the field, what was found and what was expected.
    """
    kind = fields.get("model_type")
    if kind not in KINDS:
        raise ValueError(
            f"{path} describes a model_type={kind!r} ({fields.get('architectures')}), expected one "
            f"of {list(KINDS)}: take a checkpoint of one of these, or serve this one with "
            "transformers or vLLM"
        )
    fields = _completed(fields)
    try:
        _refuse(fields)
        return (_gpt2(fields) if kind == "gpt2" else _llama(kind, fields)), fields
    except (ArithmeticError, TypeError, ValueError) as err:
        raise ValueError(f"{path} cannot be served: {err}") from err


def _completed(fields: Fields) -> Fields:
    """One that is null is said to be nothing: no window, no end of a text, as many key heads as
    query heads."""
    said = {name: v for name, v in fields.items() if v is not None or name not in FLAGS}
    return DEFAULTS[fields["model_type"]] | said


def _refuse(fields: Fields) -> None:
    for name, value in ONLY.items():
        if (found := fields.get(name, value)) != value and found is not None:
            raise ValueError(f"it has {name}={found!r}, expected {value!r}, all that is done here")
    for name in FLAGS:
        if not isinstance(fields.get(name), bool | None):
            raise ValueError(f"it has {name}={fields[name]!r}, expected true or false")


def _size(fields: Fields, name: str, most: int = MOST) -> int:
    if fields.get(name) is None:
        raise ValueError(f"it has no {name}; copy config.json again")
    return as_int(name, fields[name], 1, most)


def _optional(fields: Fields, name: str, default: int = 0) -> int:
    return default if fields.get(name) is None else _size(fields, name)


def _activation(fields: Fields, name: str) -> str:
    found = fields[name]
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise ValueError(f"it has {name}={found!r}, expected one of {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[found]


def _gpt2(fields: Fields) -> ModelConfig:
    dim = _size(fields, "n_embd")
    return ModelConfig(
        vocab_size=_size(fields, "vocab_size"),
        embedding_dim=dim,
        num_layers=_size(fields, "n_layer", MOST_LAYERS),
        num_heads=_size(fields, "n_head"),
        max_seq_len=_size(fields, "n_positions"),
        hidden_dim=_optional(fields, "n_inner", 4 * dim),
        norm_eps=fields["layer_norm_epsilon"],
        activation=_activation(fields, "activation_function"),
    )


def _llama(kind: str, fields: Fields) -> ModelConfig:
    layers = _size(fields, "num_hidden_layers", MOST_LAYERS)
    context = _size(fields, "max_position_embeddings")
    window, window_layers = _windows(kind, fields, layers)
    if window >= context:  # it never hides anything
        window, window_layers = 0, ()
    return ModelConfig(
        vocab_size=_size(fields, "vocab_size"),
        embedding_dim=_size(fields, "hidden_size"),
        num_layers=layers,
        num_heads=_size(fields, "num_attention_heads"),
        max_seq_len=context,
        hidden_dim=_size(fields, "intermediate_size"),
        window=window,
        window_layers=window_layers,
        num_kv_heads=_optional(fields, "num_key_value_heads"),
        head_size=_optional(fields, "head_dim"),
        norm="rms",
        norm_eps=fields["rms_norm_eps"],
        activation=_activation(fields, "hidden_act"),
        gated=True,
        rotary=_rotary(fields, context),
    )


def _windows(kind: str, fields: Fields, layers: int) -> tuple[int, tuple[int, ...]]:
    """The window and the layers that have it."""
    kinds = [] if fields.get("layer_types") is None else fields["layer_types"]
    if not isinstance(kinds, list | tuple) or len(kinds) not in (0, layers):
        raise ValueError(f"it has layer_types={kinds!r:.60}, expected a list of {layers}")
    if other := set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"it has layer_types {sorted(other)}, expected full or sliding attention")
    used = {"llama": False, "mistral": True, "qwen2": fields.get("use_sliding_window")}
    if not used[kind] or fields.get("sliding_window") is None:
        return 0, ()
    window = as_int("sliding_window", fields["sliding_window"], 1)
    if kinds:
        windowed = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        first = fields["max_window_layers"] if kind == "qwen2" else 0
        first = as_int("max_window_layers", first, 0)
        windowed = tuple(range(first, layers))
    return (window, windowed) if windowed else (0, ())


def _rotary(fields: Fields, context: int) -> Rotary:
    """transformers 5 writes rope_parameters, 4 writes rope_theta and rope_scaling, which goes
    first where both are."""
    given = [fields.get(name) for name in ("rope_scaling", "rope_parameters")]
    found: Any = next((one for one in given if one is not None and one != {}), {})
    if not isinstance(found, Mapping):
        raise ValueError(f"it has rope_parameters={found!r}, expected an object")
    _refuse(found)
    if nested := [name for name, value in found.items() if isinstance(value, Mapping)]:
        raise ValueError(f"it has rope_parameters for {nested} apart, expected one for all layers")
    base = found.get("rope_theta", fields["rope_theta"])
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "dynamic":  # differs beyond max_position_embeddings alone, where requests end here
        kind = "default"
    if kind not in SCALINGS:
        raise ValueError(
            f"it has rope_type={kind!r}, expected one of {[*SCALINGS, 'dynamic']}: positions would "
            "mean something else; serve it with transformers or vLLM"
        )
    needed = NEEDED.get(kind, ())
    for name in needed:
        if found.get(name) is None:
            raise ValueError(f"its rope_type={kind!r} has no {name}; copy config.json again")
    names = (*needed, *OPTIONAL.get(kind, ()))
    said = {name: found[name] for name in names if found.get(name) is not None}
    if kind in ("llama3", "yarn"):
        name = "original_max_position_embeddings"  # beside them it goes first, as in transformers
        said["original_max_seq_len"] = _optional(fields, name, _optional(found, name, context))
    return Rotary(base, kind, **said)
