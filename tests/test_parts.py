"""The fingerprint: two engines share blocks only if all that decides their bits is the same."""

from dataclasses import replace

import pytest
import torch
from small_models import random_lm

import g2c_serving as g
from g2c_serving.parts import fingerprint


def name_of(lm: g.LanguageModel, **config) -> str:
    e = g.Engine(lm, g.EngineConfig(**config))
    return fingerprint(lm, e.model, e.config)


def test_equal_engines_have_one_fingerprint():
    assert name_of(random_lm()) == name_of(random_lm())
    assert name_of(random_lm(), num_blocks=8) == name_of(random_lm(), max_num_seqs=2)


@pytest.mark.parametrize("config", [{"dtype": "float64"}, {"dtype": "bfloat16"}, {"block_size": 8}])
def test_another_precision_or_layout_is_another_fingerprint(config):
    assert name_of(random_lm(), **config) != name_of(random_lm())


def test_one_changed_weight_is_another_fingerprint():
    lm = random_lm()
    weights = {name: w.clone() for name, w in lm.weights.items()}
    weights["blocks.1.ffn.fc2.b"][3] += 1e-6
    assert name_of(replace(lm, weights=weights)) != name_of(lm)


def test_windows_are_part_of_the_fingerprint():
    plain = random_lm(window=0)
    windows = random_lm(window=4, window_layers=(0,))
    assert all(torch.equal(plain.weights[n], w) for n, w in windows.weights.items())
    assert name_of(plain) != name_of(windows)


@pytest.mark.parametrize(
    "what, value",
    [
        ("torch.__version__", "9.9"),
        ("torch.backends.cpu.get_cpu_capability", lambda: "ANOTHER"),
        ("g2c_serving.parts.LAYOUT_VERSION", 99),
    ],
)
def test_another_library_processor_or_layout_is_another_fingerprint(monkeypatch, what, value):
    before = name_of(random_lm())
    monkeypatch.setattr(what, value)
    assert name_of(random_lm()) != before


def test_threads_are_part_of_the_fingerprint_in_the_invariant_mode():
    """Two numbers of threads may round differently: a hit across them would be no exact memo."""
    lm, threads = random_lm(), torch.get_num_threads()
    before = [name_of(lm, batch_invariant=mode) for mode in (True, False)]
    try:
        torch.set_num_threads(threads + 1)
        after = [name_of(lm, batch_invariant=mode) for mode in (True, False)]
    finally:
        torch.set_num_threads(threads)
    assert before[0] != after[0] and before[1] == after[1]
