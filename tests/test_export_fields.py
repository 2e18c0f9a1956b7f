"""Export of models that differ from tiny in one field: kept, or refused.

Right values: transformers' logits of the folder that was written, and of the one that was read.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hugging_faces import logits, saved
from small_models import random_ids, random_lm

import g2c_serving as g
from g2c_serving.export_command import export_gpt2
from g2c_serving.lab.scoring import logits_of

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("values", [(1, -1), (-1, 0), (1e-30, 0), (0, -1e-30)], ids=str)
def test_a_head_bias_of_any_sign_and_sum_is_refused(values, tmp_path):
    lm = random_lm()
    bias = torch.zeros(300)
    bias[[7, 200]] = torch.tensor(values, dtype=torch.float32)
    biased = dataclasses.replace(lm, weights={**lm.weights, "head_bias": bias})
    with pytest.raises(ValueError, match="head_bias of random is not zero"):
        export_gpt2(biased, tmp_path / "new")
    assert not (tmp_path / "new").exists()


FIELDS = {
    "norm_eps": ({"norm_eps": 0.5}, "layer_norm_epsilon", 0.5),
    "exact": ({"activation": "gelu"}, "activation_function", "gelu"),
    "tanh": ({"activation": "gelu_tanh"}, "activation_function", "gelu_new"),
    "silu": ({"activation": "silu"}, "activation_function", "silu"),
    "heads": ({"num_heads": 4, "num_kv_heads": 4, "head_size": 8}, "n_head", 4),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_our_config_is_in_what_transformers_reads(name, tmp_path):
    """Right values: our logits, which the field changes; transformers' own name for it."""
    changed, field, value = FIELDS[name]
    plain = random_lm()
    lm = dataclasses.replace(plain, config=dataclasses.replace(plain.config, **changed))
    export_gpt2(lm, tmp_path, with_tokenizer=False)
    assert json.loads((tmp_path / "config.json").read_text())[field] == value
    ids = random_ids(lm, 20, seed=1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    [ours] = logits_of(lm.model, [ids])
    torch.testing.assert_close(ours, logits(theirs, ids), rtol=0, atol=2e-4)
    assert name == "exact" or (ours - logits_of(plain.model, [ids])[0]).abs().max() > 1e-3


def test_a_gpt2_comes_through_as_it_was(tmp_path):
    """Read, written and read again, with fields that are not GPT-2's own. Right values: the model
    of transformers that the first folder was saved from."""
    fields = {"layer_norm_epsilon": 1e-2, "activation_function": "gelu", "n_inner": 72}
    model = saved(tmp_path / "first", "gpt2", **fields)
    export_gpt2(g.load(tmp_path / "first"), tmp_path / "second", with_tokenizer=False)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    there = back.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(there[name], weight), name
    for name, value in fields.items():
        assert getattr(back.config, name) == value
