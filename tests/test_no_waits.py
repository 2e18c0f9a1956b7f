"""No launch waits for the device, whatever an engine is asked for: under the guards the outputs are
the same, and the only waits are the two that say why they must be."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from grammars import END, calm
from small_models import random_llama, random_lm

import g2c_serving as g
from g2c_serving.forward.layers import Block
from g2c_serving.on_device import on_device
from g2c_serving.sample import sampler
from g2c_serving.sample.ledger import Ledger

MASK = "a draft's mask needs the draft before it"
SPLIT = "the split of the budget decides where the rows lie"

LM, WINDOWED = calm(random_lm()), calm(random_lm(window=8, window_layers=(1,)))
LLAMA = random_llama()


def drafter() -> g.LanguageModel:
    """With a confidence head: what the host learns of the drafts does not change its word."""
    lm = calm(random_lm(seed=1, layers=1))
    shapes = {"fc1.W": (lm.config.embedding_dim, 4), "fc1.b": (4,), "fc2.W": (4, 1), "fc2.b": (1,)}
    for name, shape in shapes.items():
        size = math.prod(shape)
        lm.weights[f"confidence.{name}"] = torch.linspace(-1, 1, size).sin().view(shape)
    return lm


FIXED = g.Speculation("fixed", 3, drafter())
BUDGETED = g.Speculation("budgeted", 3, FIXED.drafter, step_time=lambda rows: 10.0 + rows)
CASES: dict[str, tuple[g.LanguageModel, dict[str, Any], bool, set[str]]] = {
    "plain": (LM, {}, False, set()),
    "preempted": (LM, {"num_blocks": 22}, False, set()),
    "bfloat16": (LM, {"dtype": "bfloat16"}, False, set()),
    "prefix cache": (LM, {"enable_prefix_caching": True}, False, set()),
    "windows": (WINDOWED, {}, False, set()),
    "windows, prefix cache": (WINDOWED, {"enable_prefix_caching": True}, False, set()),
    "invariant": (LM, {"batch_invariant": True}, False, set()),
    "invariant, windows": (WINDOWED, {"batch_invariant": True}, False, set()),
    "llama": (LLAMA, {"enable_prefix_caching": True}, False, set()),
    "llama, invariant": (LLAMA, {"batch_invariant": True}, False, set()),
    "grammars": (LM, {}, True, set()),
    "fixed": (LM, {"speculation": FIXED}, False, set()),
    "fixed, invariant": (LM, {"speculation": FIXED, "batch_invariant": True}, False, set()),
    "fixed, grammars": (LM, {"speculation": FIXED}, True, {MASK}),
    "budgeted": (LM, {"speculation": BUDGETED}, False, {SPLIT}),
    "budgeted, grammars": (LM, {"speculation": BUDGETED}, True, {MASK, SPLIT}),
}
KINDS = [g.Engine, g.AsyncEngine]


def make(kind: type[g.Engine], lm: g.LanguageModel, **config: Any) -> g.Engine:
    """With drafting and the batch's layout under the forward's guard as well."""

    class Guarded(kind):
        def _draft(self, step):
            with self.guards["forward"]:
                super()._draft(step)

        def _batch(self, step):
            with self.guards["forward"]:
                return super()._batch(step)

    sizes = {"num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 40, **config}
    return Guarded(lm, g.EngineConfig(**sizes))


def add_all(e: g.Engine, grammar: g.Grammar | None) -> None:
    """Requests of all sorts of settings, some of whose prompts begin alike."""
    for i in range(7):
        params = g.SamplingParams(
            temperature=(0, 0.7, 1, 2)[i % 4],
            top_p=(1, 0.9)[i % 2],
            top_k=(0, 5, 0)[i % 3],
            max_tokens=9,
            seed=i,
            n=1 + i // 5,
            logprobs=(None, 2)[i % 2],
            grammar=grammar if i % 3 else None,
        )
        e.add([1 + i % 3, 2, 3, 4] * (1 + i), params)


def outputs_of(e: g.Engine, under_grammar: bool) -> tuple[list, list]:
    """The final outputs of two rounds, and the ledger."""
    grammar = g.Grammar.regex("[a-f]{3,8}", end_token_id=END) if under_grammar else None
    if grammar is not None:  # compiled before the others come: then it is ready for all at once
        e.generate([[5]], g.SamplingParams(max_tokens=2, seed=0, grammar=grammar))
    e.ledger = Ledger()
    final = []
    for _ in range(2):
        add_all(e, grammar)
        for _ in range(300):
            if e.has_unfinished:
                final += [o for o in e.step() if o.finish_reason is not None]
    assert not e.has_unfinished and len(final) == 2 * 9
    told = [(o.request_id, o.sample_index, o.token_ids, o.finish_reason, o.logprobs) for o in final]
    assert not any(o.finish_reason == "error" for o in final), [o.message for o in final]
    return told, [e.ledger.of(seed) for seed in range(7)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_no_launch_waits_but_where_it_says_why(kind, case):
    lm, config, under_grammar, reasons = CASES[case]
    guarded = make(kind, lm, forbid_sync=True, **config)
    free = make(kind, lm, forbid_sync=False, **config)
    assert outputs_of(guarded, under_grammar) == outputs_of(free, under_grammar)
    assert (guarded.stats.preemptions > 0) == (case == "preempted")
    allowed: Counter[str] = Counter()
    for guard in guarded.guards.values():
        allowed += guard.allowed
    assert set(allowed) == reasons


def peeking(function):
    """The same with a look at its first tensor."""

    def look(*args):
        tensor = next(a for a in args if hasattr(a, "amax"))
        tensor.amax().item()
        return function(*args)

    return look


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("phase", "owner", "name"),
    [("forward", Block, "feed_forward"), ("sample", sampler, "integer_weights")],
)
def test_a_wait_in_a_launch_ends_its_requests_and_names_the_line(
    kind, phase, owner, name, monkeypatch
):
    """And they are the only ones: without it the engine goes on."""
    e = make(kind, LM, forbid_sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, peeking(getattr(owner, name)))
        (out,) = e.generate([[1, 2, 3]], g.SamplingParams(max_tokens=4))
    line = peeking.__code__.co_firstlineno + 5
    assert out.finish_reason == "error"
    for part in (f"{phase}: .item() waits", f"tests/test_no_waits.py:{line}: `tensor.amax()."):
        assert part in out.message
    (out,) = e.generate([[1, 2, 3]], g.SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(out.token_ids) == 4


def test_numbers_are_sent_as_they_are():
    """An array's memory is the tensor's on a CPU; lists are int64, empty ones too."""
    array = np.array([0.5, 2.0])
    sent = on_device(array, "cpu")
    array[0] = 7
    assert sent.tolist() == [7, 2] and sent.dtype == torch.float64
    assert on_device([], "cpu").dtype == on_device([(1, 2)], "cpu").dtype == torch.int64
    assert on_device(torch.ones(2), "meta").device.type == "meta"
