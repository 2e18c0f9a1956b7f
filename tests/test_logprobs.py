"""Log-probabilities on request: the raw ones, for those that ask, through all that may happen."""

import fakes
import numpy as np
import pytest
import torch
from small_models import random_lm

import g2c_serving as g
from g2c_serving.lab.one_user import OneUserModel
from g2c_serving.sample.logprobs import token_logprobs

PROMPT = [5, 17, 3, 99, 4]


def exact(logits: list[float]) -> np.ndarray:
    """log-softmax in float64 by its definition."""
    x = np.array(logits, dtype=np.float64)
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def test_own_and_best_of_a_row_that_asks():
    """The right values are numpy's in float64; equals go by id, lowest first."""
    logits = [1.0, 3.0, -torch.inf, 3.0, 2.0]
    batch = torch.tensor([logits, [0.0] * 5, logits])
    found = token_logprobs(batch, torch.tensor([4, 1, 0]), [3, None, 0])
    assert found[1] is None
    own = exact(logits)
    assert (found[0].token_id, [i for i, _ in found[0].top]) == (4, [1, 3, 4])
    assert found[0].logprob == pytest.approx(own[4], abs=1e-6)
    assert [value for _, value in found[0].top] == pytest.approx(own[[1, 3, 4]], abs=1e-6)
    assert (found[2].token_id, found[2].top) == (0, ())
    assert found[2].logprob == pytest.approx(own[0], abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, 7, 50])
def test_the_best_of_many_equals_are_a_stable_sort(k):
    """Rows of few distinct values, against Python's own stable sort; more than V counts as V."""
    logits = torch.randint(0, 4, (40, 7), generator=torch.Generator().manual_seed(k)).float()
    for row, found in zip(logits, token_logprobs(logits, logits.argmax(-1), [k] * 40), strict=True):
        order = sorted(range(7), key=lambda i, row=row: -row[i].item())
        assert [i for i, _ in found.top] == order[:k]


def test_nothing_is_computed_where_nobody_asks(monkeypatch):
    monkeypatch.setattr(torch, "log_softmax", None)
    assert token_logprobs(torch.zeros(2, 4), torch.tensor([0, 1]), [None, None]) == [None, None]


@pytest.mark.parametrize("value", [-1, 2.5, True, "5"])
def test_a_wrong_number_is_refused_by_name_value_and_range(value):
    with pytest.raises(ValueError, match=rf"logprobs={value!r} must be an integer, from 0 to 1000"):
        g.SamplingParams(logprobs=value)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 2.0, "top_k": 3}])
def test_they_are_the_models_own_whatever_the_sampling(options):
    """Right values: the course's forward over the whole text, and log-softmax by definition.
    Temperature and top-k leave them as they are."""
    lm = random_lm()
    e = g.Engine(lm, g.EngineConfig(dtype="float64", block_size=4))
    params = g.SamplingParams(seed=3, max_tokens=6, logprobs=4, **options)
    asked, plain = e.generate([PROMPT, PROMPT], [params, g.SamplingParams(max_tokens=3)])
    assert plain.logprobs is None
    assert [entry.token_id for entry in asked.logprobs] == asked.token_ids
    loop = OneUserModel(lm, torch.float64)
    for i, entry in enumerate(asked.logprobs):
        own = exact(loop.forward(PROMPT + asked.token_ids[:i])[-1].tolist())
        assert entry.logprob == pytest.approx(own[entry.token_id], abs=1e-9)
        assert [i for i, _ in entry.top] == np.argsort(-own)[:4].tolist()
        assert [value for _, value in entry.top] == pytest.approx(-np.sort(-own)[:4], abs=1e-9)


def fake_logprob(context: list[int], token: int) -> float:
    """Of the fake's logits: 9 for the checksum, 0 for the other 265."""
    own = exact([9.0] + [0.0] * (fakes.VOCAB_SIZE - 1))
    return own[0] if token == fakes.checksum(context) else own[1]


def check_all(out: g.RequestOutput) -> None:
    """Each token has its entry, and the entry is that of the token's own context."""
    assert [entry.token_id for entry in out.logprobs] == out.token_ids
    text = out.prompt_token_ids
    for entry in out.logprobs:
        assert entry.logprob == pytest.approx(fake_logprob(text, entry.token_id), abs=1e-5)
        assert entry.top[0][0] == fakes.checksum(text) and len(entry.top) == 2
        text = [*text, entry.token_id]


SAMPLED = g.SamplingParams(temperature=4, seed=1, max_tokens=9, logprobs=2)


def test_every_sample_of_a_prompt_has_its_own():
    e = fakes.engine()
    outputs = e.generate([PROMPT], g.SamplingParams(4, 4, n=3, seed=1, logprobs=2))
    assert len({tuple(out.token_ids) for out in outputs}) == 3
    for out in outputs:
        check_all(out)


def test_a_fork_carries_its_parents_list_and_leaves_it_alone():
    e = fakes.engine()
    parent = e.add(PROMPT, SAMPLED)
    for _ in range(3):
        e.step()
    child = e.fork(parent)
    outputs = fakes.run(e)
    assert outputs[parent].token_ids != outputs[child].token_ids
    for out in outputs.values():
        assert len(out.logprobs) == 9
        check_all(out)


def test_a_preemption_leaves_them_as_they_are():
    e = fakes.engine(num_blocks=6)
    ids = [e.add([i, *PROMPT], SAMPLED) for i in range(3)]
    outputs = fakes.run(e)
    assert e.stats.preemptions > 0
    for i in ids:
        check_all(outputs[i])


def test_an_output_holds_those_of_its_step_and_an_abort_those_so_far():
    e = fakes.engine()
    request = e.add(PROMPT, SAMPLED)
    (first,) = e.step()
    e.step()
    (last,) = e.abort(request)
    assert (len(first.logprobs), len(last.logprobs)) == (1, 2)
    check_all(first)
    check_all(last)
